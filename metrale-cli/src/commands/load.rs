// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale load`: a model's weights onto a device, tensor by tensor, and the account of every byte they took.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use metrale_cuda_backend::{DevicePtr, MetraleCudaBackend, PackedArena, Uploader};

use crate::allocation_log::{LogError, begins_as_log};
use crate::args::LoadArgs;
use crate::model::{Catalogue, InputError, ModelInput, Shown, ShownPath, TensorSpec, label_text, scope_of};
use crate::moment::Moment;
use crate::render::failure::{Failed, Input};
use crate::render::load::{LoadReport, ModelNames, Shortage};
use crate::snapshot_file::SnapshotFile;
use crate::{Console, Exit, answered, concluded, host_memory, outputs};

/// Runs the command.
pub fn run(args: &LoadArgs, console: &mut Console<'_>) -> Exit {
    if args.list_models {
        return list_models(args.json, console);
    }
    let input = match ModelInput::open(&args.files, args.model.as_deref()) {
        Ok(input) => input,
        Err(error) => {
            let named = asked_for(&args.files, args.model.as_deref());
            let error = match &error {
                InputError::File { path, .. }
                | InputError::Index { path, .. }
                | InputError::IndexNotAlone(path)
                    if begins_as_log(path) =>
                {
                    LogError::IsLog(path.clone()).into()
                }
                _ => error.into(),
            };
            return Failed::new(Input::Model(named), &error).say(args.json, console);
        }
    };
    if input.files().is_empty() && args.verify > 0 {
        console.remark("--verify has nothing to compare: a catalogue model has no data");
    }
    for remark in input.remarks() {
        console.remark(remark);
    }
    match load(args, &input, console) {
        Ok(report) => concluded(&report, report.exit(), report.error.as_ref(), args.json, console),
        Err(error) => Failed::new(Input::Model(input.title().to_owned()), &error).say(args.json, console),
    }
}

/// What was asked for, where it could not be opened: the catalogue's name or the paths.
pub(crate) fn asked_for(files: &[PathBuf], model: Option<&str>) -> String {
    let files = || files.iter().map(|path| ShownPath(path).to_string()).collect::<Vec<_>>().join(", ");
    model.map_or_else(files, str::to_owned)
}

fn list_models(json: bool, console: &mut Console<'_>) -> Exit {
    match Catalogue::embedded() {
        Ok(catalogue) => {
            let printed =
                console.answer_as(json, &ModelNames(catalogue.names().map(str::to_owned).collect()));
            answered(printed, console)
        }
        Err(error) => {
            console.remark(error);
            Exit::Failed
        }
    }
}

/// Loads, measures, verifies; then frees and sweeps, whatever happened before.
fn load(args: &LoadArgs, input: &ModelInput, console: &mut Console<'_>) -> anyhow::Result<LoadReport> {
    outputs::check(&[("--snapshot", args.snapshot.as_deref())], input.paths(&args.files))?;
    let snapshot = args.snapshot.as_deref().map(SnapshotFile::create).transpose()?;
    let backend = Arc::new(args.target.open(console)?);
    if !input.files().is_empty() {
        host_memory::check(&backend, input.total_bytes())?;
    }
    let mut held = Held::default();
    let measured = measure(args, input, &backend, &mut held, snapshot, console);
    let swept = held.free_all(&backend);
    // The first error is the one that counts; what follows from it may fail too.
    let report = measured?;
    Ok(report.swept(swept?))
}

/// What is done while memory is held.
fn measure<'input>(
    args: &LoadArgs,
    input: &'input ModelInput,
    backend: &'input Arc<MetraleCudaBackend>,
    held: &mut Held<'input>,
    snapshot: Option<SnapshotFile>,
    console: &Console<'_>,
) -> anyhow::Result<LoadReport> {
    // The pinned buffers come before the baseline: what they cost is not the model's.
    let mut uploader = match input.files() {
        [] => None,
        _ => Some(Uploader::new(backend, args.buffer_mb as usize * (1 << 20))?),
    };
    let baseline_free_bytes = backend.memory_info()?.free_bytes;

    let start = Instant::now();
    let filled = match args.arena {
        true => arena_for(backend, input).and_then(|arena| {
            held.arena = arena;
            fill(backend, input, uploader.as_mut(), held, console)
        }),
        false => fill(backend, input, uploader.as_mut(), held, console),
    };
    let shortage = Shortage::of(filled)?;
    let bytes_copied = match &mut uploader {
        Some(uploader) => uploader.finish()?,
        None => 0,
    };
    let seconds = start.elapsed().as_secs_f64();

    let moment = Moment::of(backend, baseline_free_bytes)?;
    if let Some(file) = snapshot {
        file.write(&moment.snapshot)?;
    }
    let text = backend.alloc_report(args.top, args.min_mb);
    let verified = if shortage.is_none() { verify(backend, input, &held.tensors, args.verify)? } else { 0 };
    Ok(LoadReport::new(input, backend, moment, text).copied(bytes_copied, seconds).ended(verified, shortage))
}

