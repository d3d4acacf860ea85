// SPDX-License-Identifier: MIT OR Apache-2.0
//! What else moves the free figure: streams, graphs, modules, managed memory, as measured on an H200 (driver
//! 580.159.04), on both drivers. Each test begins in a fresh context, which on a GPU needs a process of its own.

mod common;

use common::Cuda;
use metrale_driver_sim::{ContextGuard, on_both_drivers};

const MIB: i64 = 1 << 20;
const NON_BLOCKING: u32 = 1;

/// A kernel in a module without globals.
const PLAIN: &[u8] = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n\0";

/// A module with one global of so many bytes.
fn with_global(bytes: usize) -> Vec<u8> {
    let header = ".version 7.0\n.target sm_70\n.address_size 64";
    format!("{header}\n.visible .global .align 4 .b8 big[{bytes}];\n\0").into_bytes()
}

/// Tells how many bytes are used beyond what was used when it was made.
struct Meter {
    cuda: Cuda,
    free: i64,
}

impl Meter {
    fn new(cuda: &Cuda) -> Self {
        let meter = Self { cuda: cuda.clone(), free: 0 };
        Self { free: -meter.used(), ..meter }
    }

    fn used(&self) -> i64 {
        self.free - i64::try_from(self.cuda.info().unwrap().0).unwrap()
    }
}

on_both_drivers! {
    /// Streams share a pool that grows with the highest number alive at once and stays until the context ends.
    streams(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let meter = Meter::new(&cuda);
        let mut streams = Vec::new();
        for count in 1..=34u32 {
            streams.push(cuda.stream(NON_BLOCKING).unwrap());
            assert_eq!(meter.used(), 2 * MIB * i64::from((count - 1).div_ceil(4)), "{count} streams");
        }
        // Beyond 34 it was measured in one context only, and not in a fresh one: 22 MiB for 38 to 40.
        streams.extend((35..=40).map(|_| cuda.stream(NON_BLOCKING).unwrap()));
        let most = meter.used();
        assert!((20 * MIB..=24 * MIB).contains(&most), "{most}");
        for stream in streams.drain(..) {
            assert_eq!(cuda.stream_destroy(stream), 0);
            assert_eq!(meter.used(), most, "nothing comes back");
        }
        for flags in [0, NON_BLOCKING] {
            streams.extend((0..10).map(|_| cuda.stream(flags).unwrap()));
        }
        assert_eq!(meter.used(), most, "others use it again");
        streams.into_iter().for_each(|stream| assert_eq!(cuda.stream_destroy(stream), 0));
    }

    /// Instantiated graphs share a pool that grows with the highest use, about 2,500 bytes a node. How much of it a
    /// context has already depends on its past, so the measured figures are held to within a chunk.
    graphs(driver; sim: common::sim()) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let module = cuda.load(PLAIN).unwrap();
        let nothing = cuda.function(module, "nothing").unwrap();
        let stream = cuda.stream(NON_BLOCKING).unwrap();
        let meter = Meter::new(&cuda);
        for (nodes, from_mib, to_mib) in [(1, 0, 2), (2000, 2, 4), (5000, 10, 12), (10_000, 22, 24)] {
            assert_eq!(cuda.capture_begin(stream, 2), 0);
            for _ in 0..nodes {
                assert_eq!(cuda.nothing(nothing, stream), 0);
            }
            let (end, graph) = cuda.end(stream);
            assert_eq!(end, 0);
            let exec = cuda.instantiate(graph).unwrap();
            let used = meter.used();
            let measured = (from_mib - 2) * MIB..=(to_mib + 2) * MIB;
            assert!(measured.contains(&used) && used % (2 * MIB) == 0, "{nodes} nodes: {used}");
            assert_eq!((cuda.exec_destroy(exec), cuda.graph_destroy(graph)), (0, 0));
            assert_eq!(meter.used(), used, "nothing comes back");
        }
        assert_eq!((cuda.stream_destroy(stream), cuda.unload(module)), (0, 0));
    }

    /// Globals are packed into chunks that come back with their modules.
    globals_of_modules(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let meter = Meter::new(&cuda);
        let mut modules = Vec::new();
        for count in 1..=7i64 {
            modules.push(cuda.load(&with_global(300_000)).unwrap());
            assert_eq!(meter.used(), 2 * MIB * ((count + 5) / 6), "{count} modules");
        }
        modules.into_iter().for_each(|module| assert_eq!(cuda.unload(module), 0));
        assert_eq!(meter.used(), 0);
        let module = cuda.load(&with_global(5_000_000)).unwrap();
        assert_eq!(meter.used(), 6 * MIB);
        assert_eq!((cuda.unload(module), meter.used()), (0, 0));
    }

    /// Modules without globals, their functions and launches take nothing.
    plain_modules(driver; sim: common::sim()) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let stream = cuda.stream(NON_BLOCKING).unwrap();
        let meter = Meter::new(&cuda);
        let modules: Vec<u64> = (0..50).map(|_| cuda.load(PLAIN).unwrap()).collect();
        assert_eq!(meter.used(), 0);
        for &module in &modules {
            assert_eq!(cuda.nothing(cuda.function(module, "nothing").unwrap(), stream), 0);
        }
        assert_eq!((cuda.sync(), meter.used()), (0, 0));
        modules.into_iter().for_each(|module| assert_eq!(cuda.unload(module), 0));
        assert_eq!((meter.used(), cuda.stream_destroy(stream)), (0, 0));
    }

    /// Managed memory takes nothing until the device touches it, and then 120 MiB that stay.
    managed_memory(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let meter = Meter::new(&cuda);
        let managed = cuda.alloc_managed(8 << 20, 1).unwrap();
        assert_eq!(meter.used(), 0);
        assert_eq!((cuda.memset(managed, 1, 8 << 20), cuda.sync()), (0, 0));
        assert_eq!(meter.used(), 128 * MIB);
        assert_eq!((cuda.free(managed), meter.used()), (0, 120 * MIB));
    }
}
