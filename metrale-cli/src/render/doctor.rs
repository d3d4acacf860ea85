// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `metrale doctor` answers.

use std::fmt;

use metrale_ledger::ByteSize;
use metrale_registry::DeviceFacts;
use serde::Serialize;

/// What was found on this machine.
#[derive(Debug, Default, Serialize)]
pub struct DoctorReport {
    /// Whether at least one device can be used.
    pub usable: bool,
    /// The driver's library, or the software driver and its profile; `null` where there is none.
    pub driver: Option<String>,
    /// The CUDA version the driver speaks.
    pub cuda_version: Option<String>,
    /// Optional driver functions that it lacks.
    pub lacking: Vec<String>,
    /// What `CUDA_VISIBLE_DEVICES` lets this process see.
    pub visible_devices: Option<String>,
    /// The devices.
    pub devices: Vec<DeviceReport>,
    /// What is wrong, with what to do about it.
    pub problems: Vec<String>,
}

/// One device.
#[derive(Debug, Serialize)]
pub struct DeviceReport {
    /// Its place among those this process sees.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// Its compute capability, such as `9.0`.
    pub compute_capability: String,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Whether it shares the host's memory.
    pub integrated: bool,
    /// Its memory in bytes.
    pub total_bytes: u64,
    /// What of it is free with this process's context made, in bytes.
    pub free_bytes: Option<u64>,
    /// Why it cannot be used.
    pub problem: Option<String>,
}

impl DoctorReport {
    pub(crate) fn without_driver(problem: String) -> Self {
        Self { problems: vec![problem], ..Self::default() }
    }

    pub(crate) fn of_driver(driver: String, visible_devices: String) -> Self {
        Self { driver: Some(driver), visible_devices: Some(visible_devices), ..Self::default() }
    }
}

impl DeviceReport {
    pub(crate) fn new(facts: &DeviceFacts, free_bytes: anyhow::Result<u64>) -> Self {
        let (free_bytes, problem) = match free_bytes {
            Ok(free) => (Some(free), None),
            Err(problem) => (None, Some(format!("{problem:#}"))),
        };
        Self {
            ordinal: facts.ordinal,
            name: facts.name.clone(),
            uuid: facts.uuid_text(),
            compute_capability: facts.compute_capability.to_string(),
            multiprocessors: facts.sm_count,
            integrated: facts.integrated,
            total_bytes: facts.total_bytes,
            free_bytes,
            problem,
        }
    }
}

impl fmt::Display for DoctorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.driver, &self.cuda_version) {
            (Some(driver), Some(version)) => writeln!(f, "driver: {driver}, CUDA {version}")?,
            (Some(driver), None) => writeln!(f, "driver: {driver}")?,
            (None, _) => writeln!(f, "driver: none")?,
        }
        if let Some(visible) = &self.visible_devices {
            writeln!(f, "visible devices: {visible}")?;
        }
        if !self.lacking.is_empty() {
            writeln!(f, "functions this driver lacks: {}", self.lacking.join(", "))?;
        }
        for device in &self.devices {
            writeln!(
                f,
                "device {}: {} ({}), compute capability {}, {} SMs, {}",
                device.ordinal,
                device.name,
                device.uuid,
                device.compute_capability,
                device.multiprocessors,
                if device.integrated { "integrated" } else { "discrete" }
            )?;
            match (device.free_bytes, &device.problem) {
                (Some(free), _) => {
                    writeln!(f, "  memory: {} free of {}", ByteSize(free), ByteSize(device.total_bytes))?
                }
                (None, Some(problem)) => writeln!(f, "  not usable: {problem}")?,
                (None, None) => writeln!(f, "  memory: {}", ByteSize(device.total_bytes))?,
            }
        }
        for problem in &self.problems {
            writeln!(f, "problem: {problem}")?;
        }
        let verdict = if self.usable { "a device is usable" } else { "no device is usable" };
        write!(f, "{verdict}")?;
        if !self.usable {
            write!(f, "; `metrale load --driver sim` works without one")?;
        }
        Ok(())
    }
}
