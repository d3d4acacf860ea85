// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two devices at once: a host, a context and a ledger each, and copies between them.
//!
//! Every body runs on a software driver with two devices; the tests `two_devices` run it on the first two GPUs, where there
//! are two.

mod common;

use std::sync::Arc;
use std::thread;

use common::{KERNELS, KIB, MIB, sim_with_kernels};
use metrale_cuda_backend::{
    BackendConfig, BadArgument, Capturing, CopyOutOfBounds, DevicePtr, DriverApi, End, GpuBackend,
    KernelLaunch, MergedReport, MetraleCudaBackend,
};
use metrale_driver_sim::{Profile, SimDriver, system_driver};

/// Each body as two tests: on two software devices, and on two GPUs.
macro_rules! on_two_devices {
    ($($name:ident($first:ident, $second:ident) $body:block)*) => {$(
        mod $name {
            use super::*;

            fn body($first: &MetraleCudaBackend, $second: &MetraleCudaBackend) $body

            fn on(driver: Arc<dyn DriverApi>) {
                let (first, second) = (on_device(&driver, 0), on_device(&driver, 1));
                body(&first, &second);
                for backend in [&first, &second] {
                    backend.ledger_probe().assert_nothing_live();
                }
            }

            #[test]
            fn sim() {
                on(Arc::new(software_devices()));
            }

            #[test]
            #[ignore = "needs two GPUs: cargo xtask gpu-test"]
            fn two_devices() {
                on(system_driver());
            }
        }
    )*};
}

fn software_devices() -> SimDriver {
    let driver = SimDriver::builder().device(Profile::h200()).device(Profile::h200()).build();
    common::register_kernels(&driver);
    driver
}

fn on_device(driver: &Arc<dyn DriverApi>, ordinal: usize) -> MetraleCudaBackend {
    MetraleCudaBackend::builder()
        .driver(driver.clone())
        .ordinal(ordinal)
        .modules(&[("kernels", KERNELS)])
        .config(BackendConfig::default())
        .build()
        .unwrap()
}

/// Memory of a backend that holds a pattern; the backend is bound afterwards.
fn filled(backend: &MetraleCudaBackend, pattern: &[u8]) -> DevicePtr {
    backend.bind_to_thread().unwrap();
    let ptr = backend.alloc(pattern.len()).unwrap();
    backend.copy_h2d(pattern, ptr).unwrap();
    ptr
}

fn contents(backend: &MetraleCudaBackend, ptr: DevicePtr, bytes: usize) -> Vec<u8> {
    backend.bind_to_thread().unwrap();
    let mut back = vec![0; bytes];
    backend.copy_d2h(ptr, &mut back).unwrap();
    back
}

fn free(backend: &MetraleCudaBackend, ptr: DevicePtr) {
    backend.bind_to_thread().unwrap();
    backend.free(ptr).unwrap();
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + seed) as u8).collect()
}

