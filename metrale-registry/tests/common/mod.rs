// SPDX-License-Identifier: MIT OR Apache-2.0
//! Images and small helpers that several test files share.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::ffi::c_void;
use std::sync::Arc;

use metrale_driver_sys::{CUdeviceptr, CUstream, DriverApi};

/// One kernel that stores a value, one that does nothing, and two globals. No NUL at the end.
pub(crate) const STORE: &[u8] = b".version 6.0
.target sm_70
.address_size 64

.visible .global .align 4 .u32 steps = 7;
.visible .global .align 8 .b8 table[24];

.visible .entry store(.param .u64 out, .param .u32 value)
{
\t.reg .b32 %r<2>;
\t.reg .b64 %rd<3>;
\tld.param.u64 %rd1, [out];
\tcvta.to.global.u64 %rd2, %rd1;
\tld.param.u32 %r1, [value];
\tst.global.u32 [%rd2], %r1;
\tret;
}

.visible .entry idle()
{
\tret;
}
";

/// Kernels compiled from scale.cu.
pub(crate) const SCALE: &[u8] = include_bytes!("../data/scale.ptx");

/// Bytes that live as long as the process, as modules want them.
pub(crate) fn leak(bytes: Vec<u8>) -> &'static [u8] {
    Box::leak(bytes.into_boxed_slice())
}

/// A driver call that must succeed.
pub(crate) fn ok(status: i32) {
    assert_eq!(status, 0);
}

/// Device memory that is freed at the end of a test's scope; the context is current on the thread.
pub(crate) struct Memory {
    driver: Arc<dyn DriverApi>,
    pub(crate) address: CUdeviceptr,
}

impl Memory {
    pub(crate) fn of(driver: &Arc<dyn DriverApi>, bytes: usize) -> Self {
        let mut address = 0;
        // SAFETY: the result pointer is a local.
        ok(unsafe { driver.cuMemAlloc_v2(&mut address, bytes) });
        Self { driver: Arc::clone(driver), address }
    }

    pub(crate) fn holding(driver: &Arc<dyn DriverApi>, values: &[u32]) -> Self {
        let memory = Self::of(driver, size_of_val(values));
        // SAFETY: the source is a slice of that many bytes, and the call returns when it may change again.
        ok(unsafe { driver.cuMemcpyHtoD_v2(memory.address, values.as_ptr().cast(), size_of_val(values)) });
        memory
    }

    pub(crate) fn read(&self, count: usize) -> Vec<u32> {
        read(&self.driver, self.address, count)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the address is this value's own. A status is of no interest after a test.
        let _ = unsafe { self.driver.cuMemFree_v2(self.address) };
    }
}

/// Words of device memory.
pub(crate) fn read(driver: &Arc<dyn DriverApi>, address: CUdeviceptr, count: usize) -> Vec<u32> {
    let mut values = vec![0_u32; count];
    // SAFETY: the destination is a vector of that many bytes.
    ok(unsafe { driver.cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), address, count * 4) });
    values
}

pub(crate) fn synchronize(driver: &Arc<dyn DriverApi>, stream: CUstream) {
    // SAFETY: no memory is passed.
    ok(unsafe { driver.cuStreamSynchronize(stream) });
}

/// The address of a kernel parameter.
pub(crate) fn param<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}
