// SPDX-License-Identifier: MIT OR Apache-2.0
//! What only a driver in software can show: independence, laziness, leaks, kernels as functions, refusals of what a real
//! driver would crash on.

mod common;

use std::sync::Arc;

use common::{Cuda, PTX, register, sim, status};
use metrale_driver_sim::driver_sys::{CUgraphExecUpdateResultInfo, DriverApi, DriverFn};
use metrale_driver_sim::{
    ContextGuard, KernelBounds, KernelFault, MemoryKind, MissingKernel, Profile, SimDriver,
};

fn open(driver: &SimDriver) -> (Cuda, ContextGuard) {
    let api: Arc<dyn DriverApi> = Arc::new(driver.clone());
    let guard = ContextGuard::new(&api, 0).unwrap();
    (Cuda::new(&api), guard)
}

#[test]
fn nothing_works_before_init() {
    let driver: Arc<dyn DriverApi> = Arc::new(SimDriver::new(Profile::h200()));
    let cuda = Cuda::new(&driver);
    assert_eq!(cuda.device_count(), Err(3));
    assert_eq!(cuda.retain(0), Err(3));
    assert_eq!(status(cuda.alloc(1)), 3);
    assert_eq!(cuda.init(1), 1);
    assert_eq!(cuda.init(0), 0);
    assert_eq!(cuda.device_count(), Ok(1));
    assert_eq!(cuda.release(0), 201, "nothing was retained");
}

#[test]
fn ninety_gigabytes_cost_the_host_nothing_until_they_are_written() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, guard) = open(&driver);
    let free = guard.memory_info().unwrap().0;
    let weights: Vec<u64> = (0..90).map(|_| cuda.alloc(1 << 30).unwrap()).collect();
    assert_eq!(free - guard.memory_info().unwrap().0, 90 << 30);
    assert_eq!(
        cuda.bytes(weights[89] + 12_345),
        [0xFF; 16],
        "memory that was never written shows the fresh byte"
    );
    assert_eq!(driver.backing_bytes(), 0);
    for &address in &weights {
        assert_eq!(cuda.memset(address, 0, 1 << 30), 0);
    }
    assert_eq!(cuda.sync(), 0);
    assert_eq!(driver.backing_bytes(), 0, "a uniform fill is kept as one");
    assert_eq!(cuda.upload(weights[45] + 100, &[1, 2, 3]), 0);
    assert_eq!(driver.backing_bytes(), 64 << 10);
    assert_eq!(cuda.bytes(weights[45] + 99), [0, 1, 2, 3, 0]);
    for address in weights {
        assert_eq!(cuda.free(address), 0);
    }
    assert_eq!((driver.backing_bytes(), guard.memory_info().unwrap().0), (0, free));
}

#[test]
fn instances_share_nothing_and_work_in_parallel() {
    std::thread::scope(|scope| {
        for round in 0..8u8 {
            scope.spawn(move || {
                let driver = sim();
                let (cuda, guard) = open(&driver);
                let address = cuda.alloc(1000).unwrap();
                assert_eq!(cuda.upload(address, &[round; 1000]), 0);
                for _ in 0..100 {
                    let more = cuda.alloc(5000).unwrap();
                    assert_eq!(cuda.bytes(address), [round; 1000]);
                    assert_eq!(cuda.free(more), 0);
                }
                let figures = guard.memory_info().unwrap();
                assert_eq!(figures.0, 149_557_477_376 - (2 << 20));
            });
        }
    });
}

#[test]
fn threads_on_one_instance_return_every_byte() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, guard) = open(&driver);
    let before = guard.memory_info().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (cuda, context) = (cuda.clone(), guard.context());
            scope.spawn(move || {
                assert_eq!(cuda.set_current(context), 0);
                let mut live = Vec::new();
                for round in 0..500usize {
                    live.push(cuda.alloc(1 + (round * 7919 * (thread + 1)) % 5_000_000).unwrap());
                    if round % 3 == 0 {
                        assert_eq!(cuda.free(live.swap_remove(round % live.len())), 0);
                    }
                }
                live.into_iter().for_each(|address| assert_eq!(cuda.free(address), 0));
            });
        }
    });
    assert_eq!(guard.memory_info().unwrap(), before);
}

