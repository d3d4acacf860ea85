// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory pools: operations recorded on an H200 (driver 580.159.04), done through the driver API, with the pool's attributes
//! and the free figure after each one. Every test makes its own pools, so that nothing before it counts.

mod common;

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use common::Cuda;
use metrale_driver_sim::driver_sys::{DriverApi, pool_attribute as a};
use metrale_driver_sim::{ContextGuard, Profile, SimDriver, on_both_drivers};

const NON_BLOCKING: u32 = 1;
/// Free bytes of a fresh context before the first operation, in the logs of one stream.
const FRESH_FREE_BYTES: u64 = 149_557_477_376;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

fn lines_of(gz: &[u8], header: &str) -> Vec<String> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(gz).read_to_string(&mut text).unwrap();
    let mut lines = text.lines().map(str::to_owned);
    assert_eq!(lines.next().as_deref(), Some(header));
    lines.collect()
}

fn number(cell: &str) -> u64 {
    match cell.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => cell.parse().unwrap(),
    }
}

/// A context with a pool, and the free figure then.
struct Bench {
    guard: ContextGuard,
    cuda: Cuda,
    stream: u64,
    other_stream: u64,
    pool: u64,
    fresh: u64,
}

impl Bench {
    fn new(driver: &Arc<dyn DriverApi>, max_bytes: usize) -> Self {
        let guard = ContextGuard::new(driver, 0).unwrap();
        let cuda = Cuda::new(driver);
        let (stream, other_stream) = (cuda.stream(NON_BLOCKING).unwrap(), cuda.stream(NON_BLOCKING).unwrap());
        let pool = cuda.new_pool(max_bytes);
        let fresh = guard.memory_info().unwrap().0 as u64;
        Self { guard, cuda, stream, other_stream, pool, fresh }
    }

    /// Bytes by which the free figure is lower. Other programs may hold memory of a GPU, so the difference counts.
    fn held(&self) -> u64 {
        self.fresh - self.guard.memory_info().unwrap().0 as u64
    }

    /// Used, reserved, and their high-water marks.
    fn figures(&self, pool: u64) -> [u64; 4] {
        [a::USED_MEM_CURRENT, a::RESERVED_MEM_CURRENT, a::USED_MEM_HIGH, a::RESERVED_MEM_HIGH]
            .map(|attribute| self.cuda.pool_bytes(pool, attribute).unwrap())
    }

    fn alloc(&self, bytes: usize) -> u64 {
        self.cuda.alloc_of_pool(bytes, self.pool, self.stream).unwrap()
    }

    fn free(&self, address: u64) {
        assert_eq!(self.cuda.free_async(address, self.stream), 0);
    }

    fn sync(&self) {
        assert_eq!(self.cuda.stream_sync(self.stream), 0);
    }

    fn keep_all(&self, pool: u64) {
        assert_eq!(self.cuda.pool_set_bytes(pool, a::RELEASE_THRESHOLD, u64::MAX), 0);
    }

    fn end(self) {
        assert_eq!((self.cuda.pool_destroy(self.pool), self.cuda.sync()), (0, 0));
        assert_eq!(self.held(), 0, "everything is back");
    }
}

/// One stream, which is, or is not, synchronized after each operation.
fn replay(driver: Arc<dyn DriverApi>, gz: &[u8], threshold: u64, synchronizes: bool) {
    let bench = Bench::new(&driver, 0);
    assert_eq!(bench.cuda.pool_set_bytes(bench.pool, a::RELEASE_THRESHOLD, threshold), 0);
    let lines = lines_of(gz, "Action,Pointer,Size,Used,Reserved,Free");
    assert_eq!(lines.len(), 1500);
    let mut live = HashMap::new();
    let mut base = None;
    for (row, line) in lines.iter().enumerate() {
        let cells: Vec<&str> = line.split(',').collect();
        let [action, pointer, bytes, used, reserved, free] = cells[..] else { panic!("{line}") };
        let pointer = number(pointer);
        if action == "allocate" {
            let address = bench.alloc(number(bytes) as usize);
            // The first one of both lies at the start of its pool.
            let base = *base.get_or_insert(address - pointer);
            assert_eq!(address - base, pointer, "row {row}: {line}");
            assert!(live.insert(pointer, address).is_none());
        } else {
            bench.free(live.remove(&pointer).unwrap());
        }
        if synchronizes {
            bench.sync();
        }
        let [got_used, got_reserved, ..] = bench.figures(bench.pool);
        assert_eq!((got_used, got_reserved), (number(used), number(reserved)), "row {row}: {line}");
        assert_eq!(bench.held(), FRESH_FREE_BYTES - number(free), "row {row}: {line}");
    }
    live.into_values().for_each(|address| bench.free(address));
    bench.end();
}

