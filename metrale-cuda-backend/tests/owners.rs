// SPDX-License-Identifier: MIT OR Apache-2.0
//! Owners: buffers, streams, events, captures and graphs that give back what they own, whenever and wherever they are dropped.

mod common;

use std::sync::{Arc, Mutex};
use std::thread;

use bytemuck::{Pod, Zeroable};
use common::{MIB, backend, logged, sim};
use half::{bf16, f16};
use metrale_cuda_backend::{
    Arena, BadArgument, Capturing, ContextLost, DeviceBuffer, DeviceSlice, DeviceSliceMut, DriverApi,
    DriverFn, Event, Freed, GpuBackend, Graph, GraphUpdate, OwnedHandle, PinnedBuffer, PinnedByGraph, Stream,
};
use metrale_driver_sim::{FaultDriver, on_both_drivers};

fn shared(driver: Arc<dyn DriverApi>) -> Arc<dyn GpuBackend> {
    Arc::new(backend(driver))
}

fn stays_beside<T: Send + Sync + 'static>() {}

/// What an engine keeps in one struct, beside its backend.
#[test]
fn owners_are_kept_beside_their_backend_and_go_to_any_thread() {
    stays_beside::<DeviceBuffer<f32>>();
    stays_beside::<Stream>();
    stays_beside::<Event>();
    stays_beside::<Graph>();
    stays_beside::<DeviceSlice<'static, u8>>();
    stays_beside::<DeviceSliceMut<'static, u8>>();
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
struct Token {
    id: u32,
    logit: f32,
}

on_both_drivers! {
    elements_of_any_plain_type_come_back_as_they_went(driver) {
        let gpu = shared(driver);
        let halves = [f16::from_f32(0.5), f16::MAX];
        assert_eq!(DeviceBuffer::from_slice(&gpu, &halves).unwrap().to_vec().unwrap(), halves);
        let brains = [bf16::from_f32(-3.0), bf16::MIN_POSITIVE];
        assert_eq!(DeviceBuffer::from_slice(&gpu, &brains).unwrap().to_vec().unwrap(), brains);
        let tokens = [Token { id: 7, logit: -0.25 }, Token { id: u32::MAX, logit: f32::INFINITY }];
        assert_eq!(DeviceBuffer::from_slice(&gpu, &tokens).unwrap().to_vec().unwrap(), tokens);
        assert_eq!(DeviceBuffer::<u64>::zeroed(&gpu, 3).unwrap().to_vec().unwrap(), [0; 3]);
        assert_eq!((gpu.live_bytes(), gpu.ledger_probe().live_count()), (0, 0), "each was freed");
    }

    /// An owner's handle is good for calls, and only the owner ends what it is of.
    an_owners_stream_and_event_are_ended_by_nobody_else(driver) {
        let gpu = shared(driver);
        let (stream, event) = (Stream::new(&gpu).unwrap(), Event::new(&gpu).unwrap());
        let by_hand = [
            gpu.destroy_stream(stream.handle()), gpu.release_stream(stream.handle()),
            gpu.destroy_event(event.handle()), gpu.release_event(event.handle()),
        ];
        for refused in by_hand {
            let error = refused.unwrap_err();
            let line = format!("belongs to the owner made at {}:", file!());
            assert!(error.is::<BadArgument>() && error.to_string().contains(&line), "{error}");
        }
        stream.record(&event).unwrap();
        gpu.record_event(event.handle(), stream.handle()).unwrap();
        stream.wait(&event).unwrap();
        event.synchronize().unwrap();
        let raw = (stream.handle(), event.handle());
        drop((stream, event));
        let [gone, too] = [gpu.synchronize_stream(raw.0), gpu.synchronize_event(raw.1)].map(Result::unwrap_err);
        assert!(gone.to_string().contains("was destroyed at") && too.to_string().contains("was destroyed at"), "{gone} {too}");
    }

    /// A handle that another backend made is looked up, as one that an implementation made of a plain handle is.
    what_another_backend_made_is_looked_up(driver) {
        let (gpu, other) = (backend(Arc::clone(&driver)), backend(driver));
        let (stream, event) = (gpu.create_owned_stream().unwrap(), gpu.create_owned_event(false).unwrap());
        gpu.record_owned_event(&event, &stream).unwrap();
        gpu.wait_owned_event(&stream, &event).unwrap();
        for refused in [other.record_owned_event(&event, &stream), other.wait_owned_event(&stream, &event)] {
            assert!(refused.unwrap_err().is::<BadArgument>());
        }
        assert!(other.destroy_owned_stream(stream).unwrap_err().is::<BadArgument>());
        assert!(other.destroy_owned_event(event).unwrap_err().is::<BadArgument>());

        let plain = (gpu.create_stream().unwrap(), gpu.create_event().unwrap());
        let of_plain = || (OwnedHandle::new(plain.0), OwnedHandle::new(plain.1));
        gpu.record_owned_event(&of_plain().1, &of_plain().0).unwrap();
        gpu.destroy_owned_stream(of_plain().0).unwrap();
        gpu.destroy_owned_event(of_plain().1).unwrap();
        let stale = gpu.record_owned_event(&of_plain().1, &of_plain().0).unwrap_err();
        assert!(stale.to_string().contains("was destroyed at"), "{stale}");
        assert!(gpu.wait_owned_event(&of_plain().0, &of_plain().1).unwrap_err().is::<BadArgument>());
        assert!(gpu.destroy_owned_stream(of_plain().0).unwrap_err().is::<BadArgument>());
    }

    /// Whichever backend's the capture or graph is that it waits for, and though its own backend is asked nothing any more.
    what_waits_for_another_backends_capture_or_graph_is_freed_when_that_ends(driver) {
        let [gpu, other] = [(); 2].map(|()| shared(Arc::clone(&driver)));
        let stream = Stream::new(&other).unwrap();
        let buffer = || DeviceBuffer::<u8>::zeroed(&gpu, 100).unwrap();
        let live = || (gpu.live_bytes(), gpu.ledger_probe().snapshot().totals.pinned_bytes);

        let (held, host) = (buffer(), PinnedBuffer::<u8>::new(&gpu, 64).unwrap());
        let capture = stream.capture().unwrap();
        drop((held, host));
        assert_eq!(live(), (100, 64), "not while this thread captures on the device");
        drop(capture);
        assert_eq!(live(), (0, 0));

        let arena = Arena::new(&gpu, 1 << 20).unwrap();
        let (source, mut to, mut part) = (buffer(), buffer(), arena.alloc::<u8>("part", 100).unwrap());
        let capture = stream.capture().unwrap();
        stream.copy(&source, &mut to).unwrap();
        stream.copy(&source, &mut part).unwrap();
        let graph = capture.finish("copies").unwrap();
        let place = part.ptr();
        assert!(matches!(to.close(), Ok(Freed::Later(_))));
        drop((source, part));
        assert_eq!(live().0, 200, "a graph uses both");
        drop(graph);
        assert_eq!(live().0, 0);
        assert_eq!(gpu.ledger_probe().sub_range_at(place.addr()), None, "the place in the arena is given back");
    }

    views_take_parts_and_other_types_and_check_both(driver) {
        let gpu = shared(driver);
        let mut buffer = DeviceBuffer::from_slice(&gpu, &[1_u32, 2, 3, 4]).unwrap();
        assert_eq!((buffer.len(), buffer.bytes(), buffer.is_empty()), (4, 16, false));
        buffer.slice_mut(1..=2).unwrap().copy_from(&[8, 9]).unwrap();
        assert_eq!(buffer.slice(1..).unwrap().to_vec().unwrap(), [8, 9, 4]);
        assert_eq!(buffer.slice(1..).unwrap().ptr(), buffer.ptr().offset(4));
        let bytes = buffer.as_slice().cast::<u8>().unwrap();
        assert_eq!((bytes.len(), bytes.slice(4..8).unwrap().to_vec().unwrap()), (16, vec![8, 0, 0, 0]));
        let (mut low, high) = buffer.as_mut_slice().split_at(2).unwrap();
        low.copy_from_device(high.as_slice()).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [9, 4, 9, 4]);
        let bytes = buffer.as_slice().cast::<u8>().unwrap();
        let refused = [
            buffer.slice(2..5).map(drop), buffer.slice(5..).map(drop), buffer.slice(..=usize::MAX).map(drop),
            #[allow(clippy::reversed_empty_ranges, reason = "that is what is refused")]
            buffer.slice(3..2).map(drop),
            buffer.as_slice().cast::<[u8; 3]>().map(drop),
            bytes.slice(2..).unwrap().cast::<u32>().map(drop),
            bytes.cast::<[u8; 0]>().map(drop),
        ];
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
        let short = buffer.copy_to(&mut [0; 3]).unwrap_err();
        assert!(short.is::<BadArgument>() && short.to_string().contains("4 elements into 3"), "{short}");
        let error = DeviceBuffer::<u64>::new(&gpu, usize::MAX).unwrap_err();
        assert!(error.is::<BadArgument>(), "{error}");
    }

    a_buffer_of_no_bytes_takes_no_memory_and_does_everything(driver) {
        let gpu = shared(driver);
        let mut none = DeviceBuffer::<f32>::zeroed(&gpu, 0).unwrap();
        assert!(none.ptr().is_null() && none.is_empty());
        none.copy_from(&[]).unwrap();
        assert_eq!(none.to_vec().unwrap(), [0.0; 0]);
        assert_eq!(gpu.ledger_probe().live_count(), 0);
        assert!(matches!(none.close().unwrap(), Freed::Now));
    }

    work_on_a_stream_is_in_its_order_and_events_join_streams(driver) {
        let gpu = shared(driver);
        let [produce, consume] = [(); 2].map(|()| Stream::new(&gpu).unwrap());
        let event = Event::new(&gpu).unwrap();
        let mut from = DeviceBuffer::<u8>::new(&gpu, MIB).unwrap();
        let mut to = DeviceBuffer::<u8>::new(&gpu, MIB).unwrap();
        produce.fill_bytes(&mut from, 3).unwrap();
        produce.copy_to_device(&[4; 16], from.slice_mut(..16).unwrap()).unwrap();
        produce.record(&event).unwrap();
        consume.wait(&event).unwrap();
        consume.copy(&from, &mut to).unwrap();
        let mut back = vec![0; MIB];
        consume.copy_to_host(&to, &mut back).unwrap();
        assert!(back[..16].iter().all(|&byte| byte == 4) && back[16..].iter().all(|&byte| byte == 3));
        assert!(event.has_passed().unwrap() && produce.is_idle().unwrap());
        let [start, end] = [(); 2].map(|()| Event::timing(&gpu).unwrap());
        produce.record(&start).unwrap();
        produce.record(&end).unwrap();
        end.synchronize().unwrap();
        assert!(end.elapsed_ms_since(&start).unwrap() >= 0.0);
        let own = Stream::of_backend(&gpu);
        assert_eq!(own.handle(), gpu.stream());
    }

    what_a_graph_uses_is_freed_with_it(driver) {
        let gpu = shared(driver);
        let stream = Stream::new(&gpu).unwrap();
        let mut state = DeviceBuffer::<u8>::zeroed(&gpu, 4096).unwrap();
        let mut other = DeviceBuffer::<u8>::zeroed(&gpu, 4096).unwrap();
        let capture = stream.capture().unwrap();
        stream.fill_bytes(&mut state, 7).unwrap();
        let mut step = capture.finish("step").unwrap();
        step.launch(&stream).unwrap();
        stream.synchronize().unwrap();
        assert_eq!(state.to_vec().unwrap(), [7; 4096]);
        let Freed::Later(reason) = state.close().unwrap() else { panic!("freed under its graph") };
        assert!(reason.is::<PinnedByGraph>(), "{reason}");
        assert_eq!(gpu.live_bytes(), 8192, "still on the ledger");
        step.launch(&stream).unwrap();
        // Its work becomes another's, so nothing uses the first buffer any more.
        let capture = stream.capture().unwrap();
        stream.fill_bytes(&mut other, 9).unwrap();
        assert_eq!(step.update(capture).unwrap(), GraphUpdate::Updated);
        assert_eq!(gpu.live_bytes(), 4096);
        drop(other);
        assert_eq!(gpu.live_bytes(), 4096);
        step.close().unwrap();
        assert_eq!(gpu.live_bytes(), 0);
    }

    what_is_dropped_in_a_capture_is_freed_at_its_end(driver) {
        let gpu = shared(driver);
        let stream = Stream::new(&gpu).unwrap();
        for finish in [false, true] {
            let unused = DeviceBuffer::<u8>::new(&gpu, 4096).unwrap();
            let capture = stream.capture().unwrap();
            let Freed::Later(reason) = unused.close().unwrap() else { panic!("freed in a capture") };
            assert!(reason.is::<Capturing>(), "{reason}");
            assert_eq!(gpu.live_bytes(), 4096);
            if finish {
                capture.finish("empty").unwrap();
            } else {
                drop(capture);
            }
            assert_eq!(gpu.live_bytes(), 0);
        }
    }

    a_capture_that_is_dropped_leaves_its_stream_usable(driver) {
        let gpu = shared(driver);
        let stream = Stream::new(&gpu).unwrap();
        let mut memory = DeviceBuffer::<u8>::zeroed(&gpu, 16).unwrap();
        {
            let capture = stream.capture().unwrap();
            capture.pin(&memory).unwrap();
            stream.fill_bytes(&mut memory, 1).unwrap();
        }
        stream.synchronize().unwrap();
        assert_eq!(memory.to_vec().unwrap(), [0; 16], "what was recorded was not done");
    }

    /// Whichever thread drops an owner: one that was never bound, too.
    owners_are_dropped_on_any_thread(driver) {
        let gpu = shared(driver);
        let stream = Stream::new(&gpu).unwrap();
        let mut memory = DeviceBuffer::<u8>::zeroed(&gpu, 16).unwrap();
        let capture = stream.capture().unwrap();
        stream.fill_bytes(&mut memory, 1).unwrap();
        let graph = capture.finish("step").unwrap();
        let event = Event::new(&gpu).unwrap();
        let (clones, probe) = ((stream.clone(), event.clone()), gpu.ledger_probe());
        let log = thread::spawn(move || logged(|| drop((memory, event, stream, graph))).1).join().unwrap();
        assert!(log.is_empty(), "{log:?}");
        assert_eq!(probe.live_bytes(), 0);
        clones.0.record(&clones.1).unwrap();
        let ((), log) = logged(|| drop((clones, gpu)));
        assert!(log.is_empty(), "nothing was left: {log:?}");
    }
}

