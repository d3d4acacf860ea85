// SPDX-License-Identifier: MIT OR Apache-2.0
//! Before modules load: does this device run what they were built for?
//!
//! A function of what images say of themselves and of what a device is. No context is needed, nothing is loaded, and
//! every shortfall of every module is told at once.

use core::fmt;

use metrale_driver_sys::image::ImageKind;
use metrale_driver_sys::image::cubin::Cubin;
use metrale_driver_sys::image::fatbin::{EntryKind, Fatbin};
use metrale_driver_sys::image::ptx::Header;

use crate::arch::{CodeTarget, DeviceArch, Shortfall};
use crate::error::causes;

/// What a module was built for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleTarget {
    /// The module's name.
    pub module: String,
    /// The pieces of code it brings; a device needs to run one of them. Empty where the module does not say.
    pub code: Vec<CodeTarget>,
    /// The multiprocessors that its grids were laid out for, where the build recorded them.
    pub sm_count: Option<u32>,
}

causes! { PreflightError: Module }

impl ModuleTarget {
    /// A module with the code it brings.
    pub fn new(module: impl Into<String>, code: impl IntoIterator<Item = CodeTarget>) -> Self {
        Self { module: module.into(), code: code.into_iter().collect(), sm_count: None }
    }

    /// What an image says of itself: the header of PTX, the flags of a cubin, every entry of a fatbin.
    ///
    /// An image that does not say, or is none, has no code; whether it loads at all is for the loader to answer. The
    /// cost does not grow with the text after a PTX header.
    #[must_use]
    pub fn of_image(module: impl Into<String>, image: &[u8]) -> Self {
        let code = match ImageKind::of(image) {
            ImageKind::Ptx => {
                let header = Header::read(image);
                header.target().map(|sm| CodeTarget::Ptx { sm, isa: header.version }).into_iter().collect()
            }
            ImageKind::Cubin => {
                let sm = Cubin::read(image).ok().and_then(|cubin| cubin.sm);
                sm.map(|sm| CodeTarget::Cubin { sm }).into_iter().collect()
            }
            ImageKind::Fatbin => Fatbin::read(image).map_or_else(
                |_| Vec::new(),
                |fatbin| {
                    let entries = fatbin.entries.iter();
                    entries
                        .filter_map(|entry| match entry.kind {
                            EntryKind::Ptx => {
                                Some(CodeTarget::Ptx { sm: entry.sm, isa: Some(entry.version) })
                            }
                            EntryKind::Elf => Some(CodeTarget::Cubin { sm: entry.sm }),
                            EntryKind::LtoIr => Some(CodeTarget::LtoIr { sm: entry.sm }),
                            EntryKind::Other(_) => None,
                        })
                        .collect()
                },
            ),
            _ => Vec::new(),
        };
        Self::new(module, code)
    }

    /// Records the multiprocessors that the build laid its grids out for.
    #[must_use]
    pub fn laid_out_for(mut self, sm_count: u32) -> Self {
        self.sm_count = Some(sm_count);
        self
    }
}

/// What is worth saying of a module that may load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PreflightWarning {
    /// The module does not say what it was built for.
    #[error(
        "module {module:?} does not say what it was built for; whether it runs on {device} shows when it loads"
    )]
    NoTarget {
        /// The module.
        module: String,
        /// The device.
        device: DeviceArch,
    },
    /// The build's grids were laid out for another number of multiprocessors: it runs, perhaps slower.
    #[error("module {module:?} was laid out for {built} multiprocessors, and {device} has {}", device.sm_count)]
    SmCount {
        /// The module.
        module: String,
        /// The number that the build recorded.
        built: u32,
        /// The device.
        device: DeviceArch,
    },
}

/// A piece of code that the device does not run, with every reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedCode {
    /// What it was built for.
    pub target: CodeTarget,
    /// Why the device does not run it; never empty.
    pub shortfalls: Vec<Shortfall>,
}

impl fmt::Display for RefusedCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: it ", self.target)?;
        for (index, shortfall) in self.shortfalls.iter().enumerate() {
            if index > 0 {
                f.write_str("; it ")?;
            }
            shortfall.fmt(f)?;
        }
        Ok(())
    }
}

