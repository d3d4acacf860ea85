// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`DeviceFacts`]: what is fixed about a device, asked without a context.

use core::ffi::{c_char, c_int};

use metrale_driver_sys::{
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
    CUdevice, CUdevice_attribute, CUuuid, DriverApi, DriverError, DriverFn, ask, attribute,
    image::arch::ComputeCapability,
};

use crate::{HostError, VisibleDevices};

/// Shared memory every kernel may use without opting in, in bytes, on every device so far.
pub(crate) const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// What is fixed about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// Its place among the devices this process sees, from 0.
    pub ordinal: usize,
    /// The driver's number for it.
    pub device: CUdevice,
    /// Its name, such as `NVIDIA H200`.
    pub name: String,
    /// Its identity, the same in every process; all zero where the driver has no such function.
    pub uuid: CUuuid,
    /// Its compute capability.
    pub compute_capability: ComputeCapability,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Whether it shares the host's memory. False too where the driver does not say.
    pub integrated: bool,
    /// Its memory in bytes.
    pub total_bytes: u64,
    /// Threads a block may have.
    pub threads_per_block: u32,
    /// Shared memory a block may use without opting in, in bytes.
    pub shared_bytes_per_block: u32,
    /// Shared memory a block may use after opting in, in bytes.
    pub shared_bytes_per_block_optin: u32,
}

impl DeviceFacts {
    /// Asks the driver about the device of an ordinal. Starts the driver where it is not started; makes no context and
    /// takes no device memory. Does not block on the device; allowed during a capture.
    ///
    /// # Errors
    /// [`HostError::Start`], [`HostError::OrdinalOutOfRange`], [`HostError::Device`].
    pub fn of(driver: &dyn DriverApi, ordinal: usize) -> Result<Self, HostError> {
        let devices = device_count(driver)?;
        let Some(c_ordinal) = c_int::try_from(ordinal).ok().filter(|_| ordinal < devices) else {
            let visible = VisibleDevices::of_this_process();
            return Err(HostError::OrdinalOutOfRange { ordinal, devices, visible });
        };
        Self::ask(driver, ordinal, c_ordinal).map_err(|error| HostError::Device { ordinal, error })
    }

    /// The facts of every device this process sees, by ordinal.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn all(driver: &dyn DriverApi) -> Result<Vec<Self>, HostError> {
        (0..device_count(driver)?).map(|ordinal| Self::of(driver, ordinal)).collect()
    }

    /// The identity as tools print it: `GPU-` and 32 hexadecimal digits in five groups.
    #[must_use]
    pub fn uuid_text(&self) -> String {
        let mut text = "GPU".to_owned();
        for (index, byte) in self.uuid.bytes.iter().enumerate() {
            if matches!(index, 0 | 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }

    fn ask(driver: &dyn DriverApi, ordinal: usize, c_ordinal: c_int) -> Result<Self, DriverError> {
        let mut device = 0;
        // SAFETY: the result pointer is a local.
        unsafe { ask!(driver, cuDeviceGet(&mut device, c_ordinal)) }?;
        let mut total_bytes = 0;
        // SAFETY: the result pointer is a local.
        unsafe { ask!(driver, cuDeviceTotalMem_v2(&mut total_bytes, device)) }?;
        let mut uuid = CUuuid::default();
        if driver.provides(DriverFn::cuDeviceGetUuid) {
            // SAFETY: the result pointer is a local.
            unsafe { ask!(driver, cuDeviceGetUuid(&mut uuid, device)) }?;
        }

        let number = |which| attribute_of(driver, device, which);
        let shared_bytes_per_block =
            known(number(attribute::MAX_SHARED_MEMORY_PER_BLOCK), DEFAULT_SHARED_BYTES)?;
        Ok(Self {
            ordinal,
            device,
            name: name_of(driver, device)?,
            uuid,
            compute_capability: ComputeCapability::new(
                number(attribute::COMPUTE_CAPABILITY_MAJOR)?,
                number(attribute::COMPUTE_CAPABILITY_MINOR)?,
            ),
            sm_count: number(attribute::MULTIPROCESSOR_COUNT)?,
            // Only figures for people and the free memory hang on it, and no answer is no reason not to start.
            integrated: number(attribute::INTEGRATED).is_ok_and(|integrated| integrated != 0),
            total_bytes: total_bytes as u64,
            threads_per_block: known(number(attribute::MAX_THREADS_PER_BLOCK), 1024)?,
            shared_bytes_per_block,
            shared_bytes_per_block_optin: known(
                number(attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
                shared_bytes_per_block,
            )?,
        })
    }
}

/// Starts the driver and counts the devices this process sees. Makes no context.
///
/// # Errors
/// [`HostError::Start`], with advice for what keeps a driver from starting.
pub fn device_count(driver: &dyn DriverApi) -> Result<usize, HostError> {
    let mut count = 0;
    // SAFETY: cuInit takes a number, which must be 0.
    unsafe { ask!(driver, cuInit(0)) }
        .and_then(|()| {
            // SAFETY: the result pointer is a local.
            unsafe { ask!(driver, cuDeviceGetCount(&mut count)) }
        })
        .map_err(|error| HostError::Start {
            driver: driver.source(),
            error,
            kernel_module: kernel_module(error),
        })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// The version of the kernel's side of the driver, for the answers that it does not fit the library.
fn kernel_module(error: DriverError) -> Option<String> {
    if !matches!(error.status, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH | CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE)
    {
        return None;
    }
    std::fs::read_to_string("/proc/driver/nvidia/version").ok().as_deref().and_then(kernel_module_version)
}

/// The version in the kernel's own words: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  ...`.
fn kernel_module_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
    let number =
        |word: &&str| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    line.split_whitespace().find(number).map(str::to_owned)
}

fn attribute_of(
    driver: &dyn DriverApi,
    device: CUdevice,
    which: CUdevice_attribute,
) -> Result<u32, DriverError> {
    let mut value = 0;
    // SAFETY: the result pointer is a local.
    unsafe { ask!(driver, cuDeviceGetAttribute(&mut value, which, device)) }?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// The value, or what is true of every device where the driver does not know the attribute.
fn known(value: Result<u32, DriverError>, otherwise: u32) -> Result<u32, DriverError> {
    match value {
        Err(error) if error.status == CUDA_ERROR_INVALID_VALUE => Ok(otherwise),
        value => value,
    }
}

fn name_of(driver: &dyn DriverApi, device: CUdevice) -> Result<String, DriverError> {
    let mut name = [0_u8; 256];
    // One byte less than there is, so that the name ends in NUL whatever the driver writes.
    let capacity = name.len() as c_int - 1;
    // SAFETY: the buffer has more bytes than the driver is told of.
    unsafe { ask!(driver, cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), capacity, device)) }?;
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_side_tells_its_version() {
        for (text, version) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Nov 11\nGCC version: gcc 12.2.0\n",
                Some("580.159.04"),
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n",
                Some("570.86.15"),
            ),
            ("GCC version: gcc 12.2.0\n", None),
            ("NVRM version: none\n", None),
            ("", None),
        ] {
            assert_eq!(kernel_module_version(text).as_deref(), version, "{text}");
        }
    }
}
