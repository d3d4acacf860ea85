// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`BackendBuilder`]: how a backend is made.

use core::fmt;
use std::sync::Arc;

use metrale_driver_sys::{CUDA_ERROR_INVALID_VALUE, DriverApi, attribute, is_sticky};
use metrale_registry::{
    CudaHost, HostError, LookUp, LookUpObserver, MetraleRegistry, ModuleInfo, TeardownSink,
};
use metrale_telemetry::{KernelAudit, Lookup, ModuleLoad, Need, kernel_audit, run_metrics};
use parking_lot::Mutex;

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::config::{BackendConfig, small_most};
use crate::error::{BadArgument, Error, FeatureOff, Result};
use crate::fault_latch::FaultLatch;
use crate::features::{HAS_REDZONE, TIMES_SPANS};
use crate::graph::GraphClient;
use crate::handles::{Handles, Kind};
use crate::kernel_table::Kernels;
use crate::ledger_writer::LedgerWriter;
use crate::memory::{
    AllocLock, Cost, Costs, Deferred, MemInfo, MemInfoError, MemoryInfo, OwnedAddresses, OwnedArenas,
    Polling, memory_info_of,
};
use crate::op_cache::OpCache;
use crate::redzone::{MAX_BAND_BYTES, Zones};
use crate::signature::Signatures;
use crate::span_table::Timing;

/// Makes a [`MetraleCudaBackend`]; from [`MetraleCudaBackend::builder`].
#[derive(Clone, Default)]
#[must_use = "a builder does nothing until `build`"]
pub struct BackendBuilder {
    driver: Option<Arc<dyn DriverApi>>,
    pub(crate) ordinal: usize,
    pub(crate) modules: Vec<(&'static str, &'static [u8])>,
    pub(crate) laid_out_for: Option<u32>,
    pub(crate) config: Option<BackendConfig>,
}

impl BackendBuilder {
    /// The driver to work on; the system's by default.
    pub fn driver(self, driver: Arc<dyn DriverApi>) -> Self {
        Self { driver: Some(driver), ..self }
    }

    /// The device, by its place among those the process sees; the first by default.
    pub fn ordinal(self, ordinal: usize) -> Self {
        Self { ordinal, ..self }
    }

    /// Kernel modules to load: a name, and PTX text, a cubin or a fatbin. Adds to those given before.
    pub fn modules(mut self, modules: &[(&'static str, &'static [u8])]) -> Self {
        self.modules.extend_from_slice(modules);
        self
    }

    /// The number of multiprocessors that the build laid its grids out for. A device with another number is warned of: the
    /// modules run there, perhaps slower.
    pub fn laid_out_for(self, sm_count: u32) -> Self {
        Self { laid_out_for: Some(sm_count), ..self }
    }

    /// The configuration; what the environment says is then not looked at.
    pub fn config(self, config: BackendConfig) -> Self {
        Self { config: Some(config), ..self }
    }

