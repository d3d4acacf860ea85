// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that this machine has the memory for what is copied to a software device, which keeps it here.

use metrale_cuda_backend::MetraleCudaBackend;
use metrale_cuda_backend::memory::MemInfo;
use metrale_ledger::ByteSize;

/// More data for a software device than this machine has memory. The system would kill the process without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the software device keeps what is copied to it in this machine's memory, and of the {} to be copied {} are available: \
     load on a GPU (--driver system), on a machine with more memory, or ask `metrale plan`, which reads only the headers",
    ByteSize(self.needed_bytes), ByteSize(self.available_bytes)
)]
pub struct NotEnoughHostMemory {
    /// Bytes of data that the device would take.
    pub needed_bytes: u64,
    /// Bytes that the host says are available.
    pub available_bytes: u64,
}

/// Refuses to copy `bytes` to a software device on a machine that has less. Nothing is refused where the machine does not say
/// how much it has.
///
/// # Errors
/// [`NotEnoughHostMemory`].
pub(crate) fn check(backend: &MetraleCudaBackend, bytes: u64) -> Result<(), NotEnoughHostMemory> {
    if !backend.driver().source().starts_with("software") {
        return Ok(());
    }
    // More than the device has is not copied: that ends with the device's own out-of-memory error.
    let needed_bytes = bytes.min(backend.total_memory());
    match MemInfo::of_this_machine().ok().and_then(|info| info.available_bytes) {
        Some(available_bytes) => compare(needed_bytes, available_bytes),
        None => Ok(()),
    }
}

fn compare(needed_bytes: u64, available_bytes: u64) -> Result<(), NotEnoughHostMemory> {
    if needed_bytes <= available_bytes {
        Ok(())
    } else {
        Err(NotEnoughHostMemory { needed_bytes, available_bytes })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use metrale_driver_sim::{Profile, SimDriver};

    use super::*;

    #[test]
    fn what_is_there_is_enough_and_one_byte_more_is_told() {
        assert_eq!(compare(4096, 4096), Ok(()));
        let error = compare(4097, 4096).unwrap_err();
        assert_eq!((error.needed_bytes, error.available_bytes), (4097, 4096));
        assert!(error.to_string().contains("metrale plan"), "{error}");
    }

    #[test]
    fn no_machine_holds_a_device_of_64_bits_and_what_is_not_copied_is_not_counted() {
        let on = |profile: Profile| {
            MetraleCudaBackend::builder().driver(Arc::new(SimDriver::new(profile))).build().unwrap()
        };
        assert_eq!(check(&on(Profile::h200().with_total_bytes(1 << 20 << 10)), u64::MAX), Ok(()));
        if cfg!(target_os = "linux") {
            let error = check(&on(Profile::h200().with_total_bytes(1 << 50)), u64::MAX).unwrap_err();
            assert_eq!(error.needed_bytes, 1 << 50);
        }
    }
}
