// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`FaultDriver`]: failures on demand, from any driver.

use core::fmt;
use std::collections::HashMap;
use std::sync::Arc;

use metrale_driver_sys::{
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, CUresult, DriverApi, DriverFn,
};
use parking_lot::Mutex;

use super::live::{LiveMemory, Name};

/// When a rule answers instead of the driver.
enum When {
    /// At one call, counted from 1 since the driver was made.
    Nth(u64),
    /// At that call and every later one.
    From(u64),
}

/// Functions that answer as ever on a context that is lost.
const NEED_NO_CONTEXT: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetMemPool",
    "cuDeviceSetMemPool",
    "cuMemGetAllocationGranularity",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxGetDevice",
    "cuGetErrorName",
    "cuGetErrorString",
];

/// Calls that fail by chance, reproducibly.
struct Chance {
    seed: u64,
    one_in: u64,
    functions: Vec<DriverFn>,
    status: CUresult,
}

#[derive(Default)]
struct State {
    rules: Vec<(DriverFn, When, CUresult)>,
    /// From the nth call of a function on, everything on the context fails.
    sticky_rules: Vec<(DriverFn, u64, CUresult)>,
    sticky: Option<CUresult>,
    /// From the nth call of a function on, everything fails.
    end_rules: Vec<(DriverFn, u64, CUresult)>,
    ended: Option<CUresult>,
    out_of_memory_size: Option<u64>,
    out_of_memory_total: Option<u64>,
    chance: Option<Chance>,
    calls: HashMap<DriverFn, u64>,
    injected: Vec<InjectedFault>,
    live: LiveMemory,
}

/// One failure that was injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct InjectedFault {
    /// The function that answered.
    pub function: DriverFn,
    /// Which call of it, from 1.
    pub call: u64,
    /// What it answered.
    pub status: CUresult,
}

/// A driver that fails on demand. A call that is failed never reaches the driver inside.
///
/// Rules may be added while others work. They are asked in this order: the driver's end, a sticky fault, the rules for single functions in
/// the order of their adding, out of memory, chance. A status of 0 is no failure; 999 replaces it.
///
/// ```
/// use std::sync::Arc;
/// use metrale_driver_sim::{ContextGuard, FaultDriver, Profile, SimDriver, driver_sys::{DriverApi, DriverFn}};
///
/// let faulty = Arc::new(FaultDriver::new(Arc::new(SimDriver::new(Profile::h200()))));
/// faulty.fail_nth(DriverFn::cuMemAlloc_v2, 2, 2);
///
/// let driver: Arc<dyn DriverApi> = faulty.clone();
/// let _context = ContextGuard::new(&driver, 0)?;
/// let mut address = 0;
/// // SAFETY: the result pointer is a local.
/// let statuses = [(); 3].map(|()| unsafe { driver.cuMemAlloc_v2(&mut address, 256) });
/// assert_eq!(statuses, [0, 2, 0]);
/// # Ok::<(), metrale_driver_sim::driver_sys::DriverError>(())
/// ```
pub struct FaultDriver {
    inner: Arc<dyn DriverApi>,
    state: Mutex<State>,
}

impl FaultDriver {
    /// Wraps a driver; nothing fails yet.
    #[must_use]
    pub fn new(inner: Arc<dyn DriverApi>) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// The `nth` call of `function` from now on answers `status`; 1 is the next call.
    pub fn fail_nth(&self, function: DriverFn, nth: u64, status: CUresult) {
        let mut state = self.state.lock();
        let call = state.count(function).saturating_add(nth.max(1));
        state.rules.push((function, When::Nth(call), failure(status)));
    }

    /// The `nth` call of `function` from now on, and every later one, answers `status`.
    pub fn fail_from(&self, function: DriverFn, nth: u64, status: CUresult) {
        let mut state = self.state.lock();
        let call = state.count(function).saturating_add(nth.max(1));
        state.rules.push((function, When::From(call), failure(status)));
    }

    /// Every call of `function` from now on answers `status`.
    pub fn fail_every(&self, function: DriverFn, status: CUresult) {
        self.fail_from(function, 1, status);
    }

