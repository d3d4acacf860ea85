// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands' answers: plain data that is both the JSON and the text.

pub mod diff;
pub mod doctor;
pub mod failure;
pub mod load;
pub mod of_log;
pub mod plan;
pub mod replay;
pub mod report;
pub mod still_live;

/// A call site as JSON writes it, `file:line:column`; texts leave the column out.
fn with_column(site: &metrale_ledger::Site) -> String {
    format!("{site}:{}", site.column)
}
