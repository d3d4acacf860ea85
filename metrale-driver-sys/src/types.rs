// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's types with their C names: statuses, handles and the structures passed by pointer.

use core::ffi::{c_int, c_uint, c_void};

/// A driver status; 0 is success. An integer, so that codes of newer drivers stay what they are.
pub type CUresult = c_int;
/// A device, as `cuDeviceGet` numbers them.
pub type CUdevice = c_int;
/// An address in device memory.
pub type CUdeviceptr = u64;
/// A context handle.
pub type CUcontext = u64;
/// A module handle.
pub type CUmodule = u64;
/// A kernel handle.
pub type CUfunction = u64;
/// A stream handle; 0 is the legacy default stream.
pub type CUstream = u64;
/// An event handle.
pub type CUevent = u64;
/// A graph handle.
pub type CUgraph = u64;
/// An instantiated graph's handle.
pub type CUgraphExec = u64;
/// A graph node's handle.
pub type CUgraphNode = u64;
/// An array handle; only ever 0 here, as a field of [`CUDA_MEMCPY2D`].
pub type CUarray = u64;

/// A memory pool's handle.
pub type CUmemoryPool = u64;
/// A handle of device memory that has no address of its own.
pub type CUmemGenericAllocationHandle = u64;

/// A device attribute's number, see [`attribute`](crate::attribute).
pub type CUdevice_attribute = c_uint;
/// A pointer attribute's number.
pub type CUpointer_attribute = c_uint;
/// A function attribute's number.
pub type CUfunction_attribute = c_uint;
/// A compiler option's number.
pub type CUjit_option = c_uint;
/// How strictly a capture guards against unsafe calls.
pub type CUstreamCaptureMode = c_uint;
/// What a stream's capture is doing.
pub type CUstreamCaptureStatus = c_uint;
/// Which kind of memory a 2-D copy reads or writes.
pub type CUmemorytype = c_uint;
/// The element type of a tensor map.
pub type CUtensorMapDataType = c_uint;
/// The interleave layout of a tensor map.
pub type CUtensorMapInterleave = c_uint;
/// The shared-memory swizzle of a tensor map.
pub type CUtensorMapSwizzle = c_uint;
/// The L2 promotion of a tensor map.
pub type CUtensorMapL2promotion = c_uint;
/// What a tensor map reads outside its bounds.
pub type CUtensorMapFloatOOBfill = c_uint;
/// A memory pool attribute's number, see [`pool_attribute`](crate::pool_attribute).
pub type CUmemPool_attribute = c_uint;
/// Which granularity is asked for.
pub type CUmemAllocationGranularity_flags = c_uint;
/// What kind of memory is allocated.
pub type CUmemAllocationType = c_uint;
/// Which handles of the operating system memory can be exported as; the numbers are bits.
pub type CUmemAllocationHandleType = c_uint;
/// What kind of place memory lies in.
pub type CUmemLocationType = c_uint;
/// How memory may be accessed.
pub type CUmemAccess_flags = c_uint;
/// Why an instantiated graph could not be updated.
pub type CUgraphExecUpdateResult = c_uint;

/// A device's identity.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CUuuid {
    /// The bytes in the order in which tools print them.
    pub bytes: [u8; 16],
}

/// A pitched 2-D copy, as `cuMemcpy2DAsync_v2` takes it. Sizes and pitches are bytes, `Height` is rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_snake_case, reason = "fields keep the C spelling")]
pub struct CUDA_MEMCPY2D {
    /// Bytes into the source's row.
    pub srcXInBytes: usize,
    /// Rows into the source.
    pub srcY: usize,
    /// Which of the source fields counts.
    pub srcMemoryType: CUmemorytype,
    /// The source, where it is host memory.
    pub srcHost: *const c_void,
    /// The source, where it is device memory.
    pub srcDevice: CUdeviceptr,
    /// The source, where it is an array.
    pub srcArray: CUarray,
    /// Bytes from one source row to the next.
    pub srcPitch: usize,
    /// Bytes into the destination's row.
    pub dstXInBytes: usize,
    /// Rows into the destination.
    pub dstY: usize,
    /// Which of the destination fields counts.
    pub dstMemoryType: CUmemorytype,
    /// The destination, where it is host memory.
    pub dstHost: *mut c_void,
    /// The destination, where it is device memory.
    pub dstDevice: CUdeviceptr,
    /// The destination, where it is an array.
    pub dstArray: CUarray,
    /// Bytes from one destination row to the next.
    pub dstPitch: usize,
    /// Bytes of each row that are copied.
    pub WidthInBytes: usize,
    /// Rows that are copied.
    pub Height: usize,
}

