// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels as Rust functions: what is registered, and what a function is given when it runs.

use core::fmt;
use core::ops::Range;
use std::collections::HashMap;
use std::sync::Arc;

use metrale_driver_sys::{
    CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_MISALIGNED_ADDRESS, CUresult,
};

use super::memory::{Access, Memory, Stray};

/// Why a kernel failed. The context is lost with it, as on hardware: the status comes back from every later call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelFault {
    /// Bytes that belong to no allocation were touched: status 700.
    IllegalAddress {
        /// The first byte of the access.
        address: u64,
        /// Its length in bytes.
        bytes: u64,
    },
    /// An address was not a multiple of what its type needs: status 716.
    Misaligned {
        /// The address.
        address: u64,
        /// What it should be a multiple of, in bytes.
        align_bytes: u64,
    },
    /// The function asked for a parameter the kernel does not have, or for another size: status 719.
    Parameter {
        /// Which parameter, from 0.
        index: usize,
        /// Bytes the function wanted.
        wanted_bytes: usize,
        /// Bytes the kernel's declaration gives it; `None` where there is no such parameter.
        declared_bytes: Option<usize>,
    },
    /// The function panicked: status 719.
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// Any status of the function's choice: a trap, an assertion, a time-out.
    Status {
        /// The status.
        status: CUresult,
    },
}

impl KernelFault {
    /// The status that every later call answers.
    #[must_use]
    pub fn status(&self) -> CUresult {
        match self {
            Self::IllegalAddress { .. } => CUDA_ERROR_ILLEGAL_ADDRESS,
            Self::Misaligned { .. } => CUDA_ERROR_MISALIGNED_ADDRESS,
            Self::Parameter { .. } | Self::Panicked { .. } => CUDA_ERROR_LAUNCH_FAILED,
            Self::Status { status } => *status,
        }
    }
}

impl From<Stray> for KernelFault {
    fn from(stray: Stray) -> Self {
        Self::IllegalAddress { address: stray.address, bytes: stray.bytes }
    }
}

impl fmt::Display for KernelFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IllegalAddress { address, bytes } => {
                write!(f, "touched {bytes} bytes at {address:#x}, which lie in no live allocation")
            }
            Self::Misaligned { address, align_bytes } => {
                write!(f, "touched {address:#x}, which is no multiple of {align_bytes}")
            }
            Self::Parameter { index, wanted_bytes, declared_bytes: Some(declared) } => write!(
                f,
                "its function reads {wanted_bytes} bytes as parameter {index}, which is declared with {declared}"
            ),
            Self::Parameter { index, declared_bytes: None, .. } => {
                write!(f, "its function reads parameter {index}, which the kernel does not have")
            }
            Self::Panicked { message } => write!(f, "its function panicked: {message}"),
            Self::Status { status } => write!(f, "ended with status {status}"),
        }
    }
}

impl core::error::Error for KernelFault {}

mod sealed {
    pub trait Sealed {}
}

/// A plain value that a kernel takes as parameter or finds in device memory: integers, floats, arrays of bytes.
pub trait DeviceValue: sealed::Sealed + Copy {
    /// Its size in bytes.
    const BYTES: usize;
    /// What an address of it must be a multiple of, in bytes.
    const ALIGN_BYTES: u64;
    /// From little-endian bytes, as many as [`BYTES`](Self::BYTES).
    fn from_device_bytes(bytes: &[u8]) -> Self;
    /// Appends its little-endian bytes.
    fn extend_device_bytes(self, out: &mut Vec<u8>);
}

