// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use metrale_cuda_backend::MetraleCudaBackend;
use metrale_ledger::plan::{Allocator, Plan, Synchronize};

use crate::Console;
use crate::byte_count::{ByteCount, NotAByteCount};
use crate::driver_choice::DriverChoice;
use crate::plan_device::PlanDevice;

/// The end of the program's help.
const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 the driver or the machine failed (doctor: no device is usable); 2 the input or the command line \
makes no sense, and nothing was done; 3 not enough memory, and everything was freed (plan: it does not fit).";

/// What memory a model takes on a CUDA device, byte by byte, with or without a GPU.
#[derive(Debug, Parser)]
#[command(name = "metrale", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Load a model's weights onto a device and account for every byte.
    #[command(after_help = EXIT_CODES)]
    Load(LoadArgs),
    /// Say what a model or a recorded log will take, before anything is allocated; needs no GPU.
    #[command(after_help = EXIT_CODES)]
    Plan(PlanArgs),
    /// Do a recorded log's allocations and frees on a device, and account for every byte at the peak and at the end.
    #[command(after_help = EXIT_CODES)]
    Replay(ReplayArgs),
    /// Print the ledger's report of a snapshot that `load` or `replay` wrote.
    Report(ReportArgs),
    /// Print what changed from one snapshot to another, by call site and scope.
    Diff(DiffArgs),
    /// Say which driver and devices this machine has, and whether a GPU is usable (exit code 0) or not (1).
    Doctor(DoctorArgs),
}

/// The arguments of `load`.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Safetensors files, or one sharded model's `model.safetensors.index.json`.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// A model of the built-in catalogue instead of files: shapes only, in bf16; nothing is copied.
    #[arg(long, value_name = "NAME", conflicts_with = "files")]
    pub model: Option<String>,

    /// Print the names of the catalogue and end.
    #[arg(long, conflicts_with_all = ["files", "model"])]
    pub list_models: bool,

    /// The driver and device to load on.
    #[command(flatten)]
    pub target: TargetArgs,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,

    /// How many call sites, files and scopes the report lists at most.
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true)]
    pub top: usize,

    /// The smallest call site, in MiB, that the report lists by itself.
    #[arg(long, value_name = "MIB", default_value_t = 0, allow_negative_numbers = true)]
    pub min_mb: usize,

    /// Put all tensors into one arena instead of an allocation each: as close as the driver's granularity lets them.
    #[arg(long)]
    pub arena: bool,

    /// Copy N tensors back, spread over the model, and compare them with the file.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub verify: usize,

    /// Write the ledger's snapshot with everything loaded, for report and diff.
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,

    /// Size of each of the two pinned buffers the file is copied through, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 32, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub buffer_mb: u32,
}

/// The arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Safetensors files, one sharded model's `model.safetensors.index.json`, or one allocation log (CSV, also gzip).
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// A model of the built-in catalogue instead of files, in bf16.
    #[arg(long, value_name = "NAME", conflicts_with = "files")]
    pub model: Option<String>,

    /// Say whether the peak fits into this much free memory: bytes, or with a unit such as 141GiB or 80GB.
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    pub memory: Option<ByteCount>,

    /// Say whether the peak fits into what a device has free once its context is made: a profile of the software driver
    /// (h200, gb10, rtx, scale), or the ordinal of a device of the installed driver.
    #[arg(long, value_name = "DEVICE", conflicts_with = "memory")]
    pub device: Option<PlanDevice>,

    /// Which allocator the memory comes from: driver (cuMemAlloc), pool (cuMemAllocAsync) or vmm (cuMemCreate for each
    /// allocation). Without it, pool for a log that has columns Used and Reserved, else driver. A log's column Allocator says it
    /// row by row, and its rows create, map, unmap and release are always virtual memory.
    #[arg(long, value_name = "ALLOCATOR", value_parser = allocator)]
    pub allocator: Option<Allocator>,

    /// What the pool keeps when the program synchronises: bytes, with a unit if need be, or max. A fresh pool keeps nothing.
    #[arg(long, value_name = "BYTES", default_value = "0", allow_negative_numbers = true, value_parser = threshold)]
    pub release_threshold: ByteCount,

    /// When the program synchronises, so that the pool gives memory back: after each operation, or only at a log's rows
    /// synchronize. Rows trim count either way.
    #[arg(long, value_name = "WHEN", default_value = "each")]
    pub synchronize: When,

    /// Write a table of `op,live_bytes,resident_bytes` with a row for each operation; of a pool, also used_bytes,reserved_bytes.
    #[arg(long, value_name = "FILE")]
    pub per_op: Option<PathBuf>,

    /// Pass over rows of a log that make no sense and count them, instead of ending at the first.
    #[arg(long)]
    pub lenient: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,

    /// How many holders of the peak are listed at most.
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true)]
    pub top: usize,
}

