// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every declaration against an independent set of generated bindings: the same arity, and the same size and alignment
//! of every argument and of what pointers point to, so that a slip of the list cannot ship.

use core::ffi::{c_char, c_uchar, c_void};
use core::mem::{align_of, size_of};

use cudarc::driver::sys as peer;
use metrale_driver_sys::{self as ours, DriverFn};

/// What of an argument reaches the callee: its size, its alignment, and the size behind a pointer.
trait Passed {
    const LAYOUT: Layout;
}

/// Size and alignment of an argument, and the size of what it points to (0 for values and opaque pointees).
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
struct Layout {
    size: usize,
    align: usize,
    pointee: usize,
}

const fn value<T>() -> Layout {
    Layout { size: size_of::<T>(), align: align_of::<T>(), pointee: 0 }
}

const fn pointer<T>() -> Layout {
    // Handles of the peer are pointers to opaque structures: the pointee has no meaning, only the handle's size has.
    Layout { size: size_of::<*mut T>(), align: align_of::<*mut T>(), pointee: size_of::<T>() }
}

macro_rules! values {
    ($($ty:ty),* $(,)?) => { $(impl Passed for $ty { const LAYOUT: Layout = value::<$ty>(); })* };
}
// c_int, c_uint, c_float, u64 (also a C unsigned long long), usize and c_uchar; the peer's enumerations.
values!(i32, u32, f32, u64, usize, c_uchar, peer::CUdevice_attribute_enum, peer::CUpointer_attribute_enum);
values!(peer::CUstreamCaptureMode_enum, peer::CUfunction_attribute_enum, peer::cudaError_enum);
values!(peer::CUtensorMapDataType_enum, peer::CUtensorMapInterleave_enum, peer::CUtensorMapSwizzle_enum);
values!(peer::CUtensorMapL2promotion_enum, peer::CUtensorMapFloatOOBfill_enum);
values!(peer::CUmemPool_attribute_enum, peer::CUmemAllocationGranularity_flags_enum);

macro_rules! pointers {
    ($($ty:ty),* $(,)?) => { $(
        impl Passed for *mut $ty { const LAYOUT: Layout = pointer::<$ty>(); }
        impl Passed for *const $ty { const LAYOUT: Layout = pointer::<$ty>(); }
    )* };
}
pointers!(i32, u32, f32, u64, usize, c_char, c_void, *mut c_void, *const c_char, *const c_void);
pointers!(
    peer::CUuuid_st,
    peer::CUDA_MEMCPY2D_st,
    peer::CUgraphExecUpdateResultInfo_st,
    peer::CUtensorMap_st,
    peer::CUmemPoolProps_st,
    peer::CUmemAllocationProp_st,
    peer::CUmemAccessDesc_st,
    peer::CUmemLocation_st
);
pointers!(ours::CUmemPoolProps, ours::CUmemAllocationProp, ours::CUmemAccessDesc, ours::CUmemLocation);
pointers!(ours::CUuuid, ours::CUDA_MEMCPY2D, ours::CUgraphExecUpdateResultInfo, ours::CUtensorMap);
pointers!(peer::CUjit_option_enum, peer::CUstreamCaptureStatus_enum, peer::CUmemAccess_flags_enum);

macro_rules! handles {
    ($($ty:ty),* $(,)?) => { $(
        impl Passed for *mut $ty { const LAYOUT: Layout = value::<*mut $ty>(); }
        impl Passed for *mut *mut $ty { const LAYOUT: Layout = pointer::<*mut $ty>(); }
    )* };
}
handles!(peer::CUctx_st, peer::CUmod_st, peer::CUfunc_st, peer::CUstream_st, peer::CUevent_st);
handles!(peer::CUgraph_st, peer::CUgraphExec_st, peer::CUgraphNode_st, peer::CUmemPoolHandle_st);

/// The layouts of a function's arguments, its result last.
trait Signature {
    fn layouts(&self) -> Vec<Layout>;
}

macro_rules! signatures {
    ($($arg:ident)*) => {
        impl<R: Passed $(, $arg: Passed)*> Signature for unsafe fn($($arg),*) -> R {
            fn layouts(&self) -> Vec<Layout> { vec![$($arg::LAYOUT,)* R::LAYOUT] }
        }
    };
}
signatures!();
signatures!(A);
signatures!(A B);
signatures!(A B C);
signatures!(A B C D);
signatures!(A B C D E);
signatures!(A B C D E F);
signatures!(A B C D E F G H I J K);
signatures!(A B C D E F G H I J K L);

