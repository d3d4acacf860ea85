// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cheap poll of the free memory: the driver's last figure, corrected by what the ledger knows has changed since.

use core::time::Duration;
use std::time::Instant;

use parking_lot::Mutex;

use super::MemoryInfo;

/// Asks the driver (about 7 µs) once a period; in between its figure moves by the ledger's own change.
///
/// What other processes, modules, graphs and streams take in between shows at the next question only.
#[derive(Clone, Debug)]
pub struct FreePoll {
    period: Duration,
    last: Option<Asked>,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    info: MemoryInfo,
    resident_bytes: u64,
    at: Instant,
}

/// An answer of a [`FreePoll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolledFree {
    /// Free bytes: the driver's last figure less the ledger's change since; between 0 and the total.
    pub free_bytes: u64,
    /// The device's total bytes.
    pub total_bytes: u64,
    /// Time since the driver was asked.
    pub age: Duration,
    /// Bytes that the ledger's residency has grown by since; negative where it shrank.
    pub ledger_change_bytes: i64,
}

impl FreePoll {
    /// A poll that asks the driver when its figure is `period` old. A zero period asks every time.
    #[must_use]
    pub const fn new(period: Duration) -> Self {
        Self { period, last: None }
    }

    /// The free memory at `now`, with `resident_bytes` on the ledger. `ask` is called where the last figure is older
    /// than the period; if it has no answer, the old figure serves on, with its age. `None` while there never was one.
    pub fn poll(
        &mut self,
        now: Instant,
        resident_bytes: u64,
        ask: impl FnOnce() -> Option<MemoryInfo>,
    ) -> Option<PolledFree> {
        // A clock that steps back makes no figure fresh for ever: the age is then zero and the period runs again.
        let is_due = self.last.is_none_or(|last| now.saturating_duration_since(last.at) >= self.period);
        if is_due && let Some(info) = ask() {
            self.last = Some(Asked { info, resident_bytes, at: now });
        }
        let last = self.last?;
        let change = i128::from(resident_bytes) - i128::from(last.resident_bytes);
        let free = (i128::from(last.info.free_bytes) - change).clamp(0, i128::from(last.info.total_bytes));
        Some(PolledFree {
            // The clamp keeps it within 64 bits.
            free_bytes: u64::try_from(free).unwrap_or(last.info.total_bytes),
            total_bytes: last.info.total_bytes,
            age: now.saturating_duration_since(last.at),
            ledger_change_bytes: i64::try_from(change).unwrap_or(if change < 0 {
                i64::MIN
            } else {
                i64::MAX
            }),
        })
    }

    /// Makes the next poll ask the driver, as after work that the ledger does not see (a module, a graph, a stream).
    pub const fn forget(&mut self) {
        self.last = None;
    }
}

/// What a poll keeps from one question to the next.
#[derive(Debug)]
pub(crate) struct Polling(pub(crate) Mutex<FreePoll>);

impl Default for Polling {
    fn default() -> Self {
        Self(Mutex::new(FreePoll::new(POLL_PERIOD)))
    }
}

/// How old the driver's figure may be in a cheap poll.
const POLL_PERIOD: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn info(free_bytes: u64) -> Option<MemoryInfo> {
        Some(MemoryInfo { free_bytes, total_bytes: 1000 })
    }

    #[test]
    fn between_two_questions_the_ledger_corrects_the_figure() {
        let start = Instant::now();
        let mut poll = FreePoll::new(SECOND);
        assert_eq!(poll.poll(start, 100, || None), None);
        let first =
            PolledFree { free_bytes: 500, total_bytes: 1000, age: Duration::ZERO, ledger_change_bytes: 0 };
        assert_eq!(poll.poll(start, 100, || info(500)), Some(first));
        let half = SECOND / 2;
        let more = poll.poll(start + half, 300, || panic!("it is not due")).unwrap();
        assert_eq!((more.free_bytes, more.age, more.ledger_change_bytes), (300, half, 200));
        let less = poll.poll(start + half, 0, || panic!("it is not due")).unwrap();
        assert_eq!((less.free_bytes, less.ledger_change_bytes), (600, -100));
        // Due: the driver's own figure again, which also counts what other processes allocated.
        let fresh = poll.poll(start + SECOND, 300, || info(250)).unwrap();
        assert_eq!((fresh.free_bytes, fresh.age, fresh.ledger_change_bytes), (250, Duration::ZERO, 0));
    }

    #[test]
    fn a_driver_without_an_answer_leaves_the_old_figure_with_its_age() {
        let start = Instant::now();
        let mut poll = FreePoll::new(SECOND);
        poll.poll(start, 0, || info(400));
        let old = poll.poll(start + 3 * SECOND, 50, || None).unwrap();
        assert_eq!((old.free_bytes, old.age), (350, 3 * SECOND));
        poll.forget();
        assert_eq!(poll.poll(start + 3 * SECOND, 50, || None), None);
    }

    #[test]
    fn figures_stay_between_nothing_and_the_total() {
        let start = Instant::now();
        let mut poll = FreePoll::new(SECOND);
        poll.poll(start, u64::MAX, || info(400));
        let most = poll.poll(start, 0, || None).unwrap();
        assert_eq!((most.free_bytes, most.ledger_change_bytes), (1000, i64::MIN));
        poll.forget();
        poll.poll(start, 0, || info(400));
        let least = poll.poll(start, u64::MAX, || None).unwrap();
        assert_eq!((least.free_bytes, least.ledger_change_bytes), (0, i64::MAX));
    }
}
