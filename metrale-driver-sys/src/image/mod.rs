// SPDX-License-Identifier: MIT OR Apache-2.0
//! The formats a driver loads, read without a driver: PTX text, cubins and fatbins told apart by content.