/// Two drivers give the same numbers: what one backend made is not the other's.
#[test]
fn backends_of_two_drivers_know_their_own_handles() {
    let [one, two] = [backend(sim()), backend(sim())];
    let [(stream, event), (their_stream, their_event)] =
        [&one, &two].map(|gpu| (gpu.create_owned_stream().unwrap(), gpu.create_owned_event(true).unwrap()));
    assert_eq!(stream.handle().raw(), their_stream.handle().raw(), "what this test is about");
    assert!(one.record_owned_event(&event, &their_stream).unwrap_err().is::<BadArgument>());
    assert!(one.wait_owned_event(&stream, &their_event).unwrap_err().is::<BadArgument>());
    assert!(one.destroy_owned_stream(their_stream).unwrap_err().is::<BadArgument>());
    one.record_owned_event(&event, &stream).unwrap();
    drop((stream, their_event, event));
}

#[test]
fn allocations_are_on_the_ledger_under_the_line_that_made_them() {
    let gpu = shared(sim());
    let _buffer = DeviceBuffer::<f32>::new(&gpu, 10).unwrap().tagged("weights");
    let line = line!() - 1;
    let (_, bytes, site) = gpu.live_allocations().remove(0);
    assert_eq!(bytes, 40);
    assert!(site.starts_with(&format!("{}:{line}", file!())), "{site}");
    assert_eq!(gpu.ledger_probe().live_allocations()[0].1.tag.as_deref(), Some("weights"));
}

