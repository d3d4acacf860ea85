// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one list: every driver function, declared once.
//!
//! A line gives the C name with its version suffix, the arguments with their C names and types, whether a driver must
//! have the function (`required`) or may lack it (`optional`), and the CUDA version that brought it. Required is what a
//! program needs to use a device at all: devices and contexts, memory, copies and fills of bytes, streams, events, modules and
//! launches. What only an extra needs is optional (graphs, timing, managed and peer memory, facts), so that another
//! maker's driver with the basics loads. All return
//! [`CUresult`](crate::CUresult). The trait, the table of pointers, the loader, the `extern "C"` block, the names in
//! errors and every adaptor are derived from this list by handing a macro to [`for_each_driver_function!`](crate::for_each_driver_function).
//!
//! The versioned names matter: the unversioned `cuStreamBeginCapture` of the same library ignores the mode, and the
//! unversioned `cuGraphInstantiate` takes five arguments.

/// Calls the macro `$callback` with the list of all driver functions of this build.
///
/// The callback is given lines of the form
///
/// ```text
/// #[doc = "..."]
/// required 2000 fn cuInit(Flags: c_uint);
/// ```
///
/// where the number is the first CUDA version that has the function, as `cuDriverGetVersion` counts (12000 is 12.0).
/// Argument types are written with full paths, so that the callback may stand in any crate.
///
/// ```
/// macro_rules! count {
///     ($($(#[$meta:meta])* $need:ident $since:literal fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
///         [$(stringify!($name)),*].len()
///     };
/// }
/// assert_eq!(metrale_driver_sys::for_each_driver_function!(count), metrale_driver_sys::DriverFn::ALL.len());
/// ```
#[macro_export]
macro_rules! for_each_driver_function {
    ($callback:ident) => {
        $crate::__driver_functions_of_this_build! { $callback
            /// Starts the driver API in this process. Every other call needs it first.
            required 2000 fn cuInit(Flags: ::core::ffi::c_uint);
            /// The highest CUDA version the driver speaks, as 1000 × major + 10 × minor.
            required 2020 fn cuDriverGetVersion(driverVersion: *mut ::core::ffi::c_int);
            /// Counts the devices this process may use.
            required 2000 fn cuDeviceGetCount(count: *mut ::core::ffi::c_int);
            /// The device of an ordinal.
            required 2000 fn cuDeviceGet(device: *mut $crate::CUdevice, ordinal: ::core::ffi::c_int);
            /// The device's name as a C string of at most `len` bytes.
            required 2000 fn cuDeviceGetName(name: *mut ::core::ffi::c_char, len: ::core::ffi::c_int, dev: $crate::CUdevice);
            /// The device's 16-byte identity.
            optional 9020 fn cuDeviceGetUuid(uuid: *mut $crate::CUuuid, dev: $crate::CUdevice);
            /// The device's memory in bytes.
            required 3020 fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: $crate::CUdevice);
            /// One attribute of a device, by the numbers in [`attribute`]($crate::attribute).
            required 2000 fn cuDeviceGetAttribute(pi: *mut ::core::ffi::c_int, attrib: $crate::CUdevice_attribute, dev: $crate::CUdevice);
            /// Retains the device's primary context; the first reference creates it.
            required 7000 fn cuDevicePrimaryCtxRetain(pctx: *mut $crate::CUcontext, dev: $crate::CUdevice);
            /// Releases the device's primary context; the last reference destroys it.
            required 11000 fn cuDevicePrimaryCtxRelease_v2(dev: $crate::CUdevice);
            /// The context current on the calling thread, 0 where none is.
            required 4000 fn cuCtxGetCurrent(pctx: *mut $crate::CUcontext);
            /// Makes a context current on the calling thread.
            required 4000 fn cuCtxSetCurrent(ctx: $crate::CUcontext);
            /// The device of the current context.
            optional 2000 fn cuCtxGetDevice(device: *mut $crate::CUdevice);
            /// Blocks until all work of the current context is done.
            required 2000 fn cuCtxSynchronize();
            /// The name of a status as a static C string.
            optional 6000 fn cuGetErrorName(error: $crate::CUresult, pStr: *mut *const ::core::ffi::c_char);
            /// The text of a status as a static C string.
            optional 6000 fn cuGetErrorString(error: $crate::CUresult, pStr: *mut *const ::core::ffi::c_char);
            /// Allocates device memory, in bytes.
            required 3020 fn cuMemAlloc_v2(dptr: *mut $crate::CUdeviceptr, bytesize: usize);
            /// Frees device memory by the address that the allocation returned.
            required 3020 fn cuMemFree_v2(dptr: $crate::CUdeviceptr);
            /// Allocates memory that host and device both reach, migrated on demand.
            optional 6000 fn cuMemAllocManaged(dptr: *mut $crate::CUdeviceptr, bytesize: usize, flags: ::core::ffi::c_uint);
            /// Allocates pinned host memory, in bytes.
            required 3020 fn cuMemAllocHost_v2(pp: *mut *mut ::core::ffi::c_void, bytesize: usize);
            /// Frees pinned host memory.
            required 2000 fn cuMemFreeHost(p: *mut ::core::ffi::c_void);
            /// The device's address of pinned host memory.
            optional 3020 fn cuMemHostGetDevicePointer_v2(pdptr: *mut $crate::CUdeviceptr, p: *mut ::core::ffi::c_void, Flags: ::core::ffi::c_uint);
            /// Allocates from the current pool of the stream's device, in stream order; 0 bytes give address 0.
            optional 11020 fn cuMemAllocAsync(dptr: *mut $crate::CUdeviceptr, bytesize: usize, hStream: $crate::CUstream);
            /// Allocates from a pool, in stream order; 0 bytes give address 0.
            optional 11020 fn cuMemAllocFromPoolAsync(dptr: *mut $crate::CUdeviceptr, bytesize: usize, pool: $crate::CUmemoryPool, hStream: $crate::CUstream);
            /// Frees device memory in stream order: it may be used again by what the stream does later.
            optional 11020 fn cuMemFreeAsync(dptr: $crate::CUdeviceptr, hStream: $crate::CUstream);
            /// The pool that a device has from the start.
            optional 11020 fn cuDeviceGetDefaultMemPool(pool_out: *mut $crate::CUmemoryPool, dev: $crate::CUdevice);
            /// The pool that `cuMemAllocAsync` allocates from on a device.
            optional 11020 fn cuDeviceGetMemPool(pool: *mut $crate::CUmemoryPool, dev: $crate::CUdevice);
            /// Sets the pool that `cuMemAllocAsync` allocates from on a device.
            optional 11020 fn cuDeviceSetMemPool(dev: $crate::CUdevice, pool: $crate::CUmemoryPool);
            /// Makes a pool.
            optional 11020 fn cuMemPoolCreate(pool: *mut $crate::CUmemoryPool, poolProps: *const $crate::CUmemPoolProps);
            /// Destroys a pool once its last allocation is freed; returns at once.
            optional 11020 fn cuMemPoolDestroy(pool: $crate::CUmemoryPool);
            /// One attribute of a pool, by the numbers in [`pool_attribute`]($crate::pool_attribute), which also says its type.
            optional 11020 fn cuMemPoolGetAttribute(pool: $crate::CUmemoryPool, attr: $crate::CUmemPool_attribute, value: *mut ::core::ffi::c_void);
            /// Sets an attribute of a pool.
            optional 11020 fn cuMemPoolSetAttribute(pool: $crate::CUmemoryPool, attr: $crate::CUmemPool_attribute, value: *mut ::core::ffi::c_void);
            /// Returns unused memory of a pool to the device until the pool holds no more than `minBytesToKeep` bytes.
            optional 11020 fn cuMemPoolTrimTo(pool: $crate::CUmemoryPool, minBytesToKeep: usize);
            /// Sets which devices may access a pool's memory.
            optional 11020 fn cuMemPoolSetAccess(pool: $crate::CUmemoryPool, map: *const $crate::CUmemAccessDesc, count: usize);
            /// The access that a device has to a pool's memory.
            optional 11020 fn cuMemPoolGetAccess(flags: *mut $crate::CUmemAccess_flags, memPool: $crate::CUmemoryPool, location: *mut $crate::CUmemLocation);
            /// The granularity in bytes of sizes and addresses in the virtual memory calls.
            optional 10020 fn cuMemGetAllocationGranularity(granularity: *mut usize, prop: *const $crate::CUmemAllocationProp, option: $crate::CUmemAllocationGranularity_flags);
            /// Reserves a range of addresses, which has no memory yet.
            optional 10020 fn cuMemAddressReserve(ptr: *mut $crate::CUdeviceptr, size: usize, alignment: usize, addr: $crate::CUdeviceptr, flags: u64);
            /// Frees a reserved range of addresses that has no mapping.
            optional 10020 fn cuMemAddressFree(ptr: $crate::CUdeviceptr, size: usize);
            /// Allocates device memory that has no address yet.
            optional 10020 fn cuMemCreate(handle: *mut $crate::CUmemGenericAllocationHandle, size: usize, prop: *const $crate::CUmemAllocationProp, flags: u64);
            /// Releases memory made by `cuMemCreate`; the device has it back when its last mapping is removed too.
            optional 10020 fn cuMemRelease(handle: $crate::CUmemGenericAllocationHandle);
            /// Maps memory to reserved addresses, which then need access before they can be used.
            optional 10020 fn cuMemMap(ptr: $crate::CUdeviceptr, size: usize, offset: usize, handle: $crate::CUmemGenericAllocationHandle, flags: u64);
            /// Removes mappings; the addresses stay reserved.
            optional 10020 fn cuMemUnmap(ptr: $crate::CUdeviceptr, size: usize);
            /// Sets which devices may access mapped addresses.
            optional 10020 fn cuMemSetAccess(ptr: $crate::CUdeviceptr, size: usize, desc: *const $crate::CUmemAccessDesc, count: usize);
            /// The access that a device has to a mapped address.
            optional 10020 fn cuMemGetAccess(flags: *mut u64, location: *const $crate::CUmemLocation, ptr: $crate::CUdeviceptr);
            /// The handle of the memory that is mapped at an address; it must be released once more.
            optional 11000 fn cuMemRetainAllocationHandle(handle: *mut $crate::CUmemGenericAllocationHandle, addr: *mut ::core::ffi::c_void);
            /// What memory was made with.
            optional 10020 fn cuMemGetAllocationPropertiesFromHandle(prop: *mut $crate::CUmemAllocationProp, handle: $crate::CUmemGenericAllocationHandle);
            /// Free and total bytes of the current context's device.
            required 3020 fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
            /// Base address and size in bytes of the allocation around an address. Either result pointer may be null.
            optional 3020 fn cuMemGetAddressRange_v2(pbase: *mut $crate::CUdeviceptr, psize: *mut usize, dptr: $crate::CUdeviceptr);
            /// One attribute of an address; the type of `data` depends on the attribute.
            optional 4000 fn cuPointerGetAttribute(data: *mut ::core::ffi::c_void, attribute: $crate::CUpointer_attribute, ptr: $crate::CUdeviceptr);
            /// Copies host to device; the source may be changed once the call returns.
            required 3020 fn cuMemcpyHtoD_v2(dstDevice: $crate::CUdeviceptr, srcHost: *const ::core::ffi::c_void, ByteCount: usize);
            /// Copies device to host; the data is there when the call returns.
            required 3020 fn cuMemcpyDtoH_v2(dstHost: *mut ::core::ffi::c_void, srcDevice: $crate::CUdeviceptr, ByteCount: usize);
            /// Copies device to device on the legacy stream; may return before it is done.
            required 3020 fn cuMemcpyDtoD_v2(dstDevice: $crate::CUdeviceptr, srcDevice: $crate::CUdeviceptr, ByteCount: usize);
            /// Copies host to device in stream order.
            required 3020 fn cuMemcpyHtoDAsync_v2(dstDevice: $crate::CUdeviceptr, srcHost: *const ::core::ffi::c_void, ByteCount: usize, hStream: $crate::CUstream);
            /// Copies device to host in stream order.
            required 3020 fn cuMemcpyDtoHAsync_v2(dstHost: *mut ::core::ffi::c_void, srcDevice: $crate::CUdeviceptr, ByteCount: usize, hStream: $crate::CUstream);
            /// Copies device to device in stream order.
            required 3020 fn cuMemcpyDtoDAsync_v2(dstDevice: $crate::CUdeviceptr, srcDevice: $crate::CUdeviceptr, ByteCount: usize, hStream: $crate::CUstream);
            /// Copies a pitched rectangle in stream order.
            optional 3020 fn cuMemcpy2DAsync_v2(pCopy: *const $crate::CUDA_MEMCPY2D, hStream: $crate::CUstream);
            /// Copies between two contexts in stream order.
            optional 4000 fn cuMemcpyPeerAsync(dstDevice: $crate::CUdeviceptr, dstContext: $crate::CUcontext, srcDevice: $crate::CUdeviceptr, srcContext: $crate::CUcontext, ByteCount: usize, hStream: $crate::CUstream);
            /// Fills `N` bytes on the legacy stream.
            required 3020 fn cuMemsetD8_v2(dstDevice: $crate::CUdeviceptr, uc: ::core::ffi::c_uchar, N: usize);
            /// Fills `N` bytes in stream order.
            required 3020 fn cuMemsetD8Async(dstDevice: $crate::CUdeviceptr, uc: ::core::ffi::c_uchar, N: usize, hStream: $crate::CUstream);
            /// Fills `N` 32-bit words in stream order.
            optional 3020 fn cuMemsetD32Async(dstDevice: $crate::CUdeviceptr, ui: ::core::ffi::c_uint, N: usize, hStream: $crate::CUstream);
            /// Makes a stream.
            required 2000 fn cuStreamCreate(phStream: *mut $crate::CUstream, Flags: ::core::ffi::c_uint);
            /// Destroys a stream once its work is done; returns at once.
            required 4000 fn cuStreamDestroy_v2(hStream: $crate::CUstream);
            /// Blocks until the stream's work is done.
            required 2000 fn cuStreamSynchronize(hStream: $crate::CUstream);
            /// Asks, without blocking, whether the stream's work is done.
            required 2000 fn cuStreamQuery(hStream: $crate::CUstream);
            /// Makes later work of a stream wait for an event.
            required 3020 fn cuStreamWaitEvent(hStream: $crate::CUstream, hEvent: $crate::CUevent, Flags: ::core::ffi::c_uint);
            /// Begins to capture a stream's work into a graph.
            optional 10010 fn cuStreamBeginCapture_v2(hStream: $crate::CUstream, mode: $crate::CUstreamCaptureMode);
            /// Ends a capture and hands out its graph.
            optional 10000 fn cuStreamEndCapture(hStream: $crate::CUstream, phGraph: *mut $crate::CUgraph);
            /// Makes an event.
            required 2000 fn cuEventCreate(phEvent: *mut $crate::CUevent, Flags: ::core::ffi::c_uint);
            /// Records an event after the stream's present work.
            required 2000 fn cuEventRecord(hEvent: $crate::CUevent, hStream: $crate::CUstream);
            /// Asks, without blocking, whether an event has passed.
            required 2000 fn cuEventQuery(hEvent: $crate::CUevent);
            /// Blocks until an event has passed.
            required 2000 fn cuEventSynchronize(hEvent: $crate::CUevent);
            /// Milliseconds between two recorded events that keep time.
            optional 2000 fn cuEventElapsedTime(pMilliseconds: *mut ::core::ffi::c_float, hStart: $crate::CUevent, hEnd: $crate::CUevent);
            /// Destroys an event.
            required 4000 fn cuEventDestroy_v2(hEvent: $crate::CUevent);
            /// Launches an instantiated graph on a stream.
            optional 10000 fn cuGraphLaunch(hGraphExec: $crate::CUgraphExec, hStream: $crate::CUstream);
            /// Brings an instantiated graph up to date with a graph of the same topology.
            optional 12000 fn cuGraphExecUpdate_v2(hGraphExec: $crate::CUgraphExec, hGraph: $crate::CUgraph, resultInfo: *mut $crate::CUgraphExecUpdateResultInfo);
            /// Destroys an instantiated graph.
            optional 10000 fn cuGraphExecDestroy(hGraphExec: $crate::CUgraphExec);
            /// Destroys a graph.
            optional 10000 fn cuGraphDestroy(hGraph: $crate::CUgraph);
            /// The nodes of a graph; with null `nodes`, only their number.
            optional 10000 fn cuGraphGetNodes(hGraph: $crate::CUgraph, nodes: *mut $crate::CUgraphNode, numNodes: *mut usize);
            /// Loads a module from PTX text, a cubin or a fatbin.
            optional 2000 fn cuModuleLoadData(module: *mut $crate::CUmodule, image: *const ::core::ffi::c_void);
            /// The same, with options for the compiler, the error log among them.
            required 2010 fn cuModuleLoadDataEx(module: *mut $crate::CUmodule, image: *const ::core::ffi::c_void, numOptions: ::core::ffi::c_uint, options: *mut $crate::CUjit_option, optionValues: *mut *mut ::core::ffi::c_void);
            /// Unloads a module.
            required 2000 fn cuModuleUnload(hmod: $crate::CUmodule);
            /// The function of a module by its exact name.
            required 2000 fn cuModuleGetFunction(hfunc: *mut $crate::CUfunction, hmod: $crate::CUmodule, name: *const ::core::ffi::c_char);
            /// Address and size in bytes of a module's global. Either result pointer may be null.
            optional 3020 fn cuModuleGetGlobal_v2(dptr: *mut $crate::CUdeviceptr, bytes: *mut usize, hmod: $crate::CUmodule, name: *const ::core::ffi::c_char);
            /// Sets an attribute of a function.
            optional 9000 fn cuFuncSetAttribute(hfunc: $crate::CUfunction, attrib: $crate::CUfunction_attribute, value: ::core::ffi::c_int);
            /// Reads an attribute of a function.
            optional 2020 fn cuFuncGetAttribute(pi: *mut ::core::ffi::c_int, attrib: $crate::CUfunction_attribute, hfunc: $crate::CUfunction);
            /// Launches a kernel in stream order.
            required 4000 fn cuLaunchKernel(f: $crate::CUfunction, gridDimX: ::core::ffi::c_uint, gridDimY: ::core::ffi::c_uint, gridDimZ: ::core::ffi::c_uint, blockDimX: ::core::ffi::c_uint, blockDimY: ::core::ffi::c_uint, blockDimZ: ::core::ffi::c_uint, sharedMemBytes: ::core::ffi::c_uint, hStream: $crate::CUstream, kernelParams: *mut *mut ::core::ffi::c_void, extra: *mut *mut ::core::ffi::c_void);
            /// Encodes a tiled tensor map into 128 bytes of host memory.
            optional 12000 fn cuTensorMapEncodeTiled(tensorMap: *mut $crate::CUtensorMap, tensorDataType: $crate::CUtensorMapDataType, tensorRank: u32, globalAddress: *mut ::core::ffi::c_void, globalDim: *const u64, globalStrides: *const u64, boxDim: *const u32, elementStrides: *const u32, interleave: $crate::CUtensorMapInterleave, swizzle: $crate::CUtensorMapSwizzle, l2Promotion: $crate::CUtensorMapL2promotion, oobFill: $crate::CUtensorMapFloatOOBfill);
        }
    };
}