macro_rules! device_values {
    ($($name:ident)*) => {$(
        impl sealed::Sealed for $name {}
        impl DeviceValue for $name {
            const BYTES: usize = size_of::<$name>();
            const ALIGN_BYTES: u64 = size_of::<$name>() as u64;
            fn from_device_bytes(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$name>()];
                own.copy_from_slice(bytes);
                $name::from_le_bytes(own)
            }
            fn extend_device_bytes(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

device_values!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

impl<const N: usize> sealed::Sealed for [u8; N] {}
impl<const N: usize> DeviceValue for [u8; N] {
    const BYTES: usize = N;
    const ALIGN_BYTES: u64 = 1;
    fn from_device_bytes(bytes: &[u8]) -> Self {
        let mut own = [0; N];
        own.copy_from_slice(bytes);
        own
    }
    fn extend_device_bytes(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self);
    }
}

/// The parameters of one launch, copied when it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) buffer: Vec<u8>,
    pub(crate) ranges: Vec<Range<usize>>,
}

/// The configuration of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
}

/// One launch, as a kernel's Rust function sees it. The function runs once for the whole grid.
///
/// It must not call the driver it runs in; such a call answers 800 (not permitted).
pub struct KernelLaunch<'a> {
    entry: &'a str,
    config: LaunchConfig,
    parameters: &'a Parameters,
    memory: &'a mut Memory,
    access: Access,
    fault: Option<KernelFault>,
}

impl<'a> KernelLaunch<'a> {
    pub(crate) fn new(
        entry: &'a str,
        config: LaunchConfig,
        parameters: &'a Parameters,
        memory: &'a mut Memory,
        access: Access,
    ) -> Self {
        Self { entry, config, parameters, memory, access, fault: None }
    }

    /// The first fault, whether the function passed it on or not.
    pub(crate) fn into_fault(self) -> Option<KernelFault> {
        self.fault
    }

    /// The entry's name.
    #[must_use]
    pub fn entry(&self) -> &str {
        self.entry
    }

    /// Blocks along x, y and z.
    #[must_use]
    pub fn grid(&self) -> [u32; 3] {
        self.config.grid
    }

    /// Threads of a block along x, y and z.
    #[must_use]
    pub fn block(&self) -> [u32; 3] {
        self.config.block
    }

    /// Threads of the whole grid.
    #[must_use]
    pub fn threads(&self) -> u64 {
        self.config.grid.iter().chain(&self.config.block).fold(1, |all, &n| all.saturating_mul(n.into()))
    }

