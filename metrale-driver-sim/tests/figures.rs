// SPDX-License-Identifier: MIT OR Apache-2.0
//! What else moves the free figure: streams, graphs, modules, managed memory, as measured on an H200 (driver
//! 580.159.04), on both drivers. Each test begins in a fresh context, which on a GPU needs a process of its own.

mod common;

use std::sync::Arc;

use common::Cuda;
use metrale_driver_sim::driver_sys::DriverApi;
use metrale_driver_sim::{ContextGuard, Profile, SimDriver, on_both_drivers, system_driver};

const MIB: i64 = 1 << 20;
const NON_BLOCKING: u32 = 1;

/// A kernel in a module without globals.
const PLAIN: &[u8] = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n\0";

/// A module with one global of so many bytes.
fn with_global(bytes: usize) -> Vec<u8> {
    let header = ".version 7.0\n.target sm_70\n.address_size 64";
    format!("{header}\n.visible .global .align 4 .b8 big[{bytes}];\n\0").into_bytes()
}

/// Measures the bytes used since it was made.
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

/// Places of the pool of streams that other devices take which the process sees.
fn places_of_others(cuda: &Cuda) -> i64 {
    i64::from(cuda.device_count().unwrap()) - 1
}

fn check_streams(driver: &Arc<dyn DriverApi>) {
    let _guard = ContextGuard::new(driver, 0).unwrap();
    let cuda = Cuda::new(driver);
    let meter = Meter::new(&cuda);
    assert_eq!(meter.used(), 0);
    let mut streams = Vec::new();
    for places in 1 + places_of_others(&cuda)..=44 {
        streams.push(cuda.stream(NON_BLOCKING).unwrap());
        // From the 36th place on there is a chunk more.
        let chunks = (places + 2) / 4 + i64::from(places >= 36);
        assert_eq!(meter.used(), 2 * MIB * chunks, "{} streams", streams.len());
    }
    let most = meter.used();
    for stream in streams.drain(..) {
        assert_eq!(cuda.stream_destroy(stream), 0);
        assert_eq!(meter.used(), most, "nothing comes back");
    }
    for flags in [0, NON_BLOCKING] {
        streams.extend((0..10).map(|_| cuda.stream(flags).unwrap()));
    }
    assert_eq!(meter.used(), most, "later streams use it again");
    streams.into_iter().for_each(|stream| assert_eq!(cuda.stream_destroy(stream), 0));
}

/// What the nodes of a graph do.
#[derive(Clone, Copy)]
enum Of {
    Kernels,
    Fills(u64),
}

/// Instantiates a graph and destroys it.
fn instantiate(cuda: &Cuda, stream: u64, of: Of, nodes: usize) {
    let module = cuda.load(PLAIN).unwrap();
    let nothing = cuda.function(module, "nothing").unwrap();
    assert_eq!(cuda.capture_begin(stream, 2), 0);
    for _ in 0..nodes {
        let status = match of {
            Of::Kernels => cuda.nothing(nothing, stream),
            Of::Fills(at) => cuda.memset_async(at, 1, 64, stream),
        };
        assert_eq!(status, 0);
    }
    let (end, graph) = cuda.end(stream);
    assert_eq!(end, 0);
    let exec = cuda.instantiate(graph).unwrap();
    assert_eq!((cuda.exec_destroy(exec), cuda.graph_destroy(graph)), (0, 0));
    assert_eq!(cuda.unload(module), 0);
}

/// MiB that graphs take in all beside streams that take so many places, and then with six streams more.
fn check_graphs_beside(
    driver: &Arc<dyn DriverApi>,
    places: i64,
    graphs_mib: [i64; 7],
    streams_mib: [i64; 6],
) {
    let _guard = ContextGuard::new(driver, 0).unwrap();
    let cuda = Cuda::new(driver);
    let mut streams: Vec<u64> =
        (places_of_others(&cuda)..places).map(|_| cuda.stream(NON_BLOCKING).unwrap()).collect();
    let meter = Meter::new(&cuda);
    for (nodes, mib) in [1, 100, 1000, 1500, 2000, 3000, 4000].into_iter().zip(graphs_mib) {
        instantiate(&cuda, streams[0], Of::Kernels, nodes);
        assert_eq!(meter.used(), mib * MIB, "{nodes} nodes");
    }
    for mib in streams_mib {
        streams.push(cuda.stream(NON_BLOCKING).unwrap());
        assert_eq!(meter.used(), mib * MIB, "{} streams", streams.len());
    }
    streams.into_iter().for_each(|stream| assert_eq!(cuda.stream_destroy(stream), 0));
}

/// One of two devices: each other device that a process sees takes the place of a stream.
mod streams_of_one_of_two_devices {
    use super::*;

    #[test]
    fn sim() {
        let two = SimDriver::builder().device(Profile::h200()).device(Profile::h200()).build();
        check_streams(&(Arc::new(two) as Arc<dyn DriverApi>));
    }

    #[test]
    #[ignore = "needs two GPUs: cargo xtask gpu-test"]
    fn two_devices() {
        check_streams(&system_driver());
    }
}

