// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's calls with results instead of result pointers, for tests of both drivers.
#![allow(dead_code, reason = "every test file uses a part of it")]

pub(crate) mod memory;

use std::ffi::{CString, c_void};
use std::sync::Arc;

use metrale_driver_sim::driver_sys::{CUresult, DriverApi, graph_instantiate, stream_capture_status};
use metrale_driver_sim::{Profile, SimDriver};

/// Kernels for both drivers: `nothing`, and `poke`, which writes a word to an address.
pub(crate) const PTX: &str = "\
.version 8.0
.target sm_90
.address_size 64

.visible .global .align 4 .u32 answer = 42;

.visible .entry nothing()
{
    ret;
}

.visible .entry poke(
    .param .u64 poke_at,
    .param .u32 poke_value
)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [poke_at];
    ld.param.u32 %r1, [poke_value];
    st.global.u32 [%rd1], %r1;
    ret;
}
\0";

/// A software H200 that knows the kernels of [`PTX`].
pub(crate) fn sim() -> SimDriver {
    let driver = SimDriver::new(Profile::h200());
    register(&driver);
    driver
}

pub(crate) fn register(driver: &SimDriver) {
    driver.register_kernel("nothing", |_| Ok(()));
    driver.register_kernel("poke", |launch| {
        let (at, value) = (launch.parameter::<u64>(0)?, launch.parameter::<u32>(1)?);
        launch.store(at, value)
    });
}

pub(crate) type Answer<T> = Result<T, CUresult>;

fn answer<T>(status: CUresult, value: T) -> Answer<T> {
    if status == 0 { Ok(value) } else { Err(status) }
}

/// The status of an answer.
pub(crate) fn status<T>(answer: Answer<T>) -> CUresult {
    answer.err().unwrap_or(0)
}

/// Safe calls; host buffers are slices, and those of asynchronous copies live long enough in every test.
#[derive(Clone)]
pub(crate) struct Cuda {
    pub(crate) api: Arc<dyn DriverApi>,
}

macro_rules! calls {
    ($($name:ident => $function:ident($($arg:ident: $ty:ty),*);)*) => {$(
        pub(crate) fn $name(&self, $($arg: $ty),*) -> CUresult {
            // SAFETY: no pointer is passed; the driver checks handles and addresses.
            unsafe { self.api.$function($($arg),*) }
        }
    )*};
}

