// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw arguments: result pointers, C strings and host ranges, refused where they cannot be real.

use core::ffi::{CStr, c_char};

use metrale_driver_sys::{CUDA_ERROR_INVALID_VALUE, CUresult};

use crate::model::host;

/// A caller's place for one result, checked before the work is done and written after it.
pub(super) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// 1 (invalid value) for null and for numbers that are no host address.
    ///
    /// # Safety
    /// A pointer that passes is valid for one write of `T` as long as the call lasts; it need not be aligned.
    pub(super) unsafe fn new(pointer: *mut T) -> Result<Self, CUresult> {
        // SAFETY: the caller's promise, for a pointer that may be null.
        unsafe { Self::optional(pointer) }?.ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// The same where null means that the result is not wanted.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    pub(super) unsafe fn optional(pointer: *mut T) -> Result<Option<Self>, CUresult> {
        if pointer.is_null() {
            return Ok(None);
        }
        if !host::plausible(pointer.addr(), size_of::<T>()) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(Some(Self(pointer)))
    }

    pub(super) fn put(self, value: T) {
        // SAFETY: promised when this was made; it lives no longer than the call.
        unsafe { self.0.write_unaligned(value) }
    }
}

/// Checks a pointer that values are read from: null and numbers that are no host address are answered 1.
pub(super) fn readable<T>(pointer: *const T, count: usize) -> Result<*const T, CUresult> {
    let bytes = count.checked_mul(size_of::<T>()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if host::plausible(pointer.addr(), bytes) { Ok(pointer) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// Reads one value.
///
/// # Safety
/// A pointer that is neither null nor one of this driver's own numbers is valid for reading one `T`.
pub(super) unsafe fn get<T: Copy>(pointer: *const T) -> Result<T, CUresult> {
    let pointer = readable(pointer, 1)?;
    // SAFETY: the caller's promise; alignment is not needed.
    Ok(unsafe { pointer.read_unaligned() })
}

/// The bytes of a C string without its NUL.
///
/// # Safety
/// A pointer that is neither null nor one of this driver's own numbers is a C string that outlives the call.
pub(super) unsafe fn name<'a>(pointer: *const c_char) -> Result<&'a [u8], CUresult> {
    let pointer = readable(pointer, 1)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}
