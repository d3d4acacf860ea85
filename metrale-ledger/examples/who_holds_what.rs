// SPDX-License-Identifier: MIT OR Apache-2.0
//! A loader's allocations, told by site and scope, and what they take before anything is allocated.
//!
//! Run with `cargo run -p metrale-ledger --example who_holds_what`.

use std::panic::Location;

use metrale_ledger::placement::Placement;
use metrale_ledger::{ByteSize, Ledger};

/// Stands for a driver: hands out addresses as the packing rule places them.
struct Device {
    placement: Placement,
    ledger: Ledger,
}

impl Device {
    #[track_caller]
    fn alloc(&mut self, bytes: usize) -> u64 {
        let placed = self.placement.alloc(bytes as u64).expect("the example asks for sensible sizes");
        // Every run of pages gets a gigabyte of addresses to itself.
        let addr = 0x7f00_0000_0000 + (placed.chunk.0 << 30) + placed.offset_bytes;
        self.ledger.record(addr, bytes, Location::caller());
        addr
    }
}

#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn main() {
    let mut device = Device { placement: Placement::h200(), ledger: Ledger::new() };
    let mut last = 0;
    for layer in 0..4 {
        let _layer = device.ledger.scope(&format!("layers.{layer}"));
        device.alloc(5_000_000);
        last = device.alloc(4096);
    }
    println!("{}", device.ledger.report(10, 0));
    let predicted = ByteSize(device.placement.resident_bytes());
    println!("predicted by the packing rule alone: {predicted}\n");

    device.ledger.forget(last);
    if let Err(answer) = device.ledger.try_forget(last) {
        println!("a second free: {answer}");
    }
    if let Err(answer) = device.ledger.try_forget(0x7f00_0000_0000 + 64) {
        println!("a wrong free: {answer}");
    }
}
