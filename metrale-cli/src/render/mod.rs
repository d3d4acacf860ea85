// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands' answers: plain data that is both the JSON and the text.

pub mod besides;
pub mod diff;
pub mod doctor;
pub mod failure;
pub mod load;
pub mod plan;
pub mod replay;
pub mod report;
pub mod still_live;
