// SPDX-License-Identifier: MIT OR Apache-2.0
//! A record of what was launched, switched on for a step and compared with another step's.
//!
//! ```
//! use metrale_telemetry::{Launch, LaunchArg, LaunchKind, LaunchTrace, PointerRule};
//!
//! let trace = LaunchTrace::new();
//! let step = |rows: u32| {
//!     trace.start();
//!     trace.record(|| {
//!         Launch::new(LaunchKind::Kernel, "norm")
//!             .grid([rows, 1, 1])
//!             .block([256, 1, 1])
//!             .args([LaunchArg::Pointer(0x7000), LaunchArg::U32(rows)])
//!     });
//!     trace.stop()
//! };
//! let diff = step(8).diff(&step(16), PointerRule::Exact);
//! assert!(diff.to_string().contains("grid (8, 1, 1) -> (16, 1, 1)"));
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::trace_diff::{PointerRule, TraceDiff};

/// Launches kept in one trace unless [`LaunchTrace::set_limit`] says otherwise.
pub const DEFAULT_LIMIT: usize = 1 << 16;

/// What was put on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LaunchKind {
    /// A kernel.
    Kernel,
    /// An instantiated graph.
    Graph,
    /// A copy from the host to the device.
    CopyH2d,
    /// A copy from the device to the host.
    CopyD2h,
    /// A copy inside the device.
    CopyD2d,
    /// A fill.
    Memset,
}

impl LaunchKind {
    /// The word shown in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Graph => "graph",
            Self::CopyH2d => "copy-h2d",
            Self::CopyD2h => "copy-d2h",
            Self::CopyD2d => "copy-d2d",
            Self::Memset => "memset",
        }
    }
}

impl fmt::Display for LaunchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One argument of a launch. Two floats are equal when their bits are, so a NaN equals itself.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum LaunchArg {
    /// A device address.
    Pointer(u64),
    /// An unsigned 32-bit number.
    U32(u32),
    /// A signed 32-bit number.
    I32(i32),
    /// A float.
    F32(f32),
    /// An unsigned 64-bit number.
    U64(u64),
    /// A value passed whole, such as a tensor map.
    Bytes(Arc<[u8]>),
    /// An untyped parameter, of which only the slot is known.
    Opaque,
}

impl PartialEq for LaunchArg {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pointer(a), Self::Pointer(b)) | (Self::U64(a), Self::U64(b)) => a == b,
            (Self::U32(a), Self::U32(b)) => a == b,
            (Self::I32(a), Self::I32(b)) => a == b,
            (Self::F32(a), Self::F32(b)) => a.to_bits() == b.to_bits(),
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::Opaque, Self::Opaque) => true,
            _ => false,
        }
    }
}

impl Eq for LaunchArg {}

impl fmt::Display for LaunchArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pointer(address) => write!(f, "{address:#x}"),
            Self::U32(value) => write!(f, "{value}u32"),
            Self::I32(value) => write!(f, "{value}i32"),
            Self::F32(value) => write!(f, "{value:?}f32"),
            Self::U64(value) => write!(f, "{value}u64"),
            Self::Bytes(bytes) => {
                write!(f, "{} B:", bytes.len())?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Opaque => f.write_str("?"),
        }
    }
}

/// One launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// What it is.
    pub kind: LaunchKind,
    /// The function's name, or a name for what has none.
    pub function: Arc<str>,
    /// Blocks in x, y, z; zeros where the kind has no grid.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z; zeros where the kind has no block.
    pub block: [u32; 3],
    /// Dynamic shared memory, in bytes.
    pub shared_bytes: u32,
    /// The arguments in order.
    pub args: Vec<LaunchArg>,
}

impl Launch {
    /// A launch without grid, block, shared memory and arguments.
    pub fn new(kind: LaunchKind, function: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            function: function.into(),
            grid: [0; 3],
            block: [0; 3],
            shared_bytes: 0,
            args: Vec::new(),
        }
    }

    /// With this grid.
    #[must_use]
    pub fn grid(mut self, grid: [u32; 3]) -> Self {
        self.grid = grid;
        self
    }

    /// With this block.
    #[must_use]
    pub fn block(mut self, block: [u32; 3]) -> Self {
        self.block = block;
        self
    }

    /// With this much dynamic shared memory, in bytes.
    #[must_use]
    pub fn shared_bytes(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// With these arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = LaunchArg>) -> Self {
        self.args = args.into_iter().collect();
        self
    }
}

pub(crate) struct Dim3([u32; 3]);

impl From<[u32; 3]> for Dim3 {
    fn from(dim: [u32; 3]) -> Self {
        Self(dim)
    }
}

impl fmt::Display for Dim3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.0;
        write!(f, "({x}, {y}, {z})")
    }
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.function.escape_debug())?;
        if self.grid != [0; 3] || self.block != [0; 3] {
            write!(f, " grid {} block {}", Dim3(self.grid), Dim3(self.block))?;
        }
        if self.shared_bytes > 0 {
            write!(f, " shared {} B", self.shared_bytes)?;
        }
        for (i, arg) in self.args.iter().enumerate() {
            write!(f, "{}{arg}", if i == 0 { " args " } else { ", " })?;
        }
        Ok(())
    }
}

