// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`DriverApi`] and [`DriverFn`], both derived from the one list.

use core::fmt;
use core::str::FromStr;

use crate::{CUDA_ERROR_NOT_SUPPORTED, CUresult};

/// Derives the trait and the enumeration of its functions.
macro_rules! declare {
    ($($(#[$meta:meta])* $need:ident $since:literal fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// The CUDA driver API as an object: the C functions one to one, with raw types.
        ///
        /// Two types implement it: [`FnTable`](crate::FnTable) calls a real driver, the software driver calls its
        /// model. Adaptors wrap one and implement it again. The trait is object-safe, so that everything above holds
        /// an `Arc<dyn DriverApi>`; a virtual call costs about a nanosecond against a driver call's microsecond.
        ///
        /// # Safety
        ///
        /// Calling a method is calling the C function. The caller promises what the driver's reference asks of the
        /// arguments, above all:
        ///
        /// * pointers for results are valid for writing one value of their type (or null where the reference allows it);
        /// * host ranges are valid for reading or writing all of their bytes, and stay so until the work that uses
        ///   them is done: for the asynchronous calls that is after the stream is synchronized, not at the return;
        /// * names are C strings that end in NUL; images are what `cuModuleLoadData` can bound by itself (PTX ends in
        ///   NUL; a cubin or fatbin holds all the bytes its own header speaks of);
        /// * `kernelParams` has one pointer for each of the kernel's parameters, each valid for that parameter's size;
        /// * handles (streams, events, modules, functions, graphs, contexts, pools, physical memory) are live: the driver follows them. On an H200 a
        ///   stream that was destroyed or made up, and a made-up event, end the process with a segmentation fault where they
        ///   are used; only null and a few others are answered by a status;
        /// * device addresses that a call writes to are no host memory that Rust code has borrowed: under unified addressing
        ///   the driver takes the addresses of pinned and managed memory too, and where the device reads pageable memory, any.
        ///
        /// Other wrong device addresses and sizes are answered by a status, where the driver can tell.
        ///
        /// A function that the driver lacks answers [`CUDA_ERROR_NOT_SUPPORTED`]; [`provides`](Self::provides) tells beforehand.
        #[allow(non_snake_case, reason = "functions and arguments keep the C spelling")]
        pub trait DriverApi: Send + Sync {
            /// Whether the driver has the function at all.
            fn provides(&self, function: DriverFn) -> bool;

            /// Which driver this is, for people: a library's path, or the software driver and its profile.
            fn source(&self) -> String;

            /// A number that handles of one driver have in common and those of two drivers, while both live, have not. What
            /// all users of a driver share is found by it. A handle that passes calls on to another has that one's number.
            fn identity(&self) -> usize;

            $(
                $(#[$meta])*
                ///
                /// # Safety
                /// As the trait says of all its functions.
                #[must_use = "a status that is dropped is an error that is lost"]
                unsafe fn $name(&self, $($arg: $ty),*) -> CUresult;
            )*
        }

        /// A function of the driver API, by its C name with the version suffix.
        #[allow(non_camel_case_types, reason = "functions keep the C spelling")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum DriverFn {
            $($(#[$meta])* $name,)*
        }

        impl DriverFn {
            /// All functions of this build, in the order of the list.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The C name, as the library exports it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The first CUDA version that has the function, as 1000 × major + 10 × minor.
            #[must_use]
            pub const fn since(self) -> u32 {
                match self { $(Self::$name => $since,)* }
            }

            /// Whether a driver must have the function to be usable here.
            #[must_use]
            pub const fn is_required(self) -> bool {
                match self { $(Self::$name => is_required!($need),)* }
            }
        }

        /// Every call goes on to the driver inside.
        #[allow(non_snake_case, reason = "functions and arguments keep the C spelling")]
        impl<D: DriverApi + ?Sized> DriverApi for std::sync::Arc<D> {
            fn provides(&self, function: DriverFn) -> bool {
                (**self).provides(function)
            }

            fn source(&self) -> String {
                (**self).source()
            }

            fn identity(&self) -> usize {
                (**self).identity()
            }

            $(
                unsafe fn $name(&self, $($arg: $ty),*) -> CUresult {
                    // SAFETY: the caller's promise is the same for the driver inside.
                    unsafe { (**self).$name($($arg),*) }
                }
            )*
        }
    };
}

/// The list's word as a boolean.
macro_rules! is_required {
    (required) => {
        true
    };
    (optional) => {
        false
    };
}

for_each_driver_function!(declare);

impl fmt::Display for DriverFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no driver function of this build.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not a driver function of this build; names are the C names with their version, such as cuMemAlloc_v2"
)]
pub struct UnknownFunction {
    /// The name as given.
    pub name: String,
}

impl FromStr for DriverFn {
    type Err = UnknownFunction;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .iter()
            .copied()
            .find(|function| function.name() == name)
            .ok_or_else(|| UnknownFunction { name: name.to_owned() })
    }
}

/// What a call of a function that the driver lacks answers.
pub const MISSING_FUNCTION: CUresult = CUDA_ERROR_NOT_SUPPORTED;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_parse_back() {
        let mut names: Vec<_> = DriverFn::ALL.iter().map(|function| function.name()).collect();
        for &function in DriverFn::ALL {
            assert_eq!(function.name().parse(), Ok(function));
            assert!((2000..=13000).contains(&function.since()), "{function}");
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DriverFn::ALL.len());
        assert_eq!("cuMemAlloc".parse::<DriverFn>().unwrap_err().name, "cuMemAlloc");
    }

    #[test]
    fn the_trait_is_object_safe() {
        fn takes(_: Option<&dyn DriverApi>) {}
        takes(None);
    }
}
