// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small models of threads at one ledger, in every interleaving that loom can make of them.
//!
//! `cargo xtask ci --job loom`

use std::panic::Location;
use std::sync::Arc;

use loom::thread;

use super::*;

const PAGE: u64 = crate::SMALL_ALLOC_CHUNK;

/// Bounded, so that all models together take well under a minute: this many times a thread is stopped where it need not be.
fn model(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn record(ledger: &Shared, addr: u64, bytes: usize) {
    let answer = ledger.record(addr, bytes, Location::caller(), AllocKind::Device, None);
    assert!(answer.misuse.is_none());
}

fn forget(ledger: &Shared, addr: u64) {
    let at = Location::caller();
    let gone = ledger.forget_small(addr, at, Ok, |ledger| ledger.forget(addr, Class::Sweepable, at));
    assert!(gone.is_ok());
}

/// Nothing is lost, and the peak is the sum of what was there at once, or could have been.
fn two_threads(dealt: bool, preemptions: usize) {
    model(preemptions, move || {
        let ledger = Arc::new(Shared::new(1));
        if dealt {
            ledger.deal_out_now();
        }
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            record(&other, PAGE, 100);
            forget(&other, PAGE);
        });
        record(&ledger, 2 * PAGE, 10);
        thread.join().unwrap();
        let peak = ledger.read(Total::PeakBytes);
        assert!(peak == 110 || peak == 100, "{peak}");
        assert_eq!((ledger.read(Total::LiveBytes), ledger.read(Total::LiveCount)), (10, 1));
        assert_eq!(ledger.read(Total::ResidentBytes) as u64, PAGE);
        let at_peak = ledger.snapshot(true);
        assert_eq!(at_peak.groups.iter().map(|g| g.bytes).sum::<u64>(), peak as u64);
        assert_eq!(at_peak.totals.live_bytes, peak as u64);
    });
}

#[test]
fn record_and_forget_on_the_whole() {
    two_threads(false, 4);
}

#[test]
fn record_and_forget_dealt_out() {
    two_threads(true, 4);
}

/// The shards are dealt out from under a thread that waits for the whole, or has just seen that they were not.
#[test]
fn dealing_out_while_others_record() {
    model(4, || {
        let ledger = Arc::new(Shared::new(1));
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            record(&other, PAGE, 100);
            forget(&other, PAGE);
        });
        ledger.deal_out_now();
        record(&ledger, 2 * PAGE, 10);
        thread.join().unwrap();
        let peak = ledger.read(Total::PeakBytes);
        assert!(peak == 110 || peak == 100, "{peak}");
        assert_eq!((ledger.read(Total::LiveBytes), ledger.read(Total::LiveCount)), (10, 1));
        let at_peak = ledger.snapshot(true);
        assert_eq!(at_peak.groups.iter().map(|g| g.bytes).sum::<u64>(), peak as u64);
    });
}

/// A ledger that keeps what is recorded at this address beside its page, as the latest of two records.
fn holding_the_latest(addr: u64) -> Arc<Shared> {
    let ledger = Arc::new(Shared::new(1));
    record(&ledger, PAGE, 100);
    record(&ledger, addr, 10);
    // The first free leaves the peak, the second tells that it pays.
    for _ in 0..2 {
        forget(&ledger, addr);
        record(&ledger, addr, 10);
    }
    ledger
}

#[test]
fn dealing_out_while_the_latest_is_held() {
    const ADDR: u64 = PAGE + 4096;
    model(3, || {
        let ledger = holding_the_latest(ADDR);
        let other = Arc::clone(&ledger);
        // Before the shards are dealt out, or then.
        let thread = thread::spawn(move || forget(&other, ADDR));
        ledger.deal_out_now();
        record(&ledger, 2 * PAGE, 1);
        thread.join().unwrap();
        assert_eq!((ledger.read(Total::LiveBytes), ledger.read(Total::LiveCount)), (101, 2));
        let live = ledger.live_where(|_| true);
        assert_eq!(live.iter().map(|live| live.record.bytes).sum::<usize>(), 101);
    });
}

