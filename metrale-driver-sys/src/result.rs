// SPDX-License-Identifier: MIT OR Apache-2.0
//! Driver statuses: their numbers, names and texts, and the error that carries one.

use core::ffi::c_int;
use core::fmt;

use crate::{CUresult, DriverFn};

/// Declares the constants and the table of names and texts from one list.
macro_rules! statuses {
    ($($code:literal $name:ident $text:literal;)*) => {
        $(
            #[doc = concat!("Status ", stringify!($code), ": ", $text, ".")]
            pub const $name: CUresult = $code;
        )*

        /// Every status this crate knows by name, in rising order.
        pub const KNOWN_STATUSES: &[CUresult] = &[$($code),*];

        /// The name of a status, or `None` for a code this crate does not know.
        #[must_use]
        pub const fn status_name(status: CUresult) -> Option<&'static str> {
            match status {
                $($code => Some(stringify!($name)),)*
                _ => None,
            }
        }

        /// What a status means in a few words, or `None` for a code this crate does not know.
        #[must_use]
        pub const fn status_text(status: CUresult) -> Option<&'static str> {
            match status {
                $($code => Some($text),)*
                _ => None,
            }
        }
    };
}

statuses! {
    0 CUDA_SUCCESS "no error";
    1 CUDA_ERROR_INVALID_VALUE "invalid argument";
    2 CUDA_ERROR_OUT_OF_MEMORY "out of memory";
    3 CUDA_ERROR_NOT_INITIALIZED "the driver was not initialized";
    4 CUDA_ERROR_DEINITIALIZED "the driver is shutting down";
    5 CUDA_ERROR_PROFILER_DISABLED "the profiler is disabled";
    6 CUDA_ERROR_PROFILER_NOT_INITIALIZED "the profiler was not initialized";
    7 CUDA_ERROR_PROFILER_ALREADY_STARTED "the profiler is already running";
    8 CUDA_ERROR_PROFILER_ALREADY_STOPPED "the profiler is already stopped";
    34 CUDA_ERROR_STUB_LIBRARY "the library is the linker's stub, not a driver";
    36 CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER "the call needs a newer driver";
    46 CUDA_ERROR_DEVICE_UNAVAILABLE "the device is busy or unavailable";
    100 CUDA_ERROR_NO_DEVICE "no device is visible";
    101 CUDA_ERROR_INVALID_DEVICE "no such device";
    102 CUDA_ERROR_DEVICE_NOT_LICENSED "the device has no licence";
    200 CUDA_ERROR_INVALID_IMAGE "not a module image";
    201 CUDA_ERROR_INVALID_CONTEXT "no valid context is current";
    202 CUDA_ERROR_CONTEXT_ALREADY_CURRENT "the context is already current";
    205 CUDA_ERROR_MAP_FAILED "mapping failed";
    206 CUDA_ERROR_UNMAP_FAILED "unmapping failed";
    207 CUDA_ERROR_ARRAY_IS_MAPPED "the array is mapped";
    208 CUDA_ERROR_ALREADY_MAPPED "already mapped";
    209 CUDA_ERROR_NO_BINARY_FOR_GPU "the image holds no code for this device";
    210 CUDA_ERROR_ALREADY_ACQUIRED "already acquired";
    211 CUDA_ERROR_NOT_MAPPED "not mapped";
    212 CUDA_ERROR_NOT_MAPPED_AS_ARRAY "not mapped as an array";
    213 CUDA_ERROR_NOT_MAPPED_AS_POINTER "not mapped as a pointer";
    214 CUDA_ERROR_ECC_UNCORRECTABLE "uncorrectable memory error";
    215 CUDA_ERROR_UNSUPPORTED_LIMIT "the limit is not supported";
    216 CUDA_ERROR_CONTEXT_ALREADY_IN_USE "the context is in use by another thread";
    217 CUDA_ERROR_PEER_ACCESS_UNSUPPORTED "the devices cannot reach each other";
    218 CUDA_ERROR_INVALID_PTX "the PTX did not compile";
    219 CUDA_ERROR_INVALID_GRAPHICS_CONTEXT "invalid graphics context";
    220 CUDA_ERROR_NVLINK_UNCORRECTABLE "uncorrectable NVLink error";
    221 CUDA_ERROR_JIT_COMPILER_NOT_FOUND "the driver's PTX compiler library is missing";
    222 CUDA_ERROR_UNSUPPORTED_PTX_VERSION "the PTX version is newer than the driver";
    223 CUDA_ERROR_JIT_COMPILATION_DISABLED "compiling PTX is disabled";
    224 CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY "the execution affinity is not supported";
    225 CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC "the code synchronizes on the device, which is not supported";
    226 CUDA_ERROR_CONTAINED "a contained hardware error";
    300 CUDA_ERROR_INVALID_SOURCE "invalid device source";
    301 CUDA_ERROR_FILE_NOT_FOUND "file not found";
    302 CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND "a shared object lacks a symbol";
    303 CUDA_ERROR_SHARED_OBJECT_INIT_FAILED "a shared object did not start";
    304 CUDA_ERROR_OPERATING_SYSTEM "an operating system call failed";
    400 CUDA_ERROR_INVALID_HANDLE "invalid handle";
    401 CUDA_ERROR_ILLEGAL_STATE "not possible in the present state";
    402 CUDA_ERROR_LOSSY_QUERY "the query would lose information";
    500 CUDA_ERROR_NOT_FOUND "no such name";
    600 CUDA_ERROR_NOT_READY "work is not done yet";
    700 CUDA_ERROR_ILLEGAL_ADDRESS "a kernel touched a bad address";
    701 CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES "the launch asks for more resources than there are";
    702 CUDA_ERROR_LAUNCH_TIMEOUT "a kernel ran too long";
    703 CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING "the launch's texturing mode does not match";
    704 CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED "peer access is already enabled";
    705 CUDA_ERROR_PEER_ACCESS_NOT_ENABLED "peer access is not enabled";
    708 CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE "the primary context is already active";
    709 CUDA_ERROR_CONTEXT_IS_DESTROYED "the context was destroyed";
    710 CUDA_ERROR_ASSERT "an assertion failed in a kernel";
    711 CUDA_ERROR_TOO_MANY_PEERS "too many peers";
    712 CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED "the host memory is already registered";
    713 CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED "the host memory is not registered";
    714 CUDA_ERROR_HARDWARE_STACK_ERROR "a kernel's stack broke";
    715 CUDA_ERROR_ILLEGAL_INSTRUCTION "a kernel has an illegal instruction";
    716 CUDA_ERROR_MISALIGNED_ADDRESS "a kernel touched a misaligned address";
    717 CUDA_ERROR_INVALID_ADDRESS_SPACE "a kernel used an address of the wrong space";
    718 CUDA_ERROR_INVALID_PC "a kernel's program counter left its code";
    719 CUDA_ERROR_LAUNCH_FAILED "a kernel failed";
    720 CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE "too many blocks for a cooperative launch";
    721 CUDA_ERROR_TENSOR_MEMORY_LEAK "a kernel ended with tensor memory allocated";
    800 CUDA_ERROR_NOT_PERMITTED "not permitted";
    801 CUDA_ERROR_NOT_SUPPORTED "not supported";
    802 CUDA_ERROR_SYSTEM_NOT_READY "the system is not ready";
    803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH "the user-mode and kernel-mode drivers do not match";
    804 CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE "this device does not support the compatibility package";
    805 CUDA_ERROR_MPS_CONNECTION_FAILED "no connection to the MPS server";
    806 CUDA_ERROR_MPS_RPC_FAILURE "a call to the MPS server failed";
    807 CUDA_ERROR_MPS_SERVER_NOT_READY "the MPS server is not ready";
    808 CUDA_ERROR_MPS_MAX_CLIENTS_REACHED "the MPS server has no client left";
    809 CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED "the MPS server has no connection left";
    810 CUDA_ERROR_MPS_CLIENT_TERMINATED "the MPS client was ended";
    811 CUDA_ERROR_CDP_NOT_SUPPORTED "launches from the device are not supported";
    812 CUDA_ERROR_CDP_VERSION_MISMATCH "the versions of device-side launching do not match";
    900 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED "not allowed while a stream captures";
    901 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED "the capture is invalidated";
    902 CUDA_ERROR_STREAM_CAPTURE_MERGE "the call would merge two captures";
    903 CUDA_ERROR_STREAM_CAPTURE_UNMATCHED "the capture was not begun on this stream";
    904 CUDA_ERROR_STREAM_CAPTURE_UNJOINED "forked work was not joined before the capture ended";
    905 CUDA_ERROR_STREAM_CAPTURE_ISOLATION "the capture would depend on work outside it";
    906 CUDA_ERROR_STREAM_CAPTURE_IMPLICIT "the legacy stream would depend on the capture";
    907 CUDA_ERROR_CAPTURED_EVENT "the event was last recorded in a capture";
    908 CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD "the capture was begun by another thread";
    909 CUDA_ERROR_TIMEOUT "the wait timed out";
    910 CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE "the instantiated graph cannot be updated this way";
    911 CUDA_ERROR_EXTERNAL_DEVICE "an external device failed";
    912 CUDA_ERROR_INVALID_CLUSTER_SIZE "the cluster size is invalid";
    913 CUDA_ERROR_FUNCTION_NOT_LOADED "the function is not loaded";
    914 CUDA_ERROR_INVALID_RESOURCE_TYPE "the resource has another type";
    915 CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION "the resource's configuration is invalid";
    916 CUDA_ERROR_KEY_ROTATION "a key rotation is under way";
    999 CUDA_ERROR_UNKNOWN "unknown error";
}

