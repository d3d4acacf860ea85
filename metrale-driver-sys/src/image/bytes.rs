// SPDX-License-Identifier: MIT OR Apache-2.0
//! Little-endian reads that answer `None` past the end, shared by the binary readers.

/// The `N` bytes at `at`.
pub(super) fn array<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The 16-bit number at `at`.
pub(super) fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    array(data, at).map(u16::from_le_bytes)
}

/// The 32-bit number at `at`.
pub(super) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    array(data, at).map(u32::from_le_bytes)
}

/// The 64-bit number at `at`.
pub(super) fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    array(data, at).map(u64::from_le_bytes)
}

/// `bytes` bytes from `at`, both as a file states them.
pub(super) fn range(data: &[u8], at: u64, bytes: u64) -> Option<&[u8]> {
    let start = usize::try_from(at).ok()?;
    let end = usize::try_from(at.checked_add(bytes)?).ok()?;
    data.get(start..end)
}

/// The bytes up to the first NUL, where there is one.
pub(super) fn c_str(data: &[u8]) -> Option<&[u8]> {
    core::ffi::CStr::from_bytes_until_nul(data).ok().map(core::ffi::CStr::to_bytes)
}