/// A tensor on the device.
struct Loaded<'input> {
    tensor: &'input TensorSpec,
    at: DevicePtr,
}

/// What a load holds.
#[derive(Default)]
struct Held<'input> {
    tensors: Vec<Loaded<'input>>,
    /// Where they lie, if they share one allocation.
    arena: Option<PackedArena<&'input MetraleCudaBackend>>,
}

impl Held<'_> {
    /// Frees what was loaded; the sweep after it finds nothing, or the loader lost an owner. Returns what it found.
    fn free_all(self, backend: &MetraleCudaBackend) -> anyhow::Result<usize> {
        match self.arena {
            Some(arena) => arena.free()?,
            None => {
                for tensor in &self.tensors {
                    backend.free(tensor.at)?;
                }
            }
        }
        Ok(backend.sweep_unreleased()?)
    }
}

/// One arena for all tensors; none where no tensor has bytes.
fn arena_for<'input>(
    backend: &'input MetraleCudaBackend,
    input: &ModelInput,
) -> anyhow::Result<Option<PackedArena<&'input MetraleCudaBackend>>> {
    let sizes = input.tensors().iter().map(|tensor| usize::try_from(tensor.bytes));
    // A sum beyond 64 bits is beyond any device, which the backend says best.
    let sizes: Option<Vec<_>> = sizes.map(Result::ok).collect();
    let bytes = sizes.and_then(PackedArena::bytes_for).unwrap_or(usize::MAX);
    if bytes == 0 {
        return Ok(None);
    }
    let about = || format!("making an arena of {bytes} bytes for {} tensors", input.tensors().len());
    backend.packed_arena(bytes).map(Some).with_context(about)
}

/// Allocates every tensor that has bytes, in the input's order, and copies its data.
fn fill<'input>(
    backend: &MetraleCudaBackend,
    input: &'input ModelInput,
    mut uploader: Option<&mut Uploader>,
    held: &mut Held<'input>,
    console: &Console<'_>,
) -> anyhow::Result<()> {
    let bar = console.byte_bar(input.total_bytes());
    for tensor in input.tensors().iter().filter(|tensor| tensor.bytes > 0) {
        let about = || format!("loading {} ({} bytes)", Shown(&tensor.name), tensor.bytes);
        let bytes = usize::try_from(tensor.bytes).with_context(about)?;
        let _scope = backend.scope(&scope_of(&tensor.name));
        let at = match &held.arena {
            Some(arena) => arena.alloc(&label_text(&tensor.name), bytes),
            None => backend.alloc(bytes),
        };
        let at = at.with_context(about)?;
        held.tensors.push(Loaded { tensor, at });
        if let (Some(uploader), Some(data)) = (uploader.as_deref_mut(), input.data(tensor)) {
            input.check_whole(tensor)?;
            uploader.upload(data, at).with_context(about)?;
        }
        bar.inc(tensor.bytes);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Copies `count` tensors back, spread evenly over those with data, and compares them with the file. Returns how many.
fn verify(
    backend: &MetraleCudaBackend,
    input: &ModelInput,
    held: &[Loaded<'_>],
    count: usize,
) -> anyhow::Result<usize> {
    let with_data: Vec<_> =
        held.iter().filter_map(|held| input.data(held.tensor).map(|data| (held, data))).collect();
    let count = count.min(with_data.len());
    for index in 0..count {
        let (held, data) = with_data[index * (with_data.len() - 1) / count.saturating_sub(1).max(1)];
        let mut back = vec![0; data.len()];
        backend.copy_d2h(held.at, &mut back)?;
        if let Some(first) = data.iter().zip(&back).position(|(file, device)| file != device) {
            anyhow::bail!(
                "{}: byte {first} is {:#04x} on the device and {:#04x} in the file; the copy or the file changed \
                 meanwhile",
                Shown(&held.tensor.name),
                back[first],
                data[first]
            );
        }
    }
    Ok(count)
}