#[test]
fn calling_back_while_the_latest_comes_to_be_held() {
    const ADDR: u64 = PAGE + 4096;
    model(3, || {
        let ledger = holding_the_latest(ADDR);
        forget(&ledger, ADDR);
        ledger.deal_out_now();
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            other.snapshot(false);
            record(&other, ADDR, 10);
        });
        let (live, counted) = ledger.ask(|book| (book.live_where(|_| true).len(), book.meter.count_of_own()));
        assert_eq!(live, counted);
        thread.join().unwrap();
        assert_eq!(ledger.live_where(|_| true).len(), 2);
        assert_eq!(ledger.read(Total::LiveBytes), 110);
    });
}

/// A report in the middle is one moment: sums and groups agree.
#[test]
fn a_report_while_others_record() {
    model(4, || {
        let ledger = Arc::new(Shared::new(1));
        ledger.deal_out_now();
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            record(&other, PAGE, 100);
            record(&other, 2 * PAGE, 10);
        });
        let snapshot = ledger.snapshot(false);
        let sum: u64 = snapshot.groups.iter().map(|g| g.bytes).sum();
        assert_eq!(sum, snapshot.totals.live_bytes);
        assert!([0, 100, 110].contains(&sum), "{sum}");
        thread.join().unwrap();
        assert_eq!(ledger.read(Total::PeakBytes), 110);
    });
}

/// A total that is read in the middle is one that was.
#[test]
fn a_read_while_others_record() {
    model(4, || {
        let ledger = Arc::new(Shared::new(1));
        record(&ledger, PAGE, 100);
        ledger.deal_out_now();
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            forget(&other, PAGE);
            record(&other, 2 * PAGE, 10);
        });
        let seen = ledger.read(Total::LiveBytes);
        assert!([100, 0, 10].contains(&seen), "{seen}");
        thread.join().unwrap();
        assert_eq!((ledger.read(Total::LiveBytes), ledger.read(Total::PeakBytes)), (10, 100));
    });
}

/// Two reads are two moments, but not in the wrong order: what was live before is not above the peak read after.
#[test]
fn a_read_of_a_total_and_then_of_its_peak() {
    model(4, || {
        let ledger = Arc::new(Shared::new(1));
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            record(&other, PAGE, 100);
            record(&other, 2 * PAGE, 10);
        });
        let live = ledger.read(Total::LiveBytes);
        let peak = ledger.read(Total::PeakBytes);
        assert!(live <= peak, "{live} of {peak}");
        let resident = ledger.read(Total::ResidentBytes);
        let peak = ledger.read(Total::PeakResidentBytes);
        assert!(resident <= peak, "{resident} of {peak}");
        thread.join().unwrap();
    });
}

/// Slack is read from two cells, which are written one after the other: the answer is of one moment all the same, while a
/// page comes, gets more in it, and goes.
#[test]
fn a_read_of_slack_while_pages_come_and_go() {
    model(4, || {
        let ledger = Arc::new(Shared::new(1));
        record(&ledger, PAGE, 100);
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            forget(&other, PAGE);
            record(&other, 2 * PAGE, 10);
            record(&other, 2 * PAGE + 512, 20);
        });
        let seen = ledger.read(Total::SlackBytes) as u64;
        assert!([PAGE - 100, 0, PAGE - 10, PAGE - 30].contains(&seen), "{seen}");
        thread.join().unwrap();
        assert_eq!(ledger.read(Total::SlackBytes) as u64, PAGE - 30);
    });
}

/// While allocations overlap, the cells that slack is read from are not all written: one who saw before that nothing
/// overlapped must not read them.
#[test]
fn a_read_of_slack_while_an_overlap_comes_and_goes() {
    model(3, || {
        let ledger = Arc::new(Shared::new(1));
        record(&ledger, PAGE, 2000);
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            let at = Location::caller();
            // Into the next page, so that the pages change with the bytes.
            let bytes = PAGE as usize + 1000;
            assert!(other.record(PAGE + 512, bytes, at, AllocKind::Device, None).misuse.is_some());
            assert!(other.forget(PAGE + 512, Class::Sweepable, at).is_ok());
        });
        let seen = ledger.read(Total::SlackBytes) as u64;
        assert!([PAGE - 2000, PAGE - 3000].contains(&seen), "{seen}");
        thread.join().unwrap();
        assert_eq!(ledger.read(Total::SlackBytes) as u64, PAGE - 2000);
    });
}

