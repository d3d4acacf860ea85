// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watchdog over the free memory: three low readings in a row, and the process is ended before the machine hangs.
//!
//! ```text
//!              low            low            low
//!   watching ──────▶ 1 low ──────▶ 2 low ──────▶ fired: the report, then the handler or the end of the process
//!      ▲               │              │
//!      └──── good ─────┴──── good ────┘           an unanswered reading changes nothing
//! ```
//!
//! On an integrated GPU running out of memory does not fail a call: the machine stops answering. [`Watchdog`] decides;
//! [`watch`] is the loop around it, over any reader and any clock; [`WatchdogThread`] runs that loop, once a process.

use core::fmt;
use core::time::Duration;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use metrale_ledger::ByteSize;
use parking_lot::{Condvar, Mutex};

use crate::error::{Cause, ErrorKind, Remedy, causes};

/// Low readings in a row that fire the watchdog.
pub const LOW_READINGS: u32 = 3;

/// The exit code of a process that the watchdog ended: the BSD convention for a temporary failure, try again.
pub const LOW_MEMORY_EXIT_CODE: i32 = 75;

/// Longer than this between two readings, and the watchdog could as well not be there.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);

/// What one reading of the free memory came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// At or above the threshold.
    Good,
    /// Below it, for so many readings in a row.
    Low {
        /// Low readings in a row, this one included.
        in_a_row: u32,
    },
    /// No answer; nothing changed.
    Unanswered,
    /// Below it for the [`LOW_READINGS`]th time in a row: act now. Said once.
    Fire,
    /// It has fired before.
    Spent,
}

/// The decision machine: readings in, at most one [`Watched::Fire`] out. Knows no clock and no driver.
///
/// ```
/// use metrale_cuda_backend::memory::{Watchdog, Watched};
///
/// let mut watchdog = Watchdog::new(512, 16 << 30)?; // MiB, and the device's total bytes
/// let low = Some(100 << 20);
/// assert_eq!(watchdog.read(low), Watched::Low { in_a_row: 1 });
/// assert_eq!(watchdog.read(None), Watched::Unanswered);
/// assert_eq!(watchdog.read(low), Watched::Low { in_a_row: 2 });
/// assert_eq!(watchdog.read(low), Watched::Fire);
/// # Ok::<(), metrale_cuda_backend::memory::WatchdogError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Watchdog {
    threshold_bytes: u64,
    in_a_row: u32,
    fired: bool,
}

/// Why there is no watchdog.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchdogError {
    /// With a threshold of 0 nothing would ever be low.
    #[error("a watchdog with a threshold of 0 MiB would never fire; give the MiB that must stay free")]
    ZeroThreshold,
    /// The threshold is the device's total or more, so every reading would be low.
    #[error(
        "a watchdog with a threshold of {threshold_mb} MiB would fire at once: the device has {} in all",
        ByteSize(*total_bytes)
    )]
    ThresholdAboveTotal {
        /// The threshold in MiB.
        threshold_mb: u64,
        /// The device's total in bytes.
        total_bytes: u64,
    },
    /// An interval of 0 would read without a pause.
    #[error("a watchdog needs a pause between two readings; give an interval above zero, such as 250 ms")]
    ZeroInterval,
    /// An interval so long that memory is gone between two readings.
    #[error(
        "a watchdog that reads every {interval:?} acts after three of them, long after the memory is used up; give at most \
         {LONGEST_INTERVAL:?}, better below a second"
    )]
    IntervalTooLong {
        /// The interval.
        interval: Duration,
    },
    /// The process has one already.
    #[error("this process has a watchdog already; stop it before another is started")]
    AlreadyRunning,
    /// The system has no thread to give.
    #[error("the watchdog's thread could not be started: {reason}")]
    NoThread {
        /// The system's answer.
        reason: String,
    },
}

causes! { WatchdogError: BadArgument }

impl Cause for BelowFloor {
    fn kind(&self) -> ErrorKind {
        ErrorKind::OutOfMemory
    }

    fn remedy(&self) -> Remedy {
        Remedy::FreeAndRetry
    }
}

