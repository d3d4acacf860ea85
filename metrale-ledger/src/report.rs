// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report: a snapshot as text.

use std::fmt::Write as _;

use crate::{ByteSize, Label, Snapshot, arena_tree};

/// Stands for the label of what was allocated outside any scope.
pub(crate) const NO_SCOPE: &str = "(no scope)";

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
        arena_tree::write(&mut text, &self.arenas, top_n);
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

pub(crate) fn counted(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// `1 allocation`, `2 allocations`.
pub(crate) fn allocations(n: u64) -> String {
    counted(n, "allocation")
}