/// A log of several streams and pools with every kind of call, statuses among them. One stream may be the null stream.
fn replay_all(driver: Arc<dyn DriverApi>, gz: &[u8], operations: usize, null_stream: Option<usize>) {
    let bench = Bench::new(&driver, 0);
    let cuda = &bench.cuda;
    let mut pools = vec![bench.pool];
    let [third, fourth] = [(); 2].map(|()| cuda.stream(NON_BLOCKING).unwrap());
    let mut streams = [bench.stream, bench.other_stream, third, fourth];
    if let Some(null) = null_stream {
        streams[null] = 0;
    }
    let events: Vec<u64> = (0..4).map(|_| cuda.event(2).unwrap()).collect();
    let fresh = bench.held();
    let mut live: HashMap<u64, u64> = HashMap::new();
    let mut bases = HashMap::new();
    let mut recorded_fresh = None;
    let header = "Action,Pool,Stream,Pointer,Size,Used,Reserved,Free,UsedHigh,ReservedHigh,Result";
    let lines = lines_of(gz, header);
    assert_eq!(lines.len(), operations);
    for (row, line) in lines.iter().enumerate() {
        let cells: Vec<&str> = line.split(',').collect();
        let [action, at, stream, pointer, size, used, reserved, free, used_high, reserved_high, status] =
            cells[..]
        else {
            panic!("{line}")
        };
        let (at, pointer, size) = (number(at) as usize, number(pointer), number(size));
        if action == "createpool" {
            pools.push(cuda.new_pool(size as usize));
        }
        let stream = number(stream) as usize;
        let (stream, event) = (streams[stream], events[stream]);
        let pool = pools[at];
        // An address of the log that is not live is one inside an allocation, or none at all.
        let here = |pointer: u64| match (live.get(&pointer), bases.get(&at)) {
            (Some(&address), _) => address,
            (None, Some(&(mine, theirs))) if pointer >= theirs => mine + (pointer - theirs),
            (None, _) => pointer,
        };
        // An operation that the log waited for before it asked.
        let ask = |query: &dyn Fn() -> i32| {
            while query() == 600 {}
            0
        };
        let got = match action {
            "start" | "createpool" => 0,
            "allocate" => match cuda.alloc_of_pool(size as usize, pool, stream) {
                Ok(address) if pointer != 0 => {
                    let (mine, theirs) = *bases.entry(at).or_insert((address, pointer));
                    assert_eq!(address.wrapping_sub(mine), pointer.wrapping_sub(theirs), "row {row}: {line}");
                    live.insert(pointer, address);
                    0
                }
                Ok(address) => i32::from(address != 0),
                Err(status) => status,
            },
            "free" => cuda.free_async(here(pointer), stream),
            "memalloc" => {
                live.insert(pointer, cuda.alloc(size as usize).unwrap());
                0
            }
            "memfree" => cuda.free(here(pointer)),
            "streamsync" => cuda.stream_sync(stream),
            "ctxsync" => cuda.sync(),
            "eventsync" => cuda.event_sync(event),
            "streamquery" => ask(&|| cuda.stream_query(stream)),
            "eventquery" => ask(&|| cuda.event_query(event)),
            "record" => cuda.event_record(event, stream),
            // The size names the event's stream.
            "wait" => cuda.stream_wait(stream, events[size as usize], 0),
            "setthreshold" => cuda.pool_set_bytes(pool, a::RELEASE_THRESHOLD, size),
            "resetused" => cuda.pool_set_bytes(pool, a::USED_MEM_HIGH, size),
            "resetreserved" => cuda.pool_set_bytes(pool, a::RESERVED_MEM_HIGH, size),
            "flagoff" => cuda.pool_set_flag(pool, size as u32, 0),
            "trim" => cuda.pool_trim(pool, size as usize),
            _ => panic!("{line}"),
        };
        // The log was made so: in the pause the device reaches what it was given.
        std::thread::sleep(Duration::from_micros(50));
        assert_eq!(got as u64, number(status), "row {row}: {line}");
        if matches!(action, "free" | "memfree") && got == 0 {
            live.remove(&pointer);
        }
        let figures = [used, reserved, used_high, reserved_high].map(number);
        assert_eq!(bench.figures(pool), figures, "row {row}: {line}");
        let recorded_fresh = *recorded_fresh.get_or_insert(number(free));
        assert_eq!(bench.held() - fresh, recorded_fresh - number(free), "row {row}: {line}");
    }
    assert!(live.is_empty());
    pools[1..].iter().for_each(|&pool| assert_eq!(cuda.pool_destroy(pool), 0));
    events.iter().for_each(|&event| assert_eq!(cuda.event_destroy(event), 0));
}

