// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's numbers that are not statuses: flags, attributes, modes. Values are those of the CUDA headers.

use crate::{
    CUjit_option, CUmemAccess_flags, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationType, CUmemLocationType, CUmemorytype, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use core::ffi::c_uint;

/// A stream that waits for the legacy stream and is waited for by it.
pub const CU_STREAM_DEFAULT: c_uint = 0;
/// A stream that has nothing to do with the legacy stream.
pub const CU_STREAM_NON_BLOCKING: c_uint = 1;

/// The legacy stream by its other name, for calls that take 0 for something else.
pub const CU_STREAM_LEGACY: CUstream = 1;
/// The default stream of the calling thread.
pub const CU_STREAM_PER_THREAD: CUstream = 2;

/// An event that keeps time and spins.
pub const CU_EVENT_DEFAULT: c_uint = 0;
/// An event whose synchronization blocks the thread instead of spinning.
pub const CU_EVENT_BLOCKING_SYNC: c_uint = 1;
/// An event that keeps no time.
pub const CU_EVENT_DISABLE_TIMING: c_uint = 2;

/// Managed memory that every stream may touch.
pub const CU_MEM_ATTACH_GLOBAL: c_uint = 1;
/// Managed memory that only the host may touch until it is attached to a stream.
pub const CU_MEM_ATTACH_HOST: c_uint = 2;

/// A capture that forbids unsafe calls on every thread.
pub const CU_STREAM_CAPTURE_MODE_GLOBAL: CUstreamCaptureMode = 0;
/// A capture that forbids unsafe calls on its own thread.
pub const CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: CUstreamCaptureMode = 1;
/// A capture that forbids none.
pub const CU_STREAM_CAPTURE_MODE_RELAXED: CUstreamCaptureMode = 2;

/// The stream is not capturing.
pub const CU_STREAM_CAPTURE_STATUS_NONE: CUstreamCaptureStatus = 0;
/// The stream is capturing.
pub const CU_STREAM_CAPTURE_STATUS_ACTIVE: CUstreamCaptureStatus = 1;
/// The stream's capture is broken and must still be ended.
pub const CU_STREAM_CAPTURE_STATUS_INVALIDATED: CUstreamCaptureStatus = 2;

/// Host memory, in a 2-D copy.
pub const CU_MEMORYTYPE_HOST: CUmemorytype = 1;
/// Device memory, in a 2-D copy.
pub const CU_MEMORYTYPE_DEVICE: CUmemorytype = 2;
/// An array, in a 2-D copy.
pub const CU_MEMORYTYPE_ARRAY: CUmemorytype = 3;
/// Whatever the address says, in a 2-D copy.
pub const CU_MEMORYTYPE_UNIFIED: CUmemorytype = 4;

/// Memory that is resident on its device for as long as it exists.
pub const CU_MEM_ALLOCATION_TYPE_PINNED: CUmemAllocationType = 1;
/// Memory on a device.
pub const CU_MEM_LOCATION_TYPE_DEVICE: CUmemLocationType = 1;
/// Memory that is not exported.
pub const CU_MEM_HANDLE_TYPE_NONE: CUmemAllocationHandleType = 0;
/// Memory that can be exported as a file descriptor.
pub const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: CUmemAllocationHandleType = 1;
/// No access.
pub const CU_MEM_ACCESS_FLAGS_PROT_NONE: CUmemAccess_flags = 0;
/// Reads.
pub const CU_MEM_ACCESS_FLAGS_PROT_READ: CUmemAccess_flags = 1;
/// Reads and writes.
pub const CU_MEM_ACCESS_FLAGS_PROT_READWRITE: CUmemAccess_flags = 3;
/// The smallest granularity.
pub const CU_MEM_ALLOC_GRANULARITY_MINIMUM: CUmemAllocationGranularity_flags = 0;
/// The granularity that is fastest.
pub const CU_MEM_ALLOC_GRANULARITY_RECOMMENDED: CUmemAllocationGranularity_flags = 1;

/// Where the compiler puts its log.
pub const CU_JIT_INFO_LOG_BUFFER: CUjit_option = 3;
/// How large that buffer is, in bytes.
pub const CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: CUjit_option = 4;
/// Where the compiler puts its errors.
pub const CU_JIT_ERROR_LOG_BUFFER: CUjit_option = 5;
/// How large that buffer is, in bytes.
pub const CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: CUjit_option = 6;

/// Device attributes by their names without the `CU_DEVICE_ATTRIBUTE_` prefix.
pub mod attribute {
    use crate::CUdevice_attribute;

    /// Threads a block may have.
    pub const MAX_THREADS_PER_BLOCK: CUdevice_attribute = 1;
    /// Threads a block may have along x.
    pub const MAX_BLOCK_DIM_X: CUdevice_attribute = 2;
    /// Threads a block may have along y.
    pub const MAX_BLOCK_DIM_Y: CUdevice_attribute = 3;
    /// Threads a block may have along z.
    pub const MAX_BLOCK_DIM_Z: CUdevice_attribute = 4;
    /// Blocks a grid may have along x.
    pub const MAX_GRID_DIM_X: CUdevice_attribute = 5;
    /// Blocks a grid may have along y.
    pub const MAX_GRID_DIM_Y: CUdevice_attribute = 6;
    /// Blocks a grid may have along z.
    pub const MAX_GRID_DIM_Z: CUdevice_attribute = 7;
    /// Shared memory a block may use without opting in, in bytes.
    pub const MAX_SHARED_MEMORY_PER_BLOCK: CUdevice_attribute = 8;
    /// Threads of a warp.
    pub const WARP_SIZE: CUdevice_attribute = 10;
    /// Registers a block may use.
    pub const MAX_REGISTERS_PER_BLOCK: CUdevice_attribute = 12;
    /// Streaming multiprocessors.
    pub const MULTIPROCESSOR_COUNT: CUdevice_attribute = 16;
    /// 1 where the device shares the host's memory.
    pub const INTEGRATED: CUdevice_attribute = 18;
    /// Threads a multiprocessor holds at once.
    pub const MAX_THREADS_PER_MULTIPROCESSOR: CUdevice_attribute = 39;
    /// 1 where host and device share one address space.
    pub const UNIFIED_ADDRESSING: CUdevice_attribute = 41;
    /// Major number of the compute capability.
    pub const COMPUTE_CAPABILITY_MAJOR: CUdevice_attribute = 75;
    /// Minor number of the compute capability.
    pub const COMPUTE_CAPABILITY_MINOR: CUdevice_attribute = 76;
    /// Shared memory a multiprocessor has, in bytes.
    pub const MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: CUdevice_attribute = 81;
    /// 1 where managed memory exists.
    pub const MANAGED_MEMORY: CUdevice_attribute = 83;
    /// 1 where the device reaches pageable host memory by its host address.
    pub const PAGEABLE_MEMORY_ACCESS: CUdevice_attribute = 88;
    /// 1 where the device may touch managed memory while the host does.
    pub const CONCURRENT_MANAGED_ACCESS: CUdevice_attribute = 89;
    /// Shared memory a block may use after opting in, in bytes.
    pub const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: CUdevice_attribute = 97;
    /// 1 where pinned host memory has the same address on the device.
    pub const CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: CUdevice_attribute = 91;
    /// 1 where host memory can be registered read-only.
    pub const HOST_REGISTER_SUPPORTED: CUdevice_attribute = 99;
    /// 1 where it does so through the host's own page tables.
    pub const PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES: CUdevice_attribute = 100;
    /// 1 where the virtual memory calls exist (`cuMemCreate` and its kind).
    pub const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: CUdevice_attribute = 102;
    /// 1 where memory pools exist.
    pub const MEMORY_POOLS_SUPPORTED: CUdevice_attribute = 115;
}

/// Pointer attributes by their names without the `CU_POINTER_ATTRIBUTE_` prefix.
pub mod pointer_attribute {
    use crate::CUpointer_attribute;

    /// The context an address belongs to (a handle).
    pub const CONTEXT: CUpointer_attribute = 1;
    /// Host or device memory (a `CUmemorytype`).
    pub const MEMORY_TYPE: CUpointer_attribute = 2;
    /// The address as the device sees it.
    pub const DEVICE_POINTER: CUpointer_attribute = 3;
    /// The address as the host sees it.
    pub const HOST_POINTER: CUpointer_attribute = 4;
    /// 1 for managed memory.
    pub const IS_MANAGED: CUpointer_attribute = 8;
    /// The ordinal of the device that holds the memory.
    pub const DEVICE_ORDINAL: CUpointer_attribute = 9;
    /// The start of the allocation.
    pub const RANGE_START_ADDR: CUpointer_attribute = 11;
    /// The size of the allocation in bytes.
    pub const RANGE_SIZE: CUpointer_attribute = 12;
    /// The pool that an allocation came from (a handle), 0 for none.
    pub const MEMPOOL_HANDLE: CUpointer_attribute = 17;
}

/// Memory pool attributes by their names without the `CU_MEMPOOL_ATTR_` prefix. The first three are a C `int`, the others
/// a `u64` of bytes.
pub mod pool_attribute {
    use crate::CUmemPool_attribute;

    /// 1 where memory freed on one stream may be used on another that waits for it by an event.
    pub const REUSE_FOLLOW_EVENT_DEPENDENCIES: CUmemPool_attribute = 1;
    /// 1 where memory may be used on another stream once its free has been passed.
    pub const REUSE_ALLOW_OPPORTUNISTIC: CUmemPool_attribute = 2;
    /// 1 where the driver may make a stream wait for another one's free.
    pub const REUSE_ALLOW_INTERNAL_DEPENDENCIES: CUmemPool_attribute = 3;
    /// Bytes that the pool may keep, used or not, when a stream is synchronized.
    pub const RELEASE_THRESHOLD: CUmemPool_attribute = 4;
    /// Bytes that the pool holds of its device.
    pub const RESERVED_MEM_CURRENT: CUmemPool_attribute = 5;
    /// The most of these since it was last set to 0.
    pub const RESERVED_MEM_HIGH: CUmemPool_attribute = 6;
    /// Bytes of live allocations, as asked for.
    pub const USED_MEM_CURRENT: CUmemPool_attribute = 7;
    /// The most of these since it was last set to 0.
    pub const USED_MEM_HIGH: CUmemPool_attribute = 8;
}

/// Function attributes by their names without the `CU_FUNC_ATTRIBUTE_` prefix.
pub mod function_attribute {
    use crate::CUfunction_attribute;

    /// Threads a block of this kernel may have.
    pub const MAX_THREADS_PER_BLOCK: CUfunction_attribute = 0;
    /// Static shared memory in bytes.
    pub const SHARED_SIZE_BYTES: CUfunction_attribute = 1;
    /// Constant memory in bytes.
    pub const CONST_SIZE_BYTES: CUfunction_attribute = 2;
    /// Local memory a thread uses, in bytes.
    pub const LOCAL_SIZE_BYTES: CUfunction_attribute = 3;
    /// Registers a thread uses.
    pub const NUM_REGS: CUfunction_attribute = 4;
    /// The PTX version the kernel was compiled for, 10 × major + minor.
    pub const PTX_VERSION: CUfunction_attribute = 5;
    /// The architecture the kernel was compiled for, 10 × major + minor.
    pub const BINARY_VERSION: CUfunction_attribute = 6;
    /// Dynamic shared memory a launch may ask for, in bytes.
    pub const MAX_DYNAMIC_SHARED_SIZE_BYTES: CUfunction_attribute = 8;
}

/// Element types of a tensor map, in the C order from 0.
pub mod tensor_map {
    use super::{
        CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
        CUtensorMapSwizzle,
    };

    /// Unsigned 8-bit.
    pub const UINT8: CUtensorMapDataType = 0;
    /// Unsigned 16-bit.
    pub const UINT16: CUtensorMapDataType = 1;
    /// Unsigned 32-bit.
    pub const UINT32: CUtensorMapDataType = 2;
    /// Signed 32-bit.
    pub const INT32: CUtensorMapDataType = 3;
    /// Unsigned 64-bit.
    pub const UINT64: CUtensorMapDataType = 4;
    /// Signed 64-bit.
    pub const INT64: CUtensorMapDataType = 5;
    /// IEEE half.
    pub const FLOAT16: CUtensorMapDataType = 6;
    /// IEEE single.
    pub const FLOAT32: CUtensorMapDataType = 7;
    /// IEEE double.
    pub const FLOAT64: CUtensorMapDataType = 8;
    /// bfloat16.
    pub const BFLOAT16: CUtensorMapDataType = 9;
    /// Single with subnormals flushed to zero.
    pub const FLOAT32_FTZ: CUtensorMapDataType = 10;
    /// tf32.
    pub const TFLOAT32: CUtensorMapDataType = 11;
    /// tf32 with subnormals flushed to zero.
    pub const TFLOAT32_FTZ: CUtensorMapDataType = 12;
    /// Sixteen 4-bit elements in 8 bytes.
    pub const U4X16_ALIGN8B: CUtensorMapDataType = 13;
    /// Sixteen 4-bit elements in 16 bytes.
    pub const U4X16_ALIGN16B: CUtensorMapDataType = 14;
    /// Sixteen 6-bit elements in 16 bytes.
    pub const U6X16_ALIGN16B: CUtensorMapDataType = 15;

    /// No interleave.
    pub const INTERLEAVE_NONE: CUtensorMapInterleave = 0;
    /// 16-byte interleave.
    pub const INTERLEAVE_16B: CUtensorMapInterleave = 1;
    /// 32-byte interleave.
    pub const INTERLEAVE_32B: CUtensorMapInterleave = 2;

    /// No swizzle.
    pub const SWIZZLE_NONE: CUtensorMapSwizzle = 0;
    /// 32-byte swizzle.
    pub const SWIZZLE_32B: CUtensorMapSwizzle = 1;
    /// 64-byte swizzle.
    pub const SWIZZLE_64B: CUtensorMapSwizzle = 2;
    /// 128-byte swizzle.
    pub const SWIZZLE_128B: CUtensorMapSwizzle = 3;

    /// No promotion.
    pub const L2_PROMOTION_NONE: CUtensorMapL2promotion = 0;
    /// Promotion to 64 bytes.
    pub const L2_PROMOTION_64B: CUtensorMapL2promotion = 1;
    /// Promotion to 128 bytes.
    pub const L2_PROMOTION_128B: CUtensorMapL2promotion = 2;
    /// Promotion to 256 bytes.
    pub const L2_PROMOTION_256B: CUtensorMapL2promotion = 3;

    /// Zeros outside the bounds.
    pub const OOB_FILL_NONE: CUtensorMapFloatOOBfill = 0;
    /// NaNs outside the bounds, which a fused multiply-add takes for zeros.
    pub const OOB_FILL_NAN_REQUEST_ZERO_FMA: CUtensorMapFloatOOBfill = 1;
}
