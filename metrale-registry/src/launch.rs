// SPDX-License-Identifier: MIT OR Apache-2.0
//! Launching: the opt-in to large shared memory, once per function, and what a refused launch asked too much of.

use core::ffi::{c_int, c_void};
use core::fmt;
use std::collections::HashMap;

use metrale_driver_sys::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, CUdevice_attribute, CUfunction,
    CUfunction_attribute, CUstream, DriverApi, DriverError, ask, attribute, function_attribute,
};
use parking_lot::RwLock;

use crate::DeviceFacts;
use crate::advice::Advised;
use crate::device::DEFAULT_SHARED_BYTES;

/// One launch's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchSize {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
}

/// A launch that the driver refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchError {
    /// The kernel's handle.
    pub function: CUfunction,
    /// Module and function, where the handle came from this registry.
    pub name: Option<(&'static str, String)>,
    /// Blocks of the grid.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The driver's answer: of the launch, or of the opt-in before it.
    pub error: DriverError,
    /// What was asked too much, where that can be told.
    pub excess: Option<LaunchExcess>,
}

/// What a launch asks that the device or the kernel does not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaunchExcess {
    /// A grid or block dimension is 0.
    ZeroDimension,
    /// A block has too many threads.
    Threads {
        /// Threads asked for.
        asked: u64,
        /// Threads a block of this kernel may have.
        limit: u32,
    },
    /// A block is too long along one axis.
    BlockSide {
        /// `x`, `y` or `z`.
        axis: char,
        /// Threads asked for along it.
        asked: u32,
        /// Threads that the device gives along it.
        limit: u32,
    },
    /// A grid is too long along one axis.
    GridSide {
        /// `x`, `y` or `z`.
        axis: char,
        /// Blocks asked for along it.
        asked: u32,
        /// Blocks that the device gives along it.
        limit: u32,
    },
    /// The threads of a block take more registers than there are.
    Registers {
        /// Threads asked for.
        threads: u64,
        /// Registers of each, as the kernel was compiled.
        each: u32,
        /// Registers a block may have.
        limit: u32,
    },
    /// A block has too much shared memory.
    SharedBytes {
        /// Dynamic bytes asked for.
        dynamic: u32,
        /// Bytes the kernel declares itself.
        fixed: u32,
        /// Bytes of both that the device gives after opting in.
        limit: u32,
    },
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some((module, function)) => write!(f, "launch of {module}::{function}")?,
            None => write!(f, "launch of the kernel {:#x}", self.function)?,
        }
        let ([gx, gy, gz], [bx, by, bz]) = (self.grid, self.block);
        write!(
            f,
            " (grid {gx}x{gy}x{gz}, block {bx}x{by}x{bz}, {} bytes of dynamic shared memory): {}",
            self.shared_bytes,
            Advised(self.error)
        )?;
        match self.excess {
            Some(excess) => write!(f, ": {excess}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for LaunchExcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ZeroDimension => f.write_str("a dimension is 0"),
            Self::Threads { asked, limit } => {
                write!(f, "{asked} threads a block, where this kernel may have {limit}")
            }
            Self::BlockSide { axis, asked, limit } => {
                write!(f, "{asked} threads a block along {axis}, where the device gives {limit}")
            }
            Self::GridSide { axis, asked, limit } => {
                write!(f, "{asked} blocks along {axis}, where the device gives {limit}")
            }
            Self::Registers { threads, each, limit } => write!(
                f,
                "{threads} threads a block of {each} registers each, where a block may have {limit} registers: launch smaller \
                 blocks, or compile the kernel for them (maxntid, maxnreg)"
            ),
            Self::SharedBytes { dynamic, fixed, limit } => {
                let sum = u64::from(dynamic) + u64::from(fixed);
                write!(
                    f,
                    "{sum} bytes of shared memory a block ({fixed} of them the kernel's own), where the device gives {limit}"
                )
            }
        }
    }
}

// No source: `Display` says the driver's answer already, and a chain would say it twice.
impl core::error::Error for LaunchError {}

/// Launches, with no opt-in.
///
/// # Safety
/// As for [`launch_on_stream`](crate::MetraleRegistry::launch_on_stream).
pub(crate) unsafe fn launch(
    driver: &dyn DriverApi,
    function: CUfunction,
    size: LaunchSize,
    stream: CUstream,
    params: &mut [*mut c_void],
) -> Result<(), DriverError> {
    let ([gx, gy, gz], [bx, by, bz]) = (size.grid, size.block);
    let params = if params.is_empty() { core::ptr::null_mut() } else { params.as_mut_ptr() };
    let extra = core::ptr::null_mut();
    // SAFETY: the caller's promise: one pointer a parameter, each good for that parameter's size, of a kernel that is
    // sound to run with them.
    unsafe {
        ask!(
            driver,
            cuLaunchKernel(function, gx, gy, gz, bx, by, bz, size.shared_bytes, stream, params, extra)
        )
    }
}