#[test]
fn out_of_memory_first_frees_what_waits_to_be_freed() {
    let gpu = shared(sim());
    let stream = Stream::new(&gpu).unwrap();
    let free = usize::try_from(gpu.device_free_memory().unwrap()).unwrap() / (2 * MIB) * (2 * MIB);
    let large = DeviceBuffer::<u8>::new(&gpu, free).unwrap();
    // Dropped in a capture on a thread that then ends: nobody's end of a capture comes for it here.
    let capture = Mutex::new(Some(stream.capture().unwrap()));
    drop(large);
    thread::scope(|scope| {
        scope.spawn(|| {
            gpu.bind_to_thread().unwrap();
            assert_eq!(gpu.live_bytes(), free);
            drop(DeviceBuffer::<u8>::new(&gpu, free).unwrap());
            assert_eq!(gpu.live_bytes(), 0);
            drop(DeviceBuffer::<u8>::new(&gpu, 1000).unwrap());
        });
    });
    drop(capture.lock().unwrap().take());
}

#[test]
fn a_lost_context_is_said_once_and_not_by_every_drop() {
    let fault = Arc::new(FaultDriver::new(sim()));
    let gpu = shared(Arc::clone(&fault) as Arc<dyn DriverApi>);
    let owners =
        (DeviceBuffer::<u8>::new(&gpu, 16).unwrap(), Event::new(&gpu).unwrap(), Stream::new(&gpu).unwrap());
    fault.fail_sticky(DriverFn::cuStreamSynchronize, 1, 700);
    let ((), log) = logged(|| {
        assert!(owners.2.synchronize().unwrap_err().is::<ContextLost>());
        drop(owners);
    });
    assert!(log.iter().filter(|line| line.contains("ERROR")).count() <= 1, "{log:?}");
}

