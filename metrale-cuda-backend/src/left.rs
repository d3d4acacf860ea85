// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is left of a kind of memory, in words: how many allocations, how large, from which lines.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;

use metrale_ledger::ByteSize;

use crate::features::KEEPS_LEDGER;
use crate::ledger_writer::Left;

/// Call sites named in a line of the log.
const SITES: usize = 5;

/// The call sites behind a list of records, largest first; nothing without records.
pub(crate) struct LargestSites<'a>(pub(crate) &'a [Left]);

impl fmt::Display for LargestSites<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sums: BTreeMap<(&str, u32), (u64, u64)> = BTreeMap::new();
        for record in self.0.iter().filter_map(|(_, record)| record.as_ref()) {
            let site: &Location<'_> = record.site;
            let sum = sums.entry((site.file(), site.line())).or_default();
            sum.0 = sum.0.saturating_add(record.bytes as u64);
            sum.1 += 1;
        }
        if !KEEPS_LEDGER {
            return f.write_str(" (whose they were is not known without the feature \"ledger\")");
        }
        f.write_str(". Largest call sites: ")?;
        let mut rows: Vec<_> = sums.into_iter().collect();
        // Stable: equal sums stay in the order of their sites.
        rows.sort_by_key(|&(_, (bytes, _))| std::cmp::Reverse(bytes));
        for (index, ((file, line), (bytes, count))) in rows.iter().take(SITES).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{file}:{line} ({} in {count})", ByteSize(*bytes))?;
        }
        match rows.len().saturating_sub(SITES) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// How many there are and, where that is known, how large they are together.
pub(crate) fn counted(left: &[Left], kind: &str) -> String {
    let count = match left.len() {
        1 => format!("1 {kind} allocation"),
        n => format!("{n} {kind} allocations"),
    };
    if !KEEPS_LEDGER {
        return count;
    }
    let records = left.iter().filter_map(|(_, record)| record.as_ref());
    let sum = records.fold(0_u64, |sum, record| sum.saturating_add(record.bytes as u64));
    format!("{count} ({})", ByteSize(sum))
}