macro_rules! makers {
    ($($name:ident => $function:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => {$(
        pub(crate) fn $name(&self, $($arg: $ty),*) -> Answer<$out> {
            let mut out = <$out>::default();
            // SAFETY: the result pointer is a local.
            let status = unsafe { self.api.$function(&mut out, $($arg),*) };
            answer(status, out)
        }
    )*};
}

impl Cuda {
    pub(crate) fn new(api: &Arc<dyn DriverApi>) -> Self {
        Self { api: Arc::clone(api) }
    }

    calls! {
        free => cuMemFree_v2(address: u64);
        memset => cuMemsetD8_v2(address: u64, byte: u8, bytes: usize);
        memset_async => cuMemsetD8Async(address: u64, byte: u8, bytes: usize, stream: u64);
        memset_words => cuMemsetD32Async(address: u64, word: u32, words: usize, stream: u64);
        copy_on_device => cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize);
        copy_on_device_async => cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64);
        stream_destroy => cuStreamDestroy_v2(stream: u64);
        stream_sync => cuStreamSynchronize(stream: u64);
        stream_query => cuStreamQuery(stream: u64);
        stream_wait => cuStreamWaitEvent(stream: u64, event: u64, flags: u32);
        capture_begin => cuStreamBeginCapture_v2(stream: u64, mode: u32);
        sync => cuCtxSynchronize();
        set_current => cuCtxSetCurrent(context: u64);
        release => cuDevicePrimaryCtxRelease_v2(device: i32);
        init => cuInit(flags: u32);
        event_record => cuEventRecord(event: u64, stream: u64);
        event_query => cuEventQuery(event: u64);
        event_sync => cuEventSynchronize(event: u64);
        event_destroy => cuEventDestroy_v2(event: u64);
        graph_launch => cuGraphLaunch(exec: u64, stream: u64);
        graph_destroy => cuGraphDestroy(graph: u64);
        exec_destroy => cuGraphExecDestroy(exec: u64);
        unload => cuModuleUnload(module: u64);
        function_set => cuFuncSetAttribute(function: u64, attribute: u32, value: i32);
        free_async => cuMemFreeAsync(address: u64, stream: u64);
        pool_destroy => cuMemPoolDestroy(pool: u64);
        pool_trim => cuMemPoolTrimTo(pool: u64, bytes_to_keep: usize);
        set_pool => cuDeviceSetMemPool(device: i32, pool: u64);
        free_addresses => cuMemAddressFree(start: u64, bytes: usize);
        release_physical => cuMemRelease(handle: u64);
        map => cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
        unmap => cuMemUnmap(address: u64, bytes: usize);
    }

    makers! {
        alloc => cuMemAlloc_v2(bytes: usize) -> u64;
        alloc_managed => cuMemAllocManaged(bytes: usize, flags: u32) -> u64;
        stream => cuStreamCreate(flags: u32) -> u64;
        event => cuEventCreate(flags: u32) -> u64;
        elapsed => cuEventElapsedTime(start: u64, end: u64) -> f32;
        retain => cuDevicePrimaryCtxRetain(device: i32) -> u64;
        current => cuCtxGetCurrent() -> u64;
        device => cuDeviceGet(ordinal: i32) -> i32;
        device_count => cuDeviceGetCount() -> i32;
        context_device => cuCtxGetDevice() -> i32;
        attribute => cuDeviceGetAttribute(attribute: u32, device: i32) -> i32;
        function_get => cuFuncGetAttribute(attribute: u32, function: u64) -> i32;
        alloc_async => cuMemAllocAsync(bytes: usize, stream: u64) -> u64;
        alloc_of_pool => cuMemAllocFromPoolAsync(bytes: usize, pool: u64, stream: u64) -> u64;
        default_pool => cuDeviceGetDefaultMemPool(device: i32) -> u64;
        current_pool => cuDeviceGetMemPool(device: i32) -> u64;
        reserve => cuMemAddressReserve(bytes: usize, alignment: usize, wish: u64, flags: u64) -> u64;
    }

    pub(crate) fn end(&self, stream: u64) -> (CUresult, u64) {
        let mut graph = 0xDEAD;
        // SAFETY: the result pointer is a local.
        let status = unsafe { self.api.cuStreamEndCapture(stream, &mut graph) };
        (status, graph)
    }

    pub(crate) fn capture_state(&self, stream: u64) -> Answer<u32> {
        // SAFETY: streams are the driver's to judge here.
        unsafe { stream_capture_status(&*self.api, stream) }.map_err(|error| error.status)
    }

    pub(crate) fn instantiate(&self, graph: u64) -> Answer<u64> {
        // SAFETY: as above.
        unsafe { graph_instantiate(&*self.api, graph, 0) }.map_err(|error| error.status)
    }

    pub(crate) fn nodes(&self, graph: u64) -> Answer<usize> {
        let mut count = 0;
        // SAFETY: null nodes ask for the number alone; its pointer is a local.
        let status = unsafe { self.api.cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count) };
        answer(status, count)
    }

    pub(crate) fn info(&self) -> Answer<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the result pointers are locals.
        let status = unsafe { self.api.cuMemGetInfo_v2(&mut free, &mut total) };
        answer(status, (free, total))
    }

    pub(crate) fn range(&self, address: u64) -> Answer<(u64, usize)> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: the result pointers are locals.
        let status = unsafe { self.api.cuMemGetAddressRange_v2(&mut base, &mut bytes, address) };
        answer(status, (base, bytes))
    }

    /// An attribute of an address that is a 32-bit number.
    pub(crate) fn pointer_attribute(&self, attribute: u32, address: u64) -> Answer<u32> {
        let mut value = 0u32;
        // SAFETY: the result pointer is a local of the attribute's type.
        let status = unsafe { self.api.cuPointerGetAttribute((&raw mut value).cast(), attribute, address) };
        answer(status, value)
    }

    pub(crate) fn alloc_host(&self, bytes: usize) -> Answer<*mut c_void> {
        let mut pointer = std::ptr::without_provenance_mut(1);
        // SAFETY: the result pointer is a local.
        let status = unsafe { self.api.cuMemAllocHost_v2(&mut pointer, bytes) };
        answer(status, pointer)
    }

    pub(crate) fn free_host(&self, pointer: *mut c_void) -> CUresult {
        // SAFETY: the driver checks what it is given.
        unsafe { self.api.cuMemFreeHost(pointer) }
    }

    pub(crate) fn device_pointer(&self, pointer: *mut c_void) -> Answer<u64> {
        let mut address = 0;
        // SAFETY: the result pointer is a local; the driver checks the other.
        let status = unsafe { self.api.cuMemHostGetDevicePointer_v2(&mut address, pointer, 0) };
        answer(status, address)
    }

    pub(crate) fn upload(&self, to: u64, from: &[u8]) -> CUresult {
        // SAFETY: the slice is readable during the call.
        unsafe { self.api.cuMemcpyHtoD_v2(to, from.as_ptr().cast(), from.len()) }
    }

    pub(crate) fn download(&self, to: &mut [u8], from: u64) -> CUresult {
        // SAFETY: the slice is writable during the call.
        unsafe { self.api.cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, to.len()) }
    }

    /// # Safety
    /// The source stays until the stream's work is done.
    pub(crate) unsafe fn upload_async(
        &self,
        to: u64,
        from: *const u8,
        bytes: usize,
        stream: u64,
    ) -> CUresult {
        // SAFETY: the caller's promise.
        unsafe { self.api.cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream) }
    }

    /// # Safety
    /// The target stays until the stream's work is done.
    pub(crate) unsafe fn download_async(
        &self,
        to: *mut u8,
        from: u64,
        bytes: usize,
        stream: u64,
    ) -> CUresult {
        // SAFETY: the caller's promise.
        unsafe { self.api.cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream) }
    }

    /// The bytes at a device address now, by a blocking copy.
    pub(crate) fn bytes<const N: usize>(&self, from: u64) -> [u8; N] {
        let mut out = [0; N];
        assert_eq!(self.download(&mut out, from), 0);
        out
    }

    /// The image must end in NUL.
    pub(crate) fn load(&self, image: &[u8]) -> Answer<u64> {
        assert_eq!(image.last(), Some(&0));
        let mut module = 0;
        // SAFETY: the result pointer is a local; the image ends in NUL.
        let status = unsafe { self.api.cuModuleLoadData(&mut module, image.as_ptr().cast()) };
        answer(status, module)
    }

    pub(crate) fn function(&self, module: u64, name: &str) -> Answer<u64> {
        let name = CString::new(name).unwrap();
        let mut function = 0;
        // SAFETY: the result pointer is a local, the name a C string.
        let status = unsafe { self.api.cuModuleGetFunction(&mut function, module, name.as_ptr()) };
        answer(status, function)
    }

    pub(crate) fn global(&self, module: u64, name: &str) -> Answer<(u64, usize)> {
        let name = CString::new(name).unwrap();
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the result pointers are locals, the name is a C string.
        let status =
            unsafe { self.api.cuModuleGetGlobal_v2(&mut address, &mut bytes, module, name.as_ptr()) };
        answer(status, (address, bytes))
    }

    /// Launches a kernel without parameters.
    pub(crate) fn launch(
        &self,
        function: u64,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        stream: u64,
    ) -> CUresult {
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        let null = std::ptr::null_mut();
        // SAFETY: the kernel has no parameters.
        unsafe { self.api.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, null, null) }
    }

    /// Launches `nothing` on one thread.
    pub(crate) fn nothing(&self, function: u64, stream: u64) -> CUresult {
        self.launch(function, [1; 3], [1; 3], 0, stream)
    }

    /// Launches `poke` on one thread.
    pub(crate) fn poke(&self, function: u64, at: u64, value: u32, stream: u64) -> CUresult {
        let (mut at, mut value) = (at, value);
        let mut parameters = [(&raw mut at).cast::<c_void>(), (&raw mut value).cast()];
        let (parameters, extra) = (parameters.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: one pointer for each parameter of `poke`, each to a local of its type.
        unsafe { self.api.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, extra) }
    }
}

/// Collects rows that differ, so that one run shows them all.
#[derive(Default)]
pub(crate) struct Table {
    wrong: Vec<String>,
}

impl Table {
    pub(crate) fn row<T: PartialEq + std::fmt::Debug>(&mut self, row: &str, got: T, expected: T) {
        if got != expected {
            self.wrong.push(format!("{row}: {got:?}, expected {expected:?}"));
        }
    }

    pub(crate) fn check(self) {
        assert!(self.wrong.is_empty(), "rows that differ:\n{}", self.wrong.join("\n"));
    }
}

/// Runs a call on another thread with the context current there.
pub(crate) fn on_another_thread<T: Send>(cuda: &Cuda, context: u64, call: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            assert_eq!(cuda.set_current(context), 0);
            call()
        });
        thread.join().unwrap()
    })
}

/// The state of a capture as this build can see it: a build for SCALE cannot ask, and sees 0.
pub(crate) const fn visible(state: u32) -> u32 {
    if metrale_driver_sim::driver_sys::SCALE { 0 } else { state }
}