    /// The `nth` call of `function` from now on answers `status`, and so does from then on every call that needs a
    /// context, as after a kernel's fault.
    pub fn fail_sticky(&self, function: DriverFn, nth: u64, status: CUresult) {
        let mut state = self.state.lock();
        let call = state.count(function).saturating_add(nth.max(1));
        state.sticky_rules.push((function, call, failure(status)));
    }

    /// The `nth` call of `function` from now on answers `status`, and so does from then on every call of every function, as
    /// when the driver is unloaded below a process that is about to end (4).
    pub fn end_at(&self, function: DriverFn, nth: u64, status: CUresult) {
        let mut state = self.state.lock();
        let call = state.count(function).saturating_add(nth.max(1));
        state.end_rules.push((function, call, failure(status)));
    }

    /// Device and managed allocations of `bytes` or more answer 2 (out of memory).
    pub fn out_of_memory_at_size(&self, bytes: u64) {
        self.state.lock().out_of_memory_size = Some(bytes);
    }

    /// Device and managed allocations that would bring the bytes live through this adaptor above `bytes` answer 2.
    pub fn out_of_memory_at_total(&self, bytes: u64) {
        self.state.lock().out_of_memory_total = Some(bytes);
    }

    /// One in `one_in` calls of `functions` answers `status`, by a chance that depends on `seed`, the function and the
    /// number of the call alone: the same program meets the same failures again, whatever its threads do in between.
    /// 1 fails every call, 0 none.
    pub fn fail_randomly(&self, seed: u64, one_in: u64, functions: &[DriverFn], status: CUresult) {
        let chance = Chance { seed, one_in, functions: functions.to_vec(), status: failure(status) };
        self.state.lock().chance = Some(chance);
    }

    /// Removes all rules and takes back a sticky fault and the driver's end. Counts and the list of injected failures stay.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.rules.clear();
        state.sticky_rules.clear();
        state.sticky = None;
        state.end_rules.clear();
        state.ended = None;
        state.out_of_memory_size = None;
        state.out_of_memory_total = None;
        state.chance = None;
    }

    /// What was injected, in order.
    #[must_use]
    pub fn injected(&self) -> Vec<InjectedFault> {
        self.state.lock().injected.clone()
    }

    /// Calls of a function so far, failed ones included.
    #[must_use]
    pub fn calls(&self, function: DriverFn) -> u64 {
        self.state.lock().count(function)
    }

    /// Bytes of device and managed memory that are live through this adaptor, as asked for; memory of pools and of
    /// `cuMemCreate` counts too.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.state.lock().live.bytes()
    }

    /// One call that is not about memory.
    fn call(&self, function: DriverFn, inner: impl FnOnce() -> CUresult) -> CUresult {
        let injected = self.state.lock().judge(function, None);
        injected.unwrap_or_else(inner)
    }

    /// An allocation: its bytes are counted before the driver is asked, so that threads cannot pass the total together.
    ///
    /// # Safety
    /// `result` is valid for reading once `inner` has succeeded.
    unsafe fn allocate(
        &self,
        function: DriverFn,
        name: fn(u64) -> Name,
        result: *mut u64,
        bytes: usize,
        inner: impl FnOnce() -> CUresult,
    ) -> CUresult {
        let bytes = bytes as u64;
        {
            let mut state = self.state.lock();
            if let Some(status) = state.judge(function, Some(bytes)) {
                return status;
            }
            state.live.expect(bytes);
        }
        let status = inner();
        let mut state = self.state.lock();
        if status == CUDA_SUCCESS {
            // SAFETY: the caller's promise.
            let result = unsafe { result.read_unaligned() };
            state.live.made(name(result), bytes);
        } else {
            state.live.refused(bytes);
        }
        status
    }

    /// A free.
    fn free(&self, function: DriverFn, name: Name, inner: impl FnOnce() -> CUresult) -> CUresult {
        let forgotten = {
            let mut state = self.state.lock();
            if let Some(status) = state.judge(function, None) {
                return status;
            }
            state.live.forget(name)
        };
        let status = inner();
        self.state.lock().live.answered(name, forgotten, status == CUDA_SUCCESS);
        status
    }

    /// A call after whose success the count of live memory changes.
    fn then(
        &self,
        function: DriverFn,
        inner: impl FnOnce() -> CUresult,
        success: impl FnOnce(&mut LiveMemory),
    ) -> CUresult {
        let status = self.call(function, inner);
        if status == CUDA_SUCCESS {
            success(&mut self.state.lock().live);
        }
        status
    }
}