impl Watchdog {
    /// A watchdog that wants `threshold_mb` MiB to stay free on a device of `total_bytes` bytes.
    ///
    /// # Errors
    /// [`WatchdogError::ZeroThreshold`], [`WatchdogError::ThresholdAboveTotal`].
    pub fn new(threshold_mb: u64, total_bytes: u64) -> Result<Self, WatchdogError> {
        if threshold_mb == 0 {
            return Err(WatchdogError::ZeroThreshold);
        }
        match threshold_mb.checked_mul(1 << 20).filter(|&bytes| bytes < total_bytes) {
            Some(threshold_bytes) => Ok(Self { threshold_bytes, in_a_row: 0, fired: false }),
            None => Err(WatchdogError::ThresholdAboveTotal { threshold_mb, total_bytes }),
        }
    }

    /// The bytes that must stay free.
    #[must_use]
    pub const fn threshold_bytes(&self) -> u64 {
        self.threshold_bytes
    }

    /// Takes one reading of the free bytes; `None` is a question that got no answer.
    pub const fn read(&mut self, free_bytes: Option<u64>) -> Watched {
        if self.fired {
            return Watched::Spent;
        }
        match free_bytes {
            None => Watched::Unanswered,
            Some(free) if free >= self.threshold_bytes => {
                self.in_a_row = 0;
                Watched::Good
            }
            Some(_) => {
                self.in_a_row += 1;
                if self.in_a_row >= LOW_READINGS {
                    self.fired = true;
                    Watched::Fire
                } else {
                    Watched::Low { in_a_row: self.in_a_row }
                }
            }
        }
    }

    /// The longest time from the memory going low to the watchdog firing, when it reads every `interval` and each
    /// reading is answered.
    #[must_use]
    pub const fn reaction(interval: Duration) -> Duration {
        interval.saturating_mul(LOW_READINGS)
    }

    /// The threshold, in bytes, that still leaves the watchdog time to fire while free memory falls by
    /// `fall_bytes_per_second`. A threshold below this is passed through before the third reading.
    ///
    /// ```
    /// use core::time::Duration;
    /// use metrale_cuda_backend::memory::Watchdog;
    /// // A load that maps 14 GiB a second, read every 100 ms.
    /// assert_eq!(Watchdog::threshold_for(14 << 30, Duration::from_millis(100)) >> 20, 4300);
    /// ```
    #[must_use]
    pub const fn threshold_for(fall_bytes_per_second: u64, interval: Duration) -> u64 {
        let bytes =
            (fall_bytes_per_second as u128).saturating_mul(Self::reaction(interval).as_millis()) / 1000;
        if bytes > u64::MAX as u128 { u64::MAX } else { bytes as u64 }
    }
}

/// About to allocate more than may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "taking {} of {} free would leave less than the {} that must stay free; free memory first, or take less",
    ByteSize(*wanted_bytes), ByteSize(*free_bytes), ByteSize(*floor_bytes)
)]
pub struct BelowFloor {
    /// Bytes about to be taken.
    pub wanted_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes that must stay free.
    pub floor_bytes: u64,
}

/// The question to ask before a load, which takes memory faster than any watchdog reads: whether taking `wanted_bytes`
/// leaves `floor_bytes` free.
///
/// # Errors
/// [`BelowFloor`] with the three figures.
pub const fn load_fits(wanted_bytes: u64, free_bytes: u64, floor_bytes: u64) -> Result<(), BelowFloor> {
    match free_bytes.checked_sub(wanted_bytes) {
        Some(left) if left >= floor_bytes => Ok(()),
        _ => Err(BelowFloor { wanted_bytes, free_bytes, floor_bytes }),
    }
}

/// What a watchdog fired on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LowMemory {
    /// Free bytes at the last reading.
    pub free_bytes: u64,
    /// Bytes that had to stay free.
    pub threshold_bytes: u64,
    /// The time since the first of the low readings.
    pub low_for: Duration,
    /// The report: who holds the memory.
    pub report: String,
}

