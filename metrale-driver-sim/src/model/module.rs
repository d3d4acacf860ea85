// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of a module image: which functions and variables it brings, or which status refuses it.
//!
//! The order of the checks is the driver's, as it answered on an H200 to PTX texts, cubins and other bytes made for the
//! purpose, and as its assembler answers to texts alone. The sentences are ours.

mod verdict;

use core::ffi::{CStr, c_char, c_void};
use core::slice;

use metrale_driver_sys::image::arch::{ComputeCapability, IsaVersion, SmTarget, cubin_runs_on, ptx_runs_on};
use metrale_driver_sys::image::cubin::{Cubin, CubinError, ELF_HEADER_BYTES, ElfHeader};
use metrale_driver_sys::image::fatbin::{
    EntryKind, FATBIN_HEADER_BYTES, Fatbin, FatbinEntry, FatbinError, FatbinHeader,
};
use metrale_driver_sys::image::ptx::{Function, Initial, Ptx, SparseBytes, StateSpace, Variable};
use metrale_driver_sys::image::{ImageKind, UnpackError, Unpacker};
use metrale_driver_sys::{
    CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NO_BINARY_FOR_GPU,
    CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN, CUresult,
};

use super::store::BLOCK;

/// As it stands in a file.
const FATBIN_MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();

/// What an image is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The device's, major then minor.
    pub(crate) compute_capability: (u32, u32),
    /// As `cuDriverGetVersion` answers.
    pub(crate) driver_version: i32,
}

impl Target {
    fn device(&self) -> ComputeCapability {
        self.compute_capability.into()
    }
}

/// Why an image is not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: CUresult,
    /// What the error log says. Empty where there is nothing to add to the status.
    pub(crate) log: String,
}

impl Refusal {
    fn new(status: CUresult, log: impl Into<String>) -> Self {
        Self { status, log: log.into() }
    }
}

/// What a loaded image brings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModuleImage {
    pub(crate) functions: Vec<FunctionInfo>,
    pub(crate) globals: Vec<GlobalInfo>,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FunctionInfo {
    pub(crate) name: String,
    pub(crate) static_shared_bytes: u32,
    pub(crate) parameters: Vec<Parameter>,
    /// The most threads a block may have, where the kernel says so.
    pub(crate) max_threads: Option<u32>,
    /// The number of the architecture that the text was written for; `None` for machine code.
    pub(crate) virtual_architecture: Option<u32>,
    /// Whether all functions that it calls are defined: no look-up finds it otherwise.
    pub(crate) is_linked: bool,
}

/// One parameter of a kernel, by its place in the parameter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    /// 1 where the image does not tell.
    pub(crate) align: usize,
}

/// A variable in global or constant memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GlobalInfo {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) align: u64,
    /// What it holds at first, zeros where this has no bytes. Addresses of other symbols are not resolved: such a
    /// variable is zeros too.
    pub(crate) initial: SparseBytes,
    pub(crate) constant: bool,
}

/// What the driver makes of an image.
pub(crate) fn load(image: &[u8], target: &Target) -> Result<ModuleImage, Refusal> {
    match ImageKind::of(image) {
        ImageKind::Cubin | ImageKind::ForeignElf { .. } | ImageKind::TruncatedElf => {
            load_cubin(image, target)
        }
        ImageKind::Fatbin => load_fatbin(image, target),
        kind => load_text(image, kind, target),
    }
}

fn load_text(image: &[u8], kind: ImageKind, target: &Target) -> Result<ModuleImage, Refusal> {
    if !verdict::is_recognized(image) {
        return Err(Refusal::new(CUDA_ERROR_INVALID_IMAGE, unrecognized(kind, image)));
    }
    load_ptx(image, target)
}

/// Why the driver does not even take these bytes for PTX.
fn unrecognized(kind: ImageKind, image: &[u8]) -> String {
    match kind {
        ImageKind::Ptx => {
            let flaws = Ptx::read(image).flaws;
            let flaw = flaws.first().map(ToString::to_string).unwrap_or_default();
            format!("the image is not recognized, though it looks like PTX: {flaw}")
        }
        ImageKind::Text => "the image is not recognized: text that does not begin with .version".to_owned(),
        kind => format!("the image is not recognized: this is {kind}"),
    }
}