/// Whether a status, once it has come, comes back from every later call on the context.
///
/// After such a fault only ending the process (or, for 4, 201 and 709, a new context) helps. Measured for 700 on an
/// H200 with driver 580: allocation, free, memory query, module load and unload all answer 700 from then on.
#[must_use]
pub const fn is_sticky(status: CUresult) -> bool {
    matches!(
        status,
        CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_CONTAINED
            | CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_TENSOR_MEMORY_LEAK
            | CUDA_ERROR_EXTERNAL_DEVICE
    )
}

/// A driver call that did not succeed: which function, and what it answered.
///
/// ```
/// use metrale_driver_sys::{CUDA_ERROR_OUT_OF_MEMORY, DriverError, DriverFn};
///
/// let error = DriverError { function: DriverFn::cuMemAlloc_v2, status: CUDA_ERROR_OUT_OF_MEMORY };
/// assert_eq!(error.to_string(), "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
///
/// let unknown = DriverError { function: DriverFn::cuMemFree_v2, status: 12345 };
/// assert_eq!(unknown.to_string(), "cuMemFree_v2: status 12345, which this build has no name for");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DriverError {
    /// The function that was called.
    pub function: DriverFn,
    /// Its answer, kept as it came.
    pub status: CUresult,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = self.function.name();
        let status: c_int = self.status;
        match (status_name(status), status_text(status)) {
            (Some(name), Some(text)) => write!(f, "{function}: {name} ({status}): {text}"),
            _ => write!(f, "{function}: status {status}, which this build has no name for"),
        }
    }
}