/// The launches of one step, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// The launches that were kept.
    pub launches: Vec<Launch>,
    /// Launches beyond the limit, which were only counted.
    pub dropped: u64,
}

impl Trace {
    /// How `later` differs from this trace.
    pub fn diff(&self, later: &Self, pointers: PointerRule) -> TraceDiff {
        TraceDiff::new(self, later, pointers)
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, launch) in self.launches.iter().enumerate() {
            writeln!(f, "{i:>6}  {launch}")?;
        }
        if self.dropped > 0 {
            writeln!(f, "        and {} more beyond the limit", self.dropped)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Kept {
    trace: Trace,
    limit: usize,
}

/// Records launches while it is on. Off when made; then recording costs one relaxed load.
#[derive(Debug)]
#[repr(C)]
pub struct LaunchTrace {
    on: AtomicBool,
    kept: Mutex<Kept>,
}

impl Default for LaunchTrace {
    fn default() -> Self {
        Self::new()
    }
}

impl LaunchTrace {
    /// Empty and off, with a limit of [`DEFAULT_LIMIT`] launches.
    pub const fn new() -> Self {
        let trace = Trace { launches: Vec::new(), dropped: 0 };
        Self { on: AtomicBool::new(false), kept: Mutex::new(Kept { trace, limit: DEFAULT_LIMIT }) }
    }

    /// How many launches one trace keeps; the rest is counted.
    pub fn set_limit(&self, launches: usize) {
        self.kept.lock().limit = launches;
    }

    /// Whether launches are recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Begins an empty trace.
    pub fn start(&self) {
        self.clear();
        self.on.store(true, Ordering::Relaxed);
    }

    /// Ends the recording and returns what was recorded.
    pub fn stop(&self) -> Trace {
        self.on.store(false, Ordering::Relaxed);
        self.take()
    }

    /// Returns what was recorded so far and begins anew: the border between two steps.
    pub fn take(&self) -> Trace {
        std::mem::take(&mut self.kept.lock().trace)
    }

    /// Drops what was recorded; the switch stays as it is.
    pub fn clear(&self) {
        drop(self.take());
    }

    /// Records a launch. `launch` is called only while the trace is on and below its limit.
    #[inline]
    pub fn record(&self, launch: impl FnOnce() -> Launch) {
        if self.is_on() {
            self.keep(launch);
        }
    }

    #[cold]
    fn keep(&self, launch: impl FnOnce() -> Launch) {
        // Built before the lock is held: the closure may be slow, or read this trace.
        let full = {
            let kept = self.kept.lock();
            kept.trace.launches.len() >= kept.limit
        };
        let launch = (!full).then(launch);
        let mut kept = self.kept.lock();
        match launch {
            Some(launch) if kept.trace.launches.len() < kept.limit => kept.trace.launches.push(launch),
            _ => kept.trace.dropped += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_builds_nothing() {
        let trace = LaunchTrace::new();
        trace.record(|| panic!("built while off"));
        assert_eq!(trace.take(), Trace::default());
    }

    #[test]
    fn steps_are_cut_by_take_and_stop() {
        let trace = LaunchTrace::new();
        trace.start();
        trace.record(|| Launch::new(LaunchKind::Kernel, "a"));
        assert_eq!(trace.take().launches.len(), 1);
        trace.record(|| Launch::new(LaunchKind::Graph, "b"));
        let second = trace.stop();
        assert_eq!(second.launches[0].kind, LaunchKind::Graph);
        trace.record(|| panic!("built while off"));
    }

    #[test]
    fn launches_beyond_the_limit_are_counted_and_not_built() {
        let trace = LaunchTrace::new();
        trace.set_limit(1);
        trace.start();
        trace.record(|| Launch::new(LaunchKind::Kernel, "a"));
        trace.record(|| panic!("built beyond the limit"));
        let got = trace.stop();
        assert_eq!((got.launches.len(), got.dropped), (1, 1));
        assert!(got.to_string().ends_with("and 1 more beyond the limit\n"));
    }

    #[test]
    fn a_launch_reads_as_one_line() {
        let launch = Launch::new(LaunchKind::Kernel, "gemm\n")
            .grid([132, 1, 1])
            .block([128, 2, 1])
            .shared_bytes(49_152)
            .args([LaunchArg::Pointer(0x7f00), LaunchArg::F32(0.5), LaunchArg::Bytes([1, 255].into())]);
        assert_eq!(
            launch.to_string(),
            "kernel gemm\\n grid (132, 1, 1) block (128, 2, 1) shared 49152 B args 0x7f00, 0.5f32, 2 B:01ff"
        );
    }

    #[test]
    fn floats_compare_by_bits() {
        assert_eq!(LaunchArg::F32(f32::NAN), LaunchArg::F32(f32::NAN));
        assert_ne!(LaunchArg::F32(0.0), LaunchArg::F32(-0.0));
        assert_ne!(LaunchArg::U64(1), LaunchArg::Pointer(1));
    }
}
