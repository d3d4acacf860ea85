// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `extern "C"` block, for programs that link the driver (`-lcuda`) instead of finding it at run time.

use core::ffi::c_void;

use crate::{CUresult, DriverFn, FnTable};

/// Derives the declarations and their addresses.
macro_rules! link {
    ($($(#[$meta:meta])* $need:ident $since:literal fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        #[allow(non_snake_case, reason = "functions and arguments keep the C spelling")]
        unsafe extern "C" {
            $(
                $(#[$meta])*
                ///
                /// # Safety
                /// As [`DriverApi`](crate::DriverApi) says of all its functions.
                pub fn $name($($arg: $ty),*) -> CUresult;
            )*
        }

        fn address_of(function: DriverFn) -> *const c_void {
            match function { $(DriverFn::$name => $name as *const c_void,)* }
        }
    };
}

for_each_driver_function!(link);

impl FnTable {
    /// The table of the driver this program is linked to.
    ///
    /// # Panics
    /// Never: a linked program has every symbol, or it would not have started.
    #[must_use]
    pub fn linked() -> Self {
        // SAFETY: the addresses are the linked driver's functions, declared above from the same list.
        match unsafe { Self::from_resolver("linked libcuda", address_of) } {
            Ok(table) => table,
            Err(missing) => unreachable!("linked, yet without {missing:?}"),
        }
    }
}