impl core::error::Error for DriverError {}

/// Makes a result of a status and keeps the function that answered it.
///
/// # Errors
/// A [`DriverError`] for every status but 0.
pub const fn check(function: DriverFn, status: CUresult) -> Result<(), DriverError> {
    if status == CUDA_SUCCESS { Ok(()) } else { Err(DriverError { function, status }) }
}

/// Calls one function of a driver and keeps its name with its status, as [`check`] does: `ask!(driver, cuInit(0))`.
///
/// The call is the driver's own, and so stands in an `unsafe` block of the caller's.
///
/// ```
/// use metrale_driver_sys::{DriverApi, DriverError, ask};
///
/// fn free_bytes(driver: &dyn DriverApi) -> Result<usize, DriverError> {
///     let (mut free, mut total) = (0, 0);
///     // SAFETY: the result pointers are locals.
///     unsafe { ask!(driver, cuMemGetInfo_v2(&mut free, &mut total)) }?;
///     Ok(free)
/// }
/// ```
#[macro_export]
macro_rules! ask {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $crate::check($crate::DriverFn::$function, $driver.$function($($argument),*))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_rise_and_every_one_has_a_name_and_a_text() {
        assert!(KNOWN_STATUSES.windows(2).all(|pair| pair[0] < pair[1]));
        for &status in KNOWN_STATUSES {
            assert!(status_name(status).is_some_and(|name| name.starts_with("CUDA_")));
            assert!(status_text(status).is_some_and(|text| !text.is_empty()));
        }
    }

    #[test]
    fn success_passes_and_unknown_codes_keep_their_number() {
        assert_eq!(check(DriverFn::cuInit, 0), Ok(()));
        let error = check(DriverFn::cuInit, i32::MIN).unwrap_err();
        assert_eq!(error.status, i32::MIN);
        assert!(error.to_string().contains("-2147483648"));
        assert_eq!(status_name(23456), None);
    }

    #[test]
    fn sticky_codes_are_the_faults_a_context_does_not_survive() {
        for status in [214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719] {
            assert!(is_sticky(status), "{status}");
        }
        for status in [0, 1, 2, 4, 201, 209, 218, 500, 600, 701, 709, 900, 901] {
            assert!(!is_sticky(status), "{status}");
        }
    }
}
