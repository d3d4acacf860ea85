// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding and opening the installed driver, and saying exactly what is wrong where that fails.

use core::ffi::c_void;
use core::fmt;
use std::ffi::{CString, OsStr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::{DriverApi, DriverFn, FnTable};

/// Where the driver is looked for, in this order: by the names the dynamic linker knows, then where WSL keeps it.
///
/// `libcuda.so.1` comes first: it is the driver's own name, while a plain `libcuda.so` may be the linker's stub that
/// toolkits ship. Stub folders are never searched.
pub const SEARCH_ORDER: [&str; 3] = ["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"];

/// Why no driver could be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// No candidate could be opened.
    NotFound {
        /// Every path tried, with the dynamic linker's own reason.
        tried: Vec<(PathBuf, String)>,
    },
    /// A library was opened, but it lacks functions this crate needs.
    MissingSymbols {
        /// The file that was opened.
        path: PathBuf,
        /// All required functions that it lacks.
        missing: Vec<DriverFn>,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { tried } => {
                write!(f, "no CUDA driver found; tried")?;
                for (index, (path, reason)) in tried.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ";" };
                    let path = path.display().to_string();
                    // The linker's words begin with the path it was given.
                    let reason = reason.strip_prefix(&path).unwrap_or(reason).trim_start_matches(": ");
                    write!(f, "{separator} {path} ({reason})")?;
                }
                write!(
                    f,
                    ". Install the NVIDIA driver (it brings libcuda.so.1), or start the container with its GPUs \
                     passed through"
                )
            }
            Self::MissingSymbols { path, missing } => {
                write!(f, "{} is not a usable CUDA driver: it lacks", path.display())?;
                for (index, function) in missing.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "," };
                    let (major, minor) = (function.since() / 1000, function.since() % 1000 / 10);
                    write!(f, "{separator} {function} (CUDA {major}.{minor})")?;
                }
                let needed = missing.iter().map(|function| function.since()).max().unwrap_or(0);
                write!(
                    f,
                    ". Install a driver for CUDA {}.{} or newer, or remove the library that stands in its place",
                    needed / 1000,
                    needed % 1000 / 10
                )
            }
        }
    }
}

impl core::error::Error for LoadError {}

impl FnTable {
    /// Finds and opens the installed driver, see [`SEARCH_ORDER`].
    ///
    /// Opening a driver does not start it: [`cuInit`](DriverApi::cuInit) is the caller's first call.
    ///
    /// # Errors
    /// [`LoadError::NotFound`] with every path tried, or [`LoadError::MissingSymbols`] with all that the first library
    /// that opened lacks.
    pub fn load() -> Result<Self, LoadError> {
        let mut tried = Vec::new();
        for candidate in SEARCH_ORDER {
            match open(OsStr::new(candidate)) {
                Ok(library) => return fill(library, Path::new(candidate)),
                Err(reason) => tried.push((PathBuf::from(candidate), reason)),
            }
        }
        Err(LoadError::NotFound { tried })
    }

    /// Opens the driver in the file `path`.
    ///
    /// # Errors
    /// As [`load`](Self::load), for this one path.
    ///
    /// # Safety
    /// The file must be a CUDA driver: its initializers run, and its functions of the driver's names are called with
    /// the driver's signatures.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        match open(path.as_os_str()) {
            Ok(library) => fill(library, path),
            Err(reason) => Err(LoadError::NotFound { tried: vec![(path.to_owned(), reason)] }),
        }
    }
}

/// Opens one library; the error is the dynamic linker's own text.
fn open(name: &OsStr) -> Result<libloading::Library, String> {
    // SAFETY: opening runs the library's initializers; the names are those of the CUDA driver, or a file for which the
    // caller of `load_from` promised the same.
    unsafe { libloading::Library::new(name) }.map_err(|error| linkers_reason(&error))
}

/// The dynamic linker's own words, which stand behind the loader crate's.
fn linkers_reason(error: &dyn core::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Fills a table from an open library.
fn fill(library: libloading::Library, asked: &Path) -> Result<FnTable, LoadError> {
    let address_of = |function: DriverFn| -> *const c_void {
        let Ok(name) = CString::new(function.name()) else { return core::ptr::null() };
        // SAFETY: the symbol is only used as an address here; the table knows its type.
        match unsafe { library.get::<*const c_void>(name.as_c_str()) } {
            // The symbol's value is the function's address itself.
            Ok(symbol) => *symbol,
            Err(_) => core::ptr::null(),
        }
    };
    let path = file_around(address_of(DriverFn::cuInit)).unwrap_or_else(|| asked.to_owned());
    // SAFETY: the addresses are a CUDA driver's exports of these names, whose signatures are checked against an
    // independent set of bindings in this crate's tests; the table keeps the library open.
    let table = unsafe { FnTable::from_resolver(path.display().to_string(), address_of) };
    match table {
        Ok(table) => Ok(table.keeping(library)),
        Err(missing) => Err(LoadError::MissingSymbols { path, missing }),
    }
}

/// The file that is mapped around an address of this process, where the system can name it.
///
/// The dynamic linker opens `libcuda.so.1` from wherever its search leads; people need the real path.
fn file_around(address: *const c_void) -> Option<PathBuf> {
    let address = address.addr();
    std::fs::read_to_string("/proc/self/maps").ok()?.lines().find_map(|line| file_of_mapping(line, address))
}

/// The file of one line of the process's map, where the line's range holds `address`.
fn file_of_mapping(line: &str, address: usize) -> Option<PathBuf> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let path = &rest[rest.find('/')?..];
    (start..end).contains(&address).then(|| PathBuf::from(path))
}

