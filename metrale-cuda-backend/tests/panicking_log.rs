// SPDX-License-Identifier: MIT OR Apache-2.0
//! A log that panics while borrowed memory is in use by the device. Alone in its process: which logs are on is asked once for all
//! threads.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use common::backend;
use metrale_cuda_backend::DriverFn;
use metrale_driver_sim::{FaultDriver, PageableCopies, Profile, SimDriver};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const BYTES: usize = 4096;

/// A log that panics at each event.
struct Panics;

impl Subscriber for Panics {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        panic!("the log is broken");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A panic of the log that is told of the wait leaves the call only when the copy is done.
#[test]
fn a_log_that_panics_does_not_end_the_wait() {
    let sim = SimDriver::new(Profile::h200().with_pageable_copies(PageableCopies::Late));
    let faulty = Arc::new(FaultDriver::new(Arc::new(sim)));
    let backend = backend(faulty.clone());
    let (at, stream) = (backend.alloc(BYTES).unwrap(), backend.create_stream().unwrap());
    backend.memset(at, 0xEE, BYTES).unwrap();
    let mut bytes = vec![0; BYTES];
    faulty.fail_nth(DriverFn::cuStreamSynchronize, 1, 900);
    let copy = || backend.copy_d2h_on_stream(at, &mut bytes, stream);
    let panicked = tracing::subscriber::with_default(Panics, || catch_unwind(AssertUnwindSafe(copy)));
    assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"the log is broken"));
    assert_eq!(bytes, [0xEE; BYTES], "it was waited for");
    bytes.fill(1);
    backend.synchronize_stream(stream).unwrap();
    assert_eq!(bytes, [1; BYTES]);
    backend.free(at).unwrap();
}
