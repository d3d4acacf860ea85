// SPDX-License-Identifier: MIT OR Apache-2.0
//! What several test files share.
#![allow(unreachable_pub, reason = "a module of several test programs")]
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod hooked;
pub mod pinned;

use std::io;
use std::sync::{Arc, Mutex, OnceLock};

use metrale_cuda_backend::{
    BackendConfig, DevicePtr, DriverApi, EventHandle, GraphHandle, MetraleCudaBackend, StreamHandle,
};
use metrale_driver_sim::{Profile, SimDriver};
use tracing::Dispatch;

/// The kernels of data/kernels.cu.
pub const KERNELS: &[u8] = include_bytes!("../data/kernels.ptx");

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;

/// A backend without modules that looks at no environment variable.
pub fn backend(driver: Arc<dyn DriverApi>) -> MetraleCudaBackend {
    MetraleCudaBackend::builder().driver(driver).config(BackendConfig::default()).build().unwrap()
}

/// A backend with the kernels of data/kernels.cu that looks at no environment variable.
pub fn backend_with_kernels(driver: Arc<dyn DriverApi>) -> MetraleCudaBackend {
    MetraleCudaBackend::builder()
        .driver(driver)
        .modules(&[("kernels", KERNELS)])
        .config(BackendConfig::default())
        .build()
        .unwrap()
}

/// The 32-bit words at a device address.
pub fn words32(backend: &MetraleCudaBackend, at: DevicePtr, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    backend.copy_d2h(at, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// A software H200 of its own.
pub fn sim() -> Arc<SimDriver> {
    Arc::new(SimDriver::new(Profile::h200()))
}

/// `file:line`, or with the column behind it, is of this file and line.
#[track_caller]
pub fn assert_site(site: &str, file: &str, line: u32) {
    let line = format!("{file}:{line}");
    assert!(site == line || site.starts_with(&format!("{line}:")), "{site} is not of {line}");
}

/// Makes one thing, then a second that `frees` the first, until the second has the address of the first, as `same` tells.
/// Which address comes next is the driver's to decide; that of the last free comes soon on both.
pub fn reused<A, B>(make: impl Fn() -> A, frees: impl Fn(&A) -> B, same: impl Fn(&A, &B) -> bool) -> (A, B) {
    let tries = (0..256).map(|_| {
        let first = make();
        let second = frees(&first);
        (first, second)
    });
    tries.into_iter().find(|(first, second)| same(first, second)).expect("a freed address comes again")
}

/// What a closure logs on this thread, one line an event.
pub fn logged<T>(act: impl FnOnce() -> T) -> (T, Vec<String>) {
    // While a process has a single subscriber, a line that another test's thread reaches first is asked of that thread's
    // subscriber, which is none, and switched off for all. With a second one, all are asked.
    static SECOND: OnceLock<Dispatch> = OnceLock::new();
    SECOND.get_or_init(|| Dispatch::new(tracing::subscriber::NoSubscriber::new()));
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_writer(move || writer.clone())
        .finish();
    let result = tracing::subscriber::with_default(subscriber, act);
    let text = String::from_utf8(std::mem::take(&mut lines.0.lock().unwrap())).unwrap();
    (result, text.lines().map(|line| line.trim().to_owned()).collect())
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A software H200 with the functions that stand for the kernels of data/kernels.cu.
pub fn sim_with_kernels() -> SimDriver {
    with_kernels(Profile::h200())
}

/// A software device with the functions that stand for the kernels of data/kernels.cu.
pub fn with_kernels(profile: Profile) -> SimDriver {
    let driver = SimDriver::new(profile);
    register_kernels(&driver);
    driver
}

/// Registers the functions that stand for the kernels of data/kernels.cu.
pub fn register_kernels(driver: &SimDriver) {
    driver.register_kernel("fill", |launch| {
        let (out, value, n) =
            (launch.parameter::<u64>(0)?, launch.parameter::<u32>(1)?, launch.parameter::<u32>(2)?);
        let n = u64::from(n).min(launch.threads());
        launch.store_all(out, &vec![value; n as usize])
    });
    driver.register_kernel("arguments", |launch| {
        let out = launch.parameter::<u64>(0)?;
        let words = [
            u64::from(launch.parameter::<u32>(1)?),
            launch.parameter::<i32>(2)? as i64 as u64,
            u64::from(launch.parameter::<f32>(3)?.to_bits()),
            launch.parameter::<u64>(4)?,
        ];
        launch.store_all(out, &words)
    });
    driver.register_kernel("map_words", |launch| {
        let out = launch.parameter::<u64>(0)?;
        let map = launch.parameter::<[u8; 128]>(1)?;
        launch.write(out, &map)
    });
    driver.register_kernel("mix", |launch| {
        let (out, value, n) =
            (launch.parameter::<u64>(0)?, launch.parameter::<u32>(1)?, launch.parameter::<u32>(2)?);
        let n = u64::from(n).min(launch.threads());
        let before = launch.load_all::<u32>(out, n as usize)?;
        let after: Vec<u32> = before.iter().map(|word| word.wrapping_mul(3).wrapping_add(value)).collect();
        launch.store_all(out, &after)
    });
    driver.register_kernel("stray", |launch| {
        let address = launch.parameter::<u64>(0)?;
        launch.store(address, 1_u32)
    });
}

/// The address of a number.
pub fn address(raw: u64) -> DevicePtr {
    // SAFETY: given only to calls that look it up, and refuse it where it is no device memory.
    unsafe { DevicePtr::from_raw(raw) }
}

/// A stream handle that no backend returned.
pub fn forged_stream(raw: u64) -> StreamHandle {
    // SAFETY: given only to calls that look it up, and refuse it where it is none of the driver's own.
    unsafe { StreamHandle::from_raw(raw) }
}

/// An event handle that no backend returned.
pub fn forged_event(raw: u64) -> EventHandle {
    // SAFETY: as above.
    unsafe { EventHandle::from_raw(raw) }
}

/// A graph handle that no backend returned.
pub fn forged_graph(raw: u64) -> GraphHandle {
    // SAFETY: as above.
    unsafe { GraphHandle::from_raw(raw) }
}
