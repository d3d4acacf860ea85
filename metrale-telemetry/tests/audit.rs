// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel audit through its public face, on instances of its own.

use std::panic::Location;
use std::time::Duration;

use metrale_telemetry::{KernelAudit, Lookup, LookupState, ModuleLoad, Need, RunMetrics, SealVerdict};

#[track_caller]
fn lookup<'a>(module: &'a str, function: &'a str, found: bool, need: Need) -> Lookup<'a> {
    Lookup { module, function, found, need, site: Location::caller() }
}

fn required<'a>(function: &'a str, found: bool) -> Lookup<'a> {
    lookup("m", function, found, Need::Required)
}

#[test]
fn the_table_is_sorted_and_holds_each_kernel_once() {
    let audit = KernelAudit::new();
    for (module, function, found) in [("z", "a", true), ("b", "z", true), ("b", "a", false), ("z", "a", true)]
    {
        assert_eq!(audit.record(lookup(module, function, found, Need::Required)), SealVerdict::Proceed);
    }
    let snapshot = audit.snapshot();
    let names: Vec<_> =
        snapshot.kernels.iter().map(|k| (&*k.module, &*k.function, k.found, k.missing)).collect();
    assert_eq!(names, [("b", "a", 0, 1), ("b", "z", 1, 0), ("z", "a", 2, 0)]);
    // One line of this file asked for all of it.
    assert!(snapshot.kernels.iter().all(|k| k.sites.len() == 1 && k.sites[0].contains("audit.rs:")));
}

#[test]
fn call_sites_are_collected() {
    let audit = KernelAudit::new();
    let (first, second) = (required_here(), required_there());
    for lookup in [first, second, first] {
        assert_eq!(audit.record(lookup), SealVerdict::Proceed);
    }
    let sites = audit.snapshot().kernels[0].sites.clone();
    let expected = [first, second].map(|l| format!("{}:{}", l.site.file(), l.site.line()));
    assert_eq!(sites, expected);
}

fn required_here() -> Lookup<'static> {
    lookup("m", "k", true, Need::Required)
}

fn required_there() -> Lookup<'static> {
    lookup("m", "k", true, Need::Required)
}

#[test]
fn failed_lookups_are_split_into_required_and_declared_absent() {
    let audit = KernelAudit::new();
    audit.declare_absent("m", "not_built");
    for lookup in [
        required("needed", false),
        required("not_built", false),
        lookup("m", "optional", false, Need::MayBeAbsent),
        // Asked for by one that can do without, then by one that cannot.
        lookup("m", "both", false, Need::MayBeAbsent),
        required("both", false),
        // Missing until its module was there.
        required("late", false),
        required("late", true),
    ] {
        assert_eq!(audit.record(lookup), SealVerdict::Proceed);
    }
    let snapshot = audit.snapshot();
    let names = |rows: Vec<&metrale_telemetry::KernelRow>| -> Vec<String> {
        rows.iter().map(|r| r.function.clone()).collect()
    };
    assert_eq!(names(snapshot.missing_required().collect()), ["both", "needed"]);
    assert_eq!(names(snapshot.declared_absent().collect()), ["not_built", "optional"]);
    assert_eq!(snapshot.looked_up().count(), 5);
}