    /// Makes the backend: the device's context, current on this thread afterwards, and the modules in it.
    ///
    /// First of all it asks whether the device runs the modules ([`preflight`](Self::preflight)); what is only worth a
    /// warning is logged. Begins a run in [`metrale_telemetry::run_metrics`], or takes part in that of the backends there are,
    /// whose counts stay. Blocks while the driver makes the context and compiles the
    /// modules. Allowed during a capture only where the device's context exists.
    ///
    /// # Errors
    /// [`ConfigError`](crate::ConfigError) for an environment variable that does not parse;
    /// [`MemInfoError`] for a [`meminfo_path`](BackendConfig::meminfo_path) that cannot be read;
    /// [`FeatureOff`] for red zones without the feature `redzone`, and for spans around kernels without `timing`; [`BadArgument`] for bands above
    /// [`MAX_BAND_BYTES`];
    /// [`HostError`](crate::HostError) without a usable driver or device; [`PreflightError`](crate::PreflightError) for
    /// modules that the device does not run; [`ContextLost`](crate::ContextLost) where a kernel of this process faulted on
    /// the device before; [`RegistryError`](crate::RegistryError) for a
    /// module that does not load. Nothing is left.
    pub fn build(self) -> Result<MetraleCudaBackend> {
        let config = match &self.config {
            Some(config) => config.clone(),
            None => BackendConfig::from_env()?,
        };
        if config.redzone.band_bytes > 0 && !HAS_REDZONE {
            return Err(FeatureOff { feature: "redzone" }.into());
        }
        if config.time_kernels && !TIMES_SPANS {
            return Err(FeatureOff { feature: "timing" }.into());
        }
        if config.redzone.band_bytes > MAX_BAND_BYTES {
            return Err(BadArgument::new(format!(
                "red zones of {} bytes: a band has {MAX_BAND_BYTES} bytes at most; set redzone.band_bytes to less, such as 1024",
                config.redzone.band_bytes
            ))
            .into());
        }
        // Later on one that cannot be read is passed over, as the machine's own may be.
        if let Some(path) = &config.meminfo_path
            && let Err(error @ MemInfoError::Unreadable { .. }) = MemInfo::read(path)
        {
            return Err(Error::from(error).context("the configured meminfo_path"));
        }
        let driver = self.driver_or_system()?;
        let ordinal = self.ordinal;
        FaultLatch::at(&driver, ordinal).sound(|| format!("making a backend on device {ordinal}"))?;
        let warnings = self.preflight_on(&*driver)?;
        // Before the first look-up: the only backend of a process begins a run, and its audit lists its look-ups alone.
        let run = run_metrics::join_run();
        let host = CudaHost::acquire(driver, self.ordinal)?;
        let latch = FaultLatch::of(&host);
        host.set_teardown_sink_if_none(teardown_sink(Arc::clone(&latch)));
        let costs = Costs::default();
        let used = || {
            memory_info_of(host.driver())
                .map(|info| info.used_bytes())
                .doing(|| "asking for the free memory".to_owned())
        };
        let baseline = used()?;
        let registry = MetraleRegistry::load_into(Arc::clone(&host), &self.modules)?;
        costs.set_baseline(baseline);
        costs.note(Cost::Modules, used()? as i64 - baseline as i64);
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        for module in registry.modules() {
            warn_of(&module);
        }
        let audit = Arc::new(KernelAudit::new());
        note_modules(&registry, &audit);
        registry.observe_look_ups(look_up_observer(Arc::clone(&audit)));
        let reads_pageable_memory = reads_pageable_memory(&host);
        let small_most = small_most(&config, host.facts().total_bytes);
        let ledger_writer = Arc::new(LedgerWriter::new(config.recent_events));
        let backend = MetraleCudaBackend {
            audit,
            graph_client: GraphClient::new(&host, ledger_writer.ledger().probe()),
            ledger_writer,
            zones: Zones::new(config.redzone.clone()),
            costs,
            polling: Polling::default(),
            alloc_lock: AllocLock::new(),
            pinned: Mutex::default(),
            owned_arenas: OwnedArenas::default(),
            owned_addresses: OwnedAddresses::default(),
            deferred: Deferred::default(),
            streams: Handles::new(Kind::Stream),
            events: Handles::new(Kind::Event),
            kernels: Kernels::default(),
            signatures: Signatures::new(&self.modules),
            registry,
            host,
            op_cache: OpCache::default(),
            timing: Timing::default(),
            latch,
            config,
            reads_pageable_memory,
            small_most,
            run,
        };
        backend.take_over_arenas();
        // Not `memory_info`, which refuses where this thread captures on another backend's behalf.
        let memory = backend.ask_memory_info().doing(|| "asking for the free memory".to_owned())?;
        if backend.run.began() {
            run_metrics::process().baseline().set(memory.free_bytes);
        }
        if backend.config.time_kernels {
            run_metrics::process().spans().set_enabled(true);
        }
        backend.say_started(memory);
        Ok(backend)
    }
}

impl BackendBuilder {
    /// The driver that was given, or the system's.
    pub(crate) fn driver_or_system(&self) -> Result<Arc<dyn DriverApi>, HostError> {
        match &self.driver {
            Some(driver) => Ok(Arc::clone(driver)),
            None => metrale_driver_sys::system().map_err(HostError::NoDriver),
        }
    }
}

impl MetraleCudaBackend {
    /// A backend on a device of the system's driver, with these modules and the environment's configuration.
    ///
    /// # Errors
    /// As [`BackendBuilder::build`].
    pub fn new(ordinal: usize, ptx_modules: &[(&'static str, &'static [u8])]) -> anyhow::Result<Self> {
        Ok(Self::builder().ordinal(ordinal).modules(ptx_modules).build()?)
    }

