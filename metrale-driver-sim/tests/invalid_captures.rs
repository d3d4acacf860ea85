// SPDX-License-Identifier: MIT OR Apache-2.0
//! What captures that were invalidated answer, and what invalidates them: as random programs found it on an H200.

mod common;

use std::sync::Arc;

use common::{Cuda, PTX, visible};
use metrale_driver_sim::driver_sys::DriverApi;
use metrale_driver_sim::{ContextGuard, on_both_drivers};

const BLOCKING: u32 = 0;
const NON_BLOCKING: u32 = 1;
const GLOBAL: u32 = 0;
const MODES: [u32; 3] = [0, 1, 2];

fn begin(driver: &Arc<dyn DriverApi>) -> (ContextGuard, Cuda) {
    (ContextGuard::new(driver, 0).unwrap(), Cuda::new(driver))
}

/// Begins a capture and does `invalidates`, after which it is invalid.
fn invalid(cuda: &Cuda, stream: u64, invalidates: impl FnOnce()) {
    invalidates();
    assert_eq!(cuda.capture_state(stream), Ok(visible(2)));
    assert_eq!(cuda.end(stream), (901, 0));
}

on_both_drivers! {
    /// Begin and end on it are answered as any other use.
    legacy_stream_beside_a_blocking_capture(driver; sim: common::sim()) {
        let (_guard, cuda) = begin(&driver);
        let stream = cuda.stream(BLOCKING).unwrap();
        for mode in MODES {
            assert_eq!(cuda.capture_begin(stream, mode), 0);
            invalid(&cuda, stream, || assert_eq!(cuda.end(0), (906, 0)));
            assert_eq!(cuda.capture_begin(stream, mode), 0);
            invalid(&cuda, stream, || assert_eq!(cuda.capture_begin(0, mode), 906));
        }
        assert_eq!((cuda.end(0), cuda.capture_begin(0, 2)), ((401, 0), 900));
        assert_eq!(cuda.stream_destroy(stream), 0);
    }

    /// Forbidden as an allocation is; to destroy the graph that was captured is not.
    graphs_made_and_destroyed_during_a_capture(driver; sim: common::sim()) {
        let (_guard, cuda) = begin(&driver);
        let stream = cuda.stream(NON_BLOCKING).unwrap();
        let module = cuda.load(PTX.as_bytes()).unwrap();
        let nothing = cuda.function(module, "nothing").unwrap();
        assert_eq!((cuda.capture_begin(stream, GLOBAL), cuda.nothing(nothing, stream)), (0, 0));
        let (_, graph) = cuda.end(stream);
        let exec = cuda.instantiate(graph).unwrap();
        for mode in MODES {
            let refused = if mode == 2 { 0 } else { 900 };
            assert_eq!(cuda.capture_begin(stream, mode), 0);
            let another = cuda.instantiate(graph);
            assert_eq!(another.err().unwrap_or(0), refused);
            let state = if refused == 0 { 1 } else { 2 };
            assert_eq!(cuda.capture_state(stream), Ok(visible(state)), "mode {mode}");
            let (end, empty) = cuda.end(stream);
            assert_eq!(end, if refused == 0 { 0 } else { 901 });

            assert_eq!(cuda.capture_begin(stream, mode), 0);
            let spare = another.unwrap_or(exec);
            assert_eq!(cuda.exec_destroy(spare), refused, "mode {mode}");
            assert_eq!(cuda.capture_state(stream), Ok(visible(state)), "mode {mode}");
            let (_, second) = cuda.end(stream);
            for made in [empty, second] {
                assert!(made == 0 || cuda.graph_destroy(made) == 0);
            }
        }
        let other = cuda.stream(NON_BLOCKING).unwrap();
        assert_eq!((cuda.capture_begin(other, GLOBAL), cuda.graph_destroy(graph)), (0, 0));
        let (end, empty) = cuda.end(other);
        assert_eq!((end, cuda.graph_destroy(empty), cuda.exec_destroy(exec)), (0, 0, 0));
        assert_eq!((cuda.stream_destroy(stream), cuda.stream_destroy(other), cuda.unload(module)), (0, 0, 0));
    }

    /// As those of a capture that ended: nothing can be waited for.
    events_of_an_invalid_capture(driver; sim: common::sim()) {
        let (_guard, cuda) = begin(&driver);
        let stream = cuda.stream(NON_BLOCKING).unwrap();
        let other = cuda.stream(NON_BLOCKING).unwrap();
        let (event, outside) = (cuda.event(0).unwrap(), cuda.event(0).unwrap());
        assert_eq!(cuda.event_record(outside, other), 0);
        assert_eq!(cuda.sync(), 0);
        // What invalidates, and its status.
        let invalidates: [(&str, &dyn Fn() -> i32, i32); 4] = [
            ("a query of its event", &|| cuda.event_query(event), 907),
            ("a query of its stream", &|| cuda.stream_query(stream), 900),
            ("a wait for an event outside", &|| cuda.stream_wait(stream, outside, 0), 905),
            ("a free", &|| cuda.free(0), 900),
        ];
        for (name, invalidates, status) in invalidates {
            assert_eq!((cuda.capture_begin(stream, GLOBAL), cuda.event_record(event, stream)), (0, 0));
            assert_eq!(invalidates(), status, "{name}");
            assert_eq!((cuda.event_query(event), cuda.event_sync(event)), (1, 1), "{name}");
            assert_eq!(cuda.stream_wait(0, event, 0), 1, "{name}");
            assert_eq!((cuda.capture_state(stream), cuda.end(stream)), (Ok(visible(2)), (901, 0)), "{name}");
        }
        for handle in [event, outside] {
            assert_eq!(cuda.event_destroy(handle), 0);
        }
        assert_eq!((cuda.stream_destroy(stream), cuda.stream_destroy(other)), (0, 0));
    }

    /// It is refused, and the capture that would wait is invalid.
    a_capture_that_waits_for_an_event_of_one_before(driver; sim: common::sim()) {
        let (_guard, cuda) = begin(&driver);
        let stream = cuda.stream(NON_BLOCKING).unwrap();
        let event = cuda.event(0).unwrap();
        for mode in MODES {
            assert_eq!((cuda.capture_begin(stream, mode), cuda.event_record(event, stream)), (0, 0));
            let (end, graph) = cuda.end(stream);
            assert_eq!((end, cuda.graph_destroy(graph)), (0, 0));
            assert_eq!(cuda.capture_begin(stream, mode), 0);
            invalid(&cuda, stream, || assert_eq!(cuda.stream_wait(stream, event, 0), 1));
        }
        assert_eq!((cuda.event_destroy(event), cuda.stream_destroy(stream)), (0, 0));
    }
}