#[test]
fn several_devices_keep_apart() {
    let driver = SimDriver::builder().device(Profile::h200()).device(Profile::rtx()).build();
    assert_eq!(driver.source(), "software h200 + rtx");
    let api: Arc<dyn DriverApi> = Arc::new(driver.clone());
    let cuda = Cuda::new(&api);
    let first = ContextGuard::new(&api, 0).unwrap();
    let in_first = cuda.alloc(3 << 20).unwrap();
    let second = ContextGuard::new(&api, 1).unwrap();
    assert_ne!(first.context(), second.context());
    assert_eq!((cuda.device_count(), cuda.context_device()), (Ok(2), Ok(1)));
    let in_second = cuda.alloc(3 << 20).unwrap();
    assert_ne!(in_first, in_second);
    assert_eq!(second.memory_info().unwrap().1 as u64, Profile::rtx().total_bytes);
    // A copy between the two, by the addresses alone and with the contexts named.
    assert_eq!(cuda.memset(in_first, 6, 64), 0);
    assert_eq!((first.enter(), cuda.sync(), second.enter()), (Ok(()), 0, Ok(())));
    let (to, from) = (second.context(), first.context());
    // SAFETY: no pointer is passed.
    assert_eq!(unsafe { api.cuMemcpyPeerAsync(in_second, to, in_first, from, 64, 0) }, 0);
    assert_eq!(cuda.bytes(in_second), [6; 64]);
    // SAFETY: as above.
    assert_eq!(unsafe { api.cuMemcpyPeerAsync(in_second, 1234, in_first, from, 64, 0) }, 201);
    assert_eq!(cuda.free(in_second), 0);
    drop(second);
    drop(first);
    let leaks = driver.leaks();
    assert_eq!((leaks.memory.len(), leaks.memory[0].address, leaks.memory[0].device), (1, in_first, 0));
    assert!(leaks.memory[0].context_ended);
}

#[test]
fn leaks_are_named_while_alive_and_after_their_context_ended() {
    let driver = sim();
    assert!(driver.leaks().is_empty());
    let (cuda, guard) = open(&driver);
    let address = cuda.alloc(1000).unwrap();
    let pinned = cuda.alloc_host(2000).unwrap();
    let managed = cuda.alloc_managed(3000, 1).unwrap();
    let (stream, event) = (cuda.stream(0).unwrap(), cuda.event(0).unwrap());
    let module = cuda.load(PTX.as_bytes()).unwrap();
    assert_eq!(cuda.capture_begin(stream, 2), 0);
    let (_, graph) = cuda.end(stream);
    let exec = cuda.instantiate(graph).unwrap();
    let check = |ended: bool| {
        let leaks = driver.leaks();
        let mut kinds: Vec<_> = leaks.memory.iter().map(|memory| (memory.kind, memory.bytes)).collect();
        kinds.sort();
        let expected = [(MemoryKind::Device, 1000), (MemoryKind::Managed, 3000), (MemoryKind::Pinned, 2000)];
        assert_eq!(kinds, expected);
        for (handles, handle) in [
            (&leaks.streams, stream),
            (&leaks.events, event),
            (&leaks.modules, module),
            (&leaks.graphs, graph),
            (&leaks.graph_execs, exec),
        ] {
            assert_eq!((handles.len(), handles[0].handle, handles[0].context_ended), (1, handle, ended));
        }
        assert_eq!(leaks.contexts.len(), usize::from(!ended));
        leaks.to_string()
    };
    let text = check(false);
    for part in ["context of device 0, 1 references", "1000 bytes at", "Pinned memory", "instantiated graph"]
    {
        assert!(text.contains(part), "{text}");
    }
    let _ = (address, pinned, managed);
    drop(guard);
    assert!(check(true).contains("its context ended"));
}

#[test]
fn a_context_that_ended_is_told_from_none_and_can_be_made_anew() {
    let driver = sim();
    let (cuda, guard) = open(&driver);
    let (context, address) = (guard.context(), cuda.alloc(1000).unwrap());
    let (stream, event) = (cuda.stream(0).unwrap(), cuda.event(0).unwrap());
    assert_eq!(cuda.release(0), 0);
    assert_eq!(status(cuda.alloc(1)), 709);
    assert_eq!(cuda.retain(0), Ok(context));
    assert_eq!(cuda.free(address), 1, "its memory was freed");
    assert_eq!((cuda.stream_sync(stream), cuda.event_query(event)), (400, 709));
    assert_eq!(guard.memory_info().unwrap().0, 149_557_477_376);
    drop(guard);
}

