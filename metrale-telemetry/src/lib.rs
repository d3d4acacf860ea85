// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel audit, counters and launch trace of a run, with no driver.