impl fmt::Display for LowMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{LOW_READINGS} readings in a row found less than {} of device memory free: {} at the last, low for {} ms\n{}",
            ByteSize(self.threshold_bytes),
            ByteSize(self.free_bytes),
            self.low_for.as_millis(),
            self.report
        )
    }
}

/// The clock of a watchdog's loop.
pub trait Pace {
    /// Waits until the next reading is due. `false` ends the loop.
    fn wait(&mut self) -> bool;

    /// The time.
    fn now(&self) -> Instant;
}

/// Reads until `watchdog` fires or `pace` says stop. Returns what it fired on, with an empty report.
///
/// `free_bytes` answers one reading; where it cannot, `None`.
pub fn watch(
    watchdog: &mut Watchdog,
    pace: &mut impl Pace,
    mut free_bytes: impl FnMut() -> Option<u64>,
) -> Option<LowMemory> {
    let mut low_since = None;
    while pace.wait() {
        let reading = free_bytes();
        match watchdog.read(reading) {
            Watched::Good => low_since = None,
            Watched::Low { in_a_row } => {
                tracing::warn!(
                    free_bytes = reading,
                    threshold_bytes = watchdog.threshold_bytes(),
                    in_a_row,
                    "device memory is low"
                );
                low_since = low_since.or_else(|| Some(pace.now()));
            }
            Watched::Unanswered => {}
            Watched::Fire => {
                let low_for =
                    low_since.map_or(Duration::ZERO, |since| pace.now().saturating_duration_since(since));
                return Some(LowMemory {
                    free_bytes: reading.unwrap_or(0),
                    threshold_bytes: watchdog.threshold_bytes(),
                    low_for,
                    report: String::new(),
                });
            }
            Watched::Spent => return None,
        }
    }
    None
}

/// Called when the watchdog fires, after the report was printed.
pub type LowMemoryHandler = Box<dyn FnOnce(&LowMemory) + Send>;

/// What the watchdog's thread works with.
pub struct WatchdogParts {
    /// Answers one reading: the free bytes, or `None` where it cannot. Called on the watchdog's thread.
    pub free_bytes: Box<dyn FnMut() -> Option<u64> + Send>,
    /// Who holds the memory, in words. Called once, when it fires.
    pub report: Box<dyn FnOnce() -> String + Send>,
    /// What to do then; without one the process ends with [`LOW_MEMORY_EXIT_CODE`].
    pub handler: Option<LowMemoryHandler>,
}

impl fmt::Debug for WatchdogParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchdogParts").field("handler", &self.handler.is_some()).finish_non_exhaustive()
    }
}

