// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`TraceDriver`]: an ordered log of calls, of any driver.

use core::fmt;
use core::hash::{Hash, Hasher};
use std::collections::HashMap;
use std::sync::Arc;

use metrale_driver_sys::{CUresult, DriverApi, DriverFn};
use parking_lot::Mutex;

use crate::thread;

/// One argument of a traced call.
///
/// Host pointers differ from run to run, so two of them are equal when both are null or neither is; numbers, handles and
/// device addresses are compared as they are.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TraceArgument {
    /// A number, a handle or a device address; signed ones are extended.
    Number(u64),
    /// A host pointer's address.
    Pointer(usize),
}

impl TraceArgument {
    /// What equality goes by.
    fn key(self) -> (bool, u64) {
        match self {
            Self::Number(number) => (false, number),
            Self::Pointer(address) => (true, u64::from(address != 0)),
        }
    }
}

impl PartialEq for TraceArgument {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for TraceArgument {}

impl Hash for TraceArgument {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Display for TraceArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) if *number >= 1 << 40 => write!(f, "{number:#x}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Pointer(0) => f.write_str("null"),
            Self::Pointer(_) => f.write_str("host"),
        }
    }
}

/// One call that returned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TraceCall {
    /// The function.
    pub function: DriverFn,
    /// Its arguments in C order.
    pub arguments: Vec<TraceArgument>,
    /// The calling thread: 0 for the first that called this trace, 1 for the next.
    pub thread: usize,
    /// The answer.
    pub status: CUresult,
}

impl fmt::Display for TraceCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}(", self.thread, self.function)?;
        for (at, argument) in self.arguments.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{argument}")?;
        }
        write!(f, ") -> {}", self.status)
    }
}

#[derive(Default)]
struct Log {
    calls: Vec<TraceCall>,
    threads: HashMap<u64, usize>,
}

/// A driver that writes down every call, in the order in which they returned.
///
/// ```
/// use std::sync::Arc;
/// use metrale_driver_sim::{ContextGuard, Profile, SimDriver, TraceDriver, driver_sys::DriverApi};
///
/// let trace = Arc::new(TraceDriver::new(Arc::new(SimDriver::new(Profile::h200()))));
/// let driver: Arc<dyn DriverApi> = trace.clone();
/// let context = ContextGuard::new(&driver, 0)?;
/// trace.take();
/// let mut address = 0;
/// // SAFETY: the result pointer is a local.
/// let _ = unsafe { driver.cuMemAlloc_v2(&mut address, 0) };
/// assert_eq!(trace.take()[0].to_string(), "[0] cuMemAlloc_v2(host, 0) -> 1");
/// # drop(context);
/// # Ok::<(), metrale_driver_sim::driver_sys::DriverError>(())
/// ```
pub struct TraceDriver {
    inner: Arc<dyn DriverApi>,
    log: Mutex<Log>,
}

impl TraceDriver {
    /// Wraps a driver and begins with an empty log.
    #[must_use]
    pub fn new(inner: Arc<dyn DriverApi>) -> Self {
        Self { inner, log: Mutex::default() }
    }

    /// A copy of the log.
    #[must_use]
    pub fn calls(&self) -> Vec<TraceCall> {
        self.log.lock().calls.clone()
    }

    /// The log, which begins anew; threads keep their numbers.
    pub fn take(&self) -> Vec<TraceCall> {
        core::mem::take(&mut self.log.lock().calls)
    }

    /// Calls of one function in the log.
    #[must_use]
    pub fn count(&self, function: DriverFn) -> usize {
        self.log.lock().calls.iter().filter(|call| call.function == function).count()
    }

    /// The functions in the log, in order.
    #[must_use]
    pub fn functions(&self) -> Vec<DriverFn> {
        self.log.lock().calls.iter().map(|call| call.function).collect()
    }

    fn note(&self, function: DriverFn, arguments: Vec<TraceArgument>, status: CUresult) -> CUresult {
        let mut log = self.log.lock();
        let next = log.threads.len();
        let thread = *log.threads.entry(thread::number()).or_insert(next);
        log.calls.push(TraceCall { function, arguments, thread, status });
        status
    }
}

impl fmt::Debug for TraceDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceDriver")
            .field("inner", &self.inner.source())
            .field("calls", &self.log.lock().calls.len())
            .finish_non_exhaustive()
    }
}

/// Where two logs part: the index of the first call that differs or that only one of them has; `None` for equal logs.
#[must_use]
pub fn first_difference(left: &[TraceCall], right: &[TraceCall]) -> Option<usize> {
    let shorter = left.len().min(right.len());
    let differs = left.iter().zip(right).position(|(left, right)| left != right);
    differs.or_else(|| (left.len() != right.len()).then_some(shorter))
}

/// Any argument as the log has it.
trait Argument {
    fn trace(&self) -> TraceArgument;
}

macro_rules! numbers {
    ($($name:ident)*) => {$(
        impl Argument for $name {
            fn trace(&self) -> TraceArgument {
                // Sign extension keeps a negative number apart from large ones of other types.
                TraceArgument::Number(*self as u64)
            }
        }
    )*};
}

numbers!(u8 i32 u32 u64 usize);

impl<T> Argument for *const T {
    fn trace(&self) -> TraceArgument {
        TraceArgument::Pointer(self.addr())
    }
}

impl<T> Argument for *mut T {
    fn trace(&self) -> TraceArgument {
        TraceArgument::Pointer(self.addr())
    }
}

macro_rules! forward {
    ($($(#[$meta:meta])* $need:ident $since:literal fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        #[allow(non_snake_case, reason = "functions and arguments keep the C spelling")]
        impl DriverApi for TraceDriver {
            fn provides(&self, function: DriverFn) -> bool {
                self.inner.provides(function)
            }

            fn source(&self) -> String {
                self.inner.source()
            }

            fn identity(&self) -> usize {
                self.inner.identity()
            }

            $(
                unsafe fn $name(&self, $($arg: $ty),*) -> CUresult {
                    let arguments = vec![$($arg.trace()),*];
                    // SAFETY: the caller's promise is the inner driver's.
                    let status = unsafe { self.inner.$name($($arg),*) };
                    self.note(DriverFn::$name, arguments, status)
                }
            )*
        }
    };
}

metrale_driver_sys::for_each_driver_function!(forward);
