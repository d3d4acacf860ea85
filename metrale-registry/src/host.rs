// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`CudaHost`]: the process's primary context and stream for a device, one for all who ask.
//!
//! ```text
//!              acquire                    made                  last handle goes
//!   (no slot) ─────────> Making ──────────────────> Live(Weak) ─────────────────> torn down ──> (no slot)
//!                          └── failed, released ───> (no slot)
//! ```
//! Whoever meets a slot that is `Making`, or `Live` with a host that is being torn down, waits for it. So there are
//! never two hosts of one device at a time, and devices do not wait for each other.

use core::fmt;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use metrale_driver_sys::{
    CU_STREAM_NON_BLOCKING, CUcontext, CUdevice, CUstream, DriverApi, DriverError, LoadError, ask, system,
};
use parking_lot::{Condvar, Mutex};

use crate::advice::Advised;
use crate::current::{CurrentContext, current_context, see, set_current_context, was_seen};
use crate::teardown::{Resource, Teardown, TeardownSink};
use crate::{DeviceFacts, VisibleDevices};

/// Why a device could not be made ready.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// No driver is installed, or it cannot be used.
    #[error(transparent)]
    NoDriver(Arc<LoadError>),
    /// The driver is there, and does not start.
    #[error("the driver ({driver}{}) does not start: {}", KernelModule(kernel_module.as_deref()), Advised(*error))]
    Start {
        /// Which driver: the file that was opened.
        driver: String,
        /// Its answer.
        error: DriverError,
        /// The version of the kernel's side of the driver, where the system tells and the answer is that the two sides do
        /// not fit each other.
        kernel_module: Option<String>,
    },
    /// There is no device of that ordinal.
    #[error("there is no device {ordinal}: {}; {visible}", DevicesSeen(*devices))]
    OrdinalOutOfRange {
        /// The ordinal that was asked for.
        ordinal: usize,
        /// How many devices this process sees.
        devices: usize,
        /// What may hide others.
        visible: VisibleDevices,
    },
    /// The device's facts cannot be had.
    #[error("device {ordinal}: {}", Advised(*error))]
    Device {
        /// The device.
        ordinal: usize,
        /// The driver's answer.
        error: DriverError,
    },
    /// The context or its stream cannot be made; what there was of them is released.
    #[error("the context of device {ordinal}: {}", Advised(*error))]
    Context {
        /// The device.
        ordinal: usize,
        /// The driver's answer.
        error: DriverError,
    },
}

impl HostError {
    /// The driver's answer, where there is one.
    #[must_use]
    pub const fn driver_error(&self) -> Option<DriverError> {
        match self {
            Self::Start { error, .. } | Self::Device { error, .. } | Self::Context { error, .. } => {
                Some(*error)
            }
            Self::NoDriver(_) | Self::OrdinalOutOfRange { .. } => None,
        }
    }
}

/// The version of the kernel's side, where it is known.
struct KernelModule<'a>(Option<&'a str>);

impl fmt::Display for KernelModule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(version) => write!(f, ", kernel module {version}"),
            None => Ok(()),
        }
    }
}

/// How many devices there are, and which ordinals.
struct DevicesSeen(usize);

impl fmt::Display for DevicesSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("this process sees no device"),
            1 => f.write_str("this process sees 1 device, of ordinal 0"),
            devices => write!(f, "this process sees {devices} devices, of ordinals 0 to {}", devices - 1),
        }
    }
}

/// A device made ready: its primary context, retained once, and one stream in it.
///
/// There is one host for each driver and ordinal in a process, shared by all its users and released with the last
/// [`Arc`]: the stream is destroyed, the context released. The stream is of the kind that does not wait for the legacy
/// stream. What cannot be released is told to the [sink](Self::set_teardown_sink).
///
/// Drivers are told apart by their `Arc`: two software drivers, or a driver and an adaptor around it, have hosts of
/// their own.
///
/// ```
/// use std::sync::Arc;
/// use metrale_driver_sim::{Profile, SimDriver};
/// use metrale_driver_sys::DriverApi;
/// use metrale_registry::CudaHost;
///
/// let driver: Arc<dyn DriverApi> = Arc::new(SimDriver::new(Profile::h200()));
/// let host = CudaHost::acquire(Arc::clone(&driver), 0)?;
/// assert_eq!(host.facts().compute_capability.to_string(), "9.0");
///
/// let again = CudaHost::acquire(driver, 0)?;
/// assert!(Arc::ptr_eq(&host, &again));
/// # Ok::<(), metrale_registry::HostError>(())
/// ```
pub struct CudaHost {
    /// What no other host of the process has, nor had.
    number: u64,
    driver: Arc<dyn DriverApi>,
    key: Key,
    facts: DeviceFacts,
    context: CUcontext,
    stream: CUstream,
    sink: Mutex<Option<TeardownSink>>,
    torn_down: bool,
}

