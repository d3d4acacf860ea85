// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a thread waits for one that is in a call of the driver.

use std::thread;
use std::time::Duration;

/// Asleep for a while, since the driver may take long.
pub(crate) fn nap() {
    thread::sleep(Duration::from_micros(20));
}
