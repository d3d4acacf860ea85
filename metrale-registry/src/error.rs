// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RegistryError`]: what can go wrong between a list of images and a launch, each with what to do about it.

use core::fmt;
use std::sync::Arc;

use metrale_driver_sys::DriverError;
use metrale_driver_sys::image::{ImageKind, arch::IsaVersion};

use crate::advice::Advised;
use crate::image::{ImageError, ImageNote};
use crate::{HostError, LaunchError, MetraleRegistry, TeardownError};

/// What a registry can answer instead of what was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// No driver, no such device, or no context on it.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Two modules have one name. Nothing was loaded.
    #[error("two modules are named {module:?}: a look-up could mean either")]
    DuplicateModule {
        /// The name.
        module: &'static str,
    },
    /// What was given as a module's image is none, or not a whole one. Nothing was loaded; the driver was not asked.
    #[error("module {module:?}: {reason}")]
    Image {
        /// The module.
        module: &'static str,
        /// What is wrong with its bytes.
        reason: ImageError,
    },
    /// The driver refused a module. Those loaded before it are unloaded.
    #[error(transparent)]
    ModuleLoad(Box<ModuleLoadError>),
    /// The context is lost: a kernel failed earlier, and the driver says so at the next call, whatever that is.
    #[error("module {module:?} could not be loaded, since an earlier kernel faulted: {}", Advised(*error))]
    EarlierFault {
        /// The module whose load showed the fault.
        module: &'static str,
        /// The fault.
        error: DriverError,
    },
    /// No module of that name was loaded.
    #[error("no module is named {module:?}{}", Nearest(nearest, "loaded", loaded))]
    ModuleNotFound {
        /// The name that was asked for.
        module: String,
        /// The nearest names there are.
        nearest: Vec<String>,
        /// How many modules are loaded.
        loaded: usize,
    },
    /// The module has no function of exactly that name.
    #[error("module {module:?} has no function {function:?}{}", Nearest(nearest, "known", known))]
    FunctionNotFound {
        /// The module.
        module: &'static str,
        /// The name that was asked for.
        function: String,
        /// The nearest names known from the image.
        nearest: Vec<String>,
        /// How many functions are known from the image.
        known: usize,
    },
    /// The image has the kernel, and the driver does not find it.
    #[error("kernel {function:?} is in the image of module {module:?}, but {}", NotLinked(undefined.as_deref()))]
    KernelNotLinked {
        /// The module.
        module: &'static str,
        /// The name that was asked for.
        function: String,
        /// A function that it needs and that the image does not define. `None` where the image has all it needs: then the
        /// code that names the kernel is not the code that the driver took.
        undefined: Option<String>,
    },
    /// The module has no global of exactly that name.
    #[error("module {module:?} has no global {symbol:?}{}", Nearest(nearest, "known", known))]
    SymbolNotFound {
        /// The module.
        module: &'static str,
        /// The name that was asked for.
        symbol: String,
        /// The nearest names known from the image.
        nearest: Vec<String>,
        /// How many globals are known from the image.
        known: usize,
    },
    /// The name is a kernel's: it has no address in device memory.
    #[error("{symbol:?} in module {module:?} is a kernel, not a global: look it up as a function")]
    SymbolIsKernel {
        /// The module.
        module: &'static str,
        /// The name that was asked for.
        symbol: String,
    },
    /// The name has a NUL in it, which no name in a module has.
    #[error("{name:?} has a NUL in it, which no name in a module has")]
    NulInName {
        /// The name.
        name: String,
    },
    /// The driver failed at a look-up, other than by not finding the name.
    #[error("looking up {name:?} in module {module:?}: {}", Advised(*error))]
    LookUp {
        /// The module.
        module: &'static str,
        /// The function or global.
        name: String,
        /// The driver's answer.
        error: DriverError,
    },
    /// A launch was refused.
    #[error(transparent)]
    Launch(#[from] Box<LaunchError>),
}