impl CudaHost {
    /// The host of a device, made where there is none, and its context made current on the calling thread.
    ///
    /// Making one blocks for as long as the driver needs for a context. A failure releases what was made by then, and
    /// leaves the thread's current context as it was.
    ///
    /// # Errors
    /// [`HostError`], but for `NoDriver`.
    ///
    /// # During capture
    /// Allowed where the host exists. Making a stream leaves a capture on a non-blocking stream intact.
    pub fn acquire(driver: Arc<dyn DriverApi>, ordinal: usize) -> Result<Arc<Self>, HostError> {
        let key = Key::new(&driver, ordinal);
        let mut slots = HOSTS.slots.lock();
        loop {
            match slots.entry(key) {
                Entry::Vacant(vacant) => {
                    vacant.insert(HostSlot::Making);
                    break;
                }
                Entry::Occupied(occupied) => {
                    if let HostSlot::Live(host) = occupied.get()
                        && let Some(host) = host.upgrade()
                    {
                        // Not under the lock: should this be the last handle by now, its teardown takes the lock.
                        drop(slots);
                        host.bind_to_thread().map_err(|error| HostError::Context { ordinal, error })?;
                        return Ok(host);
                    }
                }
            }
            HOSTS.changed.wait(&mut slots);
        }
        drop(slots);

        let claim = Claim(key);
        let host = Arc::new(Self::make(driver, key)?);
        claim.fill(&host);
        Ok(host)
    }

    /// The host of a device where some user of it has one now. Makes none, and waits for none that is being made or torn
    /// down. The thread's current context stays what it was.
    #[must_use]
    pub fn existing(driver: &Arc<dyn DriverApi>, ordinal: usize) -> Option<Arc<Self>> {
        let slots = HOSTS.slots.lock();
        let Some(HostSlot::Live(host)) = slots.get(&Key::new(driver, ordinal)) else { return None };
        let host = host.upgrade();
        // Not under the lock: should this be the last handle by now, its teardown takes the lock.
        drop(slots);
        host
    }

    /// [`acquire`](Self::acquire) on the system's driver.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn system(ordinal: usize) -> Result<Arc<Self>, HostError> {
        Self::acquire(system().map_err(HostError::NoDriver)?, ordinal)
    }

    /// Makes the context current on the calling thread. Every thread that launches, copies or allocates needs it once;
    /// look-ups and loads do it by themselves. Does not block; allowed during a capture.
    ///
    /// # Errors
    /// The driver's status.
    pub fn bind_to_thread(&self) -> Result<(), DriverError> {
        set_current_context(self.driver(), self.context)?;
        see(self.number);
        Ok(())
    }

    /// The driver behind the context.
    #[must_use]
    pub fn driver(&self) -> &dyn DriverApi {
        &*self.driver
    }

    /// The driver behind the context, to keep.
    #[must_use]
    pub fn driver_arc(&self) -> Arc<dyn DriverApi> {
        Arc::clone(&self.driver)
    }

    /// The device's primary context.
    #[must_use]
    pub const fn context(&self) -> CUcontext {
        self.context
    }

    /// The driver's number for the device.
    #[must_use]
    pub const fn device(&self) -> CUdevice {
        self.facts.device
    }

    /// The device's place among those that this process sees.
    #[must_use]
    pub const fn ordinal(&self) -> usize {
        self.key.ordinal
    }

    /// The host's stream, good as long as the host is.
    #[must_use]
    pub const fn raw_stream(&self) -> CUstream {
        self.stream
    }

    /// What is fixed about the device.
    #[must_use]
    pub const fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// The sink that is told what a drop could not release, of this host and of the modules in it; `None` for a line on
    /// standard error, which is how a host begins. The last one set counts, for all who share the host.
    pub fn set_teardown_sink(&self, sink: Option<TeardownSink>) {
        *self.sink.lock() = sink;
    }

    /// Sets the sink where nobody has set one, and tells whether it did: for layers that have a better place than
    /// standard error, and must not take the word from those above.
    pub fn set_teardown_sink_if_none(&self, sink: TeardownSink) -> bool {
        let mut set = self.sink.lock();
        let free = set.is_none();
        set.get_or_insert(sink);
        free
    }

    /// The sink, to be called with no lock held.
    pub(crate) fn teardown_sink(&self) -> Option<TeardownSink> {
        self.sink.lock().clone()
    }

    /// The context current on this thread, 0 where none is: this host's own once the thread is
    /// [bound](Self::bind_to_thread). Does not block; about 60 ns; allowed during a capture.
    ///
    /// # Errors
    /// The driver's status.
    pub fn current_context(&self) -> Result<CUcontext, DriverError> {
        let current = current_context(self.driver())?;
        see(if current == self.context { self.number } else { 0 });
        Ok(current)
    }

    /// Whether the context was current on this thread when this crate last heard of it: in
    /// [`bind_to_thread`](Self::bind_to_thread) or [`current_context`](Self::current_context), with none made current through this crate since.
    /// The driver is not asked: what another library made current since is not seen.
    #[inline]
    #[must_use]
    pub fn was_current(&self) -> bool {
        was_seen(self.number)
    }

    /// Makes the context current on this thread until the guard goes, and then what was before. Does not block; allowed
    /// during a capture. Where the driver does not say what is current, this is believed of a thread that
    /// [was seen](Self::was_current) with the context.
    ///
    /// # Errors
    /// The driver's status; what was current still is.
    pub fn enter(&self) -> Result<CurrentContext<'_>, DriverError> {
        CurrentContext::enter(self.driver(), self.context, self.number)
    }

    fn make(driver: Arc<dyn DriverApi>, key: Key) -> Result<Self, HostError> {
        let ordinal = key.ordinal;
        let facts = DeviceFacts::of(&*driver, ordinal)?;
        let mut context = 0;
        // SAFETY: the result pointer is a local.
        unsafe { ask!(driver, cuDevicePrimaryCtxRetain(&mut context, facts.device)) }
            .map_err(|error| HostError::Context { ordinal, error })?;
        match make_stream(&*driver, context) {
            Ok(stream) => {
                let number = HOSTS.made.fetch_add(1, Ordering::Relaxed) + 1;
                let sink = Mutex::new(None);
                Ok(Self { number, driver, key, facts, context, stream, sink, torn_down: false })
            }
            Err(error) => {
                let mut teardown = Teardown::new(ordinal);
                teardown.note(Resource::Context, release_context(&*driver, facts.device));
                teardown.tell(None);
                Err(HostError::Context { ordinal, error })
            }
        }
    }

    /// Gives stream and context back, once.
    pub(crate) fn tear_down(&mut self) -> Teardown {
        let mut teardown = Teardown::new(self.key.ordinal);
        if !core::mem::replace(&mut self.torn_down, true) {
            let _claim = Claim(self.key);
            teardown.note(Resource::Stream, self.destroy_stream());
            teardown.note(Resource::Context, release_context(self.driver(), self.facts.device));
        }
        teardown
    }

    fn destroy_stream(&self) -> Result<(), DriverError> {
        let _current = self.enter()?;
        // SAFETY: the stream is this host's own, and this is the last use of it.
        unsafe { ask!(self.driver, cuStreamDestroy_v2(self.stream)) }
    }
}