on_two_devices! {
    the_address_says_whose_memory_it_is(first, second) {
        first.bind_to_thread().unwrap();
        let here = [first.alloc(1000).unwrap(), first.alloc(5 * MIB).unwrap()];
        second.bind_to_thread().unwrap();
        let there = second.alloc(1000).unwrap();
        let before = second.memory_info().unwrap().free_bytes;
        // Each holds a chunk by now, and still none keeps what the other's context gives.
        for bytes in [1, 1000, 5 * MIB] {
            first.free(first.alloc(bytes).unwrap()).unwrap();
        }
        assert_eq!(second.memory_info().unwrap().free_bytes, before, "it went back");
        assert_eq!((first.live_bytes(), second.live_bytes()), (1000 + 5 * MIB, 1000));
        // A free needs no context of the thread's own, and none of the same device.
        std::thread::scope(|scope| {
            scope.spawn(|| first.free(here[0]).unwrap());
        });
        first.free(here[1]).unwrap();
        second.free(there).unwrap();
        assert_eq!((first.live_bytes(), second.live_bytes()), (0, 0));
    }

    each_device_has_a_host_a_stream_and_a_ledger_of_its_own(first, second) {
        assert_ne!(first.host().context(), second.host().context());
        assert_ne!(first.stream(), second.stream());
        assert_ne!(first.facts().uuid, second.facts().uuid);
        let there = filled(second, &[1; 3000]);
        assert_eq!((first.live_bytes(), second.live_bytes()), (0, 3000));
        let before = second.memory_info().unwrap().free_bytes;
        let here = filled(first, &[2; 5 * MIB]);
        second.bind_to_thread().unwrap();
        assert_eq!(second.memory_info().unwrap().free_bytes, before, "the other device's memory");
        assert!(second.free(here).is_err(), "an address of the other ledger");
        free(second, there);
        free(first, here);
    }

    bytes_go_from_one_device_to_the_other_and_back(first, second) {
        let sent = pattern(3 * MIB + 17, 5);
        let here = filled(first, &sent);
        let there = filled(second, &vec![0; sent.len()]);
        first.bind_to_thread().unwrap();
        first.copy_peer(here, second, there, sent.len()).unwrap();
        assert_eq!(contents(second, there, sent.len()), sent);

        // Part of it back, in the order of a stream of the sender's.
        second.bind_to_thread().unwrap();
        let stream = second.create_stream().unwrap();
        second.memset_async(there, 0xAB, 1000, stream).unwrap();
        second.copy_peer_async(there.offset(500), first, here, 1000, stream).unwrap();
        second.synchronize_stream(stream).unwrap();
        second.destroy_stream(stream).unwrap();
        let mut expected = vec![0xAB; 500];
        expected.extend_from_slice(&sent[1000..1500]);
        assert_eq!(contents(first, here, 1000), expected);
        free(first, here);
        free(second, there);
    }

    work_of_the_other_device_waits_by_an_event(first, second) {
        let bytes = 64 * KIB;
        let here = filled(first, &pattern(bytes, 1));
        let there = filled(second, &vec![0; bytes]);
        let copy = filled(second, &vec![0; bytes]);
        let second_stream = second.create_stream().unwrap();
        first.bind_to_thread().unwrap();
        let event = first.create_event().unwrap();
        first.copy_peer_async(here, second, there, bytes, first.stream()).unwrap();
        first.record_event(event, first.stream()).unwrap();
        second.bind_to_thread().unwrap();
        second.wait_peer_event(second_stream, first, event).unwrap();
        second.copy_d2d_async(there, copy, bytes, second_stream).unwrap();
        second.synchronize_stream(second_stream).unwrap();
        assert_eq!(contents(second, copy, bytes), pattern(bytes, 1));
        second.destroy_stream(second_stream).unwrap();
        first.bind_to_thread().unwrap();
        first.destroy_event(event).unwrap();
        free(first, here);
        free(second, there);
        free(second, copy);
    }

    // The driver has no such node, and a try would cost the capture.
    a_copy_between_devices_is_refused_in_a_capture_which_goes_on(first, second) {
        let here = filled(first, &[1; 64]);
        let there = filled(second, &[2; 64]);
        first.bind_to_thread().unwrap();
        let stream = first.create_stream().unwrap();
        let capture = first.capture(stream).unwrap();
        let refused = first.copy_peer_async(here, second, there, 64, stream).unwrap_err();
        assert!(refused.downcast::<Capturing>().expect("typed").to_string().contains("no node of a graph"));
        first.memset_async(here, 3, 64, stream).unwrap();
        let graph = capture.finish("fill").unwrap();
        first.launch_graph(graph, stream).unwrap();
        first.copy_peer_async(here, second, there, 64, stream).unwrap();
        first.synchronize_stream(stream).unwrap();
        assert_eq!(contents(second, there, 64), [3; 64]);
        // It is a graph of the first device only.
        second.bind_to_thread().unwrap();
        assert!(second.launch_graph(graph, second.stream()).unwrap_err().is::<BadArgument>());
        assert!(second.destroy_graph(graph).unwrap_err().is::<BadArgument>());
        assert_eq!((first.graphs().len(), second.graphs().len()), (1, 0));
        first.bind_to_thread().unwrap();
        first.destroy_graph(graph).unwrap();
        first.destroy_stream(stream).unwrap();
        free(second, there);
        free(first, here);
    }

    a_capture_reaches_the_device_whose_stream_joins_it(first, second) {
        let here = filled(first, &[1; 64]);
        let there = filled(second, &[2; 64]);
        let joins = second.create_stream().unwrap();
        let joined = second.create_event().unwrap();
        first.bind_to_thread().unwrap();
        let stream = first.create_stream().unwrap();
        let forked = first.create_event().unwrap();
        let capture = first.capture(stream).unwrap();
        first.memset_async(here, 5, 64, stream).unwrap();
        first.record_event(forked, stream).unwrap();
        second.bind_to_thread().unwrap();
        // Not yet: the devices have nothing to do with each other.
        second.synchronize().unwrap();
        second.wait_peer_event(joins, first, forked).unwrap();
        for error in [
            second.synchronize().unwrap_err(),
            second.synchronize_stream(joins).unwrap_err(),
            second.destroy_stream(joins).unwrap_err(),
            second.alloc(64).unwrap_err(),
        ] {
            assert_eq!(error.downcast::<Capturing>().expect("typed").stream, stream);
        }
        second.memset_async(there, 7, 32, joins).unwrap();
        second.record_event(joined, joins).unwrap();
        first.bind_to_thread().unwrap();
        first.wait_peer_event(stream, second, joined).unwrap();
        let graph = capture.finish("both").unwrap();
        first.launch_graph(graph, stream).unwrap();
        first.synchronize_stream(stream).unwrap();
        let mut expected = [2; 64];
        expected[..32].fill(7);
        assert_eq!((contents(second, there, 64), contents(first, here, 64)), (expected.to_vec(), vec![5; 64]));
        second.bind_to_thread().unwrap();
        second.destroy_stream(joins).unwrap();
        second.destroy_event(joined).unwrap();
        first.bind_to_thread().unwrap();
        first.destroy_graph(graph).unwrap();
        first.destroy_stream(stream).unwrap();
        first.destroy_event(forked).unwrap();
        free(second, there);
        free(first, here);
    }

    each_end_is_held_to_its_own_ledger(first, second) {
        let here = filled(first, &[1; 1000]);
        let there = filled(second, &[0; 500]);
        first.bind_to_thread().unwrap();
        for (error, end, excess) in [
            (first.copy_peer(here, second, there, 501), End::Destination, 1),
            (first.copy_peer_async(here.offset(990), second, there, 100, first.stream()), End::Source, 90),
        ] {
            let error = error.unwrap_err().downcast::<CopyOutOfBounds>().expect("typed");
            assert_eq!((error.end, error.excess_bytes()), (end, excess));
        }
        first.copy_peer(here, second, there, 0).unwrap();
        first.copy_peer(here, second, there, 500).unwrap();
        assert_eq!(contents(second, there, 500), [1; 500]);
        // Whichever is bound.
        second.bind_to_thread().unwrap();
        first.copy_peer(here, second, there, 1).unwrap();
        free(first, here);
        free(second, there);
    }

    both_work_concurrently_from_threads_of_their_own(first, second) {
        thread::scope(|scope| {
            for backend in [first, second] {
                for seed in 0..2_u32 {
                    scope.spawn(move || {
                        backend.bind_to_thread().unwrap();
                        let fill = backend.kernel("kernels", "fill").unwrap();
                        let stream = backend.create_stream().unwrap();
                        for round in 0..50_u32 {
                            let value = round * 4 + seed;
                            let out = backend.alloc(4 * 256).unwrap();
                            let mut launch = KernelLaunch::new(fill).block([256, 1, 1]).ptr(out).u32(value).u32(256);
                            // SAFETY: the arguments are the kernel's parameters; it writes 256 words to `out`.
                            unsafe { launch.on_stream(backend, stream) }.unwrap();
                            let mut back = vec![0; 4 * 256];
                            backend.copy_d2h_on_stream(out, &mut back, stream).unwrap();
                            assert!(back.chunks_exact(4).all(|word| word == value.to_ne_bytes()));
                            backend.free(out).unwrap();
                        }
                        backend.destroy_stream(stream).unwrap();
                    });
                }
            }
        });
    }

    the_report_is_by_device(first, second) {
        second.bind_to_thread().unwrap();
        let there = second.alloc(5 * MIB).unwrap();
        first.bind_to_thread().unwrap();
        let here = first.alloc(MIB).unwrap();
        // Given out of order, and one of them through the trait.
        let faces: [&dyn GpuBackend; 2] = [second, first];
        let report = MergedReport::of(&faces);
        assert_eq!(report.live_bytes_by_device().into_iter().collect::<Vec<_>>(), [(0, MIB as u64), (1, 5 * MIB as u64)]);
        assert_eq!((report.live_count(), report.resident_bytes()), (2, 8 * MIB as u64));
        let text = report.showing(10, 0).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "2 devices: 6.00 MiB live in 2 allocations, 8.00 MiB resident");
        let at = |line: &str| lines.iter().position(|found| *found == line).unwrap_or_else(|| panic!("{text}"));
        let (device_0, device_1) = (at("device 0:"), at("device 1:"));
        assert!(lines[device_0..device_1].iter().any(|line| line.contains("1.00 MiB") && line.contains(file!())), "{text}");
        assert!(lines[device_1..].iter().any(|line| line.contains("5.00 MiB") && line.contains(file!())), "{text}");
        free(first, here);
        free(second, there);
    }
}

