// SPDX-License-Identifier: MIT OR Apache-2.0
//! The red zones' kernels against the pure functions they stand for: bands of every alignment and length.

#[path = "common/redzone.rs"]
mod functions;

use std::sync::Arc;

use metrale_cuda_backend::redzone::{
    BLOCK_THREADS, Band, BandChange, BandFound, BandTable, BandUpdate, CHECK_KERNEL, FILL_KERNEL, Fill,
    KERNELS_PTX, Pattern, UPDATE_KERNEL, blocks_for,
};
use metrale_cuda_backend::{
    BackendConfig, DevicePtr, DriverApi, KernelHandle, KernelLaunch, MetraleCudaBackend,
};
use metrale_driver_sim::{Profile, SimDriver, on_both_drivers};

const BANDS: usize = 1000;
/// Bytes for one band and what surrounds it.
const CELL: usize = 1024;

fn sim() -> SimDriver {
    let driver = SimDriver::new(Profile::h200());
    functions::register(&driver);
    driver
}

/// Bands in one buffer, with the device's table beside them.
struct Bench {
    backend: MetraleCudaBackend,
    memory: DevicePtr,
    table: DevicePtr,
    found: DevicePtr,
    counter: DevicePtr,
    updates: DevicePtr,
    counted: u32,
    mirror: BandTable<usize>,
}

impl Bench {
    fn new(driver: Arc<dyn DriverApi>) -> Self {
        let backend = MetraleCudaBackend::builder()
            .driver(driver)
            .modules(&[("redzone", KERNELS_PTX)])
            .config(BackendConfig::default())
            .build()
            .unwrap();
        let memory = backend.alloc(BANDS * CELL).unwrap();
        backend.memset(memory, 0x55, BANDS * CELL).unwrap();
        let table = backend.alloc(BANDS * Band::TABLE_BYTES).unwrap();
        backend.memset(table, 0, BANDS * Band::TABLE_BYTES).unwrap();
        let found = backend.alloc(BANDS * BandFound::BYTES).unwrap();
        let counter = backend.alloc(4).unwrap();
        // It wraps during the test.
        backend.memset(counter, 0xff, 4).unwrap();
        let updates = backend.alloc(BANDS * BandUpdate::BYTES).unwrap();
        let counted = u32::MAX;
        Self { backend, memory, table, found, counter, updates, counted, mirror: BandTable::new() }
    }

    fn kernel(&self, name: &str) -> KernelHandle {
        self.backend.kernel("redzone", name).unwrap()
    }

    fn launch(&self, launch: KernelLaunch, warps: usize) {
        let blocks = blocks_for(warps as u32);
        let mut launch = launch.grid([blocks, 1, 1]).block([BLOCK_THREADS, 1, 1]);
        // SAFETY: the arguments are the kernels' parameters, of buffers that hold what they are told.
        unsafe { launch.on_stream(&self.backend, self.backend.stream()) }.unwrap();
        self.backend.synchronize_stream(self.backend.stream()).unwrap();
    }

    /// Tells the device what it does not know, in portions.
    fn tell(&mut self) {
        loop {
            let updates = self.mirror.take_updates(300);
            if updates.is_empty() {
                break;
            }
            let bytes: Vec<u8> = updates.iter().flat_map(|update| update.to_bytes()).collect();
            self.backend.copy_h2d(&bytes, self.updates).unwrap();
            let launch = KernelLaunch::new(self.kernel(UPDATE_KERNEL));
            self.launch(launch.ptr(self.table).ptr(self.updates).u32(updates.len() as u32), updates.len());
        }
    }

    /// What a scan finds, by slot.
    fn scan(&mut self, refill: bool) -> Vec<(u32, BandChange)> {
        let slots = self.mirror.slots();
        let launch = KernelLaunch::new(self.kernel(CHECK_KERNEL))
            .ptr(self.table)
            .u32(slots as u32)
            .ptr(self.found)
            .ptr(self.counter)
            .u32(self.counted)
            .u32(refill.into());
        self.launch(launch, slots);
        let mut counter = [0; 4];
        self.backend.copy_d2h(self.counter, &mut counter).unwrap();
        let counter = u32::from_le_bytes(counter);
        let mut records = vec![0; counter.wrapping_sub(self.counted) as usize * BandFound::BYTES];
        self.counted = counter;
        self.backend.copy_d2h(self.found, &mut records).unwrap();
        let mut found: Vec<(u32, BandChange)> = records
            .chunks_exact(BandFound::BYTES)
            .map(|record| BandFound::from_bytes(record.try_into().unwrap()))
            .map(|found| (found.slot, found.change))
            .collect();
        found.sort_by_key(|found| found.0);
        found
    }

