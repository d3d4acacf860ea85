// SPDX-License-Identifier: MIT OR Apache-2.0
//! What to do about a status: [`advice`], the one table of such texts.

use core::fmt;

use metrale_driver_sys::{
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_DEINITIALIZED,
    CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_IMAGE,
    CUDA_ERROR_INVALID_PTX, CUDA_ERROR_MPS_CLIENT_TERMINATED, CUDA_ERROR_MPS_CONNECTION_FAILED,
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, CUDA_ERROR_MPS_RPC_FAILURE,
    CUDA_ERROR_MPS_SERVER_NOT_READY, CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_DEVICE,
    CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_STUB_LIBRARY,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_NOT_READY, CUDA_ERROR_UNKNOWN,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CUresult, DriverError, DriverFn, is_sticky,
};

/// What to do about an answer of the driver, in a sentence or two; `None` where the status says all there is.
///
/// The texts are for people and serve every place that reports such an error. They are about the machine and the
/// process, never about one program.
///
/// ```
/// use metrale_driver_sys::{CUDA_ERROR_STUB_LIBRARY, DriverError, DriverFn};
///
/// let error = DriverError { function: DriverFn::cuInit, status: CUDA_ERROR_STUB_LIBRARY };
/// assert!(metrale_registry::advice(error).is_some_and(|text| text.contains("stubs")));
/// ```
#[must_use]
pub fn advice(error: DriverError) -> Option<&'static str> {
    use DriverFn::{cuDevicePrimaryCtxRetain, cuInit, cuModuleLoadData, cuModuleLoadDataEx};

    Some(match (error.function, error.status) {
        (_, CUDA_ERROR_STUB_LIBRARY) => {
            "The library that was opened is the stub that toolkits ship for linking. Take the toolkit's stubs folder \
             out of LD_LIBRARY_PATH, and install the NVIDIA driver, which brings the real libcuda.so.1."
        }
        (_, CUDA_ERROR_NO_DEVICE) => {
            "There is a driver, but it shows this process no device. Check CUDA_VISIBLE_DEVICES (empty, -1 or an \
             unknown name hides all), start a container with its GPUs passed through, and where MIG mode is on, \
             create a compute instance."
        }
        (_, CUDA_ERROR_NOT_INITIALIZED) => {
            "CUDA was started in this process's parent, before fork: a forked child cannot use it. Start the child \
             as a fresh program (spawn, exec), or start CUDA only after the fork. This does not mean that there is \
             no GPU."
        }
        (_, CUDA_ERROR_SYSTEM_NOT_READY) => {
            "The machine's GPUs are joined by NVSwitch and its fabric manager is not running, or still at work. \
             Start the service nvidia-fabricmanager (of the driver's own version) and try again."
        }
        (_, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) => {
            "libcuda.so.1 and the kernel module are of different driver versions: reboot after a driver update, and \
             see whether a cuda-compat folder or a container's own libcuda stands in front of the installed one."
        }
        (_, CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE) => {
            "A cuda-compat library was opened, which works on data-centre GPUs only. Take it out of LD_LIBRARY_PATH \
             and use the installed driver, or update that driver."
        }
        (_, CUDA_ERROR_DEVICE_UNAVAILABLE) => {
            "Another process holds the device, which is in an exclusive compute mode, or an MPS server is in the \
             way. See nvidia-smi for the mode and the process."
        }
        (
            _,
            CUDA_ERROR_MPS_CONNECTION_FAILED
            | CUDA_ERROR_MPS_RPC_FAILURE
            | CUDA_ERROR_MPS_SERVER_NOT_READY
            | CUDA_ERROR_MPS_MAX_CLIENTS_REACHED
            | CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED
            | CUDA_ERROR_MPS_CLIENT_TERMINATED,
        ) => {
            "The MPS control daemon is at fault: see its log, restart it, or unset CUDA_MPS_PIPE_DIRECTORY to go \
             without it."
        }
        (cuInit, CUDA_ERROR_UNKNOWN) => {
            "The kernel module does not answer, as happens after a suspend or where /dev/nvidia-uvm is missing. Load \
             the module nvidia_uvm anew, or reboot."
        }
        (cuDevicePrimaryCtxRetain, CUDA_ERROR_OUT_OF_MEMORY) => {
            "The device has no memory left for a context (about half a gigabyte): another process holds its memory. \
             See nvidia-smi."
        }
        (_, CUDA_ERROR_INVALID_CONTEXT) => {
            "This thread has no context current. Call bind_to_thread on each thread that did not make the host."
        }
        (cuModuleLoadData | cuModuleLoadDataEx, CUDA_ERROR_UNSUPPORTED_PTX_VERSION) => {
            "The PTX is newer than the driver. Update the driver, or compile with an older toolkit."
        }
        (_, CUDA_ERROR_UNSUPPORTED_PTX_VERSION) => {
            "This call compiles nothing: what is newer than the driver is the PTX of another library in this process, whose \
             work was still under way. Update the driver, or find the library whose first call this follows."
        }
        (cuModuleLoadData | cuModuleLoadDataEx, CUDA_ERROR_NO_BINARY_FOR_GPU) => {
            "The image holds no code for this device. Compile it for the device's architecture, or ship PTX beside \
             the binary."
        }
        (cuModuleLoadData | cuModuleLoadDataEx, CUDA_ERROR_INVALID_PTX) => {
            "The driver's assembler refused the PTX: its log says where. A target newer than the device, or a \
             .version too old for the target, ends here too."
        }
        (cuModuleLoadData | cuModuleLoadDataEx, CUDA_ERROR_INVALID_IMAGE) => {
            "The driver takes PTX text, a cubin or a fatbin, and holds this for none of them."
        }
        (_, status) if is_earlier_fault(status) => {
            "This call is not at fault: a kernel failed earlier, and the context answers everything with that from \
             now on. Find the kernel (a synchronization after every launch, or compute-sanitizer) and start the \
             process anew."
        }
        _ => return None,
    })
}