#[test]
fn two_backends_of_one_device_are_two_entries_of_it() {
    let driver: Arc<dyn DriverApi> = Arc::new(software_devices());
    let (first, again) = (on_device(&driver, 0), on_device(&driver, 0));
    let (here, there) = (filled(&first, &[3; 100]), filled(&again, &[0; 100]));
    // A copy between them is one inside the device, and each end has a ledger of its own.
    first.copy_peer(here, &again, there, 100).unwrap();
    assert_eq!(contents(&again, there, 100), [3; 100]);
    let report = MergedReport::of(&[&first, &again]);
    assert_eq!(report.live_bytes_by_device().into_iter().collect::<Vec<_>>(), [(0, 200)]);
    let text = report.to_string();
    assert!(text.starts_with("1 device: 200 B live in 2 allocations"), "{text}");
    assert!(
        text.contains("device 0, backend 1 of 2:") && text.contains("device 0, backend 2 of 2:"),
        "{text}"
    );
    free(&first, here);
    free(&again, there);
}

#[test]
fn backends_of_two_drivers_are_told_to_go_by_the_host() {
    let one: Arc<dyn DriverApi> = Arc::new(sim_with_kernels());
    let two: Arc<dyn DriverApi> = Arc::new(sim_with_kernels());
    let (first, second) = (on_device(&one, 0), on_device(&two, 0));
    let there = filled(&second, &[0; 64]);
    let here = filled(&first, &[1; 64]);
    let error = first.copy_peer(here, &second, there, 64).unwrap_err();
    assert!(error.is::<BadArgument>() && error.to_string().contains("two drivers"), "{error}");
    free(&first, here);
    free(&second, there);
}

#[test]
fn a_lost_device_leaves_the_other_at_work() {
    let sim = software_devices();
    let driver: Arc<dyn DriverApi> = Arc::new(sim.clone());
    let (first, second) = (on_device(&driver, 0), on_device(&driver, 1));
    let (there, here) = (filled(&second, &[0; 64]), filled(&first, &[1; 64]));
    sim.inject_fault(1, 700);
    first.copy_peer(here, &second, there, 64).unwrap_err();
    assert_eq!(first.context_fault(), None);
    assert_eq!(contents(&first, here, 64), [1; 64]);
    free(&first, here);
}