macro_rules! recorded {
    ($name:literal) => {
        include_bytes!(concat!("../../metrale-ledger/tests/data/pool-", $name, ".csv.gz"))
    };
}

on_both_drivers! {
    small_0(driver) { replay(driver, recorded!("small-0"), 0, true); }
    small_1(driver) { replay(driver, recorded!("small-1"), 0, false); }
    small_2(driver) { replay(driver, recorded!("small-2"), u64::MAX, true); }
    mixed_0(driver) { replay(driver, recorded!("mixed-0"), 0, true); }
    mixed_2(driver) { replay(driver, recorded!("mixed-2"), u64::MAX, true); }

    /// Each way to wait, by three thresholds; frees by `cuMemFree`; bad frees; the null stream; trims.
    answers(driver) { replay_all(driver, recorded!("fixed"), 197, Some(3)); }

    three_streams(driver) { replay_all(driver, recorded!("three-mixed-0"), 2390, None); }
    three_pools(driver) { replay_all(driver, recorded!("pools-mixed"), 2291, None); }
    thresholds_and_trims(driver) { replay_all(driver, recorded!("thr-mixed"), 2937, None); }
    two_streams_and_events(driver) { replay_all(driver, recorded!("two-mixed-max"), 2783, None); }
    no_opportunistic_reuse(driver) { replay_all(driver, recorded!("two-opport-off"), 2689, None); }
    a_threshold_between(driver) { replay_all(driver, recorded!("some-mixed-64m"), 2932, None); }
    sizes_at_the_borders(driver) { replay_all(driver, recorded!("edge-unsync-max"), 1569, None); }
    wide_sizes(driver) { replay_all(driver, recorded!("unsync-wide-max"), 2506, None); }

    /// The marks can be set to 0 only, and then begin with what is there now.
    high_water_marks(driver) {
        let bench = Bench::new(&driver, 0);
        let (cuda, pool) = (&bench.cuda, bench.pool);
        bench.keep_all(pool);
        let address = bench.alloc(40 * MIB);
        bench.free(address);
        bench.sync();
        assert_eq!(bench.figures(pool), [0, 64, 40, 64].map(|mib| mib << 20));
        assert_eq!(cuda.pool_set_bytes(pool, a::USED_MEM_HIGH, 5), 1);
        assert_eq!(cuda.pool_set_bytes(pool, a::USED_MEM_CURRENT, 5), 1);
        assert_eq!(cuda.pool_set_bytes(pool, a::USED_MEM_CURRENT, 0), 1);
        assert_eq!(cuda.pool_set_bytes(pool, a::RESERVED_MEM_CURRENT, 0), 1);
        assert_eq!(cuda.pool_set_bytes(pool, a::USED_MEM_HIGH, 0), 0);
        assert_eq!(cuda.pool_set_bytes(pool, a::RESERVED_MEM_HIGH, 0), 0);
        assert_eq!(bench.figures(pool), [0, 64, 0, 64].map(|mib| mib << 20));
        bench.end();
    }

    /// A limit is rounded up to whole pieces of 32 MiB, and holds for reserved bytes.
    a_pool_with_a_limit(driver) {
        let bench = Bench::new(&driver, 100 * MIB);
        let (cuda, pool) = (&bench.cuda, bench.pool);
        let first = bench.alloc(90 * MIB);
        let others = [bench.alloc(20 * MIB), bench.alloc(6 * MIB)];
        assert_eq!(bench.figures(pool)[..2], [116 << 20, 128 << 20]);
        bench.free(first);
        bench.sync();
        assert_eq!((bench.figures(pool)[..2].to_vec(), bench.held()), (vec![26 << 20, 64 << 20], 64 << 20));
        assert_eq!(cuda.alloc_of_pool(129 * MIB, pool, bench.stream), Err(2));
        others.into_iter().for_each(|address| bench.free(address));
        bench.end();
    }

    /// A pool that is destroyed with something live goes with it.
    a_pool_destroyed_in_use(driver) {
        let bench = Bench::new(&driver, 0);
        let address = bench.alloc(1000);
        assert_eq!(bench.cuda.pool_destroy(bench.pool), 0);
        assert_eq!(bench.held(), 32 << 20);
        bench.free(address);
        bench.sync();
        assert_eq!(bench.held(), 0);
    }

    /// Memory that a pool holds unused goes to `cuMemAlloc` and to another pool where they would fail, all at once.
    unused_memory_serves_others(driver) {
        let bench = Bench::new(&driver, 0);
        let (cuda, pool) = (&bench.cuda, bench.pool);
        let other = cuda.new_pool(0);
        bench.keep_all(pool);
        let fill = || {
            let address = bench.alloc(60 * GIB);
            bench.free(address);
            bench.sync();
            assert_eq!((bench.figures(pool)[1], bench.held()), (60 << 30, 60 << 30));
        };
        fill();
        let address = cuda.alloc(100 * GIB).unwrap();
        assert_eq!((bench.figures(pool)[1], bench.held()), (0, 100 << 30));
        assert_eq!(cuda.free(address), 0);
        fill();
        let address = cuda.alloc_of_pool(100 * GIB, other, bench.stream).unwrap();
        assert_eq!((bench.figures(pool)[1], bench.held()), (0, 100 << 30));
        bench.free(address);
        bench.sync();
        assert_eq!((bench.held(), cuda.pool_destroy(other)), (0, 0));
        bench.end();
    }

    /// An allocation that fails because memory ran out leaves its pool with all whole pieces that there were.
    a_failed_allocation_keeps_what_it_got(driver) {
        let bench = Bench::new(&driver, 0);
        let (cuda, pool, piece) = (&bench.cuda, bench.pool, 32 << 20);
        bench.keep_all(pool);
        let address = bench.alloc(60 * GIB);
        let free = bench.guard.memory_info().unwrap().0 as u64;
        assert_eq!(cuda.alloc_of_pool(120 * GIB, pool, bench.stream), Err(2));
        let reserved = (60 << 30) + free / piece * piece;
        assert_eq!((bench.figures(pool)[..2].to_vec(), bench.held()), (vec![60 << 30, reserved], reserved));
        bench.free(address);
        bench.sync();
        let address = bench.alloc(130 * GIB);
        assert_eq!(bench.figures(pool)[..2], [130 << 30, reserved]);
        assert_eq!((cuda.pool_trim(pool, 0), bench.held()), (0, 130 << 30));
        bench.free(address);
        bench.sync();
        bench.end();
    }

    /// Sizes that no device has.
    hostile_sizes(driver) {
        let bench = Bench::new(&driver, 0);
        let sizes = [200 * GIB, 1 << 40, 1 << 47, 1 << 50, 1 << 63, usize::MAX, usize::MAX - 511];
        for bytes in sizes {
            assert_eq!(bench.cuda.alloc_of_pool(bytes, bench.pool, bench.stream), Err(2), "{bytes}");
        }
        let address = bench.alloc(1000);
        assert_eq!(bench.figures(bench.pool)[0], 1000);
        bench.free(address);
        bench.sync();
        bench.end();
    }

    /// What is freed on a stream and used again, there or on another one, holds what was written last.
    bytes_in_stream_order(driver) {
        let bench = Bench::new(&driver, 0);
        let (cuda, pool) = (&bench.cuda, bench.pool);
        bench.keep_all(pool);
        let other = bench.other_stream;
        let bytes = 8 * MIB;
        let first = bench.alloc(bytes);
        assert_eq!(cuda.memset_async(first, 1, bytes, bench.stream), 0);
        bench.free(first);
        let second = bench.alloc(bytes / 2);
        assert_eq!(second, first, "at once on the same stream");
        assert_eq!(cuda.memset_async(second, 2, bytes / 2, bench.stream), 0);
        bench.free(second);
        let third = cuda.alloc_of_pool(bytes, pool, other).unwrap();
        assert_eq!((cuda.memset_async(third, 3, bytes, other), cuda.stream_sync(other)), (0, 0));
        bench.sync();
        assert_eq!((cuda.bytes(third), cuda.bytes(third + bytes as u64 - 2)), ([3; 2], [3; 2]));
        assert_eq!((cuda.free_async(third, other), cuda.stream_sync(other)), (0, 0));
        bench.end();
    }
}

