// SPDX-License-Identifier: MIT OR Apache-2.0
//! Encoding a tensor map: the rules, the allocation it lies in, then the driver.

use core::ffi::c_void;

use metrale_driver_sys::{CUdevice_attribute, CUtensorMap, DriverApi, attribute};
use metrale_ledger::{ByteSize, LiveAllocation, Whois};

use super::{MAX_BOX_BYTES, TensorMap, TensorMapSpec};
use crate::arch::ComputeCapability;
use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::{FeatureOff, Result, causes};
use crate::features::HAS_TENSORMAP;
use crate::gpu::GpuKernels;

/// The shared memory of a multiprocessor in bytes, which no box may exceed.
const MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: CUdevice_attribute =
    attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;

/// A tensor map whose last bytes lie past the end of the allocation it begins in. The driver would take it, and a store through it
/// would write there: the hardware clips at the map's own dimensions only. Nothing was encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this tensor map reaches {} behind its allocation: it begins at byte {} of {}, and its dimensions and strides span {}; \
     give the dimensions that are there",
    ByteSize(self.excess_bytes()), self.offset_bytes, owner, ByteSize(*extent_bytes)
)]
#[non_exhaustive]
pub struct TensorMapOutOfBounds {
    /// Where in the allocation it begins, in bytes.
    pub offset_bytes: u64,
    /// What its dimensions and strides span from there, in bytes.
    pub extent_bytes: u64,
    /// The allocation: base, size, call site, scope.
    pub owner: Box<LiveAllocation>,
}

causes! { TensorMapOutOfBounds: OutOfBounds }

impl TensorMapOutOfBounds {
    /// How many bytes would lie past the end of the allocation.
    #[must_use]
    pub fn excess_bytes(&self) -> u64 {
        let behind = (self.owner.record.bytes as u64).saturating_sub(self.offset_bytes);
        self.extent_bytes.saturating_sub(behind)
    }
}

impl TensorMapSpec {
    /// Encodes the map. As [`GpuKernels::tensor_map_encode`](crate::GpuKernels::tensor_map_encode).
    ///
    /// # Errors
    /// As there.
    pub fn encode(&self, backend: &dyn GpuKernels) -> Result<TensorMap> {
        backend.tensor_map_encode(self)
    }
}

impl MetraleCudaBackend {
    /// Checks a tensor map and has the driver encode it.
    pub(crate) fn encode_tensor_map(&self, spec: &TensorMapSpec) -> Result<TensorMap> {
        if !HAS_TENSORMAP {
            return Err(FeatureOff { feature: "tensormap" }.into());
        }
        let capability = self.facts().compute_capability;
        let device = ComputeCapability::new(capability.major, capability.minor);
        let arguments = spec.check_on(device, self.max_box_bytes())?;
        let allocation_bytes = self.holds_tensor(spec)?;
        for warning in spec.warnings(Some(device), allocation_bytes) {
            tracing::warn!("tensor map at {}: {warning}", spec.address);
        }
        let mut map = CUtensorMap::default();
        let address = core::ptr::without_provenance_mut::<c_void>(arguments.address as usize);
        // SAFETY: the map is a local; each array holds five dimensions, and the driver reads as many as there are
        // (null strides it refuses even for one dimension, which has none). The address is encoded and not followed.
        let answer = unsafe {
            ask!(
                self.driver(),
                cuTensorMapEncodeTiled(
                    &mut map,
                    arguments.data_type,
                    arguments.rank,
                    address,
                    arguments.dims.as_ptr(),
                    arguments.strides_bytes.as_ptr(),
                    arguments.box_dims.as_ptr(),
                    arguments.element_strides.as_ptr(),
                    arguments.interleave,
                    arguments.swizzle,
                    arguments.l2_promotion,
                    arguments.oob_fill,
                )
            )
        };
        answer.doing(|| format!("encoding a tensor map of {} at {}", spec.element, spec.address))?;
        Ok(TensorMap::from_raw(map))
    }

    /// Holds the tensor's extent against the allocation it begins in: that allocation's bytes, where the ledger knows it.
    fn holds_tensor(&self, spec: &TensorMapSpec) -> Result<Option<u64>> {
        self.refuse_redzone("encoding a tensor map", "tensor", spec.address)?;
        let Whois::Live { allocation, offset_bytes } = self.ledger_writer().whois(spec.address.0) else {
            return Ok(None);
        };
        let bytes = allocation.record.bytes as u64;
        match spec.extent_bytes() {
            Some(extent_bytes) if extent_bytes > bytes.saturating_sub(offset_bytes) => {
                Err(TensorMapOutOfBounds { offset_bytes, extent_bytes, owner: Box::new(allocation) }.into())
            }
            _ => Ok(Some(bytes)),
        }
    }

    /// The device's own limit for a box, or the H200's where the device does not say.
    fn max_box_bytes(&self) -> u64 {
        let mut bytes = 0;
        let device = self.host().device();
        let driver: &dyn DriverApi = self.driver();
        // SAFETY: the result pointer is a local.
        let answer = unsafe {
            ask!(driver, cuDeviceGetAttribute(&mut bytes, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device))
        };
        match u64::try_from(bytes) {
            Ok(bytes) if answer.is_ok() && bytes > 0 => bytes,
            _ => MAX_BOX_BYTES,
        }
    }
}