/// The lines in which a CUDA driver differs from SCALE's, appended to the common ones.
#[cfg(not(metrale_scale))]
#[doc(hidden)]
#[macro_export]
macro_rules! __driver_functions_of_this_build {
    ($callback:ident $($common:tt)*) => {
        $callback! {
            $($common)*
            /// The capture state of a stream: 0 none, 1 active, 2 invalidated.
            optional 10000 fn cuStreamIsCapturing(hStream: $crate::CUstream, captureStatus: *mut $crate::CUstreamCaptureStatus);
            /// Makes a graph ready to launch.
            optional 11040 fn cuGraphInstantiateWithFlags(phGraphExec: *mut $crate::CUgraphExec, hGraph: $crate::CUgraph, flags: u64);
        }
    };
}

/// The lines in which SCALE's driver differs from a CUDA one, appended to the common ones.
#[cfg(metrale_scale)]
#[doc(hidden)]
#[macro_export]
macro_rules! __driver_functions_of_this_build {
    ($callback:ident $($common:tt)*) => {
        $callback! {
            $($common)*
            /// Makes a graph ready to launch.
            optional 10000 fn cuGraphInstantiate(phGraphExec: *mut $crate::CUgraphExec, hGraph: $crate::CUgraph, flags: u64);
        }
    };
}
