// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pool's model against an H200 (driver 580.159.04): recorded operations of several streams and pools, with events, unfinished
//! work, thresholds, trims and memory running out; address, used and reserved bytes and both high-water marks after each.

use std::collections::HashMap;
use std::io::Read;

use metrale_ledger::placement::pool::{Pool, PoolEvent, PoolReuse, PoolRule, PoolWork};
use metrale_ledger::placement::{PlacementError, PlacementId};

/// Address of the first allocation in the default pool, pool 0.
const BASE: u64 = 0x3_0200_0000;

/// No less than all memory of the device: what is greater the driver refuses at once.
const DEVICE_BYTES: u64 = 149_557_477_376;

struct Row<'a> {
    action: &'a str,
    pool: usize,
    stream: u64,
    pointer: u64,
    bytes: u64,
    used: u64,
    reserved: u64,
    free: u64,
    used_high: u64,
    reserved_high: u64,
    succeeded: bool,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str) -> Self {
        let cells: Vec<_> = line.split(',').collect();
        let [action, pool, stream, pointer, bytes, used, reserved, free, used_high, reserved_high, result] =
            cells[..]
        else {
            panic!("{line}")
        };
        let number = |cell: &str| cell.parse().unwrap();
        Self {
            action,
            pool: pool.parse().unwrap(),
            stream: number(stream),
            pointer: u64::from_str_radix(pointer.strip_prefix("0x").unwrap(), 16).unwrap(),
            bytes: number(bytes),
            used: number(used),
            reserved: number(reserved),
            free: number(free),
            used_high: number(used_high),
            reserved_high: number(reserved_high),
            succeeded: result == "0",
        }
    }
}

/// The pools of a device, and what the rows name.
#[derive(Default)]
struct Device {
    pools: Vec<Pool>,
    reuse: Vec<PoolReuse>,
    bases: Vec<Option<u64>>,
    live: HashMap<(usize, u64), PlacementId>,
    /// By stream: its last event, in every pool.
    events: HashMap<u64, Vec<PoolEvent>>,
    works: HashMap<u64, Vec<(usize, PoolWork)>>,
    /// Free bytes of the device before the row.
    free: u64,
}

impl Device {
    fn pool(&mut self, pool: usize) -> &mut Pool {
        while self.pools.len() <= pool {
            self.pools.push(Pool::new(PoolRule::H200));
            self.reuse.push(PoolReuse::default());
            self.bases.push(if self.pools.len() == 1 { Some(BASE) } else { None });
        }
        &mut self.pools[pool]
    }

    fn allocate(&mut self, row: &Row) {
        if row.bytes > DEVICE_BYTES {
            assert!(!row.succeeded);
            return;
        }
        let available = self.free;
        let pool = self.pool(row.pool);
        if row.bytes == 0 {
            assert_eq!(pool.alloc(row.stream, 0), Err(PlacementError::ZeroBytes));
            return;
        }
        let take = pool.would_take(row.stream, row.bytes).unwrap();
        let released = if take > available { self.trim_others(row.pool) } else { 0 };
        let pool = self.pool(row.pool);
        let before = pool.reserved_bytes();
        let placed = pool.alloc_within(row.stream, row.bytes, available + released);
        let Ok(placed) = placed else {
            assert!(!row.succeeded, "{placed:?}");
            self.trim_others(row.pool);
            return;
        };
        assert!(row.succeeded);
        assert_eq!((take, before + take), (placed.new_bytes, pool.reserved_bytes()));
        assert_eq!(pool.bytes_of(placed.id), Some(row.bytes));
        let base = *self.bases[row.pool].get_or_insert(row.pointer);
        assert_eq!(base + placed.offset_bytes, row.pointer, "{} bytes", row.bytes);
        assert!(self.live.insert((row.pool, row.pointer), placed.id).is_none());
    }

    /// What the driver does before it fails for want of memory; returns the bytes that this releases.
    fn trim_others(&mut self, than: usize) -> u64 {
        let mut released = 0;
        for (_, pool) in self.pools.iter_mut().enumerate().filter(|&(pool, _)| pool != than) {
            released += pool.reserved_bytes();
            pool.trim_to(0);
            released -= pool.reserved_bytes();
        }
        released
    }