fn load_ptx(image: &[u8], target: &Target) -> Result<ModuleImage, Refusal> {
    let ptx = Ptx::read(image);
    verdict::check(&ptx, target)?;
    let globals: Vec<GlobalInfo> = ptx.globals().map(global_of_text).collect();
    check_scattered(&globals)?;
    Ok(ModuleImage {
        functions: ptx.entries().map(|entry| function_of_text(entry, ptx.header.target())).collect(),
        globals,
    })
}

/// Initial values may take as much of the host's memory, in bytes, and some times their own size.
const MAX_SCATTERED_BYTES: usize = 64 << 20;

/// Refuses values that lie far apart in large variables: device memory is kept in blocks, and each takes one.
fn check_scattered(globals: &[GlobalInfo]) -> Result<(), Refusal> {
    let (mut blocks, mut bytes) = (0_usize, 0_usize);
    for global in globals {
        let mut last = None;
        for (offset, piece) in global.initial.pieces() {
            let block = offset / BLOCK as u64;
            blocks += usize::from(last != Some(block));
            bytes += piece.len();
            last = Some((offset + piece.len() as u64 - 1) / BLOCK as u64);
        }
    }
    // Blocks that are written whole count by their bytes.
    let most = MAX_SCATTERED_BYTES.saturating_add(bytes.saturating_mul(16));
    if blocks.saturating_mul(BLOCK) <= most {
        return Ok(());
    }
    let places = format!("initial values in {blocks} blocks of {} KiB", BLOCK >> 10);
    Err(too_large(&places))
}

/// The verdict has bounded every number here.
fn function_of_text(function: &Function<'_>, target: Option<SmTarget>) -> FunctionInfo {
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let place = |parameter: &metrale_driver_sys::image::ptx::Parameter<'_>| Parameter {
        offset: size(parameter.offset),
        bytes: size(parameter.bytes),
        align: size(parameter.align),
    };
    FunctionInfo {
        name: function.name.to_owned(),
        static_shared_bytes: u32::try_from(function.static_shared_bytes).unwrap_or(u32::MAX),
        parameters: function.parameters.iter().map(place).collect(),
        max_threads: threads(function.required_threads.or(function.max_threads)),
        virtual_architecture: target.map(|target| target.number),
        is_linked: true,
    }
}

fn global_of_text(variable: &Variable<'_>) -> GlobalInfo {
    let initial = match &variable.initial {
        Initial::Bytes(bytes) => bytes.clone(),
        Initial::Zero | Initial::Symbolic(_) => SparseBytes::default(),
    };
    GlobalInfo {
        name: variable.name.to_owned(),
        bytes: variable.bytes,
        align: variable.align,
        initial,
        constant: variable.space == StateSpace::Const,
    }
}

/// Threads of a block of these lengths.
fn threads(extent: Option<[u32; 3]>) -> Option<u32> {
    extent.map(|[x, y, z]| x.saturating_mul(y).saturating_mul(z))
}

fn load_cubin(image: &[u8], target: &Target) -> Result<ModuleImage, Refusal> {
    // The architecture is looked at before the rest of the file: a header alone is refused for it.
    let header = ElfHeader::read(image).map_err(|error| not_a_cubin(image, &error))?;
    check_architecture(header.sm(), target)?;
    let cubin = Cubin::read(image).map_err(|error| not_a_cubin(image, &error))?;
    check_architecture(cubin.sm, target)?;
    let functions = cubin.kernels.iter().map(|kernel| FunctionInfo {
        name: kernel.name.to_owned(),
        static_shared_bytes: u32::try_from(kernel.static_shared_bytes).unwrap_or(u32::MAX),
        parameters: kernel
            .parameters
            .iter()
            // Sixteen bits of offset and fourteen of size: they fit.
            .map(|parameter| Parameter {
                offset: parameter.offset as usize,
                bytes: parameter.bytes as usize,
                align: 1,
            })
            .collect(),
        max_threads: threads(kernel.required_threads.or(kernel.max_threads)),
        virtual_architecture: None,
        is_linked: kernel.undefined.is_none(),
    });
    let globals = cubin.globals.iter().map(|global| GlobalInfo {
        name: global.name.to_owned(),
        bytes: global.bytes,
        align: global.align,
        initial: global.initial.unwrap_or_default().to_vec().into(),
        constant: global.is_constant,
    });
    Ok(ModuleImage { functions: functions.collect(), globals: globals.collect() })
}

