// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands, a file each.

pub mod diff;
pub mod doctor;
pub mod load;
pub mod plan;
pub mod replay;
pub mod report;
