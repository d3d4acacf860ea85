// SPDX-License-Identifier: MIT OR Apache-2.0
//! The red zones' kernels as Rust functions, for the software driver.

use metrale_cuda_backend::redzone::{
    BandFound, BandUpdate, CHECK_KERNEL, FILL_KERNEL, Pattern, UPDATE_KERNEL,
};
use metrale_driver_sim::{KernelFault, KernelLaunch, SimDriver};

type Entry = [u8; 16];

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn address(entry: &Entry) -> u64 {
    u64::from_le_bytes(entry[..8].try_into().unwrap())
}

fn pattern(entry: &Entry) -> Pattern {
    Pattern { base: entry[12], step: entry[13] }
}

fn fill(launch: &mut KernelLaunch<'_>, entry: &Entry) -> Result<(), KernelFault> {
    let mut band = vec![0; word(entry, 8) as usize];
    pattern(entry).fill(&mut band);
    launch.write(address(entry), &band)
}

/// Registers them.
pub(crate) fn register(driver: &SimDriver) {
    driver.register_kernel(CHECK_KERNEL, |launch| {
        let (table, slots) = (launch.parameter::<u64>(0)?, launch.parameter::<u32>(1)?);
        let (found, counter) = (launch.parameter::<u64>(2)?, launch.parameter::<u64>(3)?);
        let (counted, refill) = (launch.parameter::<u32>(4)?, launch.parameter::<u32>(5)?);
        for (slot, entry) in (0_u32..).zip(launch.load_all::<Entry>(table, slots as usize)?) {
            let mut band = vec![0; word(&entry, 8) as usize];
            launch.read(address(&entry), &mut band)?;
            let Some(change) = pattern(&entry).changed(&band) else { continue };
            let place = launch.load::<u32>(counter)?;
            launch.store(counter, place.wrapping_add(1))?;
            let at = found + u64::from(place.wrapping_sub(counted)) * BandFound::BYTES as u64;
            let record =
                [slot, change.first as u32, change.last as u32, change.count as u32, change.value.into()];
            launch.store_all(at, &record)?;
            if refill != 0 {
                fill(launch, &entry)?;
            }
        }
        Ok(())
    });
    driver.register_kernel(FILL_KERNEL, |launch| {
        let (table, first) = (launch.parameter::<u64>(0)?, launch.parameter::<u32>(1)?);
        let slots = launch.parameter::<u32>(2)?;
        for entry in launch.load_all::<Entry>(table + u64::from(first) * 16, slots as usize)? {
            fill(launch, &entry)?;
        }
        Ok(())
    });
    driver.register_kernel(UPDATE_KERNEL, |launch| {
        let (table, updates) = (launch.parameter::<u64>(0)?, launch.parameter::<u64>(1)?);
        let count = launch.parameter::<u32>(2)?;
        for update in launch.load_all::<[u8; BandUpdate::BYTES]>(updates, count as usize)? {
            let entry: Entry = update[..16].try_into().unwrap();
            launch.store(table + u64::from(word(&update, 16)) * 16, entry)?;
            if word(&update, 20) != 0 {
                fill(launch, &entry)?;
            }
        }
        Ok(())
    });
}
