// SPDX-License-Identifier: MIT OR Apache-2.0
//! x
pub(super) const FATBIN_MAGIC: u32 = 0xba55_ed50;
pub(super) const FATBIN_WRAPPER_MAGIC: u32 = 0x4662_43b1;