/// A module none of whose code the device runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetMismatch {
    /// The module.
    pub module: String,
    /// The device.
    pub device: DeviceArch,
    /// What the module brings, each with why the device does not run it; never empty.
    pub refused: Vec<RefusedCode>,
}

impl fmt::Display for TargetMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = self.device.compute_capability.sm_number();
        write!(f, "module {:?} does not run on {}: ", self.module, self.device)?;
        for (index, refused) in self.refused.iter().enumerate() {
            if index > 0 {
                f.write_str(" / ")?;
            }
            refused.fmt(f)?;
        }
        // A version that the driver does not take has its own advice; another target would not help.
        let is_version = |shortfall: &Shortfall| {
            matches!(shortfall, Shortfall::IsaTooNew { .. } | Shortfall::IsaTooOld { .. })
        };
        if self.refused.iter().all(|refused| refused.shortfalls.iter().all(is_version)) {
            return Ok(());
        }
        write!(f, ". Build it for sm_{wanted}, or ship PTX for an older target beside it")
    }
}

impl std::error::Error for TargetMismatch {}

/// The modules that the device does not run. Nothing was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreflightError {
    /// How many modules were looked at.
    pub modules: usize,
    /// Each that does not run; never empty.
    pub mismatches: Vec<TargetMismatch>,
    /// What there is to say of the others.
    pub warnings: Vec<PreflightWarning>,
}

impl fmt::Display for PreflightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = &self.mismatches[..] {
            return only.fmt(f);
        }
        write!(f, "{} of {} modules do not run on this device", self.mismatches.len(), self.modules)?;
        self.mismatches.iter().try_for_each(|mismatch| write!(f, "\n  {mismatch}"))
    }
}

impl std::error::Error for PreflightError {}