#[test]
fn before_the_seal_nothing_ends_and_after_it_a_missing_kernel_does() {
    let audit = KernelAudit::new();
    assert_eq!(audit.record(required("a", false)), SealVerdict::Proceed);
    audit.seal(1, false);
    assert!(audit.is_sealed());
    assert_eq!(audit.record(required("here", true)), SealVerdict::Proceed);
    assert_eq!(audit.record(lookup("m", "opt", false, Need::MayBeAbsent)), SealVerdict::Proceed);
    assert_eq!(audit.failed_since_seal(), 0);

    let SealVerdict::End(text) = audit.record(required("gone\n", false)) else { panic!("must end") };
    for part in ["kernel \"gone\\n\"", "module \"m\"", "audit.rs:", "number 1 since the seal", "1 unresolved"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert!(matches!(audit.record(required("a", false)), SealVerdict::End(_)));
    assert_eq!(audit.failed_since_seal(), 2);
    let snapshot = audit.snapshot();
    assert_eq!((snapshot.sealed, snapshot.unresolved_at_seal, snapshot.failed_since_seal), (true, 1, 2));

    audit.unseal();
    assert!(!audit.is_sealed());
    assert_eq!(audit.record(required("gone", false)), SealVerdict::Proceed);
}

#[test]
fn where_allowed_each_missing_kernel_warns_once() {
    let audit = KernelAudit::new();
    audit.seal(0, true);
    assert!(matches!(audit.record(required("a", false)), SealVerdict::Warn(_)));
    assert_eq!(audit.record(required("a", false)), SealVerdict::Proceed);
    assert!(matches!(audit.record(required("b", false)), SealVerdict::Warn(_)));
    assert_eq!(audit.failed_since_seal(), 3);
    audit.seal(0, true);
    assert!(matches!(audit.record(required("a", false)), SealVerdict::Warn(_)));
}

#[test]
fn modules_and_kernels_never_used() {
    let audit = KernelAudit::new();
    let load = ModuleLoad {
        module: "m",
        image_bytes: 1234,
        device_bytes: Some(2 << 20),
        load_time: Duration::from_micros(9400),
        kernels: &["used", "looked_up", "idle"],
    };
    audit.module_loaded(load);
    audit.module_loaded(ModuleLoad { load_time: Duration::from_micros(600), ..load });
    let usage = audit.usage("m", "used");
    for function in ["used", "looked_up"] {
        assert_eq!(audit.record(required(function, true)), SealVerdict::Proceed);
    }
    usage.mark_launched();
    usage.mark_launched();

    let snapshot = audit.snapshot();
    let unused: Vec<_> = snapshot.never_used().map(|k| (&*k.function, k.state)).collect();
    assert_eq!(unused, [("idle", LookupState::NeverLookedUp), ("looked_up", LookupState::Found)]);
    let module = &snapshot.modules[0];
    assert_eq!((module.loads, module.image_bytes, module.kernels), (2, 1234, 3));
    assert_eq!(module.total_load_time, Duration::from_millis(10));
    let text = snapshot.to_string();
    assert!(text.starts_with(
        "kernel audit: 2 kernels looked up, 0 required ones missing, 0 declared absent, 2 never used; open\n"
    ));
    assert!(text.contains(
        "  module m: 3 kernels, image 1234 B, device 2097152 B, loaded in 0.600 ms (2 loads, 10.000 ms)"
    ));
    assert!(text.contains("  never used:\n    m::idle\n    m::looked_up"));
}

#[test]
fn a_new_run_lists_only_its_own_lookups() {
    let metrics = RunMetrics::new();
    let audit = metrics.audit();
    audit.declare_absent("m", "not_built");
    assert_eq!(audit.record(required("old", true)), SealVerdict::Proceed);
    audit.module_loaded(ModuleLoad {
        module: "m",
        image_bytes: 1,
        device_bytes: None,
        load_time: Duration::ZERO,
        kernels: &["old"],
    });
    audit.seal(0, false);
    metrics.counters().count(metrale_telemetry::Counter::GraphReplays);
    metrics.baseline().set(5);
    metrics.spans().set_enabled(true);
    metrics.spans().add(&"x".into(), 1);
    metrics.trace().start();
    metrics.trace().record(|| metrale_telemetry::Launch::new(metrale_telemetry::LaunchKind::Graph, "g"));

    assert_eq!(metrics.reset_for_new_run(), 1);
    assert_eq!(metrics.run(), 1);
    assert!(!audit.is_sealed());
    let snapshot = audit.snapshot();
    assert!(snapshot.kernels.is_empty() && snapshot.modules.is_empty());
    assert_eq!(metrics.counters().snapshot(), metrale_telemetry::CounterSnapshot::default());
    assert_eq!(metrics.baseline().free_bytes(), None);
    assert!(metrics.spans().rows().is_empty() && metrics.spans().is_enabled());
    assert!(metrics.trace().is_on() && metrics.trace().stop().launches.is_empty());

    // What was declared absent still is.
    assert_eq!(audit.record(required("not_built", false)), SealVerdict::Proceed);
    assert_eq!(audit.snapshot().declared_absent().count(), 1);
    assert_eq!(metrics.reset_for_new_run(), 2);
}

#[test]
fn threads_lose_no_lookup() {
    let audit = KernelAudit::new();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for i in 0..100 {
                    let name = format!("k{i:02}");
                    assert_eq!(audit.record(required(&name, true)), SealVerdict::Proceed);
                }
            });
        }
    });
    let snapshot = audit.snapshot();
    assert_eq!(snapshot.kernels.len(), 100);
    assert!(snapshot.kernels.iter().all(|k| k.found == 4));
}