    fn apply(&mut self, row: &Row) {
        let Row { pool, stream, bytes, .. } = *row;
        self.pool(pool);
        match row.action {
            "allocate" => self.allocate(row),
            // Rows of double and foreign frees have no live allocation.
            "free" => match self.live.remove(&(pool, row.pointer)) {
                Some(id) => {
                    self.pools[pool].free(stream, id).unwrap();
                    assert_eq!(self.pools[pool].free(stream, id), Err(PlacementError::NotLive { id }));
                }
                None => assert!(!row.succeeded || row.pointer == 0 || row.pointer >> 40 != 0),
            },
            "memfree" => {
                let id = self.live.remove(&(pool, row.pointer)).unwrap();
                self.pools[pool].free_synchronously(id).unwrap();
            }
            "memalloc" if bytes > self.free => self.pools.iter_mut().for_each(|pool| pool.trim_to(0)),
            "memalloc" | "after" | "start" | "streamquery" | "eventquery" | "setused5" | "setusedcurrent" => {
            }
            "createpool" => {
                if bytes > 0 {
                    self.pools[pool].set_max_bytes(bytes);
                }
            }
            "streamsync" => self.pools.iter_mut().for_each(|pool| pool.synchronize(stream)),
            "ctxsync" => self.pools.iter_mut().for_each(Pool::synchronize_all),
            "eventsync" => {
                for (pool, event) in self.pools.iter_mut().zip(&self.events[&stream]) {
                    pool.synchronize_event(event);
                }
            }
            "record" => {
                let events = self.pools.iter().map(|pool| pool.record(stream)).collect();
                self.events.insert(stream, events);
            }
            // The size names the event's stream.
            "wait" => {
                for (pool, event) in self.pools.iter_mut().zip(&self.events[&bytes]) {
                    pool.wait(stream, event);
                }
            }
            "gate" => {
                let works = self.pools.iter_mut().map(|pool| pool.begin_work(stream)).enumerate();
                self.works.entry(stream).or_default().extend(works);
            }
            "open" => {
                for (pool, work) in self.works.remove(&stream).unwrap() {
                    self.pools[pool].finish_work(work);
                }
            }
            "setthreshold" => self.pools[pool].set_release_threshold(bytes),
            "trim" => self.pools[pool].trim_to(bytes),
            "resetused" => self.pools[pool].reset_used_high(),
            "resetreserved" => self.pools[pool].reset_reserved_high(),
            "flagon" | "flagoff" => {
                let on = row.action == "flagon";
                match bytes {
                    1 => self.reuse[pool].follow_events = on,
                    2 => self.reuse[pool].opportunistic = on,
                    // Internal dependencies have no effect in any log.
                    _ => assert_eq!(bytes, 3),
                }
                self.pools[pool].set_reuse(self.reuse[pool]);
            }
            _ => panic!("{}", row.action),
        }
        self.free = row.free;
    }
}

fn holds(gz: &[u8], operations: usize) {
    let mut text = String::new();
    flate2::read::GzDecoder::new(gz).read_to_string(&mut text).unwrap();
    let mut lines = text.lines();
    let header = "Action,Pool,Stream,Pointer,Size,Used,Reserved,Free,UsedHigh,ReservedHigh,Result";
    assert_eq!(lines.next(), Some(header));
    let mut device = Device::default();
    let mut count = 0;
    for (i, line) in lines.enumerate() {
        let row = Row::parse(line);
        device.apply(&row);
        let pool = &device.pools[row.pool];
        let figures =
            (pool.used_bytes(), pool.reserved_bytes(), pool.used_high_bytes(), pool.reserved_high_bytes());
        assert_eq!(figures, (row.used, row.reserved, row.used_high, row.reserved_high), "row {i}: {line}");
        count += 1;
    }
    assert_eq!(count, operations);
}

macro_rules! logs {
    ($($name:ident: $file:literal, $operations:literal;)*) => {$(
        #[test]
        fn $name() {
            holds(include_bytes!(concat!("data/pool-", $file, ".csv.gz")), $operations);
        }
    )*};
}

logs! {
    // Each line of these answers one question: what releases pieces, what a trim leaves, what is refused.
    fixed_holds: "fixed", 197;
    fixed_with_unfinished_work_holds: "fixed-gate", 40;
    fixed_until_memory_runs_out_holds: "fixed-more", 61;
    // Sizes up to 1.5 GiB, never synchronized.
    wide_unsynchronized_holds: "unsync-wide-max", 2506;
    // Sizes about whole pieces.
    whole_pieces_holds: "edge-unsync-max", 1569;
    // Synchronized now and then, threshold 64 MiB.
    threshold_64_mib_holds: "some-mixed-64m", 2932;
    // Changing thresholds, trims.
    thresholds_holds: "thr-mixed", 2937;
    // Two streams with events.
    two_streams_holds: "two-mixed-max", 2783;
    two_streams_without_opportunistic_reuse_holds: "two-opport-off", 2689;
    three_streams_holds: "three-mixed-0", 2390;
    // Streams that wait for unfinished work.
    two_streams_with_unfinished_work_holds: "gate-small", 2781;
    two_streams_without_internal_dependencies_holds: "gate-internal-off", 2762;
    three_streams_with_unfinished_work_holds: "gate-mixed", 2253;
    three_pools_holds: "pools-mixed", 2291;
}
