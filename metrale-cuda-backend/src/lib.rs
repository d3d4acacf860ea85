// SPDX-License-Identifier: MIT OR Apache-2.0
//! The CUDA backend of an inference engine, with a ledger that accounts for every byte.