/// The process's default driver: the installed one, opened at the first call and kept.
///
/// # Errors
/// The [`LoadError`] of the first call; it is not tried again.
pub fn system() -> Result<Arc<dyn DriverApi>, Arc<LoadError>> {
    static SYSTEM: OnceLock<Result<Arc<FnTable>, Arc<LoadError>>> = OnceLock::new();
    match SYSTEM.get_or_init(|| FnTable::load().map(Arc::new).map_err(Arc::new)) {
        Ok(table) => Ok(Arc::clone(table) as Arc<dyn DriverApi>),
        Err(error) => Err(Arc::clone(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_lists_every_path_and_says_what_to_install() {
        let tried =
            SEARCH_ORDER.iter().map(|path| (PathBuf::from(path), format!("{path}: cannot open"))).collect();
        let text = LoadError::NotFound { tried }.to_string();
        for path in SEARCH_ORDER {
            assert!(text.contains(&format!(" {path} (cannot open)")), "{text}");
        }
        assert!(text.contains("Install the NVIDIA driver"), "{text}");
        assert_eq!(SEARCH_ORDER[0], "libcuda.so.1", "the driver's own name comes before a possible stub");
        assert!(SEARCH_ORDER.iter().all(|path| !path.contains("stubs")));
    }

    #[test]
    fn missing_symbols_are_all_named_with_the_file_and_the_version_to_install() {
        let missing = vec![DriverFn::cuInit, DriverFn::cuDevicePrimaryCtxRelease_v2];
        let text = LoadError::MissingSymbols { path: "/opt/old/libcuda.so.1".into(), missing }.to_string();
        for part in ["/opt/old/libcuda.so.1", "cuInit (CUDA 2.0)", "cuDevicePrimaryCtxRelease_v2 (CUDA 11.0)"]
        {
            assert!(text.contains(part), "{text}");
        }
        assert!(text.contains("for CUDA 11.0 or newer"), "{text}");
    }

    #[test]
    fn a_path_that_does_not_open_is_an_error_with_the_linkers_reason() {
        // SAFETY: there is no such file, so nothing runs.
        let error = unsafe { FnTable::load_from("/nonexistent/libcuda.so.1") }.unwrap_err();
        let LoadError::NotFound { tried } = error else { panic!("{error}") };
        assert_eq!(tried.len(), 1);
        assert_eq!(tried[0].0, Path::new("/nonexistent/libcuda.so.1"));
        assert!(
            tried[0].1.contains("/nonexistent/libcuda.so.1"),
            "the linker names the file: {}",
            tried[0].1
        );
    }

    #[test]
    fn the_file_of_a_mapping_is_found_by_address() {
        let line = "7f00a000-7f00b000 r-xp 00000000 fd:00 1234    /usr/lib/lib with space.so.1";
        assert_eq!(file_of_mapping(line, 0x7f00_a123), Some(PathBuf::from("/usr/lib/lib with space.so.1")));
        assert_eq!(file_of_mapping(line, 0x7f00_b000), None);
        assert_eq!(file_of_mapping("7f00a000-7f00b000 rw-p 00000000 00:00 0 [heap]", 0x7f00_a123), None);
        assert_eq!(file_of_mapping("nonsense", 1), None);
    }

    #[test]
    fn a_library_that_is_no_driver_names_all_that_it_lacks_and_the_file_opened() {
        // Every Linux program has the C library mapped: a real library without one driver function.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let Some(path) = maps.lines().find_map(|line| {
            let path = &line[line.find('/')?..];
            path.contains("libc.so").then(|| PathBuf::from(path))
        }) else {
            return; // A statically linked test program: nothing to open.
        };
        // SAFETY: the C library is already open; opening it again runs nothing, and none of its functions is called.
        let error = unsafe { FnTable::load_from(&path) }.unwrap_err();
        let LoadError::MissingSymbols { path: opened, missing } = error else { panic!("{error}") };
        assert_eq!(opened, path);
        let required = DriverFn::ALL.iter().filter(|function| function.is_required()).count();
        assert_eq!(missing.len(), required);
    }

    #[test]
    fn the_system_driver_is_asked_for_without_a_panic_on_any_machine() {
        match system() {
            Ok(driver) => assert!(!driver.source().is_empty()),
            Err(error) => assert!(error.to_string().contains("libcuda.so.1")),
        }
    }
}
