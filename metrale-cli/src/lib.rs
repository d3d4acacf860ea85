// SPDX-License-Identifier: MIT OR Apache-2.0
//! The metrale program: load, plan, replay, report, diff, doctor.
