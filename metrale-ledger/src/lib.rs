// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device-allocation ledger: size and source line of every live device allocation, with no driver.