/// The peer's names that differ from the C names of the list.
#[cfg(metrale_scale)]
#[allow(non_snake_case)]
mod renamed {
    pub(super) use cudarc::driver::sys::cuGraphInstantiateWithFlags as cuGraphInstantiate;
}

macro_rules! compare {
    ($($(#[$meta:meta])* $need:ident $since:literal fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        [$((
            DriverFn::$name,
            vec![$(<$ty as Passed>::LAYOUT,)* <ours::CUresult as Passed>::LAYOUT],
            {
                #[allow(unused_imports)]
                use peer::*;
                #[cfg(metrale_scale)]
                #[allow(unused_imports)]
                use renamed::*;
                Signature::layouts(&($name as unsafe fn($(compare!(@any $ty)),*) -> _))
            },
        )),*]
    };
    (@any $ty:ty) => { _ };
}

#[test]
fn every_function_has_the_arity_and_the_sizes_of_the_generated_bindings() {
    let compared = metrale_driver_sys::for_each_driver_function!(compare);
    assert_eq!(compared.len(), DriverFn::ALL.len());
    for (function, mine, theirs) in compared {
        assert_eq!(mine.len(), theirs.len(), "{function}: arity");
        for (index, (mine, theirs)) in mine.iter().zip(&theirs).enumerate() {
            // Our tensor map keeps the stricter alignment of newer headers; it is only ever passed by pointer.
            assert_eq!(mine, theirs, "{function}: argument {index}");
        }
    }
}

#[test]
fn structures_have_the_layout_of_the_generated_bindings() {
    use core::mem::offset_of;
    macro_rules! same_fields {
        ($ours:ty, $peer:ty: $($field:ident)*) => {
            $(assert_eq!(offset_of!($ours, $field), offset_of!($peer, $field), stringify!($field));)*
            assert_eq!(size_of::<$ours>(), size_of::<$peer>());
        };
    }
    same_fields!(ours::CUDA_MEMCPY2D, peer::CUDA_MEMCPY2D_st: srcXInBytes srcY srcMemoryType srcHost srcDevice srcArray
        srcPitch dstXInBytes dstY dstMemoryType dstHost dstDevice dstArray dstPitch WidthInBytes Height);
    same_fields!(ours::CUgraphExecUpdateResultInfo, peer::CUgraphExecUpdateResultInfo_st: result errorNode errorFromNode);
    same_fields!(ours::CUuuid, peer::CUuuid_st: bytes);
    same_fields!(ours::CUmemLocation, peer::CUmemLocation_st: type_ id);
    same_fields!(ours::CUmemAccessDesc, peer::CUmemAccessDesc_st: location flags);
    same_fields!(ours::CUmemAllocationProp, peer::CUmemAllocationProp_st: type_ requestedHandleTypes location
        win32HandleMetaData allocFlags);
    same_fields!(ours::CUmemAllocationPropFlags, peer::CUmemAllocationProp_st__bindgen_ty_1: compressionType
        gpuDirectRDMACapable usage reserved);
    same_fields!(ours::CUmemPoolProps, peer::CUmemPoolProps_st: allocType handleTypes location win32SecurityAttributes
        maxSize usage reserved);
    assert_eq!(size_of::<ours::CUtensorMap>(), 128);
    assert_eq!(size_of::<peer::CUtensorMap_st>(), 128);
    assert_eq!(align_of::<ours::CUtensorMap>() % align_of::<peer::CUtensorMap_st>(), 0);
}

