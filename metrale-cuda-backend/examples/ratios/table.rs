// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table: a row a figure, with what it is measured beside and what it is to be.

use std::fmt;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Figure {
    Nanos(f64),
    Bytes(f64),
    /// Bytes a second.
    Rate(f64),
}

impl Figure {
    const fn value(self) -> f64 {
        match self {
            Self::Nanos(value) | Self::Bytes(value) | Self::Rate(value) => value,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::Nanos(ns) if ns < 10.0 => format!("{ns:.2} ns"),
            Self::Nanos(ns) if ns < 10e3 => format!("{ns:.1} ns"),
            Self::Nanos(ns) if ns < 10e6 => format!("{:.1} us", ns / 1e3),
            Self::Nanos(ns) => format!("{:.1} ms", ns / 1e6),
            Self::Bytes(bytes) => format!("{bytes:.0} B"),
            Self::Rate(rate) => format!("{:.2} GB/s", rate / 1e9),
        };
        f.pad(&text)
    }
}

/// What a figure is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// Less than this.
    Below(Figure),
    /// At most so many times the other side.
    Ratio(f64),
    /// At most so many nanoseconds more than the other side.
    More(f64),
    /// It is only told.
    None,
}

/// Prints rows and counts those that are not what they are to be.
#[derive(Debug, Default)]
pub(crate) struct Table {
    targets: u32,
    missed: u32,
}

impl Table {
    /// Begins a group of rows.
    #[expect(clippy::print_stdout, reason = "a table is what it is for")]
    pub(crate) fn group(&mut self, title: &str) {
        println!("\n{title}");
        println!(
            "  {:<56} {:>11} {:>11} {:>7}  {:<25} target",
            "", "ours", "other", "ratio", "the other side"
        );
    }

    /// A figure on its own.
    pub(crate) fn figure(&mut self, what: &str, ours: Figure, target: Target) {
        self.row(what, ours, None, target);
    }

    /// A figure beside another side's.
    pub(crate) fn ratio(&mut self, what: &str, ours: Figure, side: (&str, Figure), target: Target) {
        self.row_with_ratio(what, ours, side, ours.value() / side.1.value(), target);
    }

    /// A figure beside another side's, where the ratio of many rounds side by side is more exact than that of the two figures.
    pub(crate) fn row_with_ratio(
        &mut self,
        what: &str,
        ours: Figure,
        side: (&str, Figure),
        ratio: f64,
        target: Target,
    ) {
        self.row(what, ours, Some((side.0, side.1, ratio)), target);
    }

    /// The other side with its name, its figure, and the ratio to it.
    #[expect(clippy::print_stdout, reason = "a table is what it is for")]
    fn row(&mut self, what: &str, ours: Figure, side: Option<(&str, Figure, f64)>, target: Target) {
        let (name, beside, ratio) =
            side.map_or(("", f64::NAN, f64::NAN), |(name, other, ratio)| (name, other.value(), ratio));
        let (reached, words) = match target {
            Target::Below(limit) => (ours.value() < limit.value(), format!("< {limit}")),
            Target::Ratio(most) => (ratio <= most, format!("<= {most:.*}", digits(most))),
            Target::More(most) => {
                let more = ours.value() - beside;
                (more <= most, format!("+{more:.0} of at most +{most:.0} ns"))
            }
            Target::None => (true, String::new()),
        };
        let judged = !matches!(target, Target::None);
        self.targets += u32::from(judged);
        self.missed += u32::from(!reached);
        let verdict = if reached { "" } else { "  MISSED" };
        let (other, ratio) = side
            .map(|(_, other, ratio)| (other.to_string(), format!("{ratio:.*}", digits(ratio))))
            .unwrap_or_default();
        println!("  {what:<56} {ours:>11} {other:>11} {ratio:>7}  {name:<25} {words}{verdict}");
    }

    /// Why a group has no rows.
    #[expect(clippy::print_stdout, reason = "a table is what it is for")]
    pub(crate) fn not_run(&mut self, why: &str) {
        println!("  not run: {why}");
    }

    /// The last line.
    #[expect(clippy::print_stdout, reason = "a table is what it is for")]
    pub(crate) fn close(self) {
        println!("\n{} of {} targets reached", self.targets - self.missed, self.targets);
    }
}

/// Digits behind the point that show a ratio.
fn digits(ratio: f64) -> usize {
    if ratio < 0.01 { 5 } else { 2 }
}
