// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Worker`]: one thread's share of the work, from a seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use metrale_cuda_backend::{
    Arena, DeviceBuffer, ErrorKind, Event, GpuBackend, MetraleCudaBackend, PinnedBuffer, Result, Stream,
};

/// Elements of the largest buffer.
const MOST: u64 = 300_000;

const NAMES: [&str; 8] = ["buffers", "copies", "streams", "graphs", "pinned", "arenas", "scratch", "reads"];

/// How often a thread did what.
#[derive(Default)]
pub(crate) struct Counts([AtomicU64; NAMES.len()]);

impl Counts {
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|count| count.load(Relaxed)).sum()
    }

    pub(crate) fn sums(all: &[Self]) -> Vec<(&'static str, u64)> {
        let sum = |index: usize| all.iter().map(|counts| counts.0[index].load(Relaxed)).sum();
        NAMES.into_iter().enumerate().map(|(index, name)| (name, sum(index))).collect()
    }
}

/// A buffer with what its owner wrote to it.
struct Held {
    buffer: DeviceBuffer<u32>,
    value: u32,
}

pub(crate) struct Worker<'a> {
    gpu: Arc<dyn GpuBackend>,
    seed: u64,
    counts: &'a Counts,
    held: Vec<Held>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(gpu: Arc<MetraleCudaBackend>, seed: u64, counts: &'a Counts) -> Self {
        Self { gpu, seed, counts, held: Vec::new() }
    }

    /// The next number below `end`: splitmix64.
    fn below(&mut self, end: u64) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    pub(crate) fn work(&mut self, steps: usize, stop: &AtomicBool) {
        let stream = Stream::new(&self.gpu).expect("a stream");
        for _ in 0..steps {
            if stop.load(Relaxed) {
                break;
            }
            let kind = self.below(NAMES.len() as u64) as usize;
            let done = match kind {
                0 => self.buffers(),
                1 => self.copies(&stream),
                2 => self.streams(&stream),
                3 => self.graphs(&stream),
                4 => self.pinned(&stream),
                5 => self.arenas(&stream),
                6 => self.scratch(&stream),
                _ => self.reads(),
            };
            done.unwrap_or_else(|error| panic!("{}: {error:#}", NAMES[kind]));
            self.counts.0[kind].fetch_add(1, Relaxed);
        }
        for held in std::mem::take(&mut self.held) {
            held.check();
        }
    }

    fn buffers(&mut self) -> Result<()> {
        if self.held.len() > 20 {
            let at = self.below(self.held.len() as u64) as usize;
            let held = self.held.swap_remove(at);
            if self.below(2) == 0 {
                held.check();
            } else {
                // On a thread that never used the backend.
                thread::scope(|scope| drop(scope.spawn(move || held.check())));
            }
        }
        let (len, value) = (1 + self.below(MOST) as usize, self.below(u64::from(u32::MAX)) as u32);
        let _scope = self.gpu.scope("buffers");
        let buffer = DeviceBuffer::from_slice(&self.gpu, &vec![value; len])?;
        self.held.push(Held { buffer, value });
        Ok(())
    }

    fn copies(&mut self, stream: &Stream) -> Result<()> {
        let value = self.below(1 << 32) as u32;
        let Some(held) = self.held.last_mut() else { return Ok(()) };
        let len = held.buffer.len();
        stream.copy_to_device(&vec![value; len], &mut held.buffer)?;
        held.value = value;
        let mut other = DeviceBuffer::<u32>::new(&self.gpu, len)?;
        stream.copy(&held.buffer, &mut other)?;
        let mut back = vec![0; len];
        stream.copy_to_host(&other, &mut back)?;
        assert!(back.iter().all(|&word| word == value), "a copy brought something else");
        Ok(())
    }

    fn streams(&mut self, stream: &Stream) -> Result<()> {
        let (other, event) = (Stream::new(&self.gpu)?, Event::new(&self.gpu)?);
        let len = 1 + self.below(5000) as usize;
        let mut buffer = DeviceBuffer::<u8>::new(&self.gpu, len)?;
        let value = self.below(256) as u8;
        stream.fill_bytes(&mut buffer, value)?;
        stream.record(&event)?;
        other.wait(&event)?;
        let mut back = vec![0; buffer.len()];
        other.copy_to_host(&buffer, &mut back)?;
        assert!(back.iter().all(|&byte| byte == value), "a stream did not wait for an event");
        assert!(event.has_passed()?);
        Ok(())
    }

    fn graphs(&mut self, stream: &Stream) -> Result<()> {
        let mut state = DeviceBuffer::<u8>::zeroed(&self.gpu, 512)?;
        let value = self.below(255) as u8 + 1;
        let capture = stream.capture()?;
        stream.fill_bytes(&mut state, value)?;
        let refused = DeviceBuffer::<u8>::new(&self.gpu, 1).map(drop);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Capture);
        if self.below(4) == 0 {
            drop(capture);
            return Ok(());
        }
        let graph = capture.finish("fill")?;
        let refused = self.gpu.free(state.ptr()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadArgument, "it is its owner's");
        graph.launch(stream)?;
        stream.synchronize()?;
        assert!(state.to_vec()?.iter().all(|&byte| byte == value), "a graph did something else");
        if self.below(2) == 0 {
            // Freed when the graph is destroyed.
            drop(state);
        }
        Ok(())
    }

    fn pinned(&mut self, stream: &Stream) -> Result<()> {
        let (len, value) = (1 + self.below(20_000) as usize, self.below(1 << 16) as u16);
        let mut device = DeviceBuffer::<u16>::new(&self.gpu, len)?;
        let mut host = PinnedBuffer::from_slice(&self.gpu, &vec![value; len])?;
        stream.copy_from_pinned(&host, &mut device)?;
        host.as_mut_slice()?.fill(!value);
        stream.copy_to_pinned(&device, &mut host)?;
        if self.below(4) > 0 {
            assert!(
                host.as_slice()?.iter().all(|&half| half == value),
                "a pinned copy brought something else"
            );
        }
        Ok(())
    }

    fn arenas(&mut self, stream: &Stream) -> Result<()> {
        let arena = Arena::new(&self.gpu, 64 << 10)?;
        let mut parts = Vec::new();
        for index in 0..1 + self.below(20) {
            let mut part = arena.alloc::<u8>("part", 1 + self.below(2000) as usize)?;
            stream.fill_bytes(&mut part, index as u8)?;
            parts.push((part, index as u8));
        }
        drop(arena);
        stream.synchronize()?;
        for (part, value) in parts {
            assert!(part.to_vec()?.iter().all(|&byte| byte == value), "parts of an arena overlap");
        }
        Ok(())
    }

    fn scratch(&mut self, stream: &Stream) -> Result<()> {
        let bytes = 1 + self.below(100_000) as usize;
        let scratch = self.gpu.op_scratch("stress", bytes, stream.handle())?;
        self.gpu.memset_async(scratch.ptr, 1, bytes, stream.handle())
    }

    fn reads(&mut self) -> Result<()> {
        let probe = self.gpu.ledger_probe();
        let snapshot = probe.snapshot();
        assert!(snapshot.totals.live_bytes <= snapshot.totals.resident_bytes);
        assert!(self.gpu.poll_free_memory()?.free_bytes > 0);
        assert!(!self.gpu.alloc_report(3, 0).is_empty());
        self.gpu.account().map(drop)
    }
}

impl Held {
    fn check(self) {
        let words = self.buffer.to_vec().expect("a sound device");
        assert!(words.iter().all(|&word| word == self.value), "a buffer has not what its owner wrote");
    }
}