on_both_drivers! {
    /// Streams share a pool that grows with the highest number alive at once and stays until the context ends.
    streams(driver) {
        check_streams(&driver);
    }

    /// Before an allocation is refused, chunks that no stream has a place in go back.
    streams_before_an_allocation_is_refused(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let meter = Meter::new(&cuda);
        let chunks = |streams: i64| 2 * MIB * ((streams + places_of_others(&cuda) + 2) / 4);
        let mut streams: Vec<_> = (0..10).map(|_| cuda.stream(NON_BLOCKING).unwrap()).collect();
        for kept in [10, 6, 5, 1] {
            let most = meter.used();
            for stream in streams.drain(kept..) {
                assert_eq!(cuda.stream_destroy(stream), 0);
            }
            assert_eq!((meter.used(), cuda.alloc(1 << 50)), (most, Err(2)));
            assert_eq!(meter.used(), chunks(kept as i64), "{kept} streams are left");
        }
        streams.push(cuda.stream(NON_BLOCKING).unwrap());
        assert_eq!(meter.used(), chunks(2), "the next one takes a chunk again");
        streams.drain(..).for_each(|stream| assert_eq!(cuda.stream_destroy(stream), 0));
        assert_eq!((cuda.alloc(1 << 50), meter.used()), (Err(2), 0));
    }

    /// A new stream gets the place that was given up last, not the first one.
    a_new_stream_gets_the_place_that_was_given_up_last(driver; sim: common::sim()) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let meter = Meter::new(&cuda);
        let [first, second] = [0; 2].map(|_| cuda.stream(NON_BLOCKING).unwrap());
        assert_eq!((cuda.stream_destroy(first), cuda.stream_destroy(second)), (0, 0));
        let mut stream = cuda.stream(NON_BLOCKING).unwrap();
        for _ in 0..2 {
            assert_eq!((cuda.alloc(1 << 50), meter.used()), (Err(2), 2 * MIB), "it lies in the chunk");
            assert_eq!(cuda.stream_destroy(stream), 0);
            stream = cuda.stream(NON_BLOCKING).unwrap();
        }
        assert_eq!((cuda.stream_destroy(stream), cuda.alloc(1 << 50), meter.used()), (0, Err(2), 0));
        // The chunk's places went with it.
        let stream = cuda.stream(NON_BLOCKING).unwrap();
        assert_eq!((cuda.alloc(1 << 50), meter.used()), (Err(2), 0));
        assert_eq!(cuda.stream_destroy(stream), 0);
    }

    /// So does most of what graphs had.
    graphs_before_an_allocation_is_refused(driver; sim: common::sim()) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let meter = Meter::new(&cuda);
        let stream = cuda.stream(NON_BLOCKING).unwrap();
        let alone = meter.used();
        instantiate(&cuda, stream, Of::Kernels, 5000);
        assert!(meter.used() >= alone + 8 * MIB);
        assert_eq!((cuda.alloc(1 << 50), meter.used()), (Err(2), alone + 2 * MIB));
        assert_eq!(cuda.stream_destroy(stream), 0);
    }

    /// What one stream and graphs of so many nodes take together, each destroyed before the next. How much a graph takes
    /// depends on those before it too (2,000 nodes took 4 MiB right after one node, 2 after graphs in between), so all but
    /// the first are held to within a chunk.
    graphs(driver; sim: common::sim()) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let meter = Meter::new(&cuda);
        let stream = cuda.stream(NON_BLOCKING).unwrap();
        for (nodes, in_all, within) in [(1, 2, 0), (2000, 4, 2), (5000, 12, 2), (10_000, 24, 2)] {
            instantiate(&cuda, stream, Of::Kernels, nodes);
            let used = meter.used();
            assert!((used - in_all * MIB).abs() <= within * MIB && used % (2 * MIB) == 0, "{nodes} nodes: {used}");
        }
        assert_eq!(cuda.stream_destroy(stream), 0);
    }

    /// The last chunk of streams is full, so a graph's instantiation, which wants one more for a moment, opens another; the
    /// streams that come next find it.
    graphs_beside_a_full_chunk_of_streams(driver; sim: common::sim()) {
        check_graphs_beside(&driver, 5, [2, 2, 2, 4, 4, 6, 8], [8, 8, 8, 8, 10, 10]);
    }

    graphs_beside_a_chunk_with_space_for_one_stream(driver; sim: common::sim()) {
        check_graphs_beside(&driver, 4, [0, 0, 0, 2, 2, 4, 6], [6, 8, 8, 8, 8, 10]);
    }

    graphs_beside_a_chunk_with_space_for_three_streams(driver; sim: common::sim()) {
        check_graphs_beside(&driver, 6, [0, 0, 0, 2, 2, 4, 6], [6, 6, 6, 8, 8, 8]);
    }

    /// Nodes that fill take next to nothing.
    graphs_of_fills(driver) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let streams: Vec<u64> = (0..3).map(|_| cuda.stream(NON_BLOCKING).unwrap()).collect();
        let at = cuda.alloc(64).unwrap();
        let meter = Meter::new(&cuda);
        for nodes in [1, 1000, 4000] {
            instantiate(&cuda, streams[0], Of::Fills(at), nodes);
            assert_eq!(meter.used(), 0, "{nodes} nodes");
        }
        assert_eq!(cuda.free(at), 0);
        streams.into_iter().for_each(|stream| assert_eq!(cuda.stream_destroy(stream), 0));
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