/// Whether `device` runs every module, each judged by the best piece of code it brings.
///
/// A module that does not say what it was built for passes with a warning, and so does one laid out for another number
/// of multiprocessors.
///
/// # Errors
/// [`PreflightError`] with all modules that do not run and all reasons.
pub fn preflight(
    modules: &[ModuleTarget],
    device: &DeviceArch,
) -> Result<Vec<PreflightWarning>, PreflightError> {
    let mut warnings = Vec::new();
    let mut mismatches = Vec::new();
    for ModuleTarget { module, code, sm_count } in modules {
        if code.is_empty() {
            warnings.push(PreflightWarning::NoTarget { module: module.clone(), device: device.clone() });
        }
        let refused: Vec<RefusedCode> = code
            .iter()
            .map(|&target| RefusedCode { target, shortfalls: target.shortfalls(device) })
            .take_while(|refused| !refused.shortfalls.is_empty())
            .collect();
        if !code.is_empty() && refused.len() == code.len() {
            mismatches.push(TargetMismatch { module: module.clone(), device: device.clone(), refused });
        } else if let Some(built) = sm_count.filter(|&built| built != device.sm_count) {
            warnings.push(PreflightWarning::SmCount {
                module: module.clone(),
                built,
                device: device.clone(),
            });
        }
    }
    if mismatches.is_empty() {
        Ok(warnings)
    } else {
        Err(PreflightError { modules: modules.len(), mismatches, warnings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{ComputeCapability, IsaVersion};

    fn h200() -> DeviceArch {
        DeviceArch {
            ordinal: 0,
            name: "NVIDIA H200".into(),
            compute_capability: ComputeCapability::new(9, 0),
            sm_count: 132,
            driver_version: Some(13_000),
        }
    }

    fn ptx(target: &str) -> CodeTarget {
        CodeTarget::Ptx { sm: target.parse().unwrap(), isa: None }
    }

    fn cubin(target: &str) -> CodeTarget {
        CodeTarget::Cubin { sm: target.parse().unwrap() }
    }

    #[test]
    fn what_fits_passes_without_a_word() {
        let modules = [
            ModuleTarget::new("a", [ptx("sm_90")]),
            ModuleTarget::new("b", [ptx("sm_90a")]),
            ModuleTarget::new("c", [cubin("sm_90")]).laid_out_for(132),
        ];
        assert_eq!(preflight(&modules, &h200()), Ok(vec![]));
        assert_eq!(preflight(&[], &h200()), Ok(vec![]));
    }

    #[test]
    fn no_recorded_target_warns_and_passes_and_so_does_another_layout() {
        let modules =
            [ModuleTarget::new("quiet", []), ModuleTarget::new("wide", [ptx("sm_80")]).laid_out_for(148)];
        let warnings = preflight(&modules, &h200()).unwrap();
        assert_eq!(
            warnings,
            [
                PreflightWarning::NoTarget { module: "quiet".into(), device: h200() },
                PreflightWarning::SmCount { module: "wide".into(), built: 148, device: h200() },
            ]
        );
        let text = warnings[1].to_string();
        assert!(text.contains("148") && text.contains("132") && text.contains("wide"), "{text}");
    }

    #[test]
    fn a_mismatch_names_module_target_and_device() {
        let error = preflight(&[ModuleTarget::new("attn", [ptx("sm_100a")])], &h200()).unwrap_err();
        let [mismatch] = &error.mismatches[..] else { panic!("{error:?}") };
        assert_eq!((mismatch.module.as_str(), mismatch.device.clone()), ("attn", h200()));
        assert_eq!(mismatch.refused[0].target, ptx("sm_100a"));
        assert_eq!(mismatch.refused[0].shortfalls, [Shortfall::NewerTarget]);
        for part in ["\"attn\"", "sm_100a", "NVIDIA H200", "9.0", "needs a newer device", "sm_90"] {
            assert!(error.to_string().contains(part), "{part} is not in {error}");
        }
    }

    #[test]
    fn every_module_that_does_not_run_is_named() {
        let newer = CodeTarget::Ptx { sm: "sm_120".parse().unwrap(), isa: Some(IsaVersion::new(9, 9)) };
        let modules = [
            ModuleTarget::new("good", [ptx("sm_75")]),
            ModuleTarget::new("cold", [cubin("sm_80")]),
            ModuleTarget::new("new", [newer]),
            ModuleTarget::new("quiet", []),
        ];
        let error = preflight(&modules, &h200()).unwrap_err();
        assert_eq!((error.modules, error.warnings.len()), (4, 1));
        let names: Vec<&str> = error.mismatches.iter().map(|mismatch| mismatch.module.as_str()).collect();
        assert_eq!(names, ["cold", "new"]);
        assert_eq!(error.mismatches[0].refused[0].shortfalls, [Shortfall::OtherMajor]);
        assert_eq!(error.mismatches[1].refused[0].shortfalls.len(), 2);
        let text = error.to_string();
        assert!(text.starts_with("2 of 4 modules"), "{text}");
        assert!(text.contains("a cubin for sm_80") && text.contains("PTX 9.9 for sm_120"), "{text}");
    }

    #[test]
    fn one_fitting_piece_of_a_fatbin_is_enough() {
        let with_ptx = ModuleTarget::new("fat", [cubin("sm_80"), cubin("sm_100"), ptx("sm_80")]);
        assert_eq!(preflight(&[with_ptx], &h200()), Ok(vec![]));
        let without = ModuleTarget::new("fat", [cubin("sm_80"), cubin("sm_100")]);
        let error = preflight(&[without], &h200()).unwrap_err();
        assert_eq!(error.mismatches[0].refused.len(), 2);
    }

    #[test]
    fn images_say_what_they_are_for() {
        let text = b"\xef\xbb\xbf// by hand\r\n.version 8.0 /* old */\r\n.target sm_90a, debug\r\n.address_size 64\r\n";
        assert_eq!(
            ModuleTarget::of_image("m", text).code,
            [CodeTarget::Ptx { sm: "sm_90a".parse().unwrap(), isa: Some(IsaVersion::new(8, 0)) }]
        );
        for silent in [
            &b""[..],
            b"hello",
            b"\x7fELF",
            b"\x50\xed\x55\xba",
            b"\xef\xbb\xbf\x7fELF\x02\x01\x01\x33\x07\n.version 8.0\n.target sm_90\n",
            b"\xef\xbb\xbf\x50\xed\x55\xba\n.version 8.0\n.target sm_90\n",
            b".version 8.0\n.target gfx942\n.address_size 64\n",
        ] {
            let module = ModuleTarget::of_image("m", silent);
            assert_eq!(module.code, [], "{silent:?}");
            assert!(matches!(
                preflight(&[module], &h200()).as_deref(),
                Ok([PreflightWarning::NoTarget { .. }])
            ));
        }
    }
}
