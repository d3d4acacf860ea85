// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading a whole log in a test.
#![allow(unreachable_pub, reason = "a module of several test programs")]
#![allow(dead_code, reason = "each test file uses its own part")]

use metrale_ledger::trace::{Finding, Follow, Reader, Row};

/// What a log came to.
pub struct Read {
    pub rows: Vec<Row>,
    pub findings: Vec<Finding>,
    pub follow: Follow,
    /// Lines passed over, with the reasons.
    pub skipped: Vec<(u64, String, bool)>,
    pub aliases: u64,
}

impl Read {
    /// Live bytes and allocations at the end, and the peak.
    pub fn live(&self) -> (u64, usize, u64) {
        let totals = self.follow.totals();
        assert_eq!(totals.live_bytes, self.follow.plan().live_bytes(), "log and plan agree");
        assert_eq!(totals.peak_live_bytes, self.follow.plan().summary().peak_live.bytes);
        (totals.live_bytes, self.follow.live().len(), totals.peak_live_bytes)
    }
}

pub fn read(log: &[u8]) -> Read {
    let mut follow = Follow::new();
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    let mut reader = Reader::new(log).unwrap().lenient(true);
    for row in reader.by_ref() {
        let row = row.unwrap();
        findings.extend(follow.row(&row).unwrap().finding);
        rows.push(row);
    }
    let skipped = reader.skipped().first.iter().map(|e| (e.line, e.reason.clone(), e.cut)).collect();
    Read { rows, findings, follow, skipped, aliases: reader.alias_count() }
}

/// As [`read`], of a log in which every row makes sense: a strict reader gives the same.
pub fn read_clean(log: &[u8]) -> Read {
    let read = read(log);
    assert!(read.skipped.is_empty(), "{:?}", read.skipped);
    let strict: Result<Vec<Row>, _> = Reader::new(log).unwrap().collect();
    assert_eq!(strict.unwrap(), read.rows);
    read
}

pub fn strict_error(log: &[u8]) -> (usize, String) {
    let mut reader = Reader::new(log).unwrap();
    let rows = reader.by_ref().take_while(Result::is_ok).count();
    let error = Reader::new(log).unwrap().find_map(Result::err).expect("a row that makes no sense");
    assert!(reader.next().is_none(), "nothing after an error");
    (rows, error.to_string())
}