/// Whether the context is already gone, at a teardown: nothing is left to free, and nothing went wrong.
///
/// True for 4 (the driver is shutting down, as at the end of the process), 201 (no valid context) and 709 (the context
/// was destroyed).
#[must_use]
pub const fn is_teardown_noop(status: CUresult) -> bool {
    matches!(status, CUDA_ERROR_DEINITIALIZED | CUDA_ERROR_INVALID_CONTEXT | CUDA_ERROR_CONTEXT_IS_DESTROYED)
}

/// Whether a status, given to a call that runs no kernel, tells of a kernel that failed before.
pub(crate) const fn is_earlier_fault(status: CUresult) -> bool {
    is_sticky(status)
}

/// Shows an error with its advice after it.
pub(crate) struct Advised(pub(crate) DriverError);

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        match advice(self.0) {
            Some(text) => write!(f, ". {text}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrale_driver_sys::KNOWN_STATUSES;

    fn at(function: DriverFn, status: CUresult) -> &'static str {
        advice(DriverError { function, status }).unwrap_or_default()
    }

    #[test]
    fn each_answer_of_a_start_that_people_meet_has_its_own_advice() {
        for (status, word) in [
            (34, "stubs"),
            (100, "CUDA_VISIBLE_DEVICES"),
            (3, "fork"),
            (802, "fabric"),
            (803, "kernel module"),
            (804, "data-centre"),
        ] {
            assert!(at(DriverFn::cuInit, status).contains(word), "{status}");
        }
        assert!(at(DriverFn::cuInit, 100).contains("MIG"), "MIG on without an instance answers 100 as well");
        assert!(!at(DriverFn::cuInit, 3).contains("CUDA_VISIBLE_DEVICES"));
    }

    #[test]
    fn a_fault_of_an_earlier_kernel_is_not_blamed_on_the_load() {
        for status in [700, 716, 719] {
            let text = at(DriverFn::cuModuleLoadDataEx, status);
            assert!(text.contains("not at fault") && text.contains("earlier"), "{status}: {text}");
        }
    }

    #[test]
    fn advice_is_whole_sentences_and_success_needs_none() {
        assert_eq!(at(DriverFn::cuInit, 0), "");
        assert_eq!(at(DriverFn::cuMemAlloc_v2, 2), "", "memory is the backend's to explain");
        for &function in DriverFn::ALL {
            for &status in KNOWN_STATUSES {
                let text = at(function, status);
                assert!(text.is_empty() || text.ends_with('.'), "{text}");
                assert!(!text.contains("  "), "{text}");
            }
        }
    }

    #[test]
    fn teardown_noops_are_three() {
        let noops: Vec<_> =
            KNOWN_STATUSES.iter().copied().filter(|&status| is_teardown_noop(status)).collect();
        assert_eq!(noops, [4, 201, 709]);
    }
}