/// How much dynamic shared memory each function has been allowed.
///
/// A function may ask for 48 KiB less what it declares itself; more needs an attribute set on it once. The attribute
/// stays with the function, so that doing it at each launch would only cost, and setting a smaller value would take
/// away what a launch on another thread counts on.
#[derive(Default)]
pub(crate) struct SharedOptIns {
    /// Bytes allowed, of the functions that were asked about.
    allowed: RwLock<HashMap<CUfunction, u32>>,
}

impl SharedOptIns {
    /// Makes sure that a launch may ask for `bytes`, where that is above what every function has.
    #[inline]
    pub(crate) fn ensure(
        &self,
        driver: &dyn DriverApi,
        function: CUfunction,
        bytes: u32,
    ) -> Result<(), DriverError> {
        if bytes <= DEFAULT_SHARED_BYTES { Ok(()) } else { self.ensure_large(driver, function, bytes) }
    }

    #[inline(never)]
    fn ensure_large(
        &self,
        driver: &dyn DriverApi,
        function: CUfunction,
        bytes: u32,
    ) -> Result<(), DriverError> {
        if self.allowed.read().get(&function).is_some_and(|&most| bytes <= most) {
            return Ok(());
        }
        self.raise(driver, function, bytes, Because::Large).map(drop)
    }

    /// Raises a function's allowance to `bytes`, and tells whether anything was done.
    pub(crate) fn raise(
        &self,
        driver: &dyn DriverApi,
        function: CUfunction,
        bytes: u32,
        because: Because,
    ) -> Result<bool, DriverError> {
        // Held over both calls: of two threads at once, the one with less must not have the last word.
        let mut allowed = self.allowed.write();
        if allowed.get(&function).is_some_and(|&most| bytes <= most) {
            return Ok(false);
        }
        // Somebody else may have allowed more by the driver itself.
        let present = attribute_of(driver, function, function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES)?;
        let raises = present < bytes || because == Because::Refused;
        if raises {
            let which = function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // What does not fit a C int is refused by the driver like all that is beyond the device.
            let value = c_int::try_from(present.max(bytes)).unwrap_or(c_int::MAX);
            // SAFETY: no memory is passed; whoever launches promises that the function is one of this registry's.
            unsafe { ask!(driver, cuFuncSetAttribute(function, which, value)) }?;
        }
        allowed.insert(function, present.max(bytes));
        Ok(raises)
    }
}

/// Why a function's allowance is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Because {
    /// The launch asks for more than any function has from the start.
    Large,
    /// The driver refused the launch, whatever the attribute says at present.
    Refused,
}

