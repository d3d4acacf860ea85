// SPDX-License-Identifier: MIT OR Apache-2.0
//! Snapshots, their differences and the trees of arenas as text.

use std::fmt::{self, Write as _};

use crate::diff::{LabelChange, SiteChange, SnapshotDiff};
use crate::snapshot::{ArenaRow, PartRow, Snapshot, part_bytes};
use crate::text::{ByteSize, Label, counted};

/// Stands for the label of what was allocated outside any scope.
const NO_SCOPE: &str = "(no scope)";

/// A line's name, bytes and number of allocations.
type Row = (String, u64, u64);

impl Snapshot {
    /// The report: a header with the live total and the number of call sites; up to `top_n` call sites of at least
    /// `min_mb` MiB, largest first, each with size, count and `file:line:column`; one line summing the rest; up to `top_n`
    /// files, largest first; scopes and tags, where there are any, in the same way; arenas that have parts as a tree.
    ///
    /// The same snapshot gives the same text.
    pub fn report(&self, top_n: usize, min_mb: usize) -> String {
        let sites = self.by_site();
        let mut text = String::new();
        self.header(&mut text, sites.len());

        let floor = (min_mb as u64).saturating_mul(1 << 20);
        let sites: Vec<Row> =
            sites.into_iter().map(|row| (row.site.to_string(), row.bytes, row.count)).collect();
        let shown = sites.iter().take(top_n).take_while(|row| row.1 >= floor).count();
        section(&mut text, "call sites", "call site", &sites, shown);

        let files: Vec<Row> =
            self.by_file().into_iter().map(|row| (row.file, row.bytes, row.count)).collect();
        section(&mut text, "files", "file", &files, top_n);

        let labels =
            [("scopes", "scope", NO_SCOPE, self.by_scope()), ("tags", "tag", "(no tag)", self.by_tag())];
        for (title, noun, none, rows) in labels {
            if rows.iter().any(|row| row.label.is_some()) {
                let rows: Vec<Row> = rows
                    .into_iter()
                    .map(|row| {
                        let label =
                            row.label.map_or_else(|| none.to_owned(), |label| Label(&label).to_string());
                        (label, row.bytes, row.count)
                    })
                    .collect();
                section(&mut text, title, noun, &rows, top_n);
            }
        }
        write_arenas(&mut text, &self.arenas, top_n);
        text
    }

    fn header(&self, text: &mut String, sites: usize) {
        let totals = &self.totals;
        let size = |bytes| ByteSize(bytes);
        line(
            text,
            format_args!(
                "device allocations: {} live in {} from {}",
                size(totals.live_bytes),
                allocations(totals.live_count),
                counted(sites as u64, "call site"),
            ),
        );
        line(
            text,
            format_args!(
                "  resident {}, slack {} ({} of it in chunks of small allocations), peak {}",
                size(totals.resident_bytes),
                size(totals.slack_bytes),
                size(totals.chunk_slack_bytes),
                size(totals.peak_bytes),
            ),
        );
        if totals.managed_count > 0 {
            let (bytes, count) = (size(totals.managed_bytes), allocations(totals.managed_count));
            line(text, format_args!("  of these managed: {bytes} in {count}"));
        }
        if totals.arena_count > 0 {
            let (bytes, count) = (size(totals.arena_bytes), counted(totals.arena_count, "arena"));
            line(text, format_args!("  apart: {bytes} in {count}"));
        }
        if totals.pinned_count > 0 {
            let (bytes, count) = (size(totals.pinned_bytes), allocations(totals.pinned_count));
            line(text, format_args!("  apart: {bytes} of pinned host memory in {count}"));
        }
        if totals.padding_count > 0 {
            let (bytes, count) = (size(totals.padding_bytes), counted(totals.padding_count, "range"));
            line(text, format_args!("  apart: {bytes} of padding in {count}"));
        }
        let misuse: Vec<String> = totals
            .misuse
            .named()
            .iter()
            .filter(|c| c.0 > 0)
            .map(|&(n, what)| format!("{what} x{n}"))
            .collect();
        if !misuse.is_empty() {
            line(text, format_args!("  misuse: {}", misuse.join(", ")));
        }
    }
}