fn not_a_cubin(image: &[u8], error: &CubinError) -> Refusal {
    let status = match (error, ImageKind::of(image)) {
        // CUDA's machine number in a file of the wrong class counts as a cubin of no architecture.
        (CubinError::Not64Bit, ImageKind::ForeignElf { machine: 190, class: 1 }) => CUDA_ERROR_UNKNOWN,
        (CubinError::Overlaps { .. }, _) => return too_large(error),
        _ => CUDA_ERROR_INVALID_IMAGE,
    };
    Refusal::new(status, format!("the image is not recognized: {error}"))
}

/// What a driver may load and this one does not read.
fn too_large(what: &dyn core::fmt::Display) -> Refusal {
    Refusal::new(CUDA_ERROR_NOT_SUPPORTED, format!("the software driver does not load this image: {what}"))
}

fn check_architecture(sm: Option<SmTarget>, target: &Target) -> Result<(), Refusal> {
    let device = target.device();
    match sm {
        Some(sm) if cubin_runs_on(sm, device) => Ok(()),
        Some(sm) => Err(Refusal::new(
            CUDA_ERROR_NO_BINARY_FOR_GPU,
            format!("a cubin for {sm}, which does not run on compute capability {device}"),
        )),
        None => Err(Refusal::new(
            CUDA_ERROR_NO_BINARY_FOR_GPU,
            "a cubin of an unknown generation: its architecture cannot be told",
        )),
    }
}

fn load_fatbin(image: &[u8], target: &Target) -> Result<ModuleImage, Refusal> {
    let fatbin = Fatbin::read(image).map_err(|error| match error {
        FatbinError::NoImage => Refusal::new(CUDA_ERROR_NO_BINARY_FOR_GPU, format!("a fatbin: {error}")),
        error => Refusal::new(CUDA_ERROR_INVALID_IMAGE, format!("a fatbin that is not whole: {error}")),
    })?;
    let device = target.device();
    let Some(entry) = best_entry(&fatbin.entries, target) else {
        const NAMED: usize = 16;
        let mut held: Vec<String> = fatbin.entries.iter().take(NAMED).map(describe).collect();
        if let more @ 1.. = fatbin.entries.len().saturating_sub(NAMED) {
            held.push(format!("and {more} more"));
        }
        return Err(Refusal::new(
            CUDA_ERROR_NO_BINARY_FOR_GPU,
            format!("a fatbin with nothing for compute capability {device}: it holds {}", held.join(", ")),
        ));
    };
    let payload = Unpacker::of(image).unpack(entry).map_err(|why| {
        let log = format!("{} in a fatbin: {why}", describe(entry));
        match why {
            UnpackError::TooLarge { .. } => too_large(&log),
            _ => Refusal::new(CUDA_ERROR_INVALID_IMAGE, log),
        }
    })?;
    match entry.kind {
        EntryKind::Elf => load_cubin(&payload, target),
        // Text only: fatbins inside fatbins could be as deep as they are long.
        _ => load_text(&payload, ImageKind::of(&payload), target),
    }
}

fn describe(entry: &FatbinEntry<'_>) -> String {
    match entry.kind {
        EntryKind::Ptx => format!("PTX for {}", entry.sm),
        EntryKind::Elf => format!("a cubin for {}", entry.sm),
        EntryKind::LtoIr => format!("LTO-IR for {}", entry.sm),
        EntryKind::Other(kind) => format!("an entry of kind {kind} for {}", entry.sm),
    }
}

