// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel audit at one moment, as plain data and as text.

use std::fmt;
use std::time::Duration;

/// How a kernel's lookups ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LookupState {
    /// The last lookup found it.
    Found,
    /// Missing, and someone needs it.
    MissingRequired,
    /// Missing, and declared so: by the program, or by every caller that asked.
    DeclaredAbsent,
    /// In a loaded module; nobody asked for it.
    NeverLookedUp,
}

/// One kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRow {
    /// Its module.
    pub module: String,
    /// Its name in the module.
    pub function: String,
    /// How its lookups ended.
    pub state: LookupState,
    /// Lookups that found it.
    pub found: u64,
    /// Lookups that did not.
    pub missing: u64,
    /// The lines that asked, `file:line`, each once, sorted.
    pub sites: Vec<String>,
    /// Whether a loaded module is known to contain it.
    pub in_image: bool,
    /// Whether a launch was marked.
    pub launched: bool,
}

/// One module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModuleRow {
    /// Its name.
    pub module: String,
    /// How often it was loaded in this run.
    pub loads: u64,
    /// Size of its image at the last load, in bytes.
    pub image_bytes: u64,
    /// Device memory taken by the last load, in bytes, where measured.
    pub device_bytes: Option<u64>,
    /// How long the last load took.
    pub last_load_time: Duration,
    /// All loads together.
    pub total_load_time: Duration,
    /// Kernels known to be in it.
    pub kernels: usize,
}

/// The audit's table, sorted by module and function. Its `Display` is the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSnapshot {
    /// Kernels that were looked up, or that a loaded module contains.
    pub kernels: Vec<KernelRow>,
    /// Loaded modules.
    pub modules: Vec<ModuleRow>,
    /// Whether start-up is over.
    pub sealed: bool,
    /// Required lookups that the caller of `seal` left unresolved.
    pub unresolved_at_seal: usize,
    /// Required lookups that failed since.
    pub failed_since_seal: u64,
}

impl AuditSnapshot {
    fn in_state(&self, state: LookupState) -> impl Iterator<Item = &KernelRow> {
        self.kernels.iter().filter(move |kernel| kernel.state == state)
    }

    /// Kernels that were looked up, found or not.
    pub fn looked_up(&self) -> impl Iterator<Item = &KernelRow> {
        self.kernels.iter().filter(|kernel| kernel.found + kernel.missing > 0)
    }

    /// Kernels that someone needs and that are not there.
    pub fn missing_required(&self) -> impl Iterator<Item = &KernelRow> {
        self.in_state(LookupState::MissingRequired)
    }

    /// Kernels that are not there and need not be.
    pub fn declared_absent(&self) -> impl Iterator<Item = &KernelRow> {
        self.in_state(LookupState::DeclaredAbsent)
    }

    /// Kernels that are there and were never launched, as far as launches were marked.
    pub fn never_used(&self) -> impl Iterator<Item = &KernelRow> {
        self.kernels.iter().filter(|k| (k.in_image || k.state == LookupState::Found) && !k.launched)
    }
}

impl fmt::Display for AuditSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (looked_up, missing) = (self.looked_up().count(), self.missing_required().count());
        let (absent, unused) = (self.declared_absent().count(), self.never_used().count());
        writeln!(
            f,
            "kernel audit: {looked_up} kernels looked up, {missing} required ones missing, {absent} declared \
             absent, {unused} never used; {}",
            if self.sealed { "sealed" } else { "open" }
        )?;
        if self.sealed {
            writeln!(
                f,
                "  since the seal: {} failed lookups ({} unresolved before it)",
                self.failed_since_seal, self.unresolved_at_seal
            )?;
        }
        for row in &self.modules {
            write!(
                f,
                "  module {}: {} kernels, image {} B",
                row.module.escape_debug(),
                row.kernels,
                row.image_bytes
            )?;
            if let Some(bytes) = row.device_bytes {
                write!(f, ", device {bytes} B")?;
            }
            write!(f, ", loaded in {:.3} ms", row.last_load_time.as_secs_f64() * 1e3)?;
            if row.loads > 1 {
                write!(f, " ({} loads, {:.3} ms)", row.loads, row.total_load_time.as_secs_f64() * 1e3)?;
            }
            writeln!(f)?;
        }
        section(f, "required and missing", self.missing_required())?;
        section(f, "declared absent", self.declared_absent())?;
        section(f, "never used", self.never_used())?;
        section(f, "found", self.in_state(LookupState::Found))
    }
}

fn section<'a>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    rows: impl Iterator<Item = &'a KernelRow>,
) -> fmt::Result {
    for (i, row) in rows.enumerate() {
        if i == 0 {
            writeln!(f, "  {title}:")?;
        }
        write!(f, "    {}::{}", row.module.escape_debug(), row.function.escape_debug())?;
        if !row.sites.is_empty() {
            write!(f, "  ({}x) {}", row.found + row.missing, row.sites.join(", "))?;
        }
        writeln!(f)?;
    }
    Ok(())
}
