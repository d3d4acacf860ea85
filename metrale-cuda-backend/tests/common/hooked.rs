// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver that shows a test what is true at the very moment of a call, whose pinned memory is never clean, and whose
//! device can be another in one attribute.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use metrale_cuda_backend::DriverApi;
use metrale_driver_sim::driver_sys::{
    CUDA_ERROR_NOT_SUPPORTED, CUdevice_attribute, CUresult, DriverFn, for_each_driver_function,
};

type Hook = Arc<dyn Fn(DriverFn) + Send + Sync>;

/// Wraps a driver.
pub struct HookedDriver {
    inner: Arc<dyn DriverApi>,
    hook: Mutex<Option<Hook>>,
    attributes: Mutex<HashMap<CUdevice_attribute, Result<i32, CUresult>>>,
    lacks: Vec<DriverFn>,
    /// Called when the driver inside has answered.
    after: Mutex<Option<Hook>>,
}

impl HookedDriver {
    pub fn new(inner: Arc<dyn DriverApi>) -> Self {
        Self {
            inner,
            hook: Mutex::new(None),
            attributes: Mutex::default(),
            lacks: Vec::new(),
            after: Mutex::default(),
        }
    }

    /// A driver without an optional function.
    pub fn lacking(inner: Arc<dyn DriverApi>, function: DriverFn) -> Self {
        Self { lacks: vec![function], ..Self::new(inner) }
    }

    /// A driver without any optional function.
    pub fn basics(inner: Arc<dyn DriverApi>) -> Self {
        let lacks = DriverFn::ALL.iter().copied().filter(|function| !function.is_required()).collect();
        Self { lacks, ..Self::new(inner) }
    }

    /// Calls `hook` before every call from now on, on the calling thread, which it may keep waiting.
    pub fn before_each(&self, hook: impl Fn(DriverFn) + Send + Sync + 'static) {
        *self.hook.lock().unwrap() = Some(Arc::new(hook));
    }

    /// Calls `hook` after every call from now on, before its caller has the answer.
    pub fn after_each(&self, hook: impl Fn(DriverFn) + Send + Sync + 'static) {
        *self.after.lock().unwrap() = Some(Arc::new(hook));
    }

    /// Answers a device attribute by this value from now on.
    pub fn answer_attribute(&self, which: CUdevice_attribute, value: i32) {
        self.attributes.lock().unwrap().insert(which, Ok(value));
    }

    /// Refuses to answer a device attribute from now on.
    pub fn fail_attribute(&self, which: CUdevice_attribute, status: CUresult) {
        self.attributes.lock().unwrap().insert(which, Err(status));
    }

    fn call(&self, function: DriverFn, inner: impl FnOnce() -> CUresult) -> CUresult {
        let hook = self.hook.lock().unwrap().clone();
        if let Some(hook) = hook {
            hook(function);
        }
        let status = if self.lacks.contains(&function) { CUDA_ERROR_NOT_SUPPORTED } else { inner() };
        let after = self.after.lock().unwrap().clone();
        if let Some(after) = after {
            after(function);
        }
        status
    }
}

macro_rules! body {
    (cuMemAllocHost_v2, $self:ident, ($address:ident, $bytes:ident)) => {{
        // SAFETY: the caller's promise is the inner driver's.
        let status = $self.call(DriverFn::cuMemAllocHost_v2, || unsafe { $self.inner.cuMemAllocHost_v2($address, $bytes) });
        if status == 0 {
            // SAFETY: the inner driver has written the result.
            let memory = unsafe { $address.read() };
            // SAFETY: the inner driver has just allocated that many bytes there.
            unsafe { memory.cast::<u8>().write_bytes(0xEE, $bytes) };
        }
        status
    }};
    (cuDeviceGetAttribute, $self:ident, ($value:ident, $which:ident, $device:ident)) => {{
        let set = $self.attributes.lock().unwrap().get(&$which).copied();
        // SAFETY: the caller's promise is the inner driver's.
        let asked = || unsafe { $self.inner.cuDeviceGetAttribute($value, $which, $device) };
        let status = $self.call(DriverFn::cuDeviceGetAttribute, asked);
        match set {
            Some(Err(status)) => status,
            Some(Ok(set)) => {
                // SAFETY: the caller's promise is that the result can be written.
                unsafe { $value.write(set) };
                0
            }
            None => status,
        }
    }};
    ($name:ident, $self:ident, ($($arg:ident),*)) => {
        // SAFETY: the caller's promise is the inner driver's.
        $self.call(DriverFn::$name, || unsafe { $self.inner.$name($($arg),*) })
    };
}

macro_rules! forward {
    ($($(#[$meta:meta])* $need:ident $since:literal fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        #[allow(non_snake_case, reason = "functions and arguments keep the C spelling")]
        impl DriverApi for HookedDriver {
            fn provides(&self, function: DriverFn) -> bool {
                !self.lacks.contains(&function) && self.inner.provides(function)
            }

            fn source(&self) -> String {
                self.inner.source()
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

for_each_driver_function!(forward);
