// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `metrale plan` answers.

use std::fmt;

use metrale_ledger::ByteSize;
use metrale_ledger::plan::{Allocator, Holder, Orders, Summary};
use serde::Serialize;

use crate::Exit;
use crate::args::{PlanArgs, When};
use crate::render::load::{Count, Line};
use crate::render::of_log::OfLog;

/// The memory that a plan is held against.
#[derive(Debug)]
pub struct Fit {
    /// In words, behind "fits into".
    pub into: String,
    /// Its bytes.
    pub bytes: u64,
}

/// What the allocations will take. All `_bytes` are bytes.
#[derive(Debug, Serialize)]
pub struct PlanReport {
    /// Allocations there will be.
    pub allocations: u64,
    /// Bytes of all of them, as asked for.
    pub requested_bytes: u64,
    /// The highest sum of live bytes.
    pub peak_live_bytes: u64,
    /// The most that the device will keep for them: 2 MiB for each page they touch.
    pub peak_resident_bytes: u64,
    /// Bytes live at the end.
    pub end_live_bytes: u64,
    /// What the device keeps at the end.
    pub end_resident_bytes: u64,
    /// What one arena would take that holds all of it.
    pub arena_resident_bytes: u64,
    /// Where it is not `driver`, the allocator planned for: `pool` or `vmm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocator: Option<&'static str>,
    /// What it takes where requests of the log had failed and granting them takes more than the peak; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needed_bytes: Option<u64>,
    /// Whether all of it fits; `null` where there was nothing to hold it against.
    pub fits: Option<bool>,
    /// What only a log has.
    #[serde(flatten)]
    pub of_log: Option<OfLog>,
    #[serde(skip)]
    text: Text,
}

/// What only the text shows.
#[derive(Debug)]
struct Text {
    title: String,
    /// A sentence on the allocator, where it is not the driver.
    from: Option<String>,
    /// The name of the line of holes.
    holes: &'static str,
    operations: u64,
    frees: u64,
    comes_and_goes: bool,
    end_live_count: u64,
    live_operation: Option<u64>,
    resident_operation: Option<u64>,
    rounding_bytes: u64,
    hole_bytes: u64,
    holders: Vec<Holder>,
    top: usize,
    orders: Orders,
    fit: Option<Fit>,
}

impl PlanReport {
    pub(crate) fn new(title: String, summary: &Summary, orders: Orders, fit: Option<Fit>) -> Self {
        let peak = &summary.peak_resident;
        Self {
            allocations: summary.allocations,
            requested_bytes: summary.requested_bytes,
            peak_live_bytes: summary.peak_live.bytes,
            peak_resident_bytes: peak.bytes,
            end_live_bytes: summary.end_live_bytes,
            end_resident_bytes: summary.end_resident_bytes,
            arena_resident_bytes: summary.arena_resident_bytes,
            needed_bytes: None,
            fits: fit.as_ref().map(|fit| summary.fits(fit.bytes)),
            allocator: None,
            of_log: None,
            text: Text {
                title,
                from: None,
                holes: "  holes in chunks",
                operations: summary.operations,
                frees: summary.frees,
                comes_and_goes: summary.comes_and_goes(),
                end_live_count: summary.end_live_count,
                live_operation: summary.peak_live.operation,
                resident_operation: peak.operation,
                rounding_bytes: peak.classes.iter().map(|class| class.rounding_bytes).sum(),
                hole_bytes: peak.hole_bytes,
                holders: peak.holders.clone(),
                top: usize::MAX,
                orders,
                fit,
            },
        }
    }

    pub(crate) fn listing(mut self, top: usize) -> Self {
        self.text.top = top;
        self
    }

    /// With the allocator that was planned for.
    pub(crate) fn planned_for(mut self, allocator: Allocator, args: &PlanArgs) -> Self {
        (self.text.from, self.text.holes) = match allocator {
            Allocator::Pool => {
                let releases = match args.release_threshold.0 {
                    0 => "releases what nothing uses".to_owned(),
                    u64::MAX => "releases nothing".to_owned(),
                    bytes => format!("releases what nothing uses, down to {}", ByteSize(bytes)),
                };
                let when = match args.synchronize {
                    When::Each => "when the program synchronises, here after each operation",
                    When::Rows => "when the program synchronises, here at the log's rows synchronize",
                };
                let from = format!("planned from the stream-ordered pool, which {releases} {when}");
                (Some(from), "  holes in the pool")
            }
            Allocator::VirtualMemory => {
                (Some("planned as virtual memory, a handle for each allocation".to_owned()), "  holes")
            }
            _ => return self,
        };
        self.allocator = Some(allocator.name());
        self
    }

    /// With what only a log has. A request that had failed is to be granted too.
    pub(crate) fn of_log(self, of_log: Option<OfLog>) -> Self {
        let most = of_log.as_ref().and_then(|of_log| of_log.needs_most);
        let needs = most.map(|failed| failed.granted_resident_bytes.unwrap_or(u64::MAX));
        let needed_bytes = needs.filter(|&needs| needs > self.peak_resident_bytes);
        let fits =
            self.text.fit.as_ref().map(|fit| needed_bytes.unwrap_or(self.peak_resident_bytes) <= fit.bytes);
        Self { of_log, needed_bytes, fits, ..self }
    }

