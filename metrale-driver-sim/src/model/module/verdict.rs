// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a driver and its assembler take a PTX text.
//!
//! Strict where they were seen to refuse, and nowhere else: instructions are not looked at, and a directive that is
//! unknown here passes.

use metrale_driver_sys::image::arch::{IsaVersion, ptx_runs_on};
use metrale_driver_sys::image::ptx::{FlawKind, Function, Header, Lexer, Ptx, StateSpace, Text};
use metrale_driver_sys::{CUDA_ERROR_INVALID_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION};

use super::{Refusal, Target, too_large};

/// Shared memory a kernel may declare, in bytes.
const MAX_STATIC_SHARED_BYTES: u64 = 48 << 10;
/// Constant memory a text may declare, in bytes.
const MAX_CONSTANT_BYTES: u64 = 64 << 10;
/// Driver version whose assembler no longer minds what is in comments.
const DRIVER_WITH_ANY_COMMENT: i32 = 13050;
/// Driver version whose assembler knows addresses of 64 bits only, whatever the device.
const DRIVER_WITHOUT_32_BIT: i32 = 12000;

/// Whether the driver takes these bytes for PTX at all: `.version` comes first, comments and white space aside.
pub(super) fn is_recognized(image: &[u8]) -> bool {
    let text = Text::of(image);
    !text.has_bom
        && text.leading_bytes.is_empty()
        && Lexer::new(text.code).next().is_some_and(|token| token.is_directive(".version"))
}

/// Refuses what the driver refuses, in its order.
pub(super) fn check(ptx: &Ptx<'_>, target: &Target) -> Result<(), Refusal> {
    if let Some(flaw) = ptx.flaws.iter().find(|flaw| matches!(flaw.kind, FlawKind::Limit { .. })) {
        return Err(too_large(flaw));
    }
    check_characters(ptx, target)?;
    check_version(ptx, target)?;
    check_targets(ptx)?;
    check_address_size(&ptx.header, target)?;
    check_flaws(ptx)?;
    check_device(&ptx.header, target)?;
    if ptx.header.has_option("debug") && !ptx.has_sections {
        return Err(invalid(
            ".target asks for debug, and there is no debug information: no .section".to_owned(),
        ));
    }
    if let Some(name) = ptx.undefined_functions.first() {
        return Err(invalid(format!("function {name} is declared and used, but defined nowhere")));
    }
    for entry in ptx.entries() {
        check_limits(entry, &ptx.header)?;
    }
    check_constants(ptx)
}

fn invalid(log: String) -> Refusal {
    Refusal::new(CUDA_ERROR_INVALID_PTX, log)
}

fn check_characters(ptx: &Ptx<'_>, target: &Target) -> Result<(), Refusal> {
    let is_refused = |kind: &FlawKind| match kind {
        FlawKind::NonAscii(_) => true,
        FlawKind::NonAsciiComment => target.driver_version < DRIVER_WITH_ANY_COMMENT,
        _ => false,
    };
    match ptx.flaws.iter().find(|flaw| is_refused(&flaw.kind)) {
        Some(flaw) => Err(invalid(flaw.to_string())),
        None => Ok(()),
    }
}

fn check_version(ptx: &Ptx<'_>, target: &Target) -> Result<(), Refusal> {
    let missing = |kind: &FlawKind| matches!(kind, FlawKind::MissingVersion { .. });
    if let Some(flaw) = ptx.flaws.iter().find(|flaw| missing(&flaw.kind)) {
        return Err(invalid(flaw.to_string()));
    }
    let Some(version) = ptx.header.version else {
        return Err(invalid("line 1: .version without a number".to_owned()));
    };
    let line = ptx.header.version_line;
    let log = match IsaVersion::highest_of_driver(target.driver_version) {
        Some(highest) if version > highest => {
            format!("line {line}: PTX version {version} is newer than this driver's, which is {highest}")
        }
        Some(_) if version.exists() => return Ok(()),
        Some(highest) => {
            format!("line {line}: there is no PTX version {version}; this driver takes up to {highest}")
        }
        None => format!("line {line}: this driver takes no PTX version {version}"),
    };
    Err(Refusal::new(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, log))
}