/// However a capture ends, what was given up in it is freed then.
#[test]
fn what_is_dropped_in_a_capture_is_freed_where_that_ends_without_a_graph() {
    // Broken from outside, and one whose nodes cannot be counted.
    for (function, status) in [(DriverFn::cuStreamEndCapture, 901), (DriverFn::cuGraphGetNodes, 999)] {
        for aborts in [false, true] {
            let faulty = Arc::new(FaultDriver::new(sim()));
            let gpu = shared(faulty.clone());
            let stream = Stream::new(&gpu).unwrap();
            let mut used = DeviceBuffer::<u8>::new(&gpu, 4096).unwrap();
            let unused = DeviceBuffer::<u8>::new(&gpu, 4096).unwrap();
            let capture = stream.capture().unwrap();
            stream.fill_bytes(&mut used, 1).unwrap();
            drop((used, unused));
            assert_eq!(gpu.live_bytes(), 8192);
            faulty.fail_nth(function, 1, status);
            if aborts {
                drop(capture);
            } else {
                capture.finish("none").unwrap_err();
            }
            assert_eq!(gpu.live_bytes(), 0, "{function}, aborts: {aborts}");
        }
    }
}

/// A capture whose memory went with another backend has no graph, and what was given up in it is freed.
#[test]
fn what_is_dropped_in_a_capture_is_freed_where_that_had_become_unfit() {
    let driver = sim();
    let (gpu, other) = (shared(driver.clone()), shared(driver));
    let stream = Stream::new(&gpu).unwrap();
    let unused = DeviceBuffer::<u8>::new(&gpu, 4096).unwrap();
    let theirs = other.alloc(4096).unwrap();
    let capture = stream.capture().unwrap();
    gpu.memset_async(theirs, 1, 4096, stream.handle()).unwrap();
    drop(unused);
    thread::scope(|scope| scope.spawn(|| logged(|| drop(other))).join().unwrap());
    let error = capture.finish("none").unwrap_err();
    assert!(error.to_string().contains("was freed with its owner"), "{error:#}");
    assert_eq!(gpu.live_bytes(), 0);
}