    /// How the program ends with this answer.
    pub fn exit(&self) -> Exit {
        if self.fits == Some(false) { Exit::OutOfMemory } else { Exit::Done }
    }

    /// The savings in words.
    fn savings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comes_and_goes = self.text.comes_and_goes;
        match self.peak_resident_bytes.saturating_sub(self.arena_resident_bytes) {
            0 => writeln!(f, "one arena for all of it would save nothing")?,
            saved if comes_and_goes => writeln!(
                f,
                "one arena for all of it would save up to {}, if what is freed in it is used again without gaps",
                ByteSize(saved)
            )?,
            saved => writeln!(f, "one arena for all of it would save {} of the peak", ByteSize(saved))?,
        }
        let orders = &self.text.orders;
        let (Some((order, saved)), Some(operation)) = (orders.best(), orders.operation) else {
            return writeln!(f, "none of the orders of allocation tried would save anything");
        };
        let (order, saved) = (order.name(), ByteSize(saved));
        if !comes_and_goes {
            return writeln!(f, "all of it allocated {order} would save {saved} of the peak");
        }
        // Where allocations come and go, only those of the peak are looked at.
        write!(f, "what is live at operation {operation}, the resident peak, allocated ")?;
        if orders.frees_before == 0 {
            return writeln!(f, "{order}, would take {saved} less");
        }
        // Allocated anew, no order has the gaps that frees left, so the saving is not due to the order alone.
        writeln!(
            f,
            "anew, {order}, would take {saved} less, without the gaps that earlier frees left; the order alone may save \
             less of it, or nothing"
        )
    }
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        writeln!(
            f,
            "{}: {} of {} in all, {} in {}",
            text.title,
            Count(self.allocations, "allocation"),
            ByteSize(self.requested_bytes),
            Count(text.frees, "free"),
            Count(text.operations, "operation")
        )?;
        if let Some(from) = &text.from {
            writeln!(f, "{from}")?;
        }
        if let Some(of_log) = &self.of_log {
            of_log.rows(f)?;
        }
        let lines = self.of_log.as_ref().map(|of_log| of_log.peak_lines);
        let at = |operation: Option<u64>, which: usize| match (operation, lines) {
            (Some(operation), Some(lines)) => format!(", at operation {operation} (line {})", lines[which]),
            (Some(operation), None) => format!(", at operation {operation}"),
            (None, _) => String::new(),
        };
        let rows = [
            ("peak live", self.peak_live_bytes, at(text.live_operation, 0)),
            ("peak resident", self.peak_resident_bytes, at(text.resident_operation, 1)),
            ("  rounded up", text.rounding_bytes, String::new()),
            (text.holes, text.hole_bytes, String::new()),
            ("end live", self.end_live_bytes, format!(", in {}", Count(text.end_live_count, "allocation"))),
            ("end resident", self.end_resident_bytes, String::new()),
            ("in one arena", self.arena_resident_bytes, String::new()),
        ];
        for (name, bytes, note) in rows {
            writeln!(f, "{}{note}", Line(name, bytes.into()))?;
        }
        if text.holders.iter().any(|holder| holder.label.is_some()) {
            writeln!(f, "\nheld at the resident peak by")?;
            for holder in text.holders.iter().take(text.top) {
                let label = holder.label.as_deref().unwrap_or("(no label)");
                writeln!(f, "{:>14}  x{:<7} {label}", ByteSize(holder.bytes).to_string(), holder.count)?;
            }
            if text.holders.len() > text.top {
                let rest = &text.holders[text.top..];
                let bytes = rest.iter().fold(0_u64, |sum, holder| sum.saturating_add(holder.bytes));
                let count: u64 = rest.iter().map(|holder| holder.count).sum();
                let size = ByteSize(bytes).to_string();
                writeln!(f, "{size:>14}  x{count:<7} in {} more", rest.len())?;
            }
        }
        if let Some(of_log) = &self.of_log {
            of_log.holders(f, self.allocations)?;
        }
        writeln!(f)?;
        self.savings(f)?;
        match &text.fit {
            None => write!(f, "--memory or --device says whether it fits"),
            Some(Fit { into, bytes }) => {
                let needed = self.needed_bytes.unwrap_or(self.peak_resident_bytes);
                let (verdict, left) = match bytes.checked_sub(needed) {
                    Some(left) => ("fits into", format!("with {} to spare", ByteSize(left))),
                    None => ("does not fit into", format!("by {}", ByteSize(needed - bytes))),
                };
                let granted = match self.needed_bytes {
                    Some(_) => ", with the requests that had failed granted",
                    None => "",
                };
                write!(f, "it {verdict} {into} ({}), {left}{granted}", ByteSize(*bytes))
            }
        }
    }
}