/// Measured with streams that waited for the host: what a stream freed behind unfinished work goes to itself and to streams that
/// wait for it, and to no other. Here work is unfinished until somebody waits for it.
#[test]
fn memory_behind_unfinished_work() {
    let driver: Arc<dyn DriverApi> = Arc::new(SimDriver::new(Profile::h200()));
    let bench = Bench::new(&driver, 0);
    let (cuda, pool) = (&bench.cuda, bench.pool);
    let [waits, does_not_wait] = [bench.other_stream, cuda.stream(NON_BLOCKING).unwrap()];
    bench.keep_all(pool);
    let block = bench.alloc(10 * MIB);
    assert_eq!(cuda.memset_async(block, 1, 10 * MIB, bench.stream), 0);
    bench.free(block);
    let event = cuda.event(0).unwrap();
    assert_eq!((cuda.event_record(event, bench.stream), cuda.stream_wait(waits, event, 0)), (0, 0));
    let on = |stream, mib: usize| cuda.alloc_of_pool(mib * MIB, pool, stream).unwrap();
    let first = on(waits, 9);
    assert_eq!(first, block);
    let second = on(does_not_wait, 1);
    assert_eq!(second, block + (10 << 20));
    let third = on(bench.stream, 1);
    assert_eq!(third, block + (9 << 20));

    // The bytes of the two that share the freed block come after what was there.
    assert_eq!((cuda.memset_async(first, 2, 9 * MIB, waits), cuda.stream_sync(waits)), (0, 0));
    assert_eq!((cuda.memset_async(third, 3, MIB, bench.stream), cuda.stream_sync(bench.stream)), (0, 0));
    assert_eq!(
        (cuda.bytes(third - 2), cuda.bytes(third), cuda.bytes(third + (1 << 20) - 2)),
        ([2; 2], [3; 2], [3; 2])
    );
    for (address, stream) in [(first, waits), (second, does_not_wait), (third, bench.stream)] {
        assert_eq!(cuda.free_async(address, stream), 0);
    }
    assert_eq!((cuda.sync(), cuda.event_destroy(event)), (0, 0));
}
