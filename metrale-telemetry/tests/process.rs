// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process's own accounting: in a program of its own, one test at a time, and one child that must die.

use std::process::Command;

use metrale_telemetry::kernel_audit::{self, MISSING_KERNEL_EXIT_CODE};
use metrale_telemetry::run_metrics;

const CHILD: &str = "METRALE_TELEMETRY_TEST_CHILD";

#[test]
fn the_module_functions_share_one_audit_and_a_missing_kernel_ends_the_process() {
    if std::env::var_os(CHILD).is_some() {
        run_metrics::reset_for_new_run();
        kernel_audit::seal(0, false);
        kernel_audit::record("model", "missing_kernel", false);
        panic!("the process must have ended");
    }

    let run = run_metrics::reset_for_new_run();
    assert_eq!(run_metrics::process().run(), run);
    assert_eq!(kernel_audit::record("model", "a", true), None);
    assert_eq!(kernel_audit::record("model", "b", false), None);
    kernel_audit::declare_absent("model", "c");
    kernel_audit::seal(1, true);
    assert_eq!(kernel_audit::record("model", "c", false), None);
    let line = line!() + 1;
    let warning = kernel_audit::record("model", "b", false).expect("warns once");
    assert!(warning.contains(&format!("process.rs:{line})")), "{warning}");
    assert_eq!(kernel_audit::record("model", "b", false), None);
    assert_eq!(kernel_audit::snapshot().failed_since_seal, 2);
    kernel_audit::unseal();
    assert!(!run_metrics::process().audit().is_sealed());

    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_module_functions_share_one_audit_and_a_missing_kernel_ends_the_process"])
        .arg("--nocapture")
        .env(CHILD, "1")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.code(), Some(MISSING_KERNEL_EXIT_CODE), "{stderr}");
    assert!(stderr.contains("kernel \"missing_kernel\" is not in module \"model\""), "{stderr}");
}