/// Whether the process has a watchdog: two of them would end it twice.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// The running watchdog. Dropping the handle leaves it running; [`stop`](Self::stop) ends it.
#[derive(Debug)]
#[must_use = "keep the handle to be able to stop the watchdog; it runs on without it"]
pub struct WatchdogThread {
    stop: Arc<Stop>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Stop {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl WatchdogThread {
    /// Starts the process's watchdog, which reads every `interval`. Does not block.
    ///
    /// When it fires, the report is printed on standard error and logged first, so that it is there whatever the handler
    /// does; then the handler is called or the process ends.
    ///
    /// # Errors
    /// [`WatchdogError::ZeroInterval`], [`WatchdogError::IntervalTooLong`], [`WatchdogError::AlreadyRunning`],
    /// [`WatchdogError::NoThread`].
    pub fn spawn(
        watchdog: Watchdog,
        interval: Duration,
        parts: WatchdogParts,
    ) -> Result<Self, WatchdogError> {
        check_interval(interval)?;
        let slot = WatchdogClaim::take(&WATCHED)?;
        let stop = Arc::new(Stop::default());
        let pace = Clock { interval, stop: stop.clone() };
        let thread = std::thread::Builder::new()
            .name("metrale-watchdog".to_owned())
            .spawn(move || {
                let _slot = slot;
                run(watchdog, pace, parts);
            })
            .map_err(|error| WatchdogError::NoThread { reason: error.to_string() })?;
        Ok(Self { stop, thread })
    }

    /// Ends the watchdog. Waits for a reading that is under way, not for the interval. Another may be started then.
    pub fn stop(self) {
        *self.stop.asked.lock() = true;
        self.stop.changed.notify_all();
        if self.thread.join().is_err() {
            tracing::error!("the watchdog's thread had panicked");
        }
    }

    /// Whether its thread has ended: it fired and its handler returned.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

fn check_interval(interval: Duration) -> Result<(), WatchdogError> {
    if interval.is_zero() {
        Err(WatchdogError::ZeroInterval)
    } else if interval > LONGEST_INTERVAL {
        Err(WatchdogError::IntervalTooLong { interval })
    } else {
        Ok(())
    }
}

/// The process's right to its one watchdog; released when dropped, on a panic too.
#[derive(Debug)]
struct WatchdogClaim<'a>(&'a AtomicBool);

impl<'a> WatchdogClaim<'a> {
    fn take(taken: &'a AtomicBool) -> Result<Self, WatchdogError> {
        taken
            .compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| Self(taken))
            .map_err(|_| WatchdogError::AlreadyRunning)
    }
}

impl Drop for WatchdogClaim<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The loop of the thread, and what follows when it fires.
fn run(mut watchdog: Watchdog, mut pace: impl Pace, parts: WatchdogParts) {
    let WatchdogParts { free_bytes, report, handler } = parts;
    let Some(mut low) = watch(&mut watchdog, &mut pace, free_bytes) else { return };
    low.report = report();
    tracing::error!(free_bytes = low.free_bytes, threshold_bytes = low.threshold_bytes, "{low}");
    // Also where no log is set up: what is about to end should say why. A closed stream is no reason not to act.
    let _ = writeln!(std::io::stderr(), "{low}");
    match handler {
        Some(handler) => handler(&low),
        None => std::process::exit(LOW_MEMORY_EXIT_CODE),
    }
}

struct Clock {
    interval: Duration,
    stop: Arc<Stop>,
}

impl Pace for Clock {
    fn wait(&mut self) -> bool {
        let mut asked = self.stop.asked.lock();
        if !*asked {
            self.stop.changed.wait_for(&mut asked, self.interval);
        }
        !*asked
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const GIB: u64 = 1 << 30;
    const TOTAL: u64 = 128 * GIB;

    fn watchdog(threshold_gib: u64) -> Watchdog {
        Watchdog::new(threshold_gib << 10, TOTAL).unwrap()
    }

    /// A clock that steps by the interval, so many times.
    struct Steps {
        start: Instant,
        interval: Duration,
        taken: u32,
        left: u32,
    }

    impl Steps {
        fn new(interval: Duration, left: u32) -> Self {
            Self { start: Instant::now(), interval, taken: 0, left }
        }

        fn elapsed(&self) -> Duration {
            self.interval * self.taken
        }
    }

    impl Pace for Steps {
        fn wait(&mut self) -> bool {
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            self.taken += 1;
            true
        }

        fn now(&self) -> Instant {
            self.start + self.elapsed()
        }
    }

    #[test]
    fn three_low_readings_in_a_row_fire_once() {
        let mut watchdog = watchdog(8);
        for (free, expected) in [
            (Some(9 * GIB), Watched::Good),
            (Some(8 * GIB), Watched::Good),
            (Some(8 * GIB - 1), Watched::Low { in_a_row: 1 }),
            (Some(0), Watched::Low { in_a_row: 2 }),
            (Some(8 * GIB), Watched::Good),
            (Some(1), Watched::Low { in_a_row: 1 }),
            (None, Watched::Unanswered),
            (None, Watched::Unanswered),
            (Some(1), Watched::Low { in_a_row: 2 }),
            (None, Watched::Unanswered),
            (Some(1), Watched::Fire),
            (Some(1), Watched::Spent),
            (Some(9 * GIB), Watched::Spent),
            (None, Watched::Spent),
        ] {
            assert_eq!(watchdog.read(free), expected, "{free:?}");
        }
    }

    #[test]
    fn thresholds_that_make_no_sense_are_refused() {
        let refused = |threshold_mb, total| Watchdog::new(threshold_mb, total).unwrap_err();
        assert_eq!(refused(0, TOTAL), WatchdogError::ZeroThreshold);
        for (threshold_mb, total_bytes) in [(131_072, TOTAL), (131_073, TOTAL), (u64::MAX, TOTAL), (1, 0)] {
            let expected = WatchdogError::ThresholdAboveTotal { threshold_mb, total_bytes };
            assert_eq!(refused(threshold_mb, total_bytes), expected);
        }
        assert!(refused(131_072, TOTAL).to_string().contains("128.00 GiB"));
        assert_eq!(Watchdog::new(131_071, TOTAL).unwrap().threshold_bytes(), TOTAL - (1 << 20));
        assert_eq!(check_interval(Duration::ZERO), Err(WatchdogError::ZeroInterval));
        let interval = Duration::from_secs(61);
        assert_eq!(check_interval(interval), Err(WatchdogError::IntervalTooLong { interval }));
        assert_eq!(check_interval(Duration::from_millis(1)), Ok(()));
    }

    #[test]
    fn it_fires_exactly_where_a_naive_count_says() {
        use proptest::prelude::*;
        let reading = prop_oneof![2 => Just(Some(0)), 1 => Just(Some(TOTAL)), 1 => Just(None)];
        proptest!(|(readings in proptest::collection::vec(reading, 0..40))| {
            let mut watchdog = watchdog(1);
            let fired = readings.iter().position(|&free| watchdog.read(free) == Watched::Fire);
            let answered: Vec<(usize, u64)> =
                readings.iter().enumerate().filter_map(|(at, free)| Some((at, (*free)?))).collect();
            let naive = answered.windows(3).find(|last| last.iter().all(|reading| reading.1 == 0));
            prop_assert_eq!(fired, naive.map(|last| last[2].0));
        });
    }

    /// The rows of the table, each with the reason where it is not for a watchdog.
    #[test]
    fn every_observation_of_the_table() {
        let table = include_str!("../../tests/data/watchdog_cases.tsv");
        let mut checked = 0;
        for row in table.lines().filter(|line| !line.starts_with('#')) {
            let id = row.split('\t').next().unwrap();
            checked += 1;
            match id {
                // 34.0 GiB to 12.7 GiB in 1.5 s.
                "w01" => {
                    let free_at = |elapsed: Duration| {
                        let fall = elapsed.as_millis().min(1500) as u64 * (21_811 << 20) / 1500;
                        Some(34 * GIB - fall)
                    };
                    let fires_after = |interval: Duration, threshold_gib| {
                        let mut pace = Steps::new(interval, 1000);
                        let mut watchdog = watchdog(threshold_gib);
                        let mut elapsed = Duration::ZERO;
                        watch(&mut watchdog, &mut pace, || {
                            elapsed += interval;
                            free_at(elapsed)
                        })?;
                        Some(pace.elapsed())
                    };
                    // The gate of 16 GiB is passed at 1.27 s; read every second it fires 2.7 s later, far too late.
                    assert_eq!(fires_after(Duration::from_secs(1), 16), Some(Duration::from_secs(4)));
                    assert_eq!(fires_after(Duration::from_secs(10), 16), Some(Duration::from_secs(30)));
                    assert!(Watchdog::threshold_for(14 * GIB, Duration::from_secs(1)) > 16 * GIB);
                    // Every 50 ms it fires while there is memory left to act with.
                    assert_eq!(fires_after(Duration::from_millis(50), 16), Some(Duration::from_millis(1400)));
                    assert!(Watchdog::threshold_for(14 * GIB, Duration::from_millis(50)) < 16 * GIB);
                }
                // 17 to 19 GiB are gone within 10 s of a load: a floor of 8 GiB, and the load asked ahead.
                "w02" => {
                    let floor = 8 * GIB;
                    assert_eq!(load_fits(19 * GIB, 27 * GIB, floor), Ok(()));
                    let refused =
                        BelowFloor { wanted_bytes: 19 * GIB, free_bytes: 27 * GIB - 1, floor_bytes: floor };
                    assert_eq!(load_fits(19 * GIB, 27 * GIB - 1, floor), Err(refused));
                    assert!(load_fits(u64::MAX, 0, 0).is_err() && load_fits(0, 0, 0).is_ok());
                }
                // MemFree at 2.39 GiB is a false alarm while MemAvailable stays at 41.7: the reader gives the latter.
                "w04" => {
                    let text = b"MemTotal: 127601452 kB\nMemFree: 2506096 kB\nMemAvailable: 43725619 kB\n";
                    let info = super::super::MemInfo::parse(text).unwrap();
                    let mut watchdog = watchdog(8);
                    for _ in 0..10 {
                        let free = info.host_figure().unwrap().bytes;
                        assert_eq!(watchdog.read(Some(free)), Watched::Good);
                    }
                }
                // A single request above the device's total is refused where it is made, before any reading.
                "w05" => {}
                // 60 GiB more from one reading to the next is the page cache giving way: good, and no free of ours.
                "w07" => {
                    let mut watchdog = watchdog(8);
                    assert_eq!(watchdog.read(Some(GIB)), Watched::Low { in_a_row: 1 });
                    assert_eq!(watchdog.read(Some(61 * GIB)), Watched::Good);
                    assert_eq!(watchdog.read(Some(GIB)), Watched::Low { in_a_row: 1 });
                }
                other => panic!("a row nobody looked at: {other}"),
            }
        }
        assert_eq!(checked, 5);
    }

    #[test]
    fn the_report_comes_with_the_handler_and_the_handler_once() {
        let (sender, receiver) = mpsc::channel();
        let mut readings = [9, 1, 1, 9, 1, 1, 1, 1].into_iter();
        let parts = WatchdogParts {
            free_bytes: Box::new(move || readings.next().map(|gib| gib * GIB)),
            report: Box::new(|| "weights.rs:12 holds it all".to_owned()),
            handler: Some(Box::new(move |low| sender.send(low.clone()).unwrap())),
        };
        run(watchdog(8), Steps::new(Duration::from_millis(100), 8), parts);
        let low = receiver.recv().unwrap();
        assert_eq!((low.free_bytes, low.threshold_bytes), (GIB, 8 * GIB));
        assert_eq!(low.low_for, Duration::from_millis(200));
        let text = low.to_string();
        assert!(text.contains("less than 8.00 GiB") && text.contains("weights.rs:12"), "{text}");
        assert!(receiver.recv().is_err(), "it was called again");
    }

    #[test]
    fn a_watchdog_that_never_fires_calls_nobody() {
        let parts = WatchdogParts {
            free_bytes: Box::new(|| None),
            report: Box::new(|| panic!("no report was due")),
            handler: Some(Box::new(|_| panic!("it fired on nothing"))),
        };
        run(watchdog(8), Steps::new(Duration::from_millis(100), 50), parts);
    }

    /// The only test that takes the process's own place.
    #[test]
    fn there_is_one_in_a_process_until_it_is_stopped() {
        let quiet = || WatchdogParts {
            free_bytes: Box::new(|| Some(TOTAL)),
            report: Box::new(String::new),
            handler: None,
        };
        let hour = Duration::from_secs(60);
        assert_eq!(
            WatchdogThread::spawn(watchdog(8), Duration::ZERO, quiet()).err(),
            Some(WatchdogError::ZeroInterval)
        );
        let first = WatchdogThread::spawn(watchdog(8), hour, quiet()).unwrap();
        let second = WatchdogThread::spawn(watchdog(8), hour, quiet());
        assert_eq!(second.err(), Some(WatchdogError::AlreadyRunning));
        assert!(!first.is_finished());
        first.stop();

        let (sender, receiver) = mpsc::channel();
        let firing = WatchdogParts {
            free_bytes: Box::new(|| Some(0)),
            report: Box::new(|| "report".to_owned()),
            handler: Some(Box::new(move |low| sender.send(low.report.clone()).unwrap())),
        };
        let third = WatchdogThread::spawn(watchdog(8), Duration::from_millis(1), firing).unwrap();
        assert_eq!(receiver.recv().unwrap(), "report");
        third.stop();
    }
}
