// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CUDA driver API, declared once: run-time table, object-safe trait, names and types.
