// SPDX-License-Identifier: MIT OR Apache-2.0
//! Snapshots and their differences as text.

use std::fmt::{self, Write};

use crate::diff::{LabelChange, SnapshotDiff, clamp};
use crate::snapshot::{ArenaRow, LabelRow, PartRow, Snapshot, gather, part_bytes};
use crate::text::{ByteSize, Label, counted};

/// One line of a section: its name, bytes and number of allocations.
type Line = (String, u64, u64);

impl Snapshot {
    /// The report: a header with the live total and the number of call sites; up to `top_n` call sites of at least
    /// `min_mb` MiB, largest first, each with size, count and `file:line`; one line summing the rest; up to `top_n`
    /// files, largest first; scopes and tags, where there are any, in the same way; arenas that have parts as a tree.
    ///
    /// The same snapshot gives the same text.
    pub fn report(&self, top_n: usize, min_mb: usize) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_report(&mut text, top_n, min_mb);
        text
    }

    fn write_report(&self, text: &mut String, top_n: usize, min_mb: usize) -> fmt::Result {
        let rows = self.by_site().into_iter();
        let lines = rows.map(|row| ((row.site.file, row.site.line), row.bytes.into(), row.count.into()));
        let lines = gather(lines, crate::totals::narrow);
        let sites: Vec<Line> =
            lines.map(|((file, at), bytes, n)| (format!("{file}:{at}"), bytes, n)).collect();
        self.write_header(text, sites.len())?;
        let floor = (min_mb as u64).saturating_mul(1 << 20);
        let shown = sites.iter().take(top_n).take_while(|row| row.1 >= floor).count();
        write_section(text, "call sites", "call site", &sites, shown)?;

        let files = self.by_file().into_iter().map(|row| (row.file, row.bytes, row.count));
        write_section(text, "files", "file", &files.collect::<Vec<_>>(), top_n)?;

        write_labels(text, "scope", self.by_scope(), top_n)?;
        write_labels(text, "tag", self.by_tag(), top_n)?;
        write_arenas(text, &self.arenas, top_n)
    }

    fn write_header(&self, text: &mut String, sites: usize) -> fmt::Result {
        let totals = &self.totals;
        let (live, count) = (ByteSize(totals.live_bytes), counted(totals.live_count, "allocation"));
        writeln!(
            text,
            "device allocations: {live} live in {count} from {}",
            counted(sites as u64, "call site")
        )?;
        writeln!(
            text,
            "  resident {}, slack {} ({} of it in chunks of small allocations), peak {}",
            ByteSize(totals.resident_bytes),
            ByteSize(totals.slack_bytes),
            ByteSize(totals.chunk_slack_bytes),
            ByteSize(totals.peak_bytes),
        )?;
        let kinds = [
            ("of these managed", totals.managed_bytes, "", totals.managed_count, "allocation"),
            ("apart", totals.arena_bytes, "", totals.arena_count, "arena"),
            ("apart", totals.pinned_bytes, " of pinned host memory", totals.pinned_count, "allocation"),
            ("apart", totals.padding_bytes, " of padding", totals.padding_count, "range"),
        ];
        for (how, bytes, of, count, noun) in kinds.into_iter().filter(|kind| kind.3 > 0) {
            writeln!(text, "  {how}: {}{of} in {}", ByteSize(bytes), counted(count, noun))?;
        }
        let misuse = totals.misuse.named().into_iter().filter(|&(n, _)| n > 0);
        let misuse: Vec<String> = misuse.map(|(n, what)| format!("{what} x{n}")).collect();
        if !misuse.is_empty() {
            writeln!(text, "  misuse: {}", misuse.join(", "))?;
        }
        Ok(())
    }
}