    /// A builder, for another driver, device or configuration.
    pub fn builder() -> BackendBuilder {
        BackendBuilder::default()
    }

    /// One line for the log of whoever asks later what this program ran on.
    fn say_started(&self, memory: MemoryInfo) {
        let facts = self.facts();
        let modules = self.registry.module_names().len();
        tracing::info!(
            "device {}: {} (compute capability {}, {} multiprocessors, {}), {memory}; driver {}; {modules} module{} loaded",
            facts.ordinal,
            facts.name,
            facts.compute_capability,
            facts.sm_count,
            if facts.integrated { "integrated" } else { "discrete" },
            self.driver().source(),
            if modules == 1 { "" } else { "s" }
        );
    }
}

impl fmt::Debug for BackendBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modules: Vec<_> = self.modules.iter().map(|(name, _)| name).collect();
        f.debug_struct("BackendBuilder")
            .field("driver", &self.driver.as_ref().map(|driver| driver.source()))
            .field("ordinal", &self.ordinal)
            .field("modules", &modules)
            .field("laid_out_for", &self.laid_out_for)
            .field("config", &self.config)
            .finish()
    }
}

/// Logs what modules and host could not release; only at DEBUG where the context is lost, which was logged before.
fn teardown_sink(latch: Arc<FaultLatch>) -> TeardownSink {
    Arc::new(move |error| {
        let known = error.failures.iter().all(|(_, failure)| is_sticky(failure.status));
        if latch.reason().is_some() && known {
            tracing::debug!("{error}");
        } else {
            tracing::error!("{error}");
        }
    })
}

/// Writes the look-ups of a registry into the process's audit and into `own`, and carries the seal's verdict out.
fn look_up_observer(own: Arc<KernelAudit>) -> LookUpObserver {
    Box::new(move |look_up| {
        let &LookUp { module, function, found, is_optional, site, .. } = look_up;
        let need = if is_optional { Need::MayBeAbsent } else { Need::Required };
        let lookup = Lookup { module, function, found, need, site };
        // The seal is the process's; the backend's own audit is open.
        let _ = own.record(lookup);
        if let Some(warning) = kernel_audit::record_lookup(lookup) {
            tracing::warn!("{warning}");
        }
    })
}

/// Says what was noticed about a module that was loaded all the same.
fn warn_of(module: &ModuleInfo) {
    let noticed: Vec<String> =
        module.notes.iter().map(ToString::to_string).chain(module.flaws.iter().cloned()).collect();
    if !noticed.is_empty() {
        tracing::warn!("module {:?}: {}", module.name, noticed.join("; "));
    }
}

/// Tells the process's audit and `own` which modules there are and what their images name.
fn note_modules(registry: &MetraleRegistry, own: &KernelAudit) {
    for module in registry.modules() {
        let kernels: Vec<_> = module.kernels.iter().map(String::as_str).collect();
        let load = ModuleLoad {
            module: module.name,
            image_bytes: module.image_bytes as u64,
            device_bytes: None,
            load_time: module.load_time,
            kernels: &kernels,
        };
        run_metrics::process().audit().module_loaded(load);
        own.module_loaded(load);
    }
}

/// Whether the device reaches all of the host's memory by its address. Then copies from pageable memory may still read it
/// after they were queued, because the driver need not stage anything; and any host address works as a device address.
/// No answer counts as yes, which is the safe side; only for the free figures is it no.
fn reads_pageable_memory(host: &CudaHost) -> bool {
    let is_set = |which| {
        let mut value = 0;
        // SAFETY: the result pointer is a local.
        unsafe { ask!(host.driver(), cuDeviceGetAttribute(&mut value, which, host.device())) }
            .map(|()| value != 0)
    };
    let reads = match is_set(attribute::PAGEABLE_MEMORY_ACCESS) {
        // A driver too old to know the attribute has no such device.
        Err(error) if error.status == CUDA_ERROR_INVALID_VALUE => false,
        answer => answer.unwrap_or(true),
    };
    reads || is_set(attribute::INTEGRATED).unwrap_or(true)
}