impl RegistryError {
    /// Whether the answer is that there is no such module, function or global: absence, not failure.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::ModuleNotFound { .. }
                | Self::FunctionNotFound { .. }
                | Self::SymbolNotFound { .. }
                | Self::SymbolIsKernel { .. }
        )
    }

    /// The driver's answer, where there was one.
    #[must_use]
    pub fn driver_error(&self) -> Option<DriverError> {
        match self {
            Self::Host(error) => error.driver_error(),
            Self::ModuleLoad(error) => Some(error.error),
            Self::Launch(error) => Some(error.error),
            Self::EarlierFault { error, .. } | Self::LookUp { error, .. } => Some(*error),
            _ => None,
        }
    }
}

/// A module that the driver refused, with all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModuleLoadError {
    /// The module.
    pub module: &'static str,
    /// What its image is.
    pub kind: ImageKind,
    /// What the image says it is made for, such as `sm_90a`.
    pub target: Option<String>,
    /// The language version, of PTX.
    pub isa: Option<IsaVersion>,
    /// Size of the image in bytes, as given.
    pub image_bytes: usize,
    /// What was noticed and mended before the driver was asked.
    pub notes: Vec<ImageNote>,
    /// What this crate's own reader finds wrong with the text, by line. The driver's word counts.
    pub flaws: Vec<String>,
    /// The device: its name and compute capability.
    pub device: String,
    /// The driver's answer.
    pub error: DriverError,
    /// What the driver's compiler wrote, errors first; empty where it wrote nothing.
    pub log: String,
}

impl fmt::Display for ModuleLoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "module {:?} ({}", self.module, self.kind)?;
        if let Some(isa) = self.isa {
            write!(f, " {isa}")?;
        }
        if let Some(target) = &self.target {
            write!(f, " for {target}")?;
        }
        write!(f, ", {} bytes", self.image_bytes)?;
        for note in &self.notes {
            write!(f, ", {note}")?;
        }
        write!(f, ") does not load on {}: {}", self.device, Advised(self.error))?;
        if !self.log.is_empty() {
            write!(f, "\nThe driver's log:")?;
            for line in self.log.lines() {
                write!(f, "\n  {line}")?;
            }
        }
        if !self.flaws.is_empty() {
            write!(f, "\nThe text itself:")?;
            for flaw in &self.flaws {
                write!(f, "\n  {flaw}")?;
            }
        }
        Ok(())
    }
}

// No source: `Display` says the driver's answer already, and a chain would say it twice.
impl core::error::Error for ModuleLoadError {}

/// Why a registry was not released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// Other handles are live: whoever holds them may launch at any moment. Nothing was unloaded.
    #[error("the registry is still held by {others} other handle(s): nothing was unloaded")]
    StillHeld {
        /// The handle that was passed in.
        registry: Arc<MetraleRegistry>,
        /// How many others there were.
        others: usize,
    },
    /// It was released, and the driver did not take everything back.
    #[error(transparent)]
    Teardown(#[from] TeardownError),
}

/// Why a kernel that is in an image cannot be found, and what to do.
struct NotLinked<'a>(Option<&'a str>);

impl fmt::Display for NotLinked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(undefined) => write!(
                f,
                "not linked: it needs {undefined:?}, which the image does not define. Link the image with what defines it \
                 (nvcc -dlink, nvlink, nvJitLink), or compile all of it together, without -rdc"
            ),
            None => f.write_str(
                "the driver does not find it: it is not in the code that the driver took for this device. Compile it for \
                 this device too",
            ),
        }
    }
}

/// The end of a not-found text: the nearest names, or how many others there are.
struct Nearest<'a>(&'a [String], &'static str, &'a usize);

impl fmt::Display for Nearest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(nearest, known_as, others) = self;
        match nearest {
            [] => write!(f, " ({others} {known_as}, none of a similar name)"),
            [first, rest @ ..] => {
                write!(f, "; did you mean {first:?}")?;
                for name in rest {
                    write!(f, " or {name:?}")?;
                }
                f.write_str("?")
            }
        }
    }
}
