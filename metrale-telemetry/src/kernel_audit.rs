// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every kernel lookup of a run: what was asked for, from where, and whether it was there.
//!
//! ```text
//!            reset_for_new_run          seal(unresolved, allow)
//!   ──────────────▶  open  ──────────────────────▶  sealed
//!                     ▲   a failed lookup is noted    │  a failed *required* lookup is counted and
//!                     └───────── unseal ◀─────────────┘  ends the process, or warns once (allow)
//! ```
//!
//! A kernel that is missing once requests are served would otherwise be found by the one request that
//! needs it. So an engine resolves all it needs while it starts, seals, and a later miss is a defect.
//!
//! [`KernelAudit`] only answers, with a [`SealVerdict`]; the functions of this module work on the process's
//! audit ([`crate::run_metrics::process`]) and carry the verdict out.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::audit_snapshot::{AuditSnapshot, KernelRow, LookupState, ModuleRow};
use crate::run_metrics;

/// Exit code of a process ended by a missing kernel: the BSD convention for an internal software error.
pub const MISSING_KERNEL_EXIT_CODE: i32 = 70;

/// Whether the caller of a lookup can do without the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Need {
    /// The caller needs it.
    Required,
    /// The caller has another way when it is absent.
    MayBeAbsent,
}

/// One kernel lookup.
#[derive(Debug, Clone, Copy)]
pub struct Lookup<'a> {
    /// The module that was asked.
    pub module: &'a str,
    /// The function's name in it.
    pub function: &'a str,
    /// Whether the driver or a cache had it.
    pub found: bool,
    /// Whether the caller can do without.
    pub need: Need,
    /// The line that asked.
    pub site: &'static Location<'static>,
}

/// A module that was loaded.
#[derive(Debug, Clone, Copy)]
pub struct ModuleLoad<'a> {
    /// Its name.
    pub module: &'a str,
    /// Size of the image given to the driver, in bytes.
    pub image_bytes: u64,
    /// Device memory the load took, in bytes, where the caller measured it.
    pub device_bytes: Option<u64>,
    /// How long the driver took, compilation included.
    pub load_time: Duration,
    /// Names of the kernels in it, as far as they are known.
    pub kernels: &'a [&'a str],
}

/// What the seal says about a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a verdict that nobody carries out seals nothing"]
pub enum SealVerdict {
    /// Nothing to do.
    Proceed,
    /// Log this and go on.
    Warn(String),
    /// Log this and end the process.
    End(String),
}

/// Marks one kernel as used. Cheap to clone and to keep beside the kernel's handle.
#[derive(Debug, Clone)]
pub struct KernelUsage(Arc<AtomicBool>);

