// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KernelLaunch`]: a launch with typed arguments.

use core::ffi::c_void;

use bytemuck::{Pod, bytes_of};
use half::{bf16, f16};
use metrale_driver_sys::CUtensorMap;
use metrale_telemetry::LaunchArg;

use crate::raw_handles::{DevicePtr, KernelHandle};

/// A launch with typed arguments, which it owns until the driver has copied them.
///
/// ```
/// # use std::sync::Arc;
/// # use metrale_cuda_backend::{KernelLaunch, MetraleCudaBackend};
/// # use metrale_driver_sim::{MissingKernel, Profile, SimDriver};
/// static PTX: &[u8] = b".version 6.0
/// .target sm_70
/// .address_size 64
/// .visible .entry scale(.param .u64 data, .param .f32 by, .param .u32 n) { ret; }
/// ";
///
/// # let profile = Profile::h200().with_missing_kernel(MissingKernel::Ignore);
/// # let driver = Arc::new(SimDriver::new(profile));
/// let backend = MetraleCudaBackend::builder().driver(driver).modules(&[("math", PTX)]).build()?;
/// let scale = backend.kernel("math", "scale")?;
/// let data = backend.alloc(4 * 1024)?;
/// let mut launch =
///     KernelLaunch::new(scale).grid([4, 1, 1]).block([256, 1, 1]).ptr(data).f32(0.5).u32(1024);
/// // SAFETY: the kernel takes a pointer, a float and a count, and touches `n` floats at `data`.
/// unsafe { launch.on_stream(&backend, backend.stream())? };
/// backend.synchronize_stream(backend.stream())?;
/// # backend.free(data)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a launch that is not put on a stream does nothing"]
pub struct KernelLaunch {
    pub(crate) kernel: KernelHandle,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) arguments: Vec<Argument>,
    /// What the kernel reaches by other ways than its pointer arguments.
    pub(crate) touched: Vec<u64>,
}

impl KernelLaunch {
    /// A launch of one block of one thread, without shared memory and arguments.
    pub const fn new(kernel: KernelHandle) -> Self {
        Self {
            kernel,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            arguments: Vec::new(),
            touched: Vec::new(),
        }
    }

    /// Blocks in x, y, z.
    pub const fn grid(mut self, grid: [u32; 3]) -> Self {
        self.grid = grid;
        self
    }

    /// Threads of a block in x, y, z.
    pub const fn block(mut self, block: [u32; 3]) -> Self {
        self.block = block;
        self
    }