    /// Dynamic shared memory of a block, in bytes.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        self.config.shared_bytes
    }

    /// How many parameters the kernel declares.
    #[must_use]
    pub fn parameter_count(&self) -> usize {
        self.parameters.ranges.len()
    }

    /// The bytes of a parameter.
    ///
    /// # Errors
    /// [`KernelFault::Parameter`] where the kernel has none of that index.
    pub fn parameter_bytes(&mut self, index: usize) -> Result<&'a [u8], KernelFault> {
        match self.parameters.ranges.get(index) {
            Some(range) => Ok(&self.parameters.buffer[range.clone()]),
            None => Err(self.note(KernelFault::Parameter { index, wanted_bytes: 0, declared_bytes: None })),
        }
    }

    /// A parameter as a value: pointers as `u64`, structures as arrays of bytes.
    ///
    /// # Errors
    /// [`KernelFault::Parameter`] where the kernel has none of that index, or declares it with another size.
    pub fn parameter<T: DeviceValue>(&mut self, index: usize) -> Result<T, KernelFault> {
        let declared = self.parameters.ranges.get(index).map(|range| range.len());
        if declared != Some(T::BYTES) {
            let fault = KernelFault::Parameter { index, wanted_bytes: T::BYTES, declared_bytes: declared };
            return Err(self.note(fault));
        }
        self.parameter_bytes(index).map(T::from_device_bytes)
    }

    /// Reads bytes that the device reaches.
    ///
    /// # Errors
    /// [`KernelFault::IllegalAddress`]; the launch has then failed even if the function goes on.
    pub fn read(&mut self, address: u64, out: &mut [u8]) -> Result<(), KernelFault> {
        match self.memory.read(address, out, self.access) {
            Ok(()) => Ok(()),
            Err(stray) => Err(self.note(stray.into())),
        }
    }

    /// Writes bytes that the device reaches.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), KernelFault> {
        match self.memory.write(address, bytes, self.access) {
            Ok(()) => Ok(()),
            Err(stray) => Err(self.note(stray.into())),
        }
    }

    /// Reads one value.
    ///
    /// # Errors
    /// [`KernelFault::IllegalAddress`], [`KernelFault::Misaligned`].
    pub fn load<T: DeviceValue>(&mut self, address: u64) -> Result<T, KernelFault> {
        self.aligned::<T>(address)?;
        let mut bytes = vec![0; T::BYTES];
        self.read(address, &mut bytes)?;
        Ok(T::from_device_bytes(&bytes))
    }

    /// Writes one value.
    ///
    /// # Errors
    /// [`KernelFault::IllegalAddress`], [`KernelFault::Misaligned`].
    pub fn store<T: DeviceValue>(&mut self, address: u64, value: T) -> Result<(), KernelFault> {
        self.store_all(address, &[value])
    }

    /// Reads `count` values that lie one behind the other.
    ///
    /// # Errors
    /// [`KernelFault::IllegalAddress`], [`KernelFault::Misaligned`].
    pub fn load_all<T: DeviceValue>(&mut self, address: u64, count: usize) -> Result<Vec<T>, KernelFault> {
        self.aligned::<T>(address)?;
        let bytes = count.saturating_mul(T::BYTES);
        // Checked before the buffer is made: a wild count must not take the host's memory.
        if let Err(stray) = self.memory.check(address, bytes as u64, self.access) {
            return Err(self.note(stray.into()));
        }
        let mut buffer = vec![0; bytes];
        self.read(address, &mut buffer)?;
        Ok(buffer.chunks_exact(T::BYTES.max(1)).map(T::from_device_bytes).collect())
    }

    /// Writes values one behind the other.
    ///
    /// # Errors
    /// [`KernelFault::IllegalAddress`], [`KernelFault::Misaligned`].
    pub fn store_all<T: DeviceValue>(&mut self, address: u64, values: &[T]) -> Result<(), KernelFault> {
        self.aligned::<T>(address)?;
        let mut bytes = Vec::with_capacity(values.len() * T::BYTES);
        values.iter().for_each(|value| value.extend_device_bytes(&mut bytes));
        self.write(address, &bytes)
    }

    fn aligned<T: DeviceValue>(&mut self, address: u64) -> Result<(), KernelFault> {
        if address.is_multiple_of(T::ALIGN_BYTES) {
            return Ok(());
        }
        Err(self.note(KernelFault::Misaligned { address, align_bytes: T::ALIGN_BYTES }))
    }

    fn note(&mut self, fault: KernelFault) -> KernelFault {
        self.fault.get_or_insert_with(|| fault.clone());
        fault
    }
}

impl fmt::Debug for KernelLaunch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelLaunch")
            .field("entry", &self.entry)
            .field("grid", &self.config.grid)
            .field("block", &self.config.block)
            .field("shared_bytes", &self.config.shared_bytes)
            .finish_non_exhaustive()
    }
}

/// A kernel's Rust function.
pub(crate) type KernelFn = Arc<dyn Fn(&mut KernelLaunch<'_>) -> Result<(), KernelFault> + Send + Sync>;

/// What is registered, by `entry` and by `module::entry`, and which images have which module name.
#[derive(Default)]
pub(crate) struct Kernels {
    functions: HashMap<String, KernelFn>,
    /// Module names by image, as [`identity`] has it.
    names: HashMap<Vec<u8>, Vec<String>>,
}

impl Kernels {
    pub(crate) fn register(&mut self, name: String, function: KernelFn) {
        self.functions.insert(name, function);
    }

    pub(crate) fn name_image(&mut self, module: String, image: &[u8]) {
        let names = self.names.entry(identity(image).to_vec()).or_default();
        if !names.contains(&module) {
            names.push(module);
        }
    }

    /// The function for an entry of an image: under one of the image's module names, else under the entry alone.
    pub(crate) fn find(&self, image: &[u8], entry: &str) -> Option<KernelFn> {
        let named = self.names.get(identity(image)).into_iter().flatten();
        named
            .map(|module| format!("{module}::{entry}"))
            .chain([entry.to_owned()])
            .find_map(|name| self.functions.get(&name).cloned())
    }
}

/// What identifies an image: PTX may or may not have come with its NUL.
pub(crate) fn identity(image: &[u8]) -> &[u8] {
    let end = image.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    &image[..end]
}