impl fmt::Debug for FaultDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("FaultDriver")
            .field("inner", &self.inner.source())
            .field("rules", &(state.rules.len() + state.sticky_rules.len() + state.end_rules.len()))
            .field("injected", &state.injected.len())
            .finish_non_exhaustive()
    }
}

impl State {
    fn count(&self, function: DriverFn) -> u64 {
        self.calls.get(&function).copied().unwrap_or(0)
    }

    /// Counts a call and says what it answers instead of the driver. `bytes` is what an allocation asks for.
    fn judge(&mut self, function: DriverFn, bytes: Option<u64>) -> Option<CUresult> {
        let call = self.calls.entry(function).or_default();
        *call += 1;
        let call = *call;
        let due = |rules: &[(DriverFn, u64, CUresult)]| {
            rules.iter().find(|(of, nth, _)| *of == function && call >= *nth).map(|&(.., status)| status)
        };
        self.sticky = self.sticky.or_else(|| due(&self.sticky_rules));
        self.ended = self.ended.or_else(|| due(&self.end_rules));
        let status = self
            .ended
            .or_else(|| self.sticky.filter(|_| !NEED_NO_CONTEXT.contains(&function.name())))
            .or_else(|| self.by_rule(function, call))
            .or_else(|| bytes.and_then(|bytes| self.by_memory(bytes)))
            .or_else(|| self.by_chance(function, call))?;
        self.injected.push(InjectedFault { function, call, status });
        Some(status)
    }

    fn by_rule(&self, function: DriverFn, call: u64) -> Option<CUresult> {
        let hit = |when: &When| match *when {
            When::Nth(nth) => call == nth,
            When::From(nth) => call >= nth,
        };
        self.rules.iter().find(|(of, when, _)| *of == function && hit(when)).map(|&(.., status)| status)
    }

