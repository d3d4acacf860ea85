// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a scan of 25,000 red zones costs: on a GPU by one kernel launch through the backend, by a copy for each band, and the
//! bare kernel; on the software driver, which runs no kernels, by copies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use metrale_cuda_backend::redzone::{BLOCK_THREADS, Band, BandFound, CHECK_KERNEL, ScanBy, blocks_for};
use metrale_cuda_backend::{DevicePtr, DriverApi, KernelLaunch};
use metrale_driver_sim::{Profile, SimDriver};

use crate::bands::{ASKED, BAND_BYTES, BANDS, Bands};
use crate::table::{Figure, Table, Target};

/// Scans timed; the median counts.
const SCANS: usize = 200;

/// Every row of a scan.
pub(crate) fn rows(table: &mut Table) {
    for (name, measure) in [("software", software as fn(&mut Table) -> Result<()>), ("gpu", gpu)] {
        table.group(&format!("scan of {BANDS} red zones of {BAND_BYTES} bytes: {name}"));
        if let Err(error) = measure(table) {
            table.not_run(&format!("{error:#}"));
        }
    }
}

fn software(table: &mut Table) -> Result<()> {
    let driver: Arc<dyn DriverApi> = Arc::new(SimDriver::new(Profile::h200()));
    let by_copies = Bands::new(&driver, ScanBy::Copies)?;
    let copies = median(5, || by_copies.scan_clean())?;
    by_copies.finds_a_planted_byte()?;
    table.figure("scan, a copy for each band", Figure::Nanos(copies.as_secs_f64() * 1e9), Target::None);
    Ok(())
}

fn gpu(table: &mut Table) -> Result<()> {
    let driver = metrale_driver_sys::system().context("this measures a GPU")?;
    let by_kernel = Bands::new(&driver, ScanBy::Kernel)?;
    // The first loads the kernel and sends the table.
    let first = time(|| by_kernel.scan_clean())?;
    let scan = median(SCANS, || by_kernel.scan_clean())?;
    let bare = bare_kernel(&by_kernel)?;
    by_kernel.finds_a_planted_byte()?;
    drop(by_kernel);
    let by_copies = Bands::new(&driver, ScanBy::Copies)?;
    let copies = median(5, || by_copies.scan_clean())?;
    by_copies.finds_a_planted_byte()?;

    let nanos = |took: Duration| Figure::Nanos(took.as_secs_f64() * 1e9);
    table.figure("first scan, kernel loaded and table sent", nanos(first), Target::None);
    table.ratio("scan", nanos(scan), ("a copy for each band", nanos(copies)), Target::Ratio(1.0 / 2000.0));
    table.ratio("scan", nanos(scan), ("the bare kernel, awaited", nanos(bare.launched)), Target::None);
    table.ratio("scan", nanos(scan), ("the bare kernel, by events", nanos(bare.on_device)), Target::None);
    Ok(())
}

fn time(act: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    act()?;
    Ok(start.elapsed())
}

fn median(times: usize, mut act: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut took = (0..times).map(|_| time(&mut act)).collect::<Result<Vec<_>>>()?;
    took.sort_unstable();
    Ok(took[took.len() / 2])
}

struct BareKernel {
    launched: Duration,
    on_device: Duration,
}

/// The kernel on a table of the same bands, without anything around it.
fn bare_kernel(bands: &Bands) -> Result<BareKernel> {
    let backend = &bands.backend;
    let pattern = backend.config().redzone.fill.pattern(0);
    let band =
        |ptr: &DevicePtr| Band { address: ptr.addr() + ASKED as u64, bytes: BAND_BYTES as u32, pattern };
    let entries: Vec<u8> = bands.held.iter().flat_map(|ptr| band(ptr).to_bytes()).collect();
    let table = backend.alloc_arena(entries.len())?;
    backend.copy_h2d(&entries, table)?;
    let found = backend.alloc_arena(bands.held.len() * BandFound::BYTES)?;
    let counter = backend.alloc_arena(4)?;
    backend.memset(counter, 0, 4)?;
    let slots = u32::try_from(bands.held.len())?;
    let mut launch = KernelLaunch::new(backend.kernel("bare", CHECK_KERNEL)?)
        .grid([blocks_for(slots), 1, 1])
        .block([BLOCK_THREADS, 1, 1])
        .ptr(table)
        .u32(slots)
        .ptr(found)
        .ptr(counter)
        .u32(0)
        .u32(0);
    let stream = backend.stream();
    let (start, end) = (backend.create_timing_event()?, backend.create_timing_event()?);
    let mut on_device = Vec::with_capacity(SCANS);
    for _ in 0..SCANS {
        backend.record_event(start, stream)?;
        // SAFETY: the arguments are the kernel's parameters, of buffers that hold every band.
        unsafe { launch.on_stream(backend, stream) }?;
        backend.record_event(end, stream)?;
        backend.synchronize_stream(stream)?;
        on_device.push(Duration::from_secs_f32(backend.elapsed_ms(start, end)? / 1000.0));
    }
    on_device.sort_unstable();
    let launched = median(SCANS, || {
        // SAFETY: as above.
        unsafe { launch.on_stream(backend, stream) }?;
        Ok(backend.synchronize_stream(stream)?)
    })?;
    let mut changed = [1; 4];
    backend.copy_d2h(counter, &mut changed)?;
    ensure!(changed == [0; 4], "the bare kernel found what is not there");
    for arena in [table, found, counter] {
        backend.free_arena(arena)?;
    }
    backend.destroy_event(start)?;
    backend.destroy_event(end)?;
    Ok(BareKernel { launched, on_device: on_device[SCANS / 2] })
}