    fn read(&self) -> Vec<u8> {
        let mut memory = vec![0; BANDS * CELL];
        self.backend.copy_d2h(self.memory, &mut memory).unwrap();
        memory
    }

    /// The band's place in the buffer.
    fn range(&self, band: &Band) -> std::ops::Range<usize> {
        let start = (band.address - self.memory.addr()) as usize;
        start..start + band.bytes as usize
    }

    /// What the pure function finds in the same memory.
    fn expected(&self) -> Vec<(u32, BandChange)> {
        let memory = self.read();
        let changed = |band: &Band| band.pattern.changed(&memory[self.range(band)]);
        self.mirror.iter().filter_map(|(slot, band, _)| Some((slot, changed(band)?))).collect()
    }

    fn write(&self, at: usize, byte: u8) {
        self.backend.copy_h2d(&[byte], self.memory.offset(at as u64)).unwrap();
    }
}

on_both_drivers! {
    the_kernels_do_what_the_pure_functions_say(driver; sim: sim()) {
        let mut bench = Bench::new(driver);
        for number in 0..BANDS {
            let (start, bytes) = (number * CELL + 64 + number % 61, 1 + number * 7 % 900);
            let fill = if number % 2 == 0 { Fill::default() } else { Fill::Position };
            let address = bench.memory.addr() + start as u64;
            let band = Band { address, bytes: bytes as u32, pattern: fill.pattern(number as u64) };
            bench.mirror.insert(band, number, true).unwrap();
        }
        bench.tell();
        let mut filled = vec![0x55; BANDS * CELL];
        for (_, band, _) in bench.mirror.iter() {
            band.pattern.fill(&mut filled[bench.range(band)]);
        }
        assert!(bench.read() == filled, "filled, and nothing else touched");
        assert_eq!(bench.scan(true), [], "a clean scan finds nothing");

        // First byte, last byte, one somewhere, a run, and one byte on either side that is no band's.
        let bands: Vec<(u32, Band)> = bench.mirror.iter().map(|(slot, band, _)| (slot, *band)).collect();
        for (slot, band) in bands.iter().filter(|(slot, _)| slot % 5 == 0) {
            let range = bench.range(band);
            let places = match slot % 6 {
                0 => vec![range.start],
                1 => vec![range.end - 1],
                2 => vec![range.start + range.len() / 2],
                3 => range.clone().collect(),
                4 => vec![range.start, range.end - 1],
                _ => vec![range.start - 1, range.end],
            };
            for at in places.into_iter().take(40) {
                bench.write(at, !filled[at]);
            }
        }
        let expected = bench.expected();
        let hit = bands.iter().filter(|(slot, _)| slot % 5 == 0 && slot % 6 != 5).count();
        assert_eq!(expected.len(), hit);
        assert_eq!(bench.scan(false), expected);
        assert_eq!(bench.scan(true), expected, "unless told to, a scan restores nothing");
        assert_eq!(bench.scan(true), [], "and then it does");

        // A slot that is free, or another's by now, is not looked at with the old band.
        let (slot, band) = bands[7];
        bench.mirror.remove(slot);
        bench.tell();
        bench.write(bench.range(&band).start, !band.pattern.at(0));
        assert_eq!(bench.scan(true), []);

        // Poison, laid by the other kernel.
        bench.mirror.repaint(|&number| Pattern::poisoned(number as u64, 100, 200));
        bench.tell();
        bench.backend.memset(bench.memory, 0x55, BANDS * CELL).unwrap();
        let slots = bench.mirror.slots() as u32;
        let launch = KernelLaunch::new(bench.kernel(FILL_KERNEL)).ptr(bench.table);
        bench.launch(launch.u32(100).u32(slots - 100), BANDS - 100);
        let memory = bench.read();
        for (slot, band, _) in bench.mirror.iter() {
            let byte = match slot { 0..100 => 0x55, 100..200 => 0xEE, _ => 0 };
            assert!(memory[bench.range(band)].iter().all(|&at| at == byte), "{slot}");
        }
        bench.backend.sweep_unreleased().unwrap();
    }
}
