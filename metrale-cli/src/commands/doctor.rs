// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale doctor`: which driver and devices there are, and whether one is usable.

use std::sync::Arc;

use metrale_cuda_backend::MetraleCudaBackend;
use metrale_driver_sys::{DriverApi, DriverFn, check};
use metrale_registry::{DeviceFacts, VisibleDevices, device_count};

use crate::args::DoctorArgs;
use crate::driver_choice::DriverChoice;
use crate::render::doctor::{DeviceReport, DoctorReport};
use crate::{Console, Exit, answered};

/// Runs the command.
pub fn run(args: &DoctorArgs, console: &mut Console<'_>) -> Exit {
    // A doctor never looks at the software device unless told to: it would find everything well.
    let choice = match &args.driver {
        DriverChoice::Auto => DriverChoice::System,
        named => named.clone(),
    };
    let report = match choice.open() {
        Ok(chosen) => examine(chosen.driver),
        Err(error) => DoctorReport::without_driver(error.to_string()),
    };
    let printed = console.answer_as(args.json, &report);
    if report.usable { answered(printed, console) } else { Exit::Failed }
}

/// Asks a driver for all it has, as far as it answers.
fn examine(driver: Arc<dyn DriverApi>) -> DoctorReport {
    let mut report = DoctorReport::of_driver(driver.source(), VisibleDevices::of_this_process().to_string());
    report.lacking = DriverFn::ALL
        .iter()
        .filter(|&&function| !driver.provides(function))
        .map(ToString::to_string)
        .collect();
    match device_count(&*driver) {
        Ok(0) => report.problems.push("the driver starts, and shows this process no device".to_owned()),
        Ok(count) => {
            // Each by itself: one broken device must not hide the others.
            for ordinal in 0..count {
                match DeviceFacts::of(&*driver, ordinal) {
                    Ok(facts) => {
                        let device = DeviceReport::new(&facts, free_bytes(&driver, ordinal));
                        report.usable |= device.problem.is_none();
                        report.devices.push(device);
                    }
                    Err(error) => report.problems.push(error.to_string()),
                }
            }
        }
        Err(error) => report.problems.push(error.to_string()),
    }
    let mut version = 0;
    // SAFETY: the result pointer is a local.
    let status = unsafe { driver.cuDriverGetVersion(&mut version) };
    report.cuda_version = check(DriverFn::cuDriverGetVersion, status)
        .ok()
        .map(|()| format!("{}.{}", version / 1000, version % 1000 / 10));
    report
}

/// What a device has free, which takes a context: the proof that it can be used at all.
fn free_bytes(driver: &Arc<dyn DriverApi>, ordinal: usize) -> anyhow::Result<u64> {
    let backend = MetraleCudaBackend::builder().driver(Arc::clone(driver)).ordinal(ordinal).build()?;
    Ok(backend.memory_info()?.free_bytes)
}
