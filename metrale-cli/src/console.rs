// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the program writes: answers to one place, remarks to another, progress only where somebody watches.

use std::fmt;
use std::io::{self, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// The program's outputs. Tests give it buffers.
pub struct Console<'a> {
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    watched: bool,
}

impl<'a> Console<'a> {
    /// Answers go to `out`, remarks and errors to `err`. `watched` allows a progress bar on the terminal.
    pub fn new(out: &'a mut dyn Write, err: &'a mut dyn Write, watched: bool) -> Self {
        Self { out, err, watched }
    }

    /// Prints the command's answer.
    ///
    /// # Errors
    /// The output's, such as a closed pipe.
    pub fn answer(&mut self, text: impl fmt::Display) -> io::Result<()> {
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// Prints the command's answer, as JSON or as text.
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    pub fn answer_as(&mut self, json: bool, answer: &(impl fmt::Display + Serialize)) -> io::Result<()> {
        if json { self.answer(serde_json::to_string_pretty(answer)?) } else { self.answer(answer) }
    }

    /// Prints a remark or an error. Nothing is left to say where that output is closed.
    pub fn remark(&mut self, text: impl fmt::Display) {
        let _ = writeln!(self.err, "metrale: {text}");
    }

    /// Prints what is wrong with the command line, in the words of its parser.
    pub fn usage(&mut self, text: impl fmt::Display) {
        // As for a remark.
        let _ = write!(self.err, "{text}");
    }

    /// A bar that counts bytes; it shows on a terminal only.
    pub fn byte_bar(&self, total_bytes: u64) -> ProgressBar {
        self.bar(total_bytes, "{wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {msg}")
    }

    /// A bar that counts steps; it shows on a terminal only.
    pub fn step_bar(&self, total: u64) -> ProgressBar {
        self.bar(total, "{wide_bar} {human_pos}/{human_len} {per_sec}")
    }

    fn bar(&self, total: u64, template: &str) -> ProgressBar {
        let target = if self.watched { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::with_draw_target(Some(total), target).with_style(style)
    }
}

impl fmt::Debug for Console<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("watched", &self.watched).finish_non_exhaustive()
    }
}
