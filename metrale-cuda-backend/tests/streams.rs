// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams and events.

mod common;

use common::{MIB, backend, forged_event};
use metrale_cuda_backend::{BadArgument, CallFailed, LEGACY_STREAM};
use metrale_driver_sim::on_both_drivers;

on_both_drivers! {
    a_stream_does_its_work_and_says_so(driver) {
        let backend = backend(driver);
        let stream = backend.create_stream().unwrap();
        assert_ne!((stream, backend.stream()), (LEGACY_STREAM, LEGACY_STREAM));
        assert!(backend.query_stream(stream).unwrap(), "nothing was queued");
        let at = backend.alloc(MIB).unwrap();
        backend.memset_async(at, 5, MIB, stream).unwrap();
        backend.synchronize_stream(stream).unwrap();
        assert!(backend.query_stream(stream).unwrap());
        backend.memset_async(at, 6, MIB, stream).unwrap();
        backend.synchronize().unwrap();
        assert!(backend.query_stream(stream).unwrap());
        backend.free(at).unwrap();
        backend.destroy_stream(stream).unwrap();
    }

    the_streams_that_are_not_the_callers_stay(driver) {
        let backend = backend(driver);
        for stream in [LEGACY_STREAM, backend.stream()] {
            assert!(backend.destroy_stream(stream).unwrap_err().is::<BadArgument>());
        }
        backend.synchronize_stream(backend.stream()).unwrap();
    }

    an_event_orders_two_streams(driver) {
        let backend = backend(driver);
        let (one, two) = (backend.create_stream().unwrap(), backend.create_stream().unwrap());
        let event = backend.create_event().unwrap();
        let at = backend.alloc(64 * MIB).unwrap();
        backend.memset(at, 0, 64 * MIB).unwrap();
        for round in 1..=8 {
            backend.memset_async(at, round, 64 * MIB, one).unwrap();
            backend.record_event(event, one).unwrap();
            backend.wait_event(two, event).unwrap();
            let mut last = [0];
            backend.copy_d2h_on_stream(at.offset((64 << 20) - 1), &mut last, two).unwrap();
            assert_eq!(last, [round]);
        }
        backend.synchronize_event(event).unwrap();
        assert!(backend.query_event(event).unwrap());
        backend.destroy_event(event).unwrap();
        backend.destroy_stream(one).unwrap();
        backend.destroy_stream(two).unwrap();
        backend.free(at).unwrap();
    }

    an_event_never_recorded_has_passed(driver) {
        let backend = backend(driver);
        let event = backend.create_event().unwrap();
        assert!(backend.query_event(event).unwrap());
        backend.wait_event(backend.stream(), event).unwrap();
        backend.synchronize_event(event).unwrap();
        backend.destroy_event(event).unwrap();
    }

    time_passes_between_events_that_keep_it(driver) {
        let backend = backend(driver);
        let (start, end) = (backend.create_timing_event().unwrap(), backend.create_timing_event().unwrap());
        backend.record_event(start, backend.stream()).unwrap();
        backend.record_event(end, backend.stream()).unwrap();
        backend.synchronize_event(end).unwrap();
        assert!(backend.elapsed_ms(start, end).unwrap() >= 0.0);
        let plain = backend.create_event().unwrap();
        backend.record_event(plain, backend.stream()).unwrap();
        backend.synchronize_event(plain).unwrap();
        let error = backend.elapsed_ms(start, plain).unwrap_err().downcast::<CallFailed>().expect("typed");
        assert!(error.to_string().contains("create_timing_event"), "{error}");
        for event in [start, end, plain] {
            backend.destroy_event(event).unwrap();
        }
    }

    the_null_event_is_refused_before_the_driver(driver) {
        let backend = backend(driver);
        for error in [
            backend.record_event(forged_event(0), backend.stream()).unwrap_err(),
            backend.wait_event(backend.stream(), forged_event(0)).unwrap_err(),
            backend.query_event(forged_event(0)).unwrap_err(),
            backend.synchronize_event(forged_event(0)).unwrap_err(),
            backend.elapsed_ms(forged_event(0), forged_event(0)).unwrap_err(),
            backend.destroy_event(forged_event(0)).unwrap_err(),
        ] {
            assert!(error.is::<BadArgument>(), "{error}");
        }
    }
}