    /// Dynamic shared memory of a block, in bytes. Above 48 KiB the function is opted in, once.
    pub const fn shared_bytes(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// The next argument: a device address.
    pub fn ptr(self, value: DevicePtr) -> Self {
        self.with(Argument::Ptr(value.0))
    }

    /// The next argument: an unsigned 32-bit number.
    pub fn u32(self, value: u32) -> Self {
        self.with(Argument::U32(value))
    }

    /// The next argument: a signed 32-bit number.
    pub fn i32(self, value: i32) -> Self {
        self.with(Argument::I32(value))
    }

    /// The next argument: a float.
    pub fn f32(self, value: f32) -> Self {
        self.with(Argument::F32(value))
    }

    /// The next argument: an unsigned 64-bit number.
    pub fn u64(self, value: u64) -> Self {
        self.with(Argument::U64(value))
    }

    /// The next argument: a signed 64-bit number.
    pub fn i64(self, value: i64) -> Self {
        self.value(value)
    }

    /// The next argument: a double.
    pub fn f64(self, value: f64) -> Self {
        self.value(value)
    }

    /// The next argument: a half (`__half`).
    pub fn f16(self, value: f16) -> Self {
        self.value(value)
    }

    /// The next argument: a bfloat16 (`__nv_bfloat16`).
    pub fn bf16(self, value: bf16) -> Self {
        self.value(value)
    }

    /// The next argument: any other number, or a `#[repr(C)]` struct, by value. It has the kernel's layout of it, which is
    /// checked by its size alone, and where the module's image tells that.
    pub fn value<T: Pod>(self, value: T) -> Self {
        let bytes = bytes_of(&value);
        let mut small = [0; 8];
        match small.get_mut(..bytes.len()) {
            Some(start) => {
                start.copy_from_slice(bytes);
                self.with(Argument::Small(small, bytes.len() as u8))
            }
            None => self.with(Argument::Large(bytes.into())),
        }
    }

    /// The next argument: a tensor map of 128 bytes, passed by value (`const __grid_constant__ CUtensorMap`).
    pub fn tensor_map(self, map: impl Into<CUtensorMap>) -> Self {
        self.with(Argument::TensorMap(Box::new(map.into())))
    }

    /// Says that the kernel uses the allocation around `ptr` though no pointer argument tells: through a tensor map, an
    /// address passed as a number, or a table in device memory. No argument; a capture pins it as it pins pointers.
    pub fn touches(mut self, ptr: DevicePtr) -> Self {
        self.touched.push(ptr.0);
        self
    }

    fn with(mut self, argument: Argument) -> Self {
        self.arguments.push(argument);
        self
    }

    /// How many arguments there are so far.
    #[must_use]
    pub fn argument_count(&self) -> usize {
        self.arguments.len()
    }
}

/// One argument, kept where the driver can read it.
#[derive(Clone, Debug)]
pub(crate) enum Argument {
    Ptr(u64),
    U32(u32),
    I32(i32),
    F32(f32),
    U64(u64),
    /// Up to eight bytes of another type, and how many.
    Small([u8; 8], u8),
    /// More bytes, passed by value.
    Large(Box<[u8]>),
    /// Boxed: it is 128 bytes and aligned, and the others are 8.
    TensorMap(Box<CUtensorMap>),
}

impl Argument {
    /// Where the value lies. Good until the argument moves.
    pub(crate) fn as_param(&mut self) -> *mut c_void {
        match self {
            Self::Ptr(value) | Self::U64(value) => (&raw mut *value).cast(),
            Self::U32(value) => (&raw mut *value).cast(),
            Self::I32(value) => (&raw mut *value).cast(),
            Self::F32(value) => (&raw mut *value).cast(),
            Self::Small(bytes, _) => bytes.as_mut_ptr().cast(),
            Self::Large(bytes) => bytes.as_mut_ptr().cast(),
            Self::TensorMap(map) => (&raw mut **map).cast(),
        }
    }

    /// The device address it is, where it is one.
    pub(crate) const fn address(&self) -> Option<u64> {
        match self {
            Self::Ptr(value) => Some(*value),
            _ => None,
        }
    }

    /// Its size in bytes.
    pub(crate) const fn bytes(&self) -> u64 {
        match self {
            Self::Ptr(_) | Self::U64(_) => 8,
            Self::U32(_) | Self::I32(_) | Self::F32(_) => 4,
            Self::Small(_, bytes) => *bytes as u64,
            Self::Large(bytes) => bytes.len() as u64,
            Self::TensorMap(_) => 128,
        }
    }

    pub(crate) fn traced(&self) -> LaunchArg {
        match self {
            Self::Ptr(value) => LaunchArg::Pointer(*value),
            Self::U32(value) => LaunchArg::U32(*value),
            Self::I32(value) => LaunchArg::I32(*value),
            Self::F32(value) => LaunchArg::F32(*value),
            Self::U64(value) => LaunchArg::U64(*value),
            Self::Small(bytes, len) => LaunchArg::Bytes(bytes[..usize::from(*len)].into()),
            Self::Large(bytes) => LaunchArg::Bytes((**bytes).into()),
            Self::TensorMap(map) => {
                LaunchArg::Bytes(map.opaque.iter().flat_map(|word| word.to_ne_bytes()).collect())
            }
        }
    }
}