fn attribute_of(
    driver: &dyn DriverApi,
    function: CUfunction,
    which: CUfunction_attribute,
) -> Result<u32, DriverError> {
    let mut value = 0;
    // SAFETY: the result pointer is a local.
    unsafe { ask!(driver, cuFuncGetAttribute(&mut value, which, function)) }?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// What a refused launch asked too much, told from the kernel's and the device's limits.
pub(crate) fn excess_of(
    driver: &dyn DriverApi,
    facts: &DeviceFacts,
    function: CUfunction,
    size: LaunchSize,
    error: DriverError,
) -> Option<LaunchExcess> {
    if !matches!(error.status, CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES) {
        return None;
    }
    let of_device = |which, otherwise| {
        let mut value = 0;
        // SAFETY: the result pointer is a local.
        let answer = unsafe { ask!(driver, cuDeviceGetAttribute(&mut value, which, facts.device)) };
        // A driver that does not say, or says nonsense, sets no limit here; its refusal counts anyway.
        answer.ok().and_then(|()| u32::try_from(value).ok()).filter(|&value| value > 0).unwrap_or(otherwise)
    };
    let sides = |of: [CUdevice_attribute; 3]| of.map(|which| of_device(which, u32::MAX));
    use attribute as a;
    // A kernel's own limit is unknown where its handle is wrong: then the device's counts.
    let threads = attribute_of(driver, function, function_attribute::MAX_THREADS_PER_BLOCK)
        .map_or(facts.threads_per_block, |most| most.min(facts.threads_per_block));
    let limits = Limits {
        grid: sides([a::MAX_GRID_DIM_X, a::MAX_GRID_DIM_Y, a::MAX_GRID_DIM_Z]),
        block: sides([a::MAX_BLOCK_DIM_X, a::MAX_BLOCK_DIM_Y, a::MAX_BLOCK_DIM_Z]),
        threads,
        shared_bytes: facts.shared_bytes_per_block_optin,
        registers: of_device(a::MAX_REGISTERS_PER_BLOCK, u32::MAX),
    };
    let fixed_shared = attribute_of(driver, function, function_attribute::SHARED_SIZE_BYTES).unwrap_or(0);
    let registers = attribute_of(driver, function, function_attribute::NUM_REGS).unwrap_or(0);
    excess(size, fixed_shared, registers, limits)
}

/// What device and kernel give.
#[derive(Clone, Copy)]
struct Limits {
    grid: [u32; 3],
    block: [u32; 3],
    threads: u32,
    shared_bytes: u32,
    registers: u32,
}

fn excess(size: LaunchSize, fixed_shared: u32, registers: u32, limits: Limits) -> Option<LaunchExcess> {
    if size.grid.contains(&0) || size.block.contains(&0) {
        return Some(LaunchExcess::ZeroDimension);
    }
    let too_long = |sides: [u32; 3], limits: [u32; 3]| {
        let sides = ['x', 'y', 'z'].into_iter().zip(sides.into_iter().zip(limits));
        sides
            .filter(|(_, (asked, limit))| asked > limit)
            .map(|(axis, (asked, limit))| (axis, asked, limit))
            .next()
    };
    // All sides may be within bounds and the block still too large; that is told first, because it is what is usually meant.
    let threads = size.block.iter().fold(1_u64, |product, &side| product.saturating_mul(u64::from(side)));
    if threads > u64::from(limits.threads) {
        return Some(LaunchExcess::Threads { asked: threads, limit: limits.threads });
    }
    if let Some((axis, asked, limit)) = too_long(size.block, limits.block) {
        return Some(LaunchExcess::BlockSide { axis, asked, limit });
    }
    if let Some((axis, asked, limit)) = too_long(size.grid, limits.grid) {
        return Some(LaunchExcess::GridSide { axis, asked, limit });
    }
    let dynamic = size.shared_bytes;
    if u64::from(dynamic) + u64::from(fixed_shared) > u64::from(limits.shared_bytes) {
        return Some(LaunchExcess::SharedBytes { dynamic, fixed: fixed_shared, limit: limits.shared_bytes });
    }
    // Registers are given to whole warps.
    let taken = threads.next_multiple_of(WARP_THREADS).saturating_mul(u64::from(registers));
    (taken > u64::from(limits.registers)).then_some(LaunchExcess::Registers {
        threads,
        each: registers,
        limit: limits.registers,
    })
}

/// Threads of a warp, on every device so far.
const WARP_THREADS: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Limits = Limits {
        grid: [i32::MAX as u32, 65_535, 65_535],
        block: [1024, 1024, 64],
        threads: 1024,
        shared_bytes: 227 << 10,
        registers: 65_536,
    };

    fn of(grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> Option<LaunchExcess> {
        excess(LaunchSize { grid, block, shared_bytes }, 1024, 32, H200)
    }

    #[test]
    fn what_is_too_much_is_told_at_its_limit() {
        const ONE: [u32; 3] = [1; 3];
        assert_eq!(of(ONE, [1024, 1, 1], 0), None);
        assert_eq!(of([1, 0, 1], ONE, 0), Some(LaunchExcess::ZeroDimension));
        assert_eq!(of(ONE, [32, 33, 1], 0), Some(LaunchExcess::Threads { asked: 1056, limit: 1024 }));
        assert_eq!(of(ONE, [1, 1, 64], 0), None);
        let side = LaunchExcess::BlockSide { axis: 'z', asked: 65, limit: 64 };
        assert_eq!(of(ONE, [1, 1, 65], 0), Some(side));
        assert_eq!(side.to_string(), "65 threads a block along z, where the device gives 64");
        assert_eq!(of([i32::MAX as u32, 65_535, 65_535], ONE, 0), None);
        let side = LaunchExcess::GridSide { axis: 'y', asked: 65_536, limit: 65_535 };
        assert_eq!(of([1, 65_536, 1], ONE, 0), Some(side));
        assert_eq!(of(ONE, ONE, H200.shared_bytes - 1024), None);
        let too_much =
            LaunchExcess::SharedBytes { dynamic: H200.shared_bytes, fixed: 1024, limit: H200.shared_bytes };
        assert_eq!(of(ONE, ONE, H200.shared_bytes), Some(too_much));
    }

    #[test]
    fn registers_are_counted_for_whole_warps() {
        let of = |threads, each| {
            let size = LaunchSize { grid: [1; 3], block: [threads, 1, 1], shared_bytes: 0 };
            excess(size, 0, each, H200)
        };
        assert_eq!(of(1024, 64), None);
        assert_eq!(of(1024, 65), Some(LaunchExcess::Registers { threads: 1024, each: 65, limit: 65_536 }));
        // 257 threads are nine warps of 32.
        assert_eq!(of(257, 227), None);
        assert_eq!(of(257, 228), Some(LaunchExcess::Registers { threads: 257, each: 228, limit: 65_536 }));
    }

    #[test]
    fn the_largest_numbers_do_not_wrap() {
        let most = [u32::MAX; 3];
        assert_eq!(of(most, most, u32::MAX), Some(LaunchExcess::Threads { asked: u64::MAX, limit: 1024 }));
        assert!(of([1, 1, 1], [1, 1, 1], u32::MAX).is_some());
    }
}