#[test]
fn wrong_handles_are_statuses() {
    let driver = sim();
    let (cuda, _guard) = open(&driver);
    let (stream, event, address) = (cuda.stream(0).unwrap(), cuda.event(0).unwrap(), cuda.alloc(64).unwrap());
    assert_eq!((cuda.stream_sync(event), cuda.event_query(stream)), (400, 400));
    assert_eq!((cuda.stream_sync(address), cuda.stream_sync(0xDEAD)), (400, 400));
    assert_eq!((cuda.free(stream), cuda.unload(stream), cuda.graph_destroy(event)), (1, 400, 400));
    assert_eq!(cuda.stream_destroy(stream), 0);
    assert_eq!((cuda.stream_destroy(stream), cuda.stream_sync(stream)), (400, 400));
    assert_eq!((cuda.stream_destroy(0), cuda.stream_destroy(1), cuda.stream_destroy(2)), (400, 400, 400));
    assert_eq!(cuda.set_current(stream), 201);
    // SAFETY: null results are refused.
    assert_eq!(unsafe { cuda.api.cuMemAlloc_v2(std::ptr::null_mut(), 1) }, 1);
    // SAFETY: as above.
    assert_eq!(unsafe { cuda.api.cuMemGetInfo_v2(std::ptr::null_mut(), std::ptr::null_mut()) }, 1);
    // SAFETY: a null source is refused.
    assert_eq!(unsafe { cuda.api.cuMemcpyHtoD_v2(address, std::ptr::null(), 8) }, 1);
    let device = std::ptr::without_provenance_mut(address as usize);
    // SAFETY: a device address as host memory is refused.
    assert_eq!(unsafe { cuda.api.cuMemcpyDtoH_v2(device, address, 8) }, 1);
}

#[test]
fn a_kernel_gets_its_shape_and_parameters_and_runs_late() {
    let driver = sim();
    driver.register_kernel("poke", |launch| {
        assert_eq!((launch.grid(), launch.block(), launch.threads()), ([1; 3], [1; 3], 1));
        assert_eq!((launch.parameter_count(), launch.shared_bytes()), (2, 0));
        let (at, value) = (launch.parameter::<u64>(0)?, launch.parameter::<u32>(1)?);
        launch.store(at, value + 1)
    });
    let (cuda, _guard) = open(&driver);
    let module = cuda.load(PTX.as_bytes()).unwrap();
    let poke = cuda.function(module, "poke").unwrap();
    let (s, a) = (cuda.stream(1).unwrap(), cuda.alloc(64).unwrap());
    assert_eq!(cuda.poke(poke, a, 41, s), 0);
    assert_eq!(cuda.bytes(a), [0xFF; 4]);
    assert_eq!(cuda.stream_sync(s), 0);
    assert_eq!(cuda.bytes(a), 42u32.to_le_bytes());
}

#[test]
fn kernels_are_found_by_module_name_first() {
    let driver = sim();
    driver.register_kernel("vector::poke", |launch| {
        let at = launch.parameter::<u64>(0)?;
        launch.store(at, 1000u32)
    });
    let (cuda, _guard) = open(&driver);
    let a = cuda.alloc(64).unwrap();
    let run = |expected: u32| {
        let module = cuda.load(PTX.as_bytes()).unwrap();
        let poke = cuda.function(module, "poke").unwrap();
        assert_eq!((cuda.poke(poke, a, 5, 0), cuda.sync()), (0, 0));
        assert_eq!(cuda.bytes(a), expected.to_le_bytes());
    };
    run(5);
    // With or without its NUL it is the same image.
    driver.name_image("vector", PTX.trim_end_matches('\0').as_bytes());
    run(1000);
}

