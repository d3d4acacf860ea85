// SPDX-License-Identifier: MIT OR Apache-2.0
//! The creation index is the process's: one test, in a program of its own.

mod common;

use std::ffi::OsString;

use common::{logged, sim};
use metrale_cuda_backend::redzone::{
    Fill, REDZONE, REDZONE_FILL, REDZONE_MIN_IDX, REDZONE_TRACE_IDX, allocations_made,
};
use metrale_cuda_backend::{BackendConfig, MetraleCudaBackend};

#[test]
fn it_counts_every_alloc_of_every_backend_and_the_variables_go_by_it() {
    let plain = common::backend(sim());
    assert_eq!(allocations_made(), 0);
    plain.alloc(100).unwrap();
    plain.alloc(0).unwrap_err();
    plain.alloc_managed(100).unwrap();
    plain.alloc_arena(100).unwrap();
    assert_eq!(allocations_made(), 2, "calls of alloc, those that fail too, and no other");

    let variables = [(REDZONE, "250"), (REDZONE_MIN_IDX, "4"), (REDZONE_FILL, "7"), (REDZONE_TRACE_IDX, "5")];
    let config = BackendConfig::from_variables(|name| {
        variables.iter().find(|variable| variable.0 == name).map(|variable| OsString::from(variable.1))
    })
    .unwrap();
    assert_eq!((config.redzone.fill, config.redzone.trace_index), (Fill::Byte(7), Some(5)));
    let backend = MetraleCudaBackend::builder().driver(sim()).config(config).build().unwrap();
    let (_, log) = logged(|| (2..5).for_each(|_| assert!(backend.alloc(64).is_ok())));
    assert_eq!(log, [""; 0]);
    assert_eq!((backend.redzone_status().bands, backend.ledger_probe().padding_bytes()), (1, 256));
    let (traced, log) = logged(|| backend.alloc(64).unwrap());
    let text = log.join("\n");
    assert!(text.contains("allocation 5 of 64 bytes is made at"), "{text}");
    assert!(text.contains("redzone_index"), "the trace leads to this test: {text}");
    let mut band = [0_u8; 256];
    // SAFETY: the destination is a slice of that many bytes.
    let status = unsafe { backend.driver().cuMemcpyDtoH_v2(band.as_mut_ptr().cast(), traced.0 + 64, 256) };
    assert_eq!((status, band), (0, [7; 256]));
    logged(|| (backend.sweep_unreleased().unwrap(), plain.sweep_unreleased().unwrap()));
}