/// A free that is counted apart right before another thread's new peak belongs before it.
#[test]
fn a_peak_right_after_a_free() {
    model(3, || {
        let ledger = Arc::new(Shared::new(1));
        ledger.deal_out_now();
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            record(&other, PAGE, 100);
            forget(&other, PAGE);
        });
        record(&ledger, 2 * PAGE, 150);
        thread.join().unwrap();
        let peak = ledger.read(Total::PeakBytes);
        assert!(peak == 250 || peak == 150, "{peak}");
        let at_peak = ledger.snapshot(true);
        assert_eq!(at_peak.groups.iter().map(|g| g.bytes).sum::<u64>(), peak as u64);
    });
}

/// What is published while another lane is open lacks what was counted there, so it must not be read.
#[test]
fn a_read_while_lanes_open() {
    model(3, || {
        let ledger = Arc::new(Shared::new(1));
        // A peak far above what follows, so that lanes have room.
        (1..8).for_each(|page| record(&ledger, page * PAGE, 100));
        (2..8).for_each(|page| forget(&ledger, page * PAGE));
        ledger.deal_out_now();
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            forget(&other, PAGE);
            record(&other, 2 * PAGE, 10);
            let third = Arc::clone(&other);
            thread::spawn(move || record(&third, 4 * PAGE, 7)).join().unwrap();
        });
        let seen = ledger.read(Total::LiveBytes);
        assert!([100, 0, 10, 17].contains(&seen), "{seen}");
        thread.join().unwrap();
        assert_eq!(ledger.read(Total::LiveBytes), 17);
    });
}

/// Padding takes the whole, from under a thread that works in a shard.
#[test]
fn padding_comes_while_others_record() {
    model(4, || {
        let ledger = Arc::new(Shared::new(1));
        ledger.deal_out_now();
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            record(&other, PAGE, 100);
            forget(&other, PAGE);
        });
        let at = Location::caller();
        assert!(ledger.record(PAGE + 512, 50, at, AllocKind::Padding, None).misuse.is_none());
        let slack = ledger.read(Total::SlackBytes) as u64;
        assert!([150, 50].contains(&(PAGE - slack)), "{slack}");
        thread.join().unwrap();
        assert_eq!((ledger.read(Total::LiveBytes), ledger.read(Total::PaddingBytes)), (0, 50));
        assert_eq!(ledger.read(Total::ResidentBytes) as u64, PAGE);
        assert!(ledger.forget(PAGE + 512, Class::Padding, at).is_ok());
        assert_eq!((ledger.read(Total::PeakBytes), ledger.read(Total::ResidentBytes)), (100, 0));
    });
}

/// Three at once, near the peak: lanes open and close under each other.
#[test]
fn three_threads_near_the_peak() {
    model(2, || {
        let ledger = Arc::new(Shared::new(1));
        record(&ledger, PAGE, 100);
        forget(&ledger, PAGE);
        ledger.deal_out_now();
        let threads = [2, 3].map(|page| {
            let ledger = Arc::clone(&ledger);
            thread::spawn(move || {
                record(&ledger, page * PAGE, 60);
                forget(&ledger, page * PAGE);
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        let peak = ledger.read(Total::PeakBytes);
        assert!(peak == 100 || peak == 120, "{peak}");
        let at_peak = ledger.snapshot(true);
        assert_eq!(at_peak.groups.iter().map(|g| g.bytes).sum::<u64>(), peak as u64);
        assert_eq!((ledger.read(Total::LiveBytes), ledger.read(Total::ResidentBytes)), (0, 0));
    });
}
