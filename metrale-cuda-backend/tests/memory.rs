// SPDX-License-Identifier: MIT OR Apache-2.0
//! Free memory with its provenance, the account that closes, the watchdog.

mod common;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use common::hooked::HookedDriver;
use common::{KERNELS, KIB, MIB, address, backend, logged, sim};
use metrale_cuda_backend::memory::{
    CgroupLimit, FreeSource, HostFigureKind, LowMemory, Quality, WatchdogError,
};
use metrale_cuda_backend::{
    AllocKind, BackendConfig, CallFailed, Capturing, DriverApi, DriverFn, Freed, GpuBackend,
    MetraleCudaBackend, OutOfMemory, Remedy, Verdict,
};
use metrale_driver_sim::driver_sys::attribute;
use metrale_driver_sim::{FaultDriver, Profile, SimDriver, on_both_drivers};

/// A text in a file that goes with the guard.
struct MemInfoFile(PathBuf);

impl MemInfoFile {
    fn new(name: &str, text: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("metrale-meminfo-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn config(&self) -> BackendConfig {
        let mut config = BackendConfig::default();
        config.meminfo_path = Some(self.0.clone());
        config
    }
}

impl Drop for MemInfoFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn with(driver: Arc<dyn DriverApi>, config: BackendConfig) -> MetraleCudaBackend {
    MetraleCudaBackend::builder().driver(driver).config(config).build().unwrap()
}

on_both_drivers! {
    the_figures_agree(driver) {
        let backend = backend(driver);
        let info = backend.memory_info().unwrap();
        assert_eq!(backend.device_free_memory().unwrap(), info.free_bytes);
        assert_eq!(backend.total_memory(), backend.facts().total_bytes);
        let free = backend.effective_free().unwrap();
        assert_eq!(free.situation.total_bytes, Some(backend.total_memory()));
        if !backend.facts().integrated {
            assert_eq!((free.bytes, free.source), (info.free_bytes, FreeSource::Driver));
            assert_eq!(backend.free_memory().unwrap(), info.free_bytes);
        }
        // Between two questions the ledger's own change is what moves the figure, and it is the driver's.
        let polled = backend.poll_free_memory().unwrap();
        let ptr = backend.alloc(9 * MIB).unwrap();
        let corrected = backend.poll_free_memory().unwrap();
        assert_eq!(corrected.free_bytes, polled.free_bytes - 10 * MIB as u64);
        assert_eq!(corrected.free_bytes, backend.device_free_memory().unwrap());
        backend.free(ptr).unwrap();
    }

    the_account_closes_over_modules_streams_and_allocations(driver) {
        let modules: [(&'static str, &'static [u8]); 3] = [("a", KERNELS), ("b", KERNELS), ("c", KERNELS)];
        let backend = MetraleCudaBackend::builder()
            .driver(driver)
            .modules(&modules)
            .config(BackendConfig::default())
            .build()
            .unwrap();
        assert_eq!(backend.account().unwrap().remainder_bytes(), 0);
        let streams: Vec<_> = (0..7).map(|_| backend.create_stream().unwrap()).collect();
        let (stream, captured) = (backend.stream(), backend.alloc(4096).unwrap());
        let capture = backend.capture(stream).unwrap();
        for error in [
            backend.free_memory().unwrap_err(),
            backend.device_free_memory().unwrap_err(),
            backend.effective_free().unwrap_err(),
            backend.poll_free_memory().unwrap_err(),
            backend.account().unwrap_err(),
        ] {
            assert!(error.is::<Capturing>(), "{error}");
        }
        (0..64).for_each(|value| backend.memset_async(captured, value, 4096, stream).unwrap());
        let graph = capture.finish("fills").unwrap();
        backend.launch_graph(graph, stream).unwrap();
        backend.synchronize_stream(stream).unwrap();
        let held: Vec<_> = (1..60).map(|n| backend.alloc(n * 77 * KIB).unwrap()).collect();
        let arena = backend.alloc_arena(5 * MIB).unwrap();
        let account = backend.account().unwrap();
        assert_eq!(account.remainder_bytes(), 0, "{account}");
        let term = |name: &str| account.term(name).unwrap_or_else(|| panic!("no {name}: {account}"));
        let asked: i64 = 4096 + (1..60).map(|n| n * 77 * KIB as i64).sum::<i64>();
        assert_eq!((term("ledger").bytes, term("ledger").quality), (asked, Quality::Measured));
        assert_eq!(term("slack").bytes, backend.resident_bytes() as i64 - asked);
        assert_eq!((term("arenas").bytes, term("arenas").quality), (6 * MIB as i64, Quality::Modelled));
        assert!(term("modules").note.as_deref().unwrap().contains("3 modules"));
        assert!(term("streams").note.as_deref().unwrap().contains("7 alive"));
        assert!(term("context baseline").bytes > 0);
        assert_eq!((term("graphs").bytes, term("graphs").quality), (backend.graph_bytes_measured(), Quality::Measured));
        // A small graph fits into what the driver keeps for streams and graphs alike.
        assert!(term("graphs").bytes >= 0 && term("graphs").note.as_deref().unwrap().contains("1 instantiated"));
        for name in ["red-zone pads", "quarantine", "other processes"] {
            assert_eq!(term(name).bytes, 0, "{name}");
        }
        assert_eq!(account.driver_used_bytes(), backend.memory_info().unwrap().used_bytes());

        for stream in streams {
            backend.destroy_stream(stream).unwrap();
        }
        backend.destroy_graph(graph).unwrap();
        backend.free(captured).unwrap();
        held.into_iter().for_each(|ptr| backend.free(ptr).unwrap());
        backend.free_arena(arena).unwrap();
        let account = backend.account().unwrap();
        assert_eq!(account.remainder_bytes(), 0, "{account}");
        assert_eq!((account.term("ledger").unwrap().bytes, account.term("arenas").unwrap().bytes), (0, 0));
    }
}

/// A thread has its memory off the ledger, and the driver has not freed it yet: no moment for an account.
#[test]
fn an_account_waits_for_memory_between_ledger_and_driver() {
    let driver = Arc::new(HookedDriver::new(Arc::new(sim())));
    let backend = Arc::new(backend(driver.clone()));
    for (bytes, owned) in [(64, false), (64, true), (4 * MIB, false)] {
        let memory = owned.then(|| backend.alloc_owned(bytes).unwrap());
        let raw = (!owned).then(|| backend.alloc(bytes).unwrap());
        let (tell, account) = mpsc::channel();
        let other = Arc::clone(&backend);
        driver.before_each(move |called| {
            if called == DriverFn::cuMemFree_v2 {
                let (other, tell) = (Arc::clone(&other), tell.clone());
                let (begin, begun) = mpsc::channel();
                std::thread::spawn(move || {
                    begin.send(()).unwrap();
                    tell.send(other.account().unwrap()).unwrap();
                });
                begun.recv().unwrap();
                // Time enough to ask the driver, were it not for this free.
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        memory.into_iter().for_each(|memory| assert!(matches!(backend.free_owned(memory), Ok(Freed::Now))));
        raw.into_iter().for_each(|raw| backend.free(raw).unwrap());
        let account = account.recv().unwrap();
        driver.before_each(|_| {});
        assert_eq!(account.remainder_bytes(), 0, "{bytes} bytes: {account}");
    }
}

/// What another takes shows in the remainder, with its sign.
#[test]
fn what_nobody_named_is_the_remainder() {
    let driver: Arc<dyn DriverApi> = sim();
    let backend = backend(driver.clone());
    let mut foreign = 0;
    // SAFETY: the result pointer is a local.
    assert_eq!(unsafe { driver.cuMemAlloc_v2(&mut foreign, 3 * MIB) }, 0);
    assert_eq!(backend.account().unwrap().remainder_bytes(), 4 * MIB as i64);
    // SAFETY: the address is the one just given.
    assert_eq!(unsafe { driver.cuMemFree_v2(foreign) }, 0);
    assert_eq!(backend.account().unwrap().remainder_bytes(), 0);
    let managed = backend.alloc_managed(MIB).unwrap();
    let account = backend.account().unwrap();
    assert_eq!(account.term("managed").map(|term| term.quality), Some(Quality::Unknown), "{account}");
    backend.free(managed).unwrap();
}

/// The recorded texts, each as the machine's own.
#[test]
fn effective_free_on_an_integrated_gpu_follows_the_hosts_text() {
    let text = |available_kb: u64| {
        format!("MemTotal: 127601452 kB\nMemFree: 2506096 kB\nMemAvailable: {available_kb} kB\n").into_bytes()
    };
    let file = MemInfoFile::new("follows", &text(100_000_000));
    let backend = with(Arc::new(SimDriver::new(Profile::gb10())), file.config());
    let total = backend.total_memory();
    // Far below what the host has available.
    let rest = backend.device_free_memory().unwrap() - (20 << 30);
    let big = backend.alloc(rest as usize).unwrap();
    let driver_free = backend.device_free_memory().unwrap();
    assert!(driver_free <= 20 << 30);

    let free = backend.effective_free().unwrap();
    assert_eq!(free.bytes, (100_000_000_u64 << 10).min(total));
    assert_eq!(free.source, FreeSource::Host(HostFigureKind::Available));
    assert_eq!(free.situation.driver_free_bytes.map(|aged| aged.figure), Some(driver_free));
    assert_eq!(backend.free_memory().unwrap(), free.bytes);
    assert_eq!(
        backend.device_free_memory().unwrap(),
        driver_free,
        "the driver's own figure stays what it is"
    );

    std::fs::write(&file.0, text(80_000_000)).unwrap();
    assert_eq!(backend.free_memory().unwrap(), 80_000_000 << 10);
    std::fs::write(&file.0, text(1_000_000)).unwrap();
    let free = backend.effective_free().unwrap();
    assert_eq!((free.bytes, free.source), (driver_free, FreeSource::Driver), "the larger of the two");
    std::fs::write(&file.0, text(999_999_999)).unwrap();
    assert!(backend.effective_free().unwrap().bytes <= total);
    std::fs::write(&file.0, b"MemTotal: -5 kB\n").unwrap();
    assert_eq!(
        backend.free_memory().unwrap(),
        driver_free,
        "a text that cannot be trusted counts for nothing"
    );
    backend.free(big).unwrap();

    // A discrete GPU does not look at it.
    let discrete = with(sim(), file.config());
    assert_eq!(discrete.effective_free().unwrap().situation.host, None);
}

#[test]
fn what_another_thread_allocates_while_a_poll_asks_counts_once() {
    let driver = Arc::new(HookedDriver::new(sim()));
    let backend = Arc::new(backend(driver.clone()));
    let free = backend.device_free_memory().unwrap() - 64 * MIB as u64;
    let (other, armed) = (Arc::downgrade(&backend), AtomicBool::new(true));
    driver.before_each(move |called| {
        if called == DriverFn::cuMemGetInfo_v2 && armed.swap(false, Ordering::Relaxed) {
            let backend = other.upgrade().unwrap();
            let allocating = std::thread::spawn(move || {
                backend.bind_to_thread().unwrap();
                backend.alloc(64 * MIB).unwrap()
            });
            allocating.join().unwrap();
        }
    });
    let polls = [(); 2].map(|()| backend.poll_free_memory().unwrap().free_bytes);
    assert_eq!(polls, [free; 2]);
}

/// A poll is the effective figure too, and moves with the ledger between two questions.
#[test]
fn a_poll_on_an_integrated_gpu_follows_the_host() {
    let file = MemInfoFile::new("polled", b"MemTotal: 127601452 kB\nMemAvailable: 100000000 kB\n");
    let backend = with(Arc::new(SimDriver::new(Profile::gb10())), file.config());
    let big = backend.device_free_memory().unwrap() - (20 << 30);
    let big = backend.alloc(big as usize).unwrap();
    let effective = backend.free_memory().unwrap();
    assert!(backend.device_free_memory().unwrap() <= 20 << 30 && effective == 100_000_000 << 10);
    assert_eq!(backend.poll_free_memory().unwrap().free_bytes, effective);
    let more = backend.alloc(64 * MIB).unwrap();
    let polled = backend.poll_free_memory().unwrap();
    assert_eq!(polled.free_bytes, effective - if polled.age.is_zero() { 0 } else { 64 << 20 });
    backend.free(more).unwrap();
    backend.free(big).unwrap();
}

/// Where the driver does not say whether the device is integrated, it counts as discrete, and a backend starts.
#[test]
fn a_failed_question_whether_it_is_integrated_does_not_stop_the_start() {
    let file = MemInfoFile::new("unasked", b"MemTotal: 127601452 kB\nMemAvailable: 121000000 kB\n");
    for status in [1, 2, 999] {
        let driver = Arc::new(HookedDriver::new(Arc::new(SimDriver::new(Profile::gb10()))));
        driver.fail_attribute(attribute::INTEGRATED, status);
        let backend = with(driver, file.config());
        assert!(!backend.facts().integrated);
        assert_eq!(backend.free_memory().unwrap(), backend.device_free_memory().unwrap());
        assert_eq!(backend.poll_free_memory().unwrap().free_bytes, backend.device_free_memory().unwrap());
        // What is not known of the device is no licence: a copy's device side is still held to device memory.
        let heap = [0_u8; 16];
        assert!(backend.memset(address(heap.as_ptr().addr() as u64), 1, 16).is_err());
    }
}

/// The limit of a control group bounds what is pinned, before the driver is asked, and is shown on every device.
#[test]
fn a_cgroup_limit_bounds_pinned_memory_and_is_shown_on_every_device() {
    for profile in [Profile::gb10(), Profile::h200()] {
        let faulty = Arc::new(FaultDriver::new(Arc::new(SimDriver::new(profile))));
        let mut config = BackendConfig::default();
        config.cgroup_limit = Some(CgroupLimit::Bytes(MIB as u64));
        let backend = with(faulty.clone(), config);
        let free = backend.effective_free().unwrap();
        assert_eq!(free.situation.cgroup_limit, Some(CgroupLimit::Bytes(1 << 20)));
        assert!(free.to_string().contains("limits host and pinned memory to 1.00 MiB"), "{free}");
        assert_eq!(free.bytes, backend.free_memory().unwrap(), "it does not lower the device's figure");

        let held = backend.alloc_pinned(768 * KIB).unwrap();
        let asked = faulty.calls(DriverFn::cuMemAllocHost_v2);
        let error = backend.alloc_pinned(512 * KIB).unwrap_err();
        assert_eq!(error.remedy(), Remedy::FreeAndRetry);
        let refused = error.downcast::<OutOfMemory>().expect("typed");
        assert_eq!(refused.verdict, Verdict::HostLimit { limit_bytes: 1 << 20, missing_bytes: 256 << 10 });
        assert!(refused.driver.is_none() && refused.to_string().contains("control group"), "{refused}");
        let error = backend.alloc_pinned(MIB + 1).unwrap_err();
        assert_eq!(error.remedy(), Remedy::FixCall, "{error}");
        assert_eq!(faulty.calls(DriverFn::cuMemAllocHost_v2), asked, "the driver was not asked");
        backend.free_pinned(held).unwrap();
        let all = backend.alloc_pinned(MIB).unwrap();
        backend.free_pinned(all).unwrap();
        let device = backend.alloc(2 * MIB).unwrap();
        backend.free(device).unwrap();
    }
}

#[test]
fn a_driver_that_does_not_answer_leaves_the_host() {
    let file = MemInfoFile::new("silent", b"MemTotal: 127601452 kB\nMemAvailable: 7000000 kB\n");
    let faulty = Arc::new(FaultDriver::new(Arc::new(SimDriver::new(Profile::gb10()))));
    let backend = with(faulty.clone(), file.config());
    backend.poll_free_memory().unwrap();
    faulty.fail_every(DriverFn::cuMemGetInfo_v2, 999);
    assert_eq!(backend.free_memory().unwrap(), 7_000_000 << 10);
    assert!(backend.device_free_memory().unwrap_err().is::<CallFailed>());
    assert!(backend.poll_free_memory().is_ok(), "the last figure serves on");
    assert!(backend.account().is_err());
    // What cannot be measured is noted nowhere, and nothing fails for it.
    let stream = backend.create_stream().unwrap();
    backend.destroy_stream(stream).unwrap();

    let faulty = Arc::new(FaultDriver::new(sim()));
    let discrete = with(faulty.clone(), BackendConfig::default());
    faulty.fail_every(DriverFn::cuMemGetInfo_v2, 999);
    let error = discrete.free_memory().unwrap_err();
    assert_eq!(error.downcast_ref::<CallFailed>().map(|failed| failed.driver.status), Some(999));
    assert!(discrete.poll_free_memory().is_err());
}

fn spawn_oom_watchdog_refusal(
    builder: &metrale_cuda_backend::BackendBuilder,
    every: Duration,
) -> metrale_cuda_backend::Error {
    builder.spawn_oom_watchdog(512, every, None).unwrap_err()
}

/// The process has one watchdog, so the tests of it are one.
#[test]
fn the_watchdog_fires_once_on_three_low_readings_and_a_good_one_resets() {
    let driver = Arc::new(SimDriver::new(Profile::h200().with_total_bytes(4 << 30)));
    let faulty = Arc::new(FaultDriver::new(driver));
    let backend = backend(faulty.clone());
    let refused =
        |error: metrale_cuda_backend::Error| error.downcast_ref::<WatchdogError>().cloned().expect("typed");
    let every = Duration::from_millis(5);
    assert_eq!(refused(backend.spawn_oom_watchdog(0, every).unwrap_err()), WatchdogError::ZeroThreshold);
    let error = backend.spawn_oom_watchdog(1 << 20, every).unwrap_err();
    assert_eq!(error.remedy(), Remedy::FixCall);
    assert!(matches!(refused(error), WatchdogError::ThresholdAboveTotal { .. }));

    let (sender, fired) = mpsc::channel::<LowMemory>();
    let handler = Box::new(move |low: &LowMemory| sender.send(low.clone()).unwrap());
    let watchdog = backend.spawn_oom_watchdog_with(512, every, handler).unwrap();
    assert_eq!(refused(backend.spawn_oom_watchdog(512, every).unwrap_err()), WatchdogError::AlreadyRunning);

    // Each low spell is ended by a good reading before its third.
    let read = |more: u64| {
        let wanted = faulty.calls(DriverFn::cuMemGetInfo_v2) + more;
        let deadline = Instant::now() + Duration::from_secs(60);
        while faulty.calls(DriverFn::cuMemGetInfo_v2) < wanted {
            assert!(Instant::now() < deadline, "the watchdog does not read");
            std::thread::yield_now();
        }
    };
    read(3);
    assert!(fired.try_recv().is_err(), "there is enough");
    // Unanswered readings change nothing.
    faulty.fail_every(DriverFn::cuMemGetInfo_v2, 999);
    read(4);
    faulty.clear();
    assert!(fired.try_recv().is_err());

    let _scope = backend.scope("kv-cache");
    let free = backend.device_free_memory().unwrap() as usize;
    let hog = backend.alloc(free - 100 * MIB).unwrap();
    let low = fired.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(low.free_bytes < 512 << 20 && low.threshold_bytes == 512 << 20);
    assert!(low.report.contains("kv-cache") && low.report.contains("memory.rs"), "{low}");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !watchdog.is_finished() {
        assert!(Instant::now() < deadline, "it goes on after it fired");
        std::thread::yield_now();
    }
    assert!(fired.try_recv().is_err(), "called once");
    watchdog.stop();

    // Without a backend: on an integrated GPU by the host's figure, and with the driver's as soon as somebody made it ready.
    let file = MemInfoFile::new("watched", b"MemTotal: 127601452 kB\nMemAvailable: 120000 kB\n");
    let integrated = Arc::new(FaultDriver::new(Arc::new(SimDriver::new(Profile::gb10()))));
    let builder = MetraleCudaBackend::builder().driver(integrated.clone()).config(file.config());
    let (sender, fired) = mpsc::channel::<LowMemory>();
    let handler = Box::new(move |low: &LowMemory| sender.send(low.clone()).unwrap());
    let early = builder.spawn_oom_watchdog(512, every, Some(handler)).unwrap();
    assert_eq!(refused(spawn_oom_watchdog_refusal(&builder, every)), WatchdogError::AlreadyRunning);
    let low = fired.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!((low.free_bytes, low.threshold_bytes), (120_000 << 10, 512 << 20));
    assert!(low.report.contains("without a backend"), "{low}");
    assert_eq!(integrated.calls(DriverFn::cuDevicePrimaryCtxRetain), 0, "it makes no context");
    early.stop();
    // A discrete GPU gives no reading before there is a context, and is read through the first backend's.
    let discrete =
        Arc::new(FaultDriver::new(Arc::new(SimDriver::new(Profile::h200().with_total_bytes(4 << 30)))));
    let builder = MetraleCudaBackend::builder().driver(discrete.clone()).config(BackendConfig::default());
    let (sender, fired) = mpsc::channel::<LowMemory>();
    let handler = Box::new(move |low: &LowMemory| sender.send(low.clone()).unwrap());
    let early = builder.spawn_oom_watchdog(512, every, Some(handler)).unwrap();
    let later = builder.build().unwrap();
    assert!(fired.try_recv().is_err());
    let hog_later = later.alloc(later.device_free_memory().unwrap() as usize - 100 * MIB).unwrap();
    let low = fired.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(low.free_bytes < 512 << 20, "{low}");
    later.free(hog_later).unwrap();
    early.stop();

    // One that watches a device whose last user is gone reads nothing, and keeps nothing alive.
    let watchdog = backend.spawn_oom_watchdog(1, every).unwrap();
    backend.free(hog).unwrap();
    drop(_scope);
    drop(backend);
    watchdog.stop();
}

#[test]
fn the_trait_object_has_all_of_it() {
    let backend = backend(sim());
    let face: &dyn GpuBackend = &backend;
    assert_eq!(face.free_memory().unwrap(), face.device_free_memory().unwrap());
    assert_eq!(face.total_memory(), backend.facts().total_bytes);
    assert_eq!(face.effective_free().unwrap().bytes, face.poll_free_memory().unwrap().free_bytes);
    assert_eq!(face.account().unwrap().remainder_bytes(), 0);
    let (pinned, log) = logged(|| face.alloc_pinned(64).unwrap());
    assert_eq!((face.ledger_probe().allocations_of(AllocKind::Pinned).len(), log), (1, vec![]));
    face.free_pinned(pinned).unwrap();
}

/// A misspelt path would else be another machine's free memory without a word.
#[test]
fn a_meminfo_path_that_cannot_be_read_is_refused_when_the_backend_is_built() {
    let mut config = BackendConfig::default();
    config.meminfo_path = Some(PathBuf::from("/absent/meminfo"));
    for profile in [Profile::gb10(), Profile::h200()] {
        let driver = Arc::new(SimDriver::new(profile));
        let built = MetraleCudaBackend::builder().driver(driver).config(config.clone()).build();
        let error = built.expect_err("refused");
        assert_eq!(error.remedy(), Remedy::FixCall);
        let text = format!("{error:#}");
        assert!(text.contains("meminfo_path") && text.contains("/absent/meminfo"), "{text}");
    }
}

/// A free on another thread that the ledger knows and the driver does not yet is not counted as a stream's memory.
#[test]
fn no_cost_is_measured_while_memory_is_between_ledger_and_driver() {
    let driver = Arc::new(HookedDriver::new(sim()));
    let backend = backend(driver.clone());
    let held = backend.alloc(64 * MIB).unwrap();
    let (freeing, is_freeing) = mpsc::channel();
    let (made, is_made) = mpsc::channel();
    let gates = std::sync::Mutex::new((freeing, is_made));
    driver.before_each(move |called| {
        if called == DriverFn::cuMemFree_v2 {
            let gates = gates.lock().unwrap();
            gates.0.send(()).unwrap();
            gates.1.recv().unwrap();
        }
    });
    std::thread::scope(|scope| {
        let freed = scope.spawn(|| backend.free(held));
        is_freeing.recv().unwrap();
        let stream = backend.create_stream();
        // Also where that failed, or the other thread waits for ever.
        made.send(()).unwrap();
        stream.unwrap();
        freed.join().unwrap().unwrap();
    });
    driver.before_each(|_| {});
    let told = || {
        let account = backend.account().unwrap();
        (account.term("streams").unwrap().bytes, account.remainder_bytes())
    };
    // The page that the context's second stream took has no owner, and the stream did not free 62 MiB.
    assert_eq!(told(), (0, 2 << 20));
    // From here on it is measured again: every fourth takes a page.
    for _ in 0..4 {
        backend.create_stream().unwrap();
    }
    assert_eq!(told(), (2 << 20, 2 << 20));
}