impl KernelUsage {
    /// Notes a launch: after the first, one relaxed load.
    #[inline]
    pub fn mark_launched(&self) {
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn launched(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Kernel {
    launched: KernelUsage,
    in_image: bool,
    last_found: bool,
    found: u64,
    missing_required: u64,
    missing_allowed: u64,
    sites: BTreeSet<Site>,
    warned: bool,
}

impl Kernel {
    fn new() -> Self {
        Self {
            launched: KernelUsage(Arc::new(AtomicBool::new(false))),
            in_image: false,
            last_found: false,
            found: 0,
            missing_required: 0,
            missing_allowed: 0,
            sites: BTreeSet::new(),
            warned: false,
        }
    }

    /// The last word counts: a kernel that was missing and is there now (its module came later) is found.
    fn state(&self, declared: bool) -> LookupState {
        if self.found + self.missing_required + self.missing_allowed == 0 {
            LookupState::NeverLookedUp
        } else if self.last_found {
            LookupState::Found
        } else if self.missing_required > 0 && !declared {
            LookupState::MissingRequired
        } else {
            LookupState::DeclaredAbsent
        }
    }
}

/// File and line: what texts show of a call site.
type Site = (&'static str, u32);

#[derive(Debug, Clone, Copy)]
struct Seal {
    unresolved: usize,
    allow: bool,
    failed: u64,
}

#[derive(Debug)]
struct AuditState {
    kernels: BTreeMap<Box<str>, BTreeMap<Box<str>, Kernel>>,
    modules: BTreeMap<Box<str>, ModuleRow>,
    declared: BTreeMap<Box<str>, BTreeSet<Box<str>>>,
    seal: Option<Seal>,
}

impl AuditState {
    fn kernel(&mut self, module: &str, function: &str) -> &mut Kernel {
        slot(slot(&mut self.kernels, module, BTreeMap::new), function, Kernel::new)
    }

    fn is_declared(&self, module: &str, function: &str) -> bool {
        self.declared.get(module).is_some_and(|functions| functions.contains(function))
    }
}

/// The value of `key`, made when there is none. Unlike `entry`, a key that is there costs no allocation.
fn slot<'m, V>(map: &'m mut BTreeMap<Box<str>, V>, key: &str, make: impl FnOnce() -> V) -> &'m mut V {
    if !map.contains_key(key) {
        return map.entry(key.into()).or_insert_with(make);
    }
    map.get_mut(key).expect("the key was seen a line above")
}

/// The table of lookups, modules and the seal.
#[derive(Debug)]
pub struct KernelAudit {
    state: Mutex<AuditState>,
}

impl Default for KernelAudit {
    fn default() -> Self {
        Self::new()
    }
}

impl KernelAudit {
    /// An empty, open audit.
    pub const fn new() -> Self {
        Self {
            state: Mutex::new(AuditState {
                kernels: BTreeMap::new(),
                modules: BTreeMap::new(),
                declared: BTreeMap::new(),
                seal: None,
            }),
        }
    }

    /// Notes a lookup and says what the seal makes of it. Lookups of one function are one row of the table.
    ///
    /// Only a failed lookup that is [`Need::Required`] and not declared absent touches the seal.
    pub fn record(&self, lookup: Lookup<'_>) -> SealVerdict {
        let Lookup { module, function, found, need, site } = lookup;
        let mut state = self.state.lock();
        let required = need == Need::Required && !state.is_declared(module, function);
        let kernel = state.kernel(module, function);
        kernel.sites.insert((site.file(), site.line()));
        kernel.last_found = found;
        let count = match (found, required) {
            (true, _) => &mut kernel.found,
            (false, true) => &mut kernel.missing_required,
            (false, false) => &mut kernel.missing_allowed,
        };
        *count += 1;
        if found || !required {
            return SealVerdict::Proceed;
        }
        let Some(seal) = &mut state.seal else { return SealVerdict::Proceed };
        seal.failed += 1;
        let Seal { unresolved, allow, failed } = *seal;
        let what = format!(
            "kernel \"{}\" is not in module \"{}\" (asked for at {}:{}), and start-up is over: failed lookup \
             number {failed} since the seal, {unresolved} unresolved before it.",
            function.escape_debug(),
            module.escape_debug(),
            site.file(),
            site.line(),
        );
        if !allow {
            return SealVerdict::End(format!(
                "{what} Build the kernel into the module, declare it absent, or seal with `allow`."
            ));
        }
        let kernel = state.kernel(module, function);
        if std::mem::replace(&mut kernel.warned, true) {
            return SealVerdict::Proceed;
        }
        SealVerdict::Warn(format!("{what} Going on, as the seal allows; this kernel is not warned of again."))
    }

    /// Declares that a kernel is not built into a module and that this is meant: its failed lookups are
    /// listed as declared absent and never touch the seal. Stays through [`reset`](Self::reset).
    pub fn declare_absent(&self, module: &str, function: &str) {
        let mut state = self.state.lock();
        if !state.is_declared(module, function) {
            state.declared.entry(module.into()).or_default().insert(function.into());
        }
    }

    /// Ends start-up. From now on a failed required lookup is counted and its verdict is
    /// [`SealVerdict::End`], or with `allow` one [`SealVerdict::Warn`] a kernel. `unresolved` is how many
    /// required lookups the caller knowingly leaves unresolved; later texts show it beside the count.
    /// Sealing anew replaces the numbers, and warnings are given again.
    pub fn seal(&self, unresolved: usize, allow: bool) {
        let mut state = self.state.lock();
        state.seal = Some(Seal { unresolved, allow, failed: 0 });
        for kernel in state.kernels.values_mut().flat_map(BTreeMap::values_mut) {
            kernel.warned = false;
        }
    }

    /// Opens the audit again, for the next load. The table stays.
    pub fn unseal(&self) {
        self.state.lock().seal = None;
    }

    /// Whether start-up is over.
    pub fn is_sealed(&self) -> bool {
        self.state.lock().seal.is_some()
    }

    /// Required lookups that failed since the seal; 0 while open.
    pub fn failed_since_seal(&self) -> u64 {
        self.state.lock().seal.map_or(0, |seal| seal.failed)
    }

    /// Notes that a module was loaded. Loading one again adds up.
    pub fn module_loaded(&self, load: ModuleLoad<'_>) {
        let mut state = self.state.lock();
        let row = slot(&mut state.modules, load.module, || ModuleRow {
            module: load.module.to_owned(),
            ..ModuleRow::default()
        });
        row.loads += 1;
        row.image_bytes = load.image_bytes;
        row.device_bytes = load.device_bytes;
        row.last_load_time = load.load_time;
        row.total_load_time = row.total_load_time.saturating_add(load.load_time);
        row.kernels = load.kernels.len();
        for function in load.kernels {
            state.kernel(load.module, function).in_image = true;
        }
    }

    /// The handle that marks a kernel as used, to keep beside its function handle.
    pub fn usage(&self, module: &str, function: &str) -> KernelUsage {
        self.state.lock().kernel(module, function).launched.clone()
    }

    /// The whole table at one moment, sorted by module and function.
    pub fn snapshot(&self) -> AuditSnapshot {
        let state = self.state.lock();
        let mut kernels = Vec::new();
        for (module, functions) in &state.kernels {
            for (function, kernel) in functions {
                kernels.push(KernelRow {
                    module: module.to_string(),
                    function: function.to_string(),
                    state: kernel.state(state.is_declared(module, function)),
                    found: kernel.found,
                    missing: kernel.missing_required + kernel.missing_allowed,
                    sites: kernel.sites.iter().map(|(file, line)| format!("{file}:{line}")).collect(),
                    in_image: kernel.in_image,
                    launched: kernel.launched.launched(),
                });
            }
        }
        AuditSnapshot {
            kernels,
            modules: state.modules.values().cloned().collect(),
            sealed: state.seal.is_some(),
            unresolved_at_seal: state.seal.map_or(0, |seal| seal.unresolved),
            failed_since_seal: state.seal.map_or(0, |seal| seal.failed),
        }
    }

    /// Forgets lookups and modules, and opens the seal. [`KernelUsage`] handles returned before go on
    /// working and are no longer listed.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.kernels.clear();
        state.modules.clear();
        state.seal = None;
    }
}

/// Notes a required lookup on the process's audit, with the caller's line. See [`record_lookup`].
#[track_caller]
pub fn record(module: &str, function: &str, found: bool) -> Option<String> {
    record_lookup(Lookup { module, function, found, need: Need::Required, site: Location::caller() })
}

/// Notes a lookup on the process's audit and carries the verdict out: a warning is returned for the caller's
/// log; where the process must end, the text goes to stderr and the process exits with
/// [`MISSING_KERNEL_EXIT_CODE`]. A caller with a log of its own to flush asks
/// `run_metrics::process().audit().record(..)` and ends by itself.
pub fn record_lookup(lookup: Lookup<'_>) -> Option<String> {
    match run_metrics::process().audit().record(lookup) {
        SealVerdict::Proceed => None,
        SealVerdict::Warn(text) => Some(text),
        SealVerdict::End(text) => {
            // A closed stderr must not keep the process alive.
            let _ = writeln!(std::io::stderr(), "{text}");
            std::process::exit(MISSING_KERNEL_EXIT_CODE)
        }
    }
}

/// [`KernelAudit::declare_absent`] on the process's audit.
pub fn declare_absent(module: &str, function: &str) {
    run_metrics::process().audit().declare_absent(module, function);
}

/// [`KernelAudit::seal`] on the process's audit.
pub fn seal(unresolved: usize, allow: bool) {
    run_metrics::process().audit().seal(unresolved, allow);
}

/// [`KernelAudit::unseal`] on the process's audit.
pub fn unseal() {
    run_metrics::process().audit().unseal();
}

/// [`KernelAudit::module_loaded`] on the process's audit.
pub fn module_loaded(load: ModuleLoad<'_>) {
    run_metrics::process().audit().module_loaded(load);
}

/// [`KernelAudit::snapshot`] of the process's audit.
pub fn snapshot() -> AuditSnapshot {
    run_metrics::process().audit().snapshot()
}