/// Where memory lies, or the device that accesses it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CUmemLocation {
    /// The kind of place. In C it is `type`.
    pub type_: CUmemLocationType,
    /// Which of its kind: a device's ordinal.
    pub id: c_int,
}

/// The access that one location has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CUmemAccessDesc {
    /// The device that accesses.
    pub location: CUmemLocation,
    /// How.
    pub flags: CUmemAccess_flags,
}

/// What memory is made with.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_snake_case, reason = "fields keep the C spelling")]
pub struct CUmemAllocationProp {
    /// The kind of memory. In C it is `type`.
    pub type_: CUmemAllocationType,
    /// How it can be exported.
    pub requestedHandleTypes: CUmemAllocationHandleType,
    /// Where it lies.
    pub location: CUmemLocation,
    /// Security attributes on Windows, else null.
    pub win32HandleMetaData: *mut c_void,
    /// Further wishes.
    pub allocFlags: CUmemAllocationPropFlags,
}

impl Default for CUmemAllocationProp {
    /// All fields 0, which no driver accepts until type and location are set.
    fn default() -> Self {
        Self {
            type_: 0,
            requestedHandleTypes: 0,
            location: CUmemLocation::default(),
            win32HandleMetaData: core::ptr::null_mut(),
            allocFlags: CUmemAllocationPropFlags::default(),
        }
    }
}

/// The unnamed structure in [`CUmemAllocationProp`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(non_snake_case, reason = "fields keep the C spelling")]
pub struct CUmemAllocationPropFlags {
    /// Whether the memory can be compressed.
    pub compressionType: u8,
    /// Whether other devices of the bus can access the memory directly.
    pub gpuDirectRDMACapable: u8,
    /// What the memory is for.
    pub usage: u16,
    /// Zeros.
    pub reserved: [u8; 4],
}

/// What a memory pool is made with.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_snake_case, reason = "fields keep the C spelling")]
pub struct CUmemPoolProps {
    /// The kind of memory.
    pub allocType: CUmemAllocationType,
    /// How the memory can be exported.
    pub handleTypes: CUmemAllocationHandleType,
    /// Where the memory lies.
    pub location: CUmemLocation,
    /// Security attributes on Windows, else null.
    pub win32SecurityAttributes: *mut c_void,
    /// The most bytes that the pool may hold; 0 for the driver's own limit.
    pub maxSize: usize,
    /// What the memory is for.
    pub usage: u16,
    /// Zeros.
    pub reserved: [u8; 54],
}

impl Default for CUmemPoolProps {
    /// All fields 0, which no driver accepts until type and location are set.
    fn default() -> Self {
        Self {
            allocType: 0,
            handleTypes: 0,
            location: CUmemLocation::default(),
            win32SecurityAttributes: core::ptr::null_mut(),
            maxSize: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

/// What `cuGraphExecUpdate_v2` says of a refusal.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(non_snake_case, reason = "fields keep the C spelling")]
pub struct CUgraphExecUpdateResultInfo {
    /// The kind of difference, 0 for none.
    pub result: CUgraphExecUpdateResult,
    /// The node of the new graph at fault, where one is.
    pub errorNode: CUgraphNode,
    /// The node it depends on, where the edge is at fault.
    pub errorFromNode: CUgraphNode,
}

/// A tensor map: 128 opaque bytes that a kernel takes by value.
///
/// The C type is aligned to 64 bytes; CUDA 13's headers align it to 128, which 64-byte readers accept, so 128 it is.
#[repr(C, align(128))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUtensorMap {
    /// The encoded words.
    pub opaque: [u64; 16],
}