/// What `.target` may not say, whatever the device.
fn check_targets(ptx: &Ptx<'_>) -> Result<(), Refusal> {
    let in_header = |kind: &FlawKind| {
        matches!(kind, FlawKind::MissingTarget { .. } | FlawKind::MissingArchitecture { .. })
    };
    if let Some(flaw) = ptx.flaws.iter().find(|flaw| in_header(&flaw.kind)) {
        return Err(invalid(flaw.to_string()));
    }
    let header = &ptx.header;
    let (line, Some(version)) = (header.target_line, header.version) else { return Ok(()) };
    for named in &header.targets {
        let Some(lowest) = named.sm.and_then(|sm| sm.lowest_isa()) else {
            return Err(invalid(format!(
                "line {line}: {} is not an architecture this driver knows",
                named.name
            )));
        };
        if version < lowest {
            let name = named.name;
            return Err(invalid(format!(
                "line {line}: {name} needs PTX version {lowest}, the text has {version}"
            )));
        }
    }
    if let Some(option) = header.options.iter().find(|option| !Header::OPTIONS.contains(option)) {
        return Err(invalid(format!("line {line}: {option} is not an option of .target")));
    }
    if header.has_option("texmode_unified") && header.has_option("texmode_independent") {
        return Err(invalid(format!("line {line}: .target asks for both texture modes")));
    }
    if header.has_option("map_f64_to_f32") && header.target().is_some_and(|sm| sm.number >= 13) {
        return Err(invalid(format!("line {line}: map_f64_to_f32 is for architectures before sm_13")));
    }
    Ok(())
}

fn check_address_size(header: &Header<'_>, target: &Target) -> Result<(), Refusal> {
    let knows_64_only = target.driver_version >= DRIVER_WITHOUT_32_BIT || target.compute_capability.0 >= 9;
    if header.address_size == Some(32) && knows_64_only {
        let line = header.address_size_line;
        return Err(invalid(format!("line {line}: addresses of 32 bits are no longer supported")));
    }
    Ok(())
}

/// What is wrong with the text itself.
fn check_flaws(ptx: &Ptx<'_>) -> Result<(), Refusal> {
    let passes = |kind: &FlawKind| {
        matches!(
            kind,
            FlawKind::UnknownDirective { .. } | FlawKind::UnreadSize { .. } | FlawKind::NonAsciiComment
        )
    };
    match ptx.flaws.iter().find(|flaw| !passes(&flaw.kind)) {
        Some(flaw) => Err(invalid(flaw.to_string())),
        None => Ok(()),
    }
}

/// Of several architectures the last one counts.
fn check_device(header: &Header<'_>, target: &Target) -> Result<(), Refusal> {
    let device = target.device();
    match header.target() {
        Some(sm) if !ptx_runs_on(sm, device) => {
            let line = header.target_line;
            Err(invalid(format!("line {line}: {sm} does not run on compute capability {device}")))
        }
        _ => Ok(()),
    }
}

fn check_limits(entry: &Function<'_>, header: &Header<'_>) -> Result<(), Refusal> {
    let (name, line) = (entry.name, entry.line);
    let shared = entry.static_shared_bytes;
    if shared > MAX_STATIC_SHARED_BYTES {
        return Err(invalid(format!(
            "line {line}: kernel {name} declares {shared} bytes of shared memory, {MAX_STATIC_SHARED_BYTES} at most"
        )));
    }
    let has_large_block = header.version.is_some_and(|version| version >= IsaVersion::new(8, 1))
        && header.target().is_some_and(|sm| sm.number >= 70);
    let most = if has_large_block { 32_764 } else { 4352 };
    let parameters = entry.parameters.last().map_or(0, |last| last.offset + last.bytes);
    if parameters > most {
        return Err(invalid(format!(
            "line {line}: kernel {name} has {parameters} bytes of parameters, {most} at most"
        )));
    }
    Ok(())
}

fn check_constants(ptx: &Ptx<'_>) -> Result<(), Refusal> {
    let constants = ptx.globals().filter(|variable| variable.space == StateSpace::Const);
    let bytes = constants.fold(0_u64, |bytes, variable| {
        bytes.checked_next_multiple_of(variable.align).unwrap_or(u64::MAX).saturating_add(variable.bytes)
    });
    if bytes > MAX_CONSTANT_BYTES {
        return Err(invalid(format!("{bytes} bytes of constant memory, {MAX_CONSTANT_BYTES} at most")));
    }
    Ok(())
}
