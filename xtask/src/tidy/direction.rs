// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one direction: which crate may know which.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, PackageId};

/// Each member with the members its code may use. Tests may also use the software driver; see [`MAY_IN_TESTS`].
pub(crate) const MAY_USE: [(&str, &[&str]); 8] = [
    ("metrale-driver-sys", &[]),
    ("metrale-ledger", &[]),
    ("metrale-telemetry", &[]),
    ("metrale-driver-sim", &["metrale-driver-sys", "metrale-ledger"]),
    ("metrale-registry", &["metrale-driver-sys"]),
    (
        "metrale-cuda-backend",
        // The software driver is the feature `sim`.
        &[
            "metrale-driver-sys",
            "metrale-driver-sim",
            "metrale-ledger",
            "metrale-registry",
            "metrale-telemetry",
        ],
    ),
    (
        "metrale-cli",
        &[
            "metrale-driver-sys",
            "metrale-driver-sim",
            "metrale-ledger",
            "metrale-registry",
            "metrale-telemetry",
            "metrale-cuda-backend",
        ],
    ),
    ("xtask", &[]),
];

/// What tests of crates that act on a driver may use beside that.
const MAY_IN_TESTS: [(&str, &[&str]); 2] = [
    ("metrale-registry", &["metrale-driver-sim", "metrale-ledger"]),
    ("metrale-cuda-backend", &["metrale-driver-sim"]),
];

/// Crates that hold no driver of any kind, in code, build or tests.
pub(crate) const PURE: [&str; 2] = ["metrale-ledger", "metrale-telemetry"];
/// What would bring one in.
pub(crate) const DRIVERS: [&str; 6] = [
    "metrale-driver-sys",
    "metrale-driver-sim",
    "metrale-registry",
    "metrale-cuda-backend",
    "cudarc",
    "libloading",
];

/// Adds every arrow that points the wrong way to `found`.
pub(super) fn check(metadata: &Metadata, found: &mut Vec<String>) {
    let allowed = BTreeMap::from(MAY_USE);
    let in_tests = BTreeMap::from(MAY_IN_TESTS);
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        let Some(may) = allowed.get(name) else {
            found.push(format!("{name}: a member whose place in the direction is not written down"));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
            let test_only = dependency.kind == DependencyKind::Development;
            let extra = in_tests.get(name).filter(|_| test_only).copied().unwrap_or_default();
            let target = dependency.name.as_str();
            if !may.contains(&target) && !extra.contains(&target) {
                found.push(format!("{name}: must not depend on {target}"));
            }
        }
        if PURE.contains(&name) {
            for reached in reach(metadata, &package.id).into_iter().filter(|name| DRIVERS.contains(name)) {
                found.push(format!("{name}: reaches {reached}, but holds no driver"));
            }
        }
    }
}

/// The names of all packages that `from` builds or tests with.
fn reach<'a>(metadata: &'a Metadata, from: &'a PackageId) -> BTreeSet<&'a str> {
    let nodes: BTreeMap<_, _> =
        metadata.resolve.iter().flat_map(|graph| &graph.nodes).map(|n| (&n.id, n)).collect();
    let mut seen = BTreeSet::from([from]);
    let mut waiting = vec![from];
    while let Some(id) = waiting.pop() {
        for dependency in nodes.get(id).into_iter().flat_map(|node| &node.deps) {
            // The tests of a dependency are not built.
            let built = id == from
                || dependency.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development);
            if built && seen.insert(&dependency.pkg) {
                waiting.push(&dependency.pkg);
            }
        }
    }
    seen.remove(from);
    metadata
        .packages
        .iter()
        .filter(|package| seen.contains(&package.id))
        .map(|package| package.name.as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arrow_points_to_a_crate_named_earlier() {
        for (place, (name, may)) in MAY_USE.iter().enumerate() {
            for target in *may {
                let earlier = MAY_USE[..place].iter().any(|(earlier, _)| earlier == target);
                assert!(earlier, "{name} -> {target}");
            }
        }
    }

    #[test]
    fn reach_follows_what_is_built_and_not_the_tests_of_dependencies() {
        let metadata = crate::cargo::metadata().unwrap();
        let xtask = metadata
            .workspace_packages()
            .into_iter()
            .find(|package| package.name.as_str() == "xtask")
            .unwrap();
        let reached = reach(&metadata, &xtask.id);
        assert!(reached.contains("clap_builder"), "{reached:?}");
        assert!(!reached.contains("metrale-ledger"), "{reached:?}");
    }
}