/// The entry a driver takes: machine code before text, the nearest architecture before older ones, and of two for the
/// same one the less portable.
fn best_entry<'e, 'a>(entries: &'e [FatbinEntry<'a>], target: &Target) -> Option<&'e FatbinEntry<'a>> {
    let device = target.device();
    let highest = IsaVersion::highest_of_driver(target.driver_version);
    let rank =
        |entry: &FatbinEntry<'_>| (entry.kind == EntryKind::Elf, entry.sm.number, entry.sm.portability);
    let runs = |entry: &&FatbinEntry<'_>| match entry.kind {
        EntryKind::Elf => cubin_runs_on(entry.sm, device),
        EntryKind::Ptx => ptx_runs_on(entry.sm, device),
        EntryKind::LtoIr | EntryKind::Other(_) => false,
    };
    let is_text_too_new = |entry: &&FatbinEntry<'_>| {
        entry.kind == EntryKind::Ptx && highest.is_none_or(|highest| entry.version > highest)
    };
    let all = || entries.iter().filter(runs);
    // A text that is too new is better than nothing: its refusal says what is wrong.
    all()
        .filter(|entry| !is_text_too_new(entry))
        .max_by_key(|entry| rank(entry))
        .or_else(|| all().max_by_key(|entry| rank(entry)))
}

/// The bytes of an image given by its address alone: up to the NUL for text, as far as the headers say for a
/// cubin or a fatbin.
///
/// # Safety
/// `image` is null, or points to an image that lives for `'a`, is not written to meanwhile, and is as long as it claims:
/// text has a NUL, and the bytes that an ELF's or a fatbin's own headers promise are there.
pub(crate) unsafe fn image_bytes<'a>(image: *const c_void) -> Result<&'a [u8], Refusal> {
    if image.is_null() {
        return Err(Refusal::new(CUDA_ERROR_INVALID_VALUE, "the image is a null pointer"));
    }
    let start = image.cast::<u8>();
    // SAFETY: passed on, see `starts_with`.
    if unsafe { starts_with(start, b"\x7fELF") } {
        // SAFETY: the magic is no text, so the image is an ELF, and its class stands behind the magic.
        let class = unsafe { *start.wrapping_add(4) };
        let header_bytes = match class {
            2 => ELF_HEADER_BYTES,
            // The header of a 32-bit file, of which only the machine is looked at.
            1 => 52,
            // No ELF, whatever it is: magic and class are all there is to see.
            _ => 5,
        };
        // SAFETY: an ELF of this class has a header of this size.
        let header = unsafe { slice::from_raw_parts(start, header_bytes) };
        // The loader says what is wrong with a header that cannot be read.
        let Ok(elf) = ElfHeader::read(header) else { return Ok(header) };
        let tables_end = bounded(elf.tables_end())?;
        // SAFETY: the header promises its tables.
        let tables = unsafe { slice::from_raw_parts(start, tables_end) };
        let all = bounded(elf.image_bytes(tables).unwrap_or(u64::MAX))?;
        // SAFETY: the tables promise the sections and segments.
        return Ok(unsafe { slice::from_raw_parts(start, all) });
    }
    // SAFETY: passed on, see `starts_with`.
    if unsafe { starts_with(start, &FATBIN_MAGIC) } {
        // SAFETY: the magic is no text, so the image is a fatbin, which has a header.
        let header = unsafe { slice::from_raw_parts(start, FATBIN_HEADER_BYTES) };
        let Ok(fatbin) = FatbinHeader::read(header) else { return Ok(header) };
        let all = bounded(fatbin.image_bytes())?;
        // SAFETY: the header promises the payload.
        return Ok(unsafe { slice::from_raw_parts(start, all) });
    }
    // SAFETY: neither ELF nor fatbin, so it is text, which has a NUL.
    let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) };
    Ok(text.to_bytes())
}

/// Whether an image begins with `magic`, which holds no NUL.
///
/// # Safety
/// `start` points to an image as [`image_bytes`] wants it.
unsafe fn starts_with(start: *const u8, magic: &[u8]) -> bool {
    magic.iter().enumerate().all(|(index, &byte)| {
        // SAFETY: no byte in front of this one was a NUL, so whatever the image is, it goes on here.
        let found = unsafe { *start.wrapping_add(index) };
        found == byte
    })
}

/// A size that an image may have.
fn bounded(bytes: u64) -> Result<usize, Refusal> {
    const LARGEST: u64 = 4 << 30;
    usize::try_from(bytes).ok().filter(|&bytes| bytes as u64 <= LARGEST).ok_or_else(|| {
        let log =
            "the image's own headers place its end beyond 4 GiB; the real driver may never return from this";
        Refusal::new(CUDA_ERROR_INVALID_IMAGE, log)
    })
}

#[cfg(test)]
mod large_images;
#[cfg(test)]
mod tests;
