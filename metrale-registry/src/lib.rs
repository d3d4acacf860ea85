// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel modules loaded into the process's context for a GPU: look-up, launch, globals, unload.