#[test]
fn a_kernel_without_a_function_is_refused_and_explained() {
    let driver = SimDriver::new(Profile::h200());
    let (cuda, _guard) = open(&driver);
    let module = cuda.load(PTX.as_bytes()).unwrap();
    let nothing = cuda.function(module, "nothing").unwrap();
    assert_eq!(cuda.nothing(nothing, 0), 801);
    let text = driver.diagnostics().join("\n");
    assert!(text.contains("\"nothing\"") && text.contains("register_kernel"), "{text}");
    register(&driver);
    assert_eq!((cuda.nothing(nothing, 0), cuda.sync()), (0, 0));

    let driver = SimDriver::new(Profile::h200().with_missing_kernel(MissingKernel::Ignore));
    let (cuda, _guard) = open(&driver);
    let module = cuda.load(PTX.as_bytes()).unwrap();
    let nothing = cuda.function(module, "nothing").unwrap();
    assert_eq!((cuda.nothing(nothing, 0), cuda.sync()), (0, 0));
    assert_eq!(driver.diagnostics().len(), 1);
}

/// What a faulting function leaves behind.
fn fault(
    driver: &SimDriver,
    function: impl Fn(&mut metrale_driver_sim::KernelLaunch<'_>) -> Result<(), KernelFault>
    + Send
    + Sync
    + 'static,
) -> (i32, String) {
    driver.register_kernel("nothing", function);
    let (cuda, _guard) = open(driver);
    let module = cuda.load(PTX.as_bytes()).unwrap();
    let nothing = cuda.function(module, "nothing").unwrap();
    assert_eq!(cuda.nothing(nothing, 0), 0);
    let status = cuda.sync();
    assert_eq!(cuda.sync(), status, "a fault stays");
    (status, driver.diagnostics().join("\n"))
}

#[test]
fn faults_of_kernels_lose_the_context_and_say_why() {
    let (status, text) = fault(&sim(), |launch| launch.store(0x10_0000, 1u8));
    assert!(status == 700 && text.contains("0x100000"), "{status} {text}");
    // A function that goes on after a stray access has failed all the same.
    let (status, _) = fault(&sim(), |launch| {
        let _ = launch.store(0x10_0000, 1u8);
        Ok(())
    });
    assert_eq!(status, 700);
    let (status, text) = fault(&sim(), |launch| launch.load::<u32>(0x0a00_0000_0001).map(drop));
    assert!(status == 716 && text.contains("multiple of 4"), "{status} {text}");
    let (status, text) = fault(&sim(), |launch| launch.parameter::<u32>(3).map(drop));
    assert!(status == 719 && text.contains("parameter 3"), "{status} {text}");
    let (status, text) = fault(&sim(), |_| panic!("on purpose"));
    assert!(status == 719 && text.contains("on purpose"), "{status} {text}");
    let (status, _) = fault(&sim(), |_| Err(KernelFault::Status { status: 710 }));
    assert_eq!(status, 710);
    let (status, _) = fault(&sim(), |launch| launch.load_all::<u64>(0x0a00_0000_0000, usize::MAX).map(drop));
    assert_eq!(status, 700);
}

#[test]
fn an_injected_fault_is_for_good_and_another_instance_is_sound() {
    let driver = sim();
    let (cuda, guard) = open(&driver);
    let s = cuda.stream(1).unwrap();
    driver.inject_fault(0, 719);
    assert_eq!((status(cuda.alloc(1)), cuda.stream_sync(s), cuda.stream_query(s)), (719, 719, 719));
    drop(guard);
    assert_eq!((cuda.retain(0), cuda.release(0)), (Err(719), 201));
    let (cuda, _guard) = open(&sim());
    assert_eq!(status(cuda.alloc(1)), 0);
}

#[test]
fn stray_writes_inside_a_page_are_found_unless_hardware_is_to_be_followed() {
    let write_past_the_end = |profile: Profile| {
        let driver = SimDriver::new(profile);
        register(&driver);
        let (cuda, _guard) = open(&driver);
        let module = cuda.load(PTX.as_bytes()).unwrap();
        let poke = cuda.function(module, "poke").unwrap();
        let a = cuda.alloc(1000).unwrap();
        assert_eq!(cuda.poke(poke, a + 1000, 1, 0), 0);
        cuda.sync()
    };
    assert_eq!(write_past_the_end(Profile::h200()), 700);
    assert_eq!(write_past_the_end(Profile::h200().with_kernel_bounds(KernelBounds::Page)), 0);
}

#[test]
fn a_kernel_that_calls_its_own_driver_is_told_no() {
    let driver = sim();
    let inner = driver.clone();
    let (status, _) = fault(&driver, move |_| {
        // SAFETY: no pointer is passed.
        Err(KernelFault::Status { status: unsafe { inner.cuCtxSynchronize() } })
    });
    assert_eq!(status, 800);
}

#[test]
fn a_pinned_buffer_freed_under_a_graph_is_a_fault_and_no_wild_access() {
    let driver = sim();
    let (cuda, _guard) = open(&driver);
    let (s, a, host) = (cuda.stream(1).unwrap(), cuda.alloc(64).unwrap(), cuda.alloc_host(64).unwrap());
    assert_eq!(cuda.capture_begin(s, 2), 0);
    // SAFETY: the driver is to find out that the memory was freed.
    assert_eq!(unsafe { cuda.upload_async(a, host.cast(), 64, s) }, 0);
    let (_, graph) = cuda.end(s);
    let exec = cuda.instantiate(graph).unwrap();
    assert_eq!(cuda.free_host(host), 0);
    assert_eq!((cuda.graph_launch(exec, s), cuda.stream_sync(s)), (0, 700));
}

#[test]
fn a_replay_into_freed_memory_is_silent_but_diagnosed_and_a_stray_one_is_a_fault() {
    let driver = sim();
    let (cuda, _guard) = open(&driver);
    let module = cuda.load(PTX.as_bytes()).unwrap();
    let poke = cuda.function(module, "poke").unwrap();
    let (s, a) = (cuda.stream(1).unwrap(), cuda.alloc(64).unwrap());
    let replay = |at: u64, before: &dyn Fn()| {
        assert_eq!(cuda.capture_begin(s, 2), 0);
        assert_eq!(cuda.poke(poke, at, 1, s), 0);
        let (_, graph) = cuda.end(s);
        let exec = cuda.instantiate(graph).unwrap();
        before();
        (cuda.graph_launch(exec, s), cuda.stream_sync(s))
    };
    assert_eq!(replay(a, &|| assert_eq!(cuda.free(a), 0)), (0, 0));
    let text = driver.diagnostics().join("\n");
    assert!(text.contains("freed after its capture"), "{text}");
    let b = cuda.alloc(100).unwrap();
    assert_eq!(replay(b + 100, &|| {}), (0, 700));
}

#[test]
fn a_graph_that_copies_or_fills_freed_memory_is_not_made_ready() {
    let driver = sim();
    let (cuda, _guard) = open(&driver);
    let s = cuda.stream(1).unwrap();
    let captured = |work: &dyn Fn(u64, u64) -> i32, frees: bool| {
        let (a, b) = (cuda.alloc(64).unwrap(), cuda.alloc(64).unwrap());
        assert_eq!((cuda.capture_begin(s, 2), work(a, b)), (0, 0));
        let (_, graph) = cuda.end(s);
        assert!(!frees || cuda.free(a) == 0);
        graph
    };
    let fill = |a, _| cuda.memset_async(a, 1, 64, s);
    let copy_from = |a, b| cuda.copy_on_device_async(b, a, 64, s);
    let copy_to = |a, b| cuda.copy_on_device_async(a, b, 64, s);
    let works: [&dyn Fn(u64, u64) -> i32; 3] = [&fill, &copy_from, &copy_to];
    for work in works {
        let exec = cuda.instantiate(captured(work, false)).unwrap();
        let stale = captured(work, true);
        let mut info = CUgraphExecUpdateResultInfo::default();
        // SAFETY: both are live; the result pointer is a local.
        let update = unsafe { driver.cuGraphExecUpdate_v2(exec, stale, &mut info) };
        assert_eq!((cuda.instantiate(stale), update), (Err(1), 1));
    }
    let text = driver.diagnostics();
    assert!(text.len() == 6 && text.iter().all(|line| line.contains("freed since")), "{text:?}");
}

#[test]
fn scales_driver_lacks_one_function() {
    let driver = SimDriver::new(Profile::scale());
    let lacking: Vec<_> = DriverFn::ALL.iter().filter(|&&function| !driver.provides(function)).collect();
    assert!(lacking.iter().all(|function| function.name() == "cuStreamIsCapturing"), "{lacking:?}");
    let (cuda, _guard) = open(&driver);
    let s = cuda.stream(0).unwrap();
    let expected = if metrale_driver_sim::driver_sys::SCALE { Ok(0) } else { Err(801) };
    assert_eq!(cuda.capture_state(s), expected);
}

#[test]
fn two_dimensional_copies_move_rectangles_and_stay_in_bounds() {
    use metrale_driver_sim::driver_sys::{CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CUDA_MEMCPY2D};
    let driver = sim();
    let (cuda, _guard) = open(&driver);
    let a = cuda.alloc(8 * 4).unwrap();
    assert_eq!((cuda.memset(a, 0, 32), cuda.sync()), (0, 0));
    let host: Vec<u8> = (0..16).collect();
    let copy = CUDA_MEMCPY2D {
        srcXInBytes: 1,
        srcY: 1,
        srcMemoryType: CU_MEMORYTYPE_HOST,
        srcHost: host.as_ptr().cast(),
        srcDevice: 0,
        srcArray: 0,
        srcPitch: 4,
        dstXInBytes: 2,
        dstY: 1,
        dstMemoryType: CU_MEMORYTYPE_DEVICE,
        dstHost: std::ptr::null_mut(),
        dstDevice: a,
        dstArray: 0,
        dstPitch: 8,
        WidthInBytes: 3,
        Height: 2,
    };
    let run = |copy: &CUDA_MEMCPY2D| {
        // SAFETY: the host array has the rows that the copies speak of; the others are refused.
        let status = unsafe { cuda.api.cuMemcpy2DAsync_v2(copy, 0) };
        (status, cuda.sync())
    };
    assert_eq!(run(&copy), (0, 0));
    let mut expected = [0; 32];
    expected[10..13].copy_from_slice(&[5, 6, 7]);
    expected[18..21].copy_from_slice(&[9, 10, 11]);
    assert_eq!(cuda.bytes(a), expected);
    assert_eq!(run(&CUDA_MEMCPY2D { Height: 4, ..copy }), (1, 0), "past the end");
    assert_eq!(run(&CUDA_MEMCPY2D { dstPitch: 4, ..copy }), (1, 0), "wider than the pitch");
    assert_eq!(run(&CUDA_MEMCPY2D { dstY: usize::MAX, ..copy }), (1, 0));
    assert_eq!(run(&CUDA_MEMCPY2D { dstMemoryType: 3, ..copy }), (1, 0), "arrays do not exist here");
    assert_eq!(run(&CUDA_MEMCPY2D { WidthInBytes: 0, dstDevice: 0, ..copy }), (0, 0));
}

#[test]
fn overlapping_copies_move_bytes_as_they_were() {
    let (cuda, _guard) = open(&sim());
    let a = cuda.alloc(300_000).unwrap();
    let host: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
    for (from, to) in [(0, 1), (1, 0), (0, 70_000), (70_000, 0), (0, 200_000)] {
        assert_eq!(cuda.upload(a, &host), 0);
        let len = 300_000 - from.max(to);
        assert_eq!(cuda.copy_on_device(a + to as u64, a + from as u64, len), 0);
        let mut seen = vec![0; len];
        assert_eq!(cuda.download(&mut seen, a + to as u64), 0);
        assert!(seen == host[from..from + len], "{from} to {to}");
    }
}

#[test]
fn jit_logs_are_written_to_the_callers_buffers() {
    use metrale_driver_sim::driver_sys::{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    let (cuda, _guard) = open(&sim());
    let image = ".version 8.7\n.target sm_100\n.address_size 64\n.visible .entry e() { ret; }\n\0";
    let mut log = [0xAAu8; 256];
    let mut options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut(256)];
    let mut module = 0;
    let (options, at) = (options.as_mut_ptr(), values.as_mut_ptr());
    let image = image.as_ptr().cast();
    // SAFETY: the image ends in NUL, the arrays have two elements, the buffer has 256 bytes.
    let status = unsafe { cuda.api.cuModuleLoadDataEx(&mut module, image, 2, options, at) };
    let written = values[1].addr();
    assert_eq!(status, 218);
    let text = std::ffi::CStr::from_bytes_until_nul(&log).unwrap().to_str().unwrap();
    assert!(text.contains("sm_100"), "{text}");
    assert_eq!(text.len(), written);
}
