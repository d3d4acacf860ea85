// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the backend tells the process's telemetry. One test, since there is one telemetry a process.

mod common;

use std::sync::Arc;

use common::pinned::PinnedGuard;
use common::{KERNELS, sim};
use metrale_cuda_backend::{BackendConfig, DriverFn, KernelLaunch, MetraleCudaBackend};
use metrale_driver_sim::{FaultDriver, Profile, SimDriver};
use metrale_telemetry::{Counter, KernelAudit, LaunchKind, LookupState, run_metrics};

#[test]
fn look_ups_waits_copies_and_launches_are_noted() {
    let driver = sim();
    driver.register_kernel("fill", |_| Ok(()));
    let build = || {
        MetraleCudaBackend::builder()
            .driver(driver.clone())
            .modules(&[("kernels", KERNELS)])
            .config(BackendConfig::default())
            .build()
            .unwrap()
    };
    let metrics = run_metrics::process();
    let backend = build();
    let run = metrics.run();
    assert_eq!(metrics.baseline().free_bytes(), Some(backend.memory_info().unwrap().free_bytes));

    let fill = backend.kernel("kernels", "fill").unwrap();
    let line = line!() - 1;
    backend.kernel("kernels", "absent").unwrap_err();
    assert_eq!(backend.optional_kernel("kernels", "maybe").unwrap(), None);
    let at = backend.alloc(4096).unwrap();

    metrics.trace().start();
    let before = metrics.counters().snapshot();
    let mut launch = KernelLaunch::new(fill).grid([2, 1, 1]).block([32, 1, 1]).ptr(at).u32(9).u32(64);
    // SAFETY: the arguments are the kernel's parameters; it writes 64 words to `at`.
    unsafe { launch.on_stream(&backend, backend.stream()) }.unwrap();
    backend.copy_d2h(at, &mut [0; 100]).unwrap();
    backend.copy_d2h_on_stream(at, &mut [0; 50], backend.stream()).unwrap();
    backend.synchronize_stream(backend.stream()).unwrap();
    let pinned = PinnedGuard::new(&backend, 64).unwrap();
    backend.copy_h2d_async(&pinned, at, backend.stream()).unwrap();
    backend.copy_h2d_async(&[0; 64], at, backend.stream()).unwrap();
    let step = metrics.counters().snapshot().since(&before);
    assert_eq!((step[Counter::BlockingD2hCopies], step[Counter::BlockingD2hBytes]), (2, 150));
    // The copy on a stream, the one asked for, and the one that the pinned source forces; the pageable one forces none.
    assert_eq!(step[Counter::StreamSyncs], 3);

    let capture = backend.capture(backend.stream()).unwrap();
    backend.memset_async(at, 0, 64, backend.stream()).unwrap();
    let graph = capture.finish("decode").unwrap();
    drop(backend.capture(backend.stream()).unwrap());
    for _ in 0..3 {
        backend.launch_graph(graph, backend.stream()).unwrap();
    }
    let step = metrics.counters().snapshot().since(&before);
    assert_eq!((step[Counter::GraphCaptures], step[Counter::GraphReplays]), (1, 3));

    let trace = metrics.trace().stop();
    let kinds: Vec<_> = trace.launches.iter().map(|launch| launch.kind).collect();
    use LaunchKind::{CopyD2h, CopyH2d, Graph, Kernel, Memset};
    assert_eq!(kinds, [Kernel, CopyD2h, CopyD2h, CopyH2d, CopyH2d, Memset, Graph, Graph, Graph]);
    assert_eq!(trace.launches[6].to_string(), "graph decode");
    let text = trace.launches[0].to_string();
    assert_eq!(text, format!("kernel kernels::fill grid (2, 1, 1) block (32, 1, 1) args {at}, 9u32, 64u32"));

    let audit = metrics.audit().snapshot();
    let row = |function: &str| audit.kernels.iter().find(|row| row.function == function).unwrap();
    assert_eq!((row("fill").state, row("fill").launched), (LookupState::Found, true));
    assert!(row("fill").sites[0].starts_with(&format!("{}:{line}", file!())), "{:?}", row("fill").sites);
    assert_eq!(row("absent").state, LookupState::MissingRequired);
    assert_eq!(row("maybe").state, LookupState::DeclaredAbsent);
    assert_eq!((row("arguments").state, row("arguments").in_image), (LookupState::NeverLookedUp, true));
    assert_eq!((audit.modules.len(), audit.modules[0].module.as_str()), (1, "kernels"));
    assert_eq!(audit.modules[0].image_bytes, KERNELS.len() as u64);

    drop(pinned);
    backend.destroy_graph(graph).unwrap();
    backend.free(at).unwrap();

    // A second backend beside a live one takes part in its run: nothing that the first counted is lost.
    let before = (metrics.counters().snapshot(), metrics.baseline().free_bytes());
    metrics.audit().seal(3, true);
    let second = build();
    assert_eq!(metrics.run(), run);
    assert_eq!((metrics.counters().snapshot(), metrics.baseline().free_bytes()), before);
    assert!(metrics.audit().is_sealed());
    metrics.audit().unseal();
    let listed = |audit: &KernelAudit, state| {
        let kernels = audit.snapshot().kernels;
        let rows = kernels.into_iter().filter(|row| row.state == state);
        rows.map(|row| row.function).collect::<Vec<_>>()
    };
    assert_eq!(
        listed(metrics.audit(), LookupState::Found),
        ["fill"],
        "what the first looked up stays listed"
    );
    // Each has an audit of its own look-ups, those through the registry among them.
    assert!(listed(second.kernel_audit(), LookupState::Found).is_empty());
    second.kernel_registry().function("kernels", "arguments").unwrap();
    let line = line!() - 1;
    second.registry().function("kernels", "not_there").unwrap_err();
    assert_eq!(second.registry().optional_function("kernels", "perhaps").unwrap(), None);
    assert_eq!(second.registry().optional_function("no_module", "perhaps").unwrap(), None);
    for audit in [second.kernel_audit(), metrics.audit()] {
        let audit = audit.snapshot();
        let row = |function: &str| audit.kernels.iter().find(|row| row.function == function).unwrap();
        assert_eq!(row("arguments").state, LookupState::Found);
        assert!(
            row("arguments").sites[0].starts_with(&format!("{}:{line}", file!())),
            "{:?}",
            row("arguments").sites
        );
        assert_eq!(row("not_there").state, LookupState::MissingRequired);
        assert_eq!(row("perhaps").state, LookupState::DeclaredAbsent);
    }
    assert_eq!(listed(backend.kernel_audit(), LookupState::Found), ["fill"]);
    let own = second.kernel_audit().snapshot();
    assert_eq!(
        (own.modules.len(), own.modules[0].loads, own.kernels.iter().any(|row| row.launched)),
        (1, 1, false)
    );
    assert!(backend.kernel_audit().snapshot().kernels.iter().any(|row| row.launched));

    // The run ends with the last of them, whichever was first; what was counted stays to be read till the next begins.
    drop(backend);
    let third = build();
    assert_eq!(metrics.run(), run);
    drop((second, third));
    assert_eq!(metrics.counters().snapshot()[Counter::GraphReplays], before.0[Counter::GraphReplays]);
    // One that was not built leaves no part in the run behind.
    let refused = Arc::new(FaultDriver::new(sim()));
    refused.fail_every(DriverFn::cuModuleLoadDataEx, 200);
    let builder = || MetraleCudaBackend::builder().driver(refused.clone()).config(BackendConfig::default());
    builder().modules(&[("kernels", KERNELS)]).build().unwrap_err();
    assert_eq!(metrics.run(), run + 1);
    let next = build();
    assert_eq!(metrics.run(), run + 2);
    let audit = metrics.audit().snapshot();
    assert!(
        audit.kernels.iter().all(|row| row.state == LookupState::NeverLookedUp),
        "a new run's audit starts empty"
    );
    assert_eq!(metrics.counters().snapshot(), Default::default());
    drop(next);

    // An integrated device reads pageable memory itself, so a source that may go at once costs a wait.
    let integrated = Arc::new(SimDriver::new(Profile::gb10()));
    let backend = common::backend(integrated);
    let at = backend.alloc(4096).unwrap();
    backend.copy_h2d_async(&[0; 64], at, backend.stream()).unwrap();
    assert_eq!(metrics.counters().value(Counter::StreamSyncs), 1);
    backend.free(at).unwrap();
}
