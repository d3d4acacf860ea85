// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one place where a driver status becomes an error of this crate.

use metrale_driver_sys::DriverError;

use crate::error::{CallFailed, ContextLost, Error, Remedy, remedy_of_status};

/// Calls one driver function and keeps its name with its status: `ask!(driver, cuInit(0))`. A status that tells of a lost
/// context is noted in passing.
macro_rules! ask {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let driver: &dyn metrale_driver_sys::DriverApi = $driver;
        $crate::fault_latch::noted(driver, metrale_driver_sys::ask!(driver, $function($($argument),*)))
    }};
}
pub(crate) use ask;

/// Converts the driver's answer into this crate's.
pub(crate) trait Doing<T> {
    /// The typed cause that fits the status; `words` is only called for an error.
    fn doing(self, words: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Doing<T> for Result<T, DriverError> {
    fn doing(self, words: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|driver| failed(driver, words(), None))
    }
}

/// The typed cause for a driver error. What is known beyond the status goes into `hint`; without one, the general advice
/// for the status does.
pub(crate) fn failed(driver: DriverError, doing: String, hint: Option<String>) -> Error {
    if remedy_of_status(driver.status) == Remedy::Relaunch {
        return ContextLost { doing, driver, first: None }.into();
    }
    let hint = hint.or_else(|| metrale_registry::advice(driver).map(str::to_owned));
    CallFailed { doing, driver, hint }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrale_driver_sys::DriverFn;

    fn answer(function: DriverFn, status: i32) -> Result<(), DriverError> {
        metrale_driver_sys::check(function, status)
    }

    #[test]
    fn success_asks_for_no_words() {
        answer(DriverFn::cuInit, 0).doing(|| unreachable!("built for a success")).unwrap();
    }

    #[test]
    fn lost_contexts_and_refused_calls_are_different_types() {
        let error = answer(DriverFn::cuMemFree_v2, 709).doing(|| "freeing".into()).unwrap_err();
        assert_eq!(error.downcast_ref::<ContextLost>().unwrap().driver.status, 709);
        let error = answer(DriverFn::cuMemcpyDtoH_v2, 1).doing(|| "copying 4 bytes".into()).unwrap_err();
        assert_eq!(error.downcast_ref::<CallFailed>().unwrap().driver.function, DriverFn::cuMemcpyDtoH_v2);
        let text = error.to_string();
        assert_eq!(text, "copying 4 bytes: cuMemcpyDtoH_v2: CUDA_ERROR_INVALID_VALUE (1): invalid argument");
    }

    #[test]
    fn a_hint_stands_behind_the_status() {
        let driver = DriverError { function: DriverFn::cuMemcpyDtoH_v2, status: 1 };
        let error = failed(driver, "copying".into(), Some("freed at a.rs:1:1".into()));
        assert!(error.to_string().ends_with("invalid argument (freed at a.rs:1:1)"));
    }
}