#[test]
fn numbers_are_those_of_the_generated_bindings() {
    use ours::{attribute, function_attribute, pointer_attribute, tensor_map};
    use peer::CUdevice_attribute_enum as D;
    use peer::CUfunction_attribute_enum as F;
    use peer::CUpointer_attribute_enum as P;

    let device = [
        (attribute::MAX_THREADS_PER_BLOCK, D::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        (attribute::MAX_BLOCK_DIM_X, D::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
        (attribute::MAX_BLOCK_DIM_Z, D::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
        (attribute::MAX_GRID_DIM_X, D::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
        (attribute::MAX_GRID_DIM_Z, D::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
        (attribute::MAX_SHARED_MEMORY_PER_BLOCK, D::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
        (attribute::WARP_SIZE, D::CU_DEVICE_ATTRIBUTE_WARP_SIZE),
        (attribute::MAX_REGISTERS_PER_BLOCK, D::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
        (attribute::MULTIPROCESSOR_COUNT, D::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        (attribute::INTEGRATED, D::CU_DEVICE_ATTRIBUTE_INTEGRATED),
        (attribute::MAX_THREADS_PER_MULTIPROCESSOR, D::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
        (attribute::UNIFIED_ADDRESSING, D::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
        (attribute::COMPUTE_CAPABILITY_MAJOR, D::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        (attribute::COMPUTE_CAPABILITY_MINOR, D::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        (
            attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            D::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        ),
        (attribute::MANAGED_MEMORY, D::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY),
        (attribute::PAGEABLE_MEMORY_ACCESS, D::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS),
        (
            attribute::PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
            D::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
        ),
        (attribute::CONCURRENT_MANAGED_ACCESS, D::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS),
        (
            attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            D::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        ),
        (
            attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
            D::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        ),
        (attribute::HOST_REGISTER_SUPPORTED, D::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED),
        (attribute::MEMORY_POOLS_SUPPORTED, D::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED),
        (
            attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            D::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        ),
    ];
    for (mine, theirs) in device {
        assert_eq!(mine, theirs as u32, "{theirs:?}");
    }
    let function = [
        (function_attribute::MAX_THREADS_PER_BLOCK, F::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        (function_attribute::SHARED_SIZE_BYTES, F::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
        (function_attribute::NUM_REGS, F::CU_FUNC_ATTRIBUTE_NUM_REGS),
        (function_attribute::BINARY_VERSION, F::CU_FUNC_ATTRIBUTE_BINARY_VERSION),
        (
            function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES,
            F::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        ),
    ];
    for (mine, theirs) in function {
        assert_eq!(mine, theirs as u32, "{theirs:?}");
    }
    let pointer = [
        (pointer_attribute::CONTEXT, P::CU_POINTER_ATTRIBUTE_CONTEXT),
        (pointer_attribute::MEMORY_TYPE, P::CU_POINTER_ATTRIBUTE_MEMORY_TYPE),
        (pointer_attribute::DEVICE_POINTER, P::CU_POINTER_ATTRIBUTE_DEVICE_POINTER),
        (pointer_attribute::HOST_POINTER, P::CU_POINTER_ATTRIBUTE_HOST_POINTER),
        (pointer_attribute::IS_MANAGED, P::CU_POINTER_ATTRIBUTE_IS_MANAGED),
        (pointer_attribute::DEVICE_ORDINAL, P::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL),
        (pointer_attribute::RANGE_START_ADDR, P::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR),
        (pointer_attribute::RANGE_SIZE, P::CU_POINTER_ATTRIBUTE_RANGE_SIZE),
        (pointer_attribute::MEMPOOL_HANDLE, P::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE),
    ];
    for (mine, theirs) in pointer {
        assert_eq!(mine, theirs as u32, "{theirs:?}");
    }
    numbers_of_memory();
    assert_eq!(ours::CU_JIT_ERROR_LOG_BUFFER, peer::CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER as u32);
    assert_eq!(
        ours::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        peer::CUjit_option_enum::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as u32
    );
    assert_eq!(ours::CU_JIT_INFO_LOG_BUFFER, peer::CUjit_option_enum::CU_JIT_INFO_LOG_BUFFER as u32);
    assert_eq!(tensor_map::BFLOAT16, peer::CUtensorMapDataType_enum::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 as u32);
    assert_eq!(
        tensor_map::TFLOAT32_FTZ,
        peer::CUtensorMapDataType_enum::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ as u32
    );
    assert_eq!(
        ours::CU_STREAM_CAPTURE_MODE_RELAXED,
        peer::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED as u32
    );
}

/// The numbers of pools and of virtual memory.
fn numbers_of_memory() {
    use ours::pool_attribute;
    use peer::CUmemPool_attribute_enum as A;

    let pool = [
        (pool_attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES, A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES),
        (pool_attribute::REUSE_ALLOW_OPPORTUNISTIC, A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC),
        (
            pool_attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES,
            A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
        ),
        (pool_attribute::RELEASE_THRESHOLD, A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD),
        (pool_attribute::RESERVED_MEM_CURRENT, A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
        (pool_attribute::RESERVED_MEM_HIGH, A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH),
        (pool_attribute::USED_MEM_CURRENT, A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
        (pool_attribute::USED_MEM_HIGH, A::CU_MEMPOOL_ATTR_USED_MEM_HIGH),
    ];
    for (mine, theirs) in pool {
        assert_eq!(mine, theirs as u32, "{theirs:?}");
    }
    let location = peer::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    assert_eq!(ours::CU_MEM_LOCATION_TYPE_DEVICE, location as u32);
    let pinned = peer::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    assert_eq!(ours::CU_MEM_ALLOCATION_TYPE_PINNED, pinned as u32);
    use peer::CUmemAccess_flags_enum as F;
    assert_eq!(ours::CU_MEM_ACCESS_FLAGS_PROT_NONE, F::CU_MEM_ACCESS_FLAGS_PROT_NONE as u32);
    assert_eq!(ours::CU_MEM_ACCESS_FLAGS_PROT_READ, F::CU_MEM_ACCESS_FLAGS_PROT_READ as u32);
    assert_eq!(ours::CU_MEM_ACCESS_FLAGS_PROT_READWRITE, F::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32);
    use peer::CUmemAllocationGranularity_flags_enum as G;
    assert_eq!(ours::CU_MEM_ALLOC_GRANULARITY_MINIMUM, G::CU_MEM_ALLOC_GRANULARITY_MINIMUM as u32);
    assert_eq!(ours::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, G::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED as u32);
    use peer::CUmemAllocationHandleType_enum as H;
    assert_eq!(H(ours::CU_MEM_HANDLE_TYPE_NONE), H::CU_MEM_HANDLE_TYPE_NONE);
    assert_eq!(
        H(ours::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        H::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    );
}

#[test]
fn statuses_are_those_of_the_generated_bindings() {
    use peer::cudaError_enum as E;
    let peers = [
        E::CUDA_SUCCESS,
        E::CUDA_ERROR_INVALID_VALUE,
        E::CUDA_ERROR_OUT_OF_MEMORY,
        E::CUDA_ERROR_NOT_INITIALIZED,
        E::CUDA_ERROR_DEINITIALIZED,
        E::CUDA_ERROR_STUB_LIBRARY,
        E::CUDA_ERROR_NO_DEVICE,
        E::CUDA_ERROR_INVALID_DEVICE,
        E::CUDA_ERROR_INVALID_IMAGE,
        E::CUDA_ERROR_INVALID_CONTEXT,
        E::CUDA_ERROR_NO_BINARY_FOR_GPU,
        E::CUDA_ERROR_ECC_UNCORRECTABLE,
        E::CUDA_ERROR_INVALID_PTX,
        E::CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
        E::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        E::CUDA_ERROR_FILE_NOT_FOUND,
        E::CUDA_ERROR_INVALID_HANDLE,
        E::CUDA_ERROR_ILLEGAL_STATE,
        E::CUDA_ERROR_NOT_FOUND,
        E::CUDA_ERROR_NOT_READY,
        E::CUDA_ERROR_ILLEGAL_ADDRESS,
        E::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        E::CUDA_ERROR_LAUNCH_TIMEOUT,
        E::CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
        E::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        E::CUDA_ERROR_ASSERT,
        E::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        E::CUDA_ERROR_MISALIGNED_ADDRESS,
        E::CUDA_ERROR_LAUNCH_FAILED,
        E::CUDA_ERROR_NOT_SUPPORTED,
        E::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        E::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        E::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        E::CUDA_ERROR_STREAM_CAPTURE_MERGE,
        E::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
        E::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
        E::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        E::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        E::CUDA_ERROR_CAPTURED_EVENT,
        E::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
        E::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
        E::CUDA_ERROR_UNKNOWN,
    ];
    for theirs in peers {
        assert_eq!(ours::status_name(theirs as i32), Some(format!("{theirs:?}").as_str()));
    }
}
