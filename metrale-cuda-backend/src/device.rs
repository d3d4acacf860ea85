// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuDevice`] for [`MetraleCudaBackend`].

use std::ops::Deref;
use std::sync::Arc;

use metrale_driver_sys::DriverApi;
use metrale_registry::{CudaHost, DeviceFacts};

use crate::backend::MetraleCudaBackend;
use crate::call::Doing;
use crate::config::BackendConfig;
use crate::error::Result;
use crate::fault_reason::FaultReason;
use crate::gpu::{GpuBackend, GpuDevice};
use crate::memory::{EffectiveFree, MemoryInfo, PolledFree};

impl GpuDevice for MetraleCudaBackend {
    fn ordinal(&self) -> usize {
        self.host.ordinal()
    }

    fn bind_to_thread(&self) -> Result<()> {
        let doing = || format!("binding this thread to device {}", self.ordinal());
        self.latch().sound(doing)?;
        self.host.bind_to_thread().doing(doing)
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let _bound = self.may_ask("asking for the free memory")?;
        self.ask_memory_info().doing(|| "asking for the free memory".to_owned())
    }

    fn free_memory(&self) -> Result<u64> {
        let _bound = self.may_ask("asking for the free memory")?;
        Ok(self.ask_effective(None)?.bytes)
    }

    fn device_free_memory(&self) -> Result<u64> {
        Ok(self.memory_info()?.free_bytes)
    }

    fn total_memory(&self) -> u64 {
        self.total_bytes()
    }

    fn effective_free(&self) -> Result<EffectiveFree> {
        let _bound = self.may_ask("asking for the free memory")?;
        self.ask_effective(self.cgroup_limit())
    }

    fn poll_free_memory(&self) -> Result<PolledFree> {
        let _bound = self.may_ask("polling the free memory")?;
        self.poll_effective()
    }

    fn facts(&self) -> &DeviceFacts {
        self.host.facts()
    }

    fn config(&self) -> &BackendConfig {
        &self.config
    }

    fn host(&self) -> &Arc<CudaHost> {
        &self.host
    }

    fn driver(&self) -> &dyn DriverApi {
        self.host.driver()
    }

    fn cuda_backend(&self) -> Option<&MetraleCudaBackend> {
        Some(self)
    }

    fn context_fault(&self) -> Option<&FaultReason> {
        self.latch().reason()
    }
}

/// The trait's methods on the backend itself, with no trait imported.
impl Deref for MetraleCudaBackend {
    type Target = dyn GpuBackend;

    fn deref(&self) -> &Self::Target {
        self
    }
}