/// A title, the first `shown` rows, and one line that sums the rest; nothing where there are no rows.
fn write_section(text: &mut String, title: &str, noun: &str, rows: &[Line], shown: usize) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let (top, rest) = rows.split_at(shown.min(rows.len()));
    writeln!(text, "{title}:")?;
    for (name, bytes, count) in top {
        writeln!(text, "{:>12}  x{count:<7} {name}", ByteSize(*bytes))?;
    }
    if !rest.is_empty() {
        let bytes = rest.iter().fold(0u64, |sum, row| sum.saturating_add(row.1));
        let count = rest.iter().fold(0u64, |sum, row| sum.saturating_add(row.2));
        writeln!(text, "{:>12}  x{count:<7} in {}", ByteSize(bytes), the_rest(rest.len(), top.len(), noun))?;
    }
    Ok(())
}

/// The section of scopes or of tags; nothing where no row has a label.
fn write_labels(text: &mut String, noun: &str, rows: Vec<LabelRow>, top_n: usize) -> fmt::Result {
    if rows.iter().all(|row| row.label.is_none()) {
        return Ok(());
    }
    let rows = rows.into_iter().map(|row| (label_or_none(row.label, noun), row.bytes, row.count));
    write_section(text, &format!("{noun}s"), noun, &rows.collect::<Vec<_>>(), top_n)
}

/// The tree of arenas: for each up to `top_n` parts, largest first, one line that sums the rest, and one for its free bytes.
fn write_arenas(text: &mut String, arenas: &[ArenaRow], top_n: usize) -> fmt::Result {
    if !arenas.is_empty() {
        writeln!(text, "arenas:")?;
    }
    for arena in arenas {
        let parts = counted(arena.parts.len() as u64, "part");
        writeln!(text, "{:>12}  in {parts:<9} {}", ByteSize(arena.bytes), arena.site)?;
        let mut largest: Vec<&PartRow> = arena.parts.iter().collect();
        // Stable: equally large parts stay in the order of their addresses.
        largest.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        let (top, rest) = largest.split_at(top_n.min(largest.len()));
        for part in top {
            writeln!(text, "{:>14}  {}", ByteSize(part.bytes), Label(&part.name))?;
        }
        if !rest.is_empty() {
            let bytes = ByteSize(part_bytes(rest.iter().copied()));
            writeln!(text, "{bytes:>14}  in {}", the_rest(rest.len(), top.len(), "part"))?;
        }
        let free = ByteSize(arena.bytes.saturating_sub(arena.used_bytes()));
        writeln!(text, "{free:>14}  (free, or between parts)")?;
    }
    Ok(())
}

/// `2 more files` behind the files shown; `2 files` where none is shown.
fn the_rest(rest: usize, shown: usize, noun: &str) -> String {
    let more = if shown == 0 { "" } else { "more " };
    counted(rest as u64, &format!("{more}{noun}"))
}

/// A label as texts show it; `(no scope)` without one.
fn label_or_none(label: Option<String>, noun: &str) -> String {
    label.map_or_else(|| format!("(no {noun})"), |label| Label(&label).to_string())
}

impl fmt::Display for SnapshotDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (live, resident) = (signed(self.live_bytes), signed(self.resident_bytes));
        let (count, slack) = (self.live_count, signed(self.slack_bytes));
        writeln!(f, "device allocations: live {live} ({count:+}), resident {resident}, slack {slack}")?;
        if self.arena_bytes != 0 || self.pinned_bytes != 0 {
            writeln!(f, "apart: arenas {}, pinned {}", signed(self.arena_bytes), signed(self.pinned_bytes))?;
        }
        let rows = self.by_site().into_iter();
        let lines = rows.map(|row| ((row.site.file, row.site.line), row.bytes.into(), row.count.into()));
        for ((file, line), bytes, count) in gather(lines, clamp) {
            writeln!(f, "{:>12}  x{count:<+7} {file}:{line}", signed(bytes))?;
        }
        let scopes = self.by_scope();
        if scopes.iter().any(|row| row.label.is_some()) {
            writeln!(f, "scopes:")?;
            for LabelChange { label, bytes, count } in scopes {
                writeln!(f, "{:>12}  x{count:<+7} {}", signed(bytes), label_or_none(label, "scope"))?;
            }
        }
        Ok(())
    }
}

/// Bytes with their sign: `+4.00 KiB`.
fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { '-' } else { '+' };
    format!("{sign}{}", ByteSize(bytes.unsigned_abs()))
}