    fn by_memory(&self, bytes: u64) -> Option<CUresult> {
        let too_large = self.out_of_memory_size.is_some_and(|limit| bytes >= limit);
        let total = self.live.bytes().saturating_add(bytes);
        let too_much = self.out_of_memory_total.is_some_and(|limit| total > limit);
        (too_large || too_much).then_some(CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn by_chance(&self, function: DriverFn, call: u64) -> Option<CUresult> {
        let chance = self.chance.as_ref().filter(|chance| chance.functions.contains(&function))?;
        if chance.one_in == 0 {
            return None;
        }
        // The name, not the number in the list, so that a longer list changes nothing.
        let name = function.name().bytes().fold(0, |sum: u64, byte| mix(sum ^ u64::from(byte)));
        mix(chance.seed ^ mix(name ^ mix(call))).is_multiple_of(chance.one_in).then_some(chance.status)
    }
}

/// The finalizer of SplitMix64: every input bit reaches every output bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

fn failure(status: CUresult) -> CUresult {
    if status == CUDA_SUCCESS { CUDA_ERROR_UNKNOWN } else { status }
}

/// The body of one function: those about memory are counted, the rest only judged.
macro_rules! body {
    (@allocate $name:ident, $self:ident, $kind:ident, $result:ident, $bytes:ident, ($($arg:ident),*)) => {{
        // SAFETY: the caller's promise is the inner driver's.
        let inner = || unsafe { $self.inner.$name($($arg),*) };
        // SAFETY: a driver that succeeds has written the result.
        unsafe { $self.allocate(DriverFn::$name, Name::$kind, $result, $bytes, inner) }
    }};
    (@free $name:ident, $self:ident, $kind:ident, $memory:ident, ($($arg:ident),*)) => {
        // SAFETY: the caller's promise is the inner driver's.
        $self.free(DriverFn::$name, Name::$kind($memory), || unsafe { $self.inner.$name($($arg),*) })
    };
    (@then $name:ident, $self:ident, ($($arg:ident),*), $success:expr) => {
        // SAFETY: the caller's promise is the inner driver's.
        $self.then(DriverFn::$name, || unsafe { $self.inner.$name($($arg),*) }, $success)
    };
    (cuMemAlloc_v2, $self:ident, ($address:ident, $bytes:ident)) => {
        body!(@allocate cuMemAlloc_v2, $self, Address, $address, $bytes, ($address, $bytes))
    };
    (cuMemAllocManaged, $self:ident, ($address:ident, $bytes:ident, $flags:ident)) => {
        body!(@allocate cuMemAllocManaged, $self, Address, $address, $bytes, ($address, $bytes, $flags))
    };
    (cuMemAllocAsync, $self:ident, ($address:ident, $bytes:ident, $stream:ident)) => {
        body!(@allocate cuMemAllocAsync, $self, Address, $address, $bytes, ($address, $bytes, $stream))
    };
    (cuMemAllocFromPoolAsync, $self:ident, ($address:ident, $bytes:ident, $pool:ident, $stream:ident)) => {
        body!(@allocate cuMemAllocFromPoolAsync, $self, Address, $address, $bytes, ($address, $bytes, $pool, $stream))
    };
    (cuMemCreate, $self:ident, ($handle:ident, $bytes:ident, $prop:ident, $flags:ident)) => {
        body!(@allocate cuMemCreate, $self, Handle, $handle, $bytes, ($handle, $bytes, $prop, $flags))
    };
    (cuMemFree_v2, $self:ident, ($address:ident)) => {
        body!(@free cuMemFree_v2, $self, Address, $address, ($address))
    };
    (cuMemFreeAsync, $self:ident, ($address:ident, $stream:ident)) => {
        body!(@free cuMemFreeAsync, $self, Address, $address, ($address, $stream))
    };
    (cuMemRelease, $self:ident, ($handle:ident)) => {
        body!(@free cuMemRelease, $self, Handle, $handle, ($handle))
    };
    (cuMemMap, $self:ident, ($address:ident, $bytes:ident, $offset:ident, $handle:ident, $flags:ident)) => {
        body!(@then cuMemMap, $self, ($address, $bytes, $offset, $handle, $flags), |live| live.mapped($address, $handle))
    };
    (cuMemUnmap, $self:ident, ($address:ident, $bytes:ident)) => {
        body!(@then cuMemUnmap, $self, ($address, $bytes), |live| live.unmapped($address, $bytes as u64))
    };
    (cuMemRetainAllocationHandle, $self:ident, ($handle:ident, $address:ident)) => {
        body!(@then cuMemRetainAllocationHandle, $self, ($handle, $address), |live| {
            // SAFETY: a driver that succeeds has written the result.
            live.retained(Name::Handle(unsafe { $handle.read_unaligned() }));
        })
    };
    ($name:ident, $self:ident, ($($arg:ident),*)) => {
        // SAFETY: the caller's promise is the inner driver's.
        $self.call(DriverFn::$name, || unsafe { $self.inner.$name($($arg),*) })
    };
}

macro_rules! forward {
    ($($(#[$meta:meta])* $need:ident $since:literal fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        #[allow(non_snake_case, reason = "functions and arguments keep the C spelling")]
        impl DriverApi for FaultDriver {
            fn provides(&self, function: DriverFn) -> bool {
                self.inner.provides(function)
            }

            fn source(&self) -> String {
                format!("{} with faults", self.inner.source())
            }

            fn identity(&self) -> usize {
                self.inner.identity()
            }

            $(
                unsafe fn $name(&self, $($arg: $ty),*) -> CUresult {
                    body!($name, self, ($($arg),*))
                }
            )*
        }
    };
}

metrale_driver_sys::for_each_driver_function!(forward);