/// When a planned program synchronises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// After each operation.
    Each,
    /// At a log's rows `synchronize`.
    Rows,
}

impl PlanArgs {
    /// An empty plan for these arguments; `default` is the allocator where none is named.
    pub(crate) fn plan(&self, default: Allocator) -> Plan {
        let when = match self.synchronize {
            When::Each => Synchronize::AfterEach,
            When::Rows => Synchronize::WhenTold,
        };
        Plan::h200()
            .allocating_from(self.allocator.unwrap_or(default))
            .release_threshold_bytes(self.release_threshold.0)
            .synchronizing(when)
    }
}

/// A release threshold: bytes, or all there are.
fn threshold(text: &str) -> Result<ByteCount, NotAByteCount> {
    if text == "max" { Ok(ByteCount(u64::MAX)) } else { text.parse() }
}

/// The allocator of a name.
fn allocator(name: &str) -> Result<Allocator, String> {
    let named = Allocator::ALL.into_iter().find(|allocator| allocator.name() == name);
    named.ok_or_else(|| format!("give one of {}", Allocator::ALL.map(Allocator::name).join(", ")))
}

/// The arguments of `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// An allocation log: CSV whose header names Action, Pointer and Size, also gzip; RMM's logs fit.
    #[arg(value_name = "LOG")]
    pub log: PathBuf,

    /// The driver and device to replay on.
    #[command(flatten)]
    pub target: TargetArgs,

    /// Write a table of `op,live_bytes,resident_bytes,driver_free_bytes` with a row for each row of the log. Asks the
    /// driver after each, which takes longer than most operations.
    #[arg(long, value_name = "FILE")]
    pub per_op: Option<PathBuf>,

    /// Write the ledger's snapshot after the last operation, for report and diff.
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,

    /// Write the ledger's snapshot of the peak.
    #[arg(long, value_name = "FILE")]
    pub peak_snapshot: Option<PathBuf>,

    /// Pass over rows that make no sense and count them, instead of ending at the first.
    #[arg(long)]
    pub lenient: bool,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,

    /// How many call sites, files and scopes the reports list at most.
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true)]
    pub top: usize,

    /// The smallest call site, in MiB, that the reports list by itself.
    #[arg(long, value_name = "MIB", default_value_t = 0, allow_negative_numbers = true)]
    pub min_mb: usize,
}

/// The arguments of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// A snapshot, as `--snapshot` of load and replay writes it.
    #[arg(value_name = "SNAPSHOT")]
    pub snapshot: PathBuf,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,

    /// How many call sites, files and scopes the report lists at most.
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true)]
    pub top: usize,

    /// The smallest call site, in MiB, that the report lists by itself.
    #[arg(long, value_name = "MIB", default_value_t = 0, allow_negative_numbers = true)]
    pub min_mb: usize,
}

/// The arguments of `diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The earlier snapshot.
    #[arg(value_name = "BEFORE")]
    pub before: PathBuf,

    /// The later snapshot.
    #[arg(value_name = "AFTER")]
    pub after: PathBuf,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The driver to examine: auto and system look at the installed one.
    #[arg(long, value_name = "DRIVER", default_value = "auto")]
    pub driver: DriverChoice,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// On which device to work.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// auto (the GPU, or the software H200 where there is none), system, or sim or sim:PROFILE.
    #[arg(long, value_name = "DRIVER", default_value = "auto")]
    pub driver: DriverChoice,

    /// The device's ordinal.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub device: usize,
}

impl TargetArgs {
    /// The backend to work on. Prints a remark where the driver was not chosen by name.
    pub(crate) fn open(&self, console: &mut Console<'_>) -> anyhow::Result<MetraleCudaBackend> {
        let chosen = self.driver.clone().open()?;
        if let Some(remark) = &chosen.remark {
            console.remark(remark);
        }
        Ok(MetraleCudaBackend::builder().driver(chosen.driver).ordinal(self.device).build()?)
    }
}