/// A title, the first `shown` rows, and one line that sums the rest.
fn section(text: &mut String, title: &str, noun: &str, rows: &[Row], shown: usize) {
    if rows.is_empty() {
        return;
    }
    let (top, rest) = rows.split_at(shown.min(rows.len()));
    line(text, format_args!("{title}:"));
    for (name, bytes, count) in top {
        line(text, format_args!("{:>12}  x{count:<7} {name}", ByteSize(*bytes)));
    }
    if !rest.is_empty() {
        let bytes = rest.iter().fold(0u64, |sum, row| sum.saturating_add(row.1));
        let count = rest.iter().fold(0u64, |sum, row| sum.saturating_add(row.2));
        let more = if top.is_empty() { "" } else { " more" };
        let what =
            if rest.len() == 1 { format!("1{more} {noun}") } else { format!("{}{more} {noun}s", rest.len()) };
        line(text, format_args!("{:>12}  x{count:<7} in {what}", ByteSize(bytes)));
    }
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{words}");
}

/// Adds the tree of arenas: for each up to `top_n` parts, largest first, one line that sums the rest, one
/// for what is free.
fn write_arenas(text: &mut String, arenas: &[ArenaRow], top_n: usize) {
    let mut line = |words: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{words}");
    };
    if arenas.is_empty() {
        return;
    }
    line(format_args!("arenas:"));
    for arena in arenas {
        let parts = counted(arena.parts.len() as u64, "part");
        let site = &arena.site;
        line(format_args!("{:>12}  in {parts:<9} {site}", ByteSize(arena.bytes)));
        let mut largest: Vec<&PartRow> = arena.parts.iter().collect();
        // Stable: equally large ones stay in the order of their places.
        largest.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        let (top, rest) = largest.split_at(top_n.min(largest.len()));
        for part in top {
            line(format_args!("{:>14}  {}", ByteSize(part.bytes), Label(&part.name)));
        }
        if !rest.is_empty() {
            let bytes = part_bytes(rest.iter().copied());
            let more = if top.is_empty() { "" } else { "more " };
            let parts = counted(rest.len() as u64, &format!("{more}part"));
            line(format_args!("{:>14}  in {parts}", ByteSize(bytes)));
        }
        line(format_args!(
            "{:>14}  (free, or between parts)",
            ByteSize(arena.bytes.saturating_sub(arena.used_bytes()))
        ));
    }
}

impl fmt::Display for SnapshotDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "device allocations: live {} ({:+}), resident {}, slack {}",
            signed(self.live_bytes),
            self.live_count,
            signed(self.resident_bytes),
            signed(self.slack_bytes)
        )?;
        if self.arena_bytes != 0 || self.pinned_bytes != 0 {
            writeln!(f, "apart: arenas {}, pinned {}", signed(self.arena_bytes), signed(self.pinned_bytes))?;
        }
        for SiteChange { site, bytes, count } in self.by_site() {
            writeln!(f, "{:>12}  x{count:<+7} {site}", signed(bytes))?;
        }
        let scopes = self.by_scope();
        if scopes.iter().any(|row| row.label.is_some()) {
            writeln!(f, "scopes:")?;
            for LabelChange { label, bytes, count } in scopes {
                let label = label.map_or_else(|| NO_SCOPE.to_owned(), |label| Label(&label).to_string());
                writeln!(f, "{:>12}  x{count:<+7} {label}", signed(bytes))?;
            }
        }
        Ok(())
    }
}

fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { '-' } else { '+' };
    format!("{sign}{}", ByteSize(bytes.unsigned_abs()))
}

/// `1 allocation`, `2 allocations`.
pub(crate) fn allocations(n: u64) -> String {
    counted(n, "allocation")
}
