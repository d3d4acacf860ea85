// SPDX-License-Identifier: MIT OR Apache-2.0
//! x
pub(super) const EM_CUDA: u16 = 190;
pub(super) const ELF_MAGIC: [u8; 4] = [0x7f, b'E', b'L', b'F'];
