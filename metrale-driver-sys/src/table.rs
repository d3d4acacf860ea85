// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`FnTable`]: the real driver, called through pointers that a resolver filled.

use core::ffi::c_void;
use core::fmt;

use crate::api::MISSING_FUNCTION;
use crate::{CUresult, DriverApi, DriverFn};

/// Derives the table, its filling and its calls.
macro_rules! table {
    ($($(#[$meta:meta])* $need:ident $since:literal fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// The pointers, one for each function; `None` where an optional one is missing.
        #[allow(non_snake_case, reason = "fields keep the C spelling")]
        #[derive(Clone, Copy)]
        struct Pointers {
            $($name: Option<unsafe extern "C" fn($($ty),*) -> CUresult>,)*
        }

        impl Pointers {
            /// Asks `resolve` for every function.
            ///
            /// # Safety
            /// As for [`FnTable::from_resolver`].
            unsafe fn resolve(resolve: &mut dyn FnMut(DriverFn) -> *const c_void) -> Self {
                Self {
                    $($name: {
                        let address = resolve(DriverFn::$name);
                        // SAFETY: null becomes `None` by the layout of an optional function pointer, and the caller
                        // promises that anything else is the function of that name and signature.
                        unsafe {
                            core::mem::transmute::<*const c_void, Option<unsafe extern "C" fn($($ty),*) -> CUresult>>(address)
                        }
                    },)*
                }
            }

            fn has(&self, function: DriverFn) -> bool {
                match function { $(DriverFn::$name => self.$name.is_some(),)* }
            }
        }

        #[allow(non_snake_case, reason = "functions and arguments keep the C spelling")]
        impl DriverApi for FnTable {
            fn provides(&self, function: DriverFn) -> bool {
                self.pointers.has(function)
            }

            fn source(&self) -> String {
                self.source.clone()
            }

            /// Where the library has a function that every driver has: two tables of one library are one driver.
            fn identity(&self) -> usize {
                self.pointers.cuInit.map_or(core::ptr::from_ref(self).addr(), |function| function as usize)
            }

            $(
                unsafe fn $name(&self, $($arg: $ty),*) -> CUresult {
                    match self.pointers.$name {
                        // SAFETY: the pointer is that function (the resolver's promise), alive as long as the table
                        // keeps its library; the arguments are the caller's promise.
                        Some(function) => unsafe { function($($arg),*) },
                        None => MISSING_FUNCTION,
                    }
                }
            )*
        }
    };
}

for_each_driver_function!(table);

/// A driver reached through function pointers.
///
/// Made by [`load`](Self::load) (finds the installed driver), [`load_from`](Self::load_from) (a file you name),
/// [`from_resolver`](Self::from_resolver) (any lookup) or, with feature `link`, `linked`.
pub struct FnTable {
    pointers: Pointers,
    source: String,
    /// Keeps the library mapped as long as its pointers may be called.
    _library: Option<libloading::Library>,
}

impl FnTable {
    /// Fills a table by asking `resolve` for the address of every function; null where there is none.
    ///
    /// `source` is what [`DriverApi::source`] then says.
    ///
    /// # Errors
    /// The names of all required functions for which `resolve` gave null.
    ///
    /// # Safety
    /// Every address that is not null must be a function of that C name and signature, callable from any thread, and
    /// stay so for the table's life.
    pub unsafe fn from_resolver(
        source: impl Into<String>,
        mut resolve: impl FnMut(DriverFn) -> *const c_void,
    ) -> Result<Self, Vec<DriverFn>> {
        // SAFETY: the caller's promise.
        let pointers = unsafe { Pointers::resolve(&mut resolve) };
        let missing: Vec<_> = DriverFn::ALL
            .iter()
            .copied()
            .filter(|&function| function.is_required() && !pointers.has(function))
            .collect();
        if missing.is_empty() {
            Ok(Self { pointers, source: source.into(), _library: None })
        } else {
            Err(missing)
        }
    }

    /// The table with the library it came from, which stays open as long.
    pub(crate) fn keeping(self, library: libloading::Library) -> Self {
        Self { _library: Some(library), ..self }
    }
}

impl fmt::Debug for FnTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lacking: Vec<_> =
            DriverFn::ALL.iter().copied().filter(|&function| !self.provides(function)).collect();
        f.debug_struct("FnTable")
            .field("source", &self.source)
            .field("lacking", &lacking)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use core::ffi::c_int;

    use super::*;

    /// Stands for every function: no call in these tests reads its arguments but `cuDriverGetVersion`.
    unsafe extern "C" fn version(out: *mut c_int) -> CUresult {
        // SAFETY: the only caller passes a local.
        unsafe { *out = 12_345 };
        0
    }

    fn all_but(absent: &[DriverFn]) -> Result<FnTable, Vec<DriverFn>> {
        let resolve = |function: DriverFn| {
            if absent.contains(&function) { core::ptr::null() } else { version as *const c_void }
        };
        // SAFETY: only `cuDriverGetVersion`, whose signature `version` has, is called on these tables.
        unsafe { FnTable::from_resolver("a test", resolve) }
    }

    #[test]
    fn calls_go_through_the_pointers() {
        let table = all_but(&[]).unwrap();
        let mut out = 0;
        // SAFETY: the pointer is `version`, the argument a local.
        assert_eq!(unsafe { table.cuDriverGetVersion(&mut out) }, 0);
        assert_eq!(out, 12_345);
        assert_eq!(table.source(), "a test");
    }

    #[test]
    fn every_missing_required_function_is_named() {
        let absent = [DriverFn::cuInit, DriverFn::cuMemFree_v2, DriverFn::cuTensorMapEncodeTiled];
        let missing = all_but(&absent).unwrap_err();
        assert_eq!(missing, [DriverFn::cuInit, DriverFn::cuMemFree_v2]);
    }

    /// What a program needs to use a device at all. Another maker's driver, such as SCALE's, may have no more.
    #[test]
    fn a_driver_with_the_basics_alone_loads_and_each_of_them_is_required() {
        let basics = [
            "cuInit",
            "cuDriverGetVersion",
            "cuDeviceGetCount",
            "cuDeviceGet",
            "cuDeviceGetName",
            "cuDeviceTotalMem_v2",
            "cuDeviceGetAttribute",
            "cuDevicePrimaryCtxRetain",
            "cuDevicePrimaryCtxRelease_v2",
            "cuCtxGetCurrent",
            "cuCtxSetCurrent",
            "cuCtxSynchronize",
            "cuMemAlloc_v2",
            "cuMemFree_v2",
            "cuMemAllocHost_v2",
            "cuMemFreeHost",
            "cuMemGetInfo_v2",
            "cuMemcpyHtoD_v2",
            "cuMemcpyDtoH_v2",
            "cuMemcpyDtoD_v2",
            "cuMemcpyHtoDAsync_v2",
            "cuMemcpyDtoHAsync_v2",
            "cuMemcpyDtoDAsync_v2",
            "cuMemsetD8_v2",
            "cuMemsetD8Async",
            "cuStreamCreate",
            "cuStreamDestroy_v2",
            "cuStreamSynchronize",
            "cuStreamQuery",
            "cuStreamWaitEvent",
            "cuEventCreate",
            "cuEventRecord",
            "cuEventQuery",
            "cuEventSynchronize",
            "cuEventDestroy_v2",
            "cuModuleLoadDataEx",
            "cuModuleUnload",
            "cuModuleGetFunction",
            "cuLaunchKernel",
        ];
        let extras: Vec<_> =
            DriverFn::ALL.iter().copied().filter(|function| !basics.contains(&function.name())).collect();
        assert_eq!(extras.len() + basics.len(), DriverFn::ALL.len(), "every basic is a function of the list");
        let table = all_but(&extras).unwrap();
        assert!(extras.iter().all(|&function| !table.provides(function)));
        for &basic in DriverFn::ALL.iter().filter(|function| basics.contains(&function.name())) {
            assert_eq!(all_but(&[basic]).unwrap_err(), [basic]);
        }
    }

    #[test]
    fn a_missing_optional_function_leaves_the_table_usable_and_answers_801() {
        let table = all_but(&[DriverFn::cuTensorMapEncodeTiled, DriverFn::cuGraphExecUpdate_v2]).unwrap();
        assert!(!table.provides(DriverFn::cuTensorMapEncodeTiled));
        assert!(table.provides(DriverFn::cuInit));
        // SAFETY: the function is missing, so nothing is called.
        let status = unsafe { table.cuGraphExecUpdate_v2(0, 0, core::ptr::null_mut()) };
        assert_eq!(status, 801);
        assert!(format!("{table:?}").contains("cuTensorMapEncodeTiled"));
    }
}