impl Drop for CudaHost {
    fn drop(&mut self) {
        let sink = self.teardown_sink();
        // The slot is free again by the time the sink is called, which may well ask for a new host.
        self.tear_down().tell(sink.as_ref());
    }
}

impl fmt::Debug for CudaHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaHost")
            .field("driver", &self.driver.source())
            .field("facts", &self.facts)
            .field("context", &format_args!("{:#x}", self.context))
            .field("stream", &format_args!("{:#x}", self.stream))
            .finish_non_exhaustive()
    }
}

/// Makes the context current and a stream in it; where that fails, what was current is current again.
fn make_stream(driver: &dyn DriverApi, context: CUcontext) -> Result<CUstream, DriverError> {
    let before = current_context(driver)?;
    set_current_context(driver, context)?;
    let mut stream = 0;
    // SAFETY: the result pointer is a local.
    let made = unsafe { ask!(driver, cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING)) };
    if made.is_err() && before != context {
        // The stream's error is the one that counts.
        let _ = set_current_context(driver, before);
    }
    made.map(|()| stream)
}

fn release_context(driver: &dyn DriverApi, device: CUdevice) -> Result<(), DriverError> {
    // SAFETY: no memory is passed; the caller had retained the context and gives that reference back.
    unsafe { ask!(driver, cuDevicePrimaryCtxRelease_v2(device)) }
}

/// Which host: of which driver, by its address, and which device. A host holds its driver, so that no other can have
/// the address while the slot is there.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    driver: usize,
    ordinal: usize,
}

impl Key {
    fn new(driver: &Arc<dyn DriverApi>, ordinal: usize) -> Self {
        Self { driver: Arc::as_ptr(driver).cast::<()>().addr(), ordinal }
    }
}

enum HostSlot {
    /// A thread is at work on it.
    Making,
    /// Made; where the handle is dead, a thread is tearing it down.
    Live(Weak<CudaHost>),
}

struct Hosts {
    slots: Mutex<HashMap<Key, HostSlot>>,
    /// A slot was filled or emptied.
    changed: Condvar,
    /// Hosts ever made.
    made: AtomicU64,
}

/// The hosts of this process.
static HOSTS: LazyLock<Hosts> =
    LazyLock::new(|| Hosts { slots: Mutex::default(), changed: Condvar::new(), made: AtomicU64::new(0) });

/// The right to a slot: filled with a host, or emptied when dropped, be it by an error or a panic.
struct Claim(Key);

impl Claim {
    fn fill(self, host: &Arc<CudaHost>) {
        HOSTS.slots.lock().insert(self.0, HostSlot::Live(Arc::downgrade(host)));
        HOSTS.changed.notify_all();
        core::mem::forget(self);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        HOSTS.slots.lock().remove(&self.0);
        HOSTS.changed.notify_all();
    }
}
