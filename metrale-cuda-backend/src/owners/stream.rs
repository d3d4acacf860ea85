// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Stream`]: an order of device work, destroyed when its last clone is dropped.

use std::fmt;
use std::sync::Arc;

use bytemuck::{Pod, cast_slice, cast_slice_mut};

use crate::error::Result;
use crate::gpu::GpuBackend;
use crate::owned_handle::OwnedHandle;
use crate::owners::event::Event;
use crate::owners::kept::log_kept;
use crate::owners::shared::{SharedBackend, same_driver};
use crate::owners::slice::{DeviceSlice, DeviceSliceMut, same_len};
use crate::raw_handles::StreamHandle;

/// A stream: work queued on it is done in its order. It does not synchronize with the legacy stream.
///
/// A clone is the same stream. The last one that is dropped destroys it; the driver completes the work that is queued.
///
/// ```
/// # use std::sync::Arc;
/// # use metrale_cuda_backend::{DeviceBuffer, GpuBackend, MetraleCudaBackend, Stream};
/// # use metrale_driver_sim::{Profile, SimDriver};
/// # let driver = Arc::new(SimDriver::new(Profile::h200()));
/// # let gpu: Arc<dyn GpuBackend> = Arc::new(MetraleCudaBackend::builder().driver(driver).build()?);
/// let stream = Stream::new(&gpu)?;
/// let mut state = DeviceBuffer::<u32>::new(&gpu, 4)?;
/// stream.fill_bytes(&mut state, 0xff)?;
/// stream.copy_to_device(&[1, 2], state.slice_mut(..2)?)?;
/// let mut back = [0; 4];
/// stream.copy_to_host(&state, &mut back)?; // waits for the stream
/// assert_eq!(back, [1, 2, u32::MAX, u32::MAX]);
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Clone)]
pub struct Stream(Arc<OwnedStream>);

struct OwnedStream {
    gpu: Arc<dyn GpuBackend>,
    raw: StreamHandle,
    /// None for the backend's own stream, which goes with it.
    owned: Option<OwnedHandle<StreamHandle>>,
}

impl Stream {
    /// Makes a stream. As [`GpuStreams::create_stream`](crate::GpuStreams::create_stream).
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn new(gpu: &impl SharedBackend) -> Result<Self> {
        let gpu = gpu.share();
        let owned = gpu.create_owned_stream()?;
        Ok(Self(Arc::new(OwnedStream { gpu, raw: owned.handle(), owned: Some(owned) })))
    }

    /// The backend's own stream, for which blocking operations wait.
    #[must_use]
    pub fn of_backend(gpu: &impl SharedBackend) -> Self {
        let gpu = gpu.share();
        let raw = gpu.stream();
        Self(Arc::new(OwnedStream { gpu, raw, owned: None }))
    }

    /// Its handle, for raw calls. It is good as long as the stream.
    #[must_use]
    pub fn handle(&self) -> StreamHandle {
        self.0.raw
    }

    /// The backend it is of.
    #[must_use]
    pub fn gpu(&self) -> &Arc<dyn GpuBackend> {
        &self.0.gpu
    }

    /// Copies elements to the device in the order of the stream; `src` may be changed or dropped at once. As
    /// [`GpuCopies::copy_h2d_async`](crate::GpuCopies::copy_h2d_async): waits for the stream where the device would read the source late.
    ///
    /// # Errors
    /// As there; [`BadArgument`](crate::BadArgument) for another number of elements.
    pub fn copy_to_device<'d, T: Pod>(&self, src: &[T], dst: impl Into<DeviceSliceMut<'d, T>>) -> Result<()> {
        let dst = dst.into();
        same_len("copying to the device", src.len(), dst.len())?;
        same_driver("copying to the device", &self.0.gpu, dst.gpu())?;
        self.0.gpu.copy_h2d_async(cast_slice(src), dst.ptr(), self.0.raw)
    }

    /// Copies elements to the host in the order of the stream, and waits for it: they are there at return. As
    /// [`GpuCopies::copy_d2h_on_stream`](crate::GpuCopies::copy_d2h_on_stream).
    ///
    /// # Errors
    /// As there; [`BadArgument`](crate::BadArgument) for another number of elements.
    pub fn copy_to_host<'s, T: Pod>(&self, src: impl Into<DeviceSlice<'s, T>>, dst: &mut [T]) -> Result<()> {
        let src = src.into();
        same_len("copying to the host", src.len(), dst.len())?;
        same_driver("copying to the host", &self.0.gpu, src.gpu())?;
        self.0.gpu.copy_d2h_on_stream(src.ptr(), cast_slice_mut(dst), self.0.raw)
    }

    /// Copies elements inside the device in the order of the stream. Does not block. As [`GpuCopies::copy_d2d_async`](crate::GpuCopies::copy_d2d_async).
    ///
    /// # Errors
    /// As there; [`BadArgument`](crate::BadArgument) for another number of elements.
    pub fn copy<'s, 'd, T: Pod>(
        &self,
        src: impl Into<DeviceSlice<'s, T>>,
        dst: impl Into<DeviceSliceMut<'d, T>>,
    ) -> Result<()> {
        let (src, dst) = (src.into(), dst.into());
        same_len("copying inside the device", src.len(), dst.len())?;
        same_driver("copying inside the device", &self.0.gpu, src.gpu())?;
        same_driver("copying inside the device", &self.0.gpu, dst.gpu())?;
        self.0.gpu.copy_d2d_async(src.ptr(), dst.ptr(), src.bytes(), self.0.raw)
    }

    /// Fills all bytes of the elements with `value` in the order of the stream. Does not block. As
    /// [`GpuCopies::memset_async`](crate::GpuCopies::memset_async).
    ///
    /// # Errors
    /// As there.
    pub fn fill_bytes<'d, T: Pod>(&self, dst: impl Into<DeviceSliceMut<'d, T>>, value: u8) -> Result<()> {
        let dst = dst.into();
        same_driver("filling device memory", &self.0.gpu, dst.gpu())?;
        self.0.gpu.memset_async(dst.ptr(), value, dst.bytes(), self.0.raw)
    }

    /// Records `event` behind the work queued so far. Does not block. As [`GpuStreams::record_event`](crate::GpuStreams::record_event).
    ///
    /// # Errors
    /// As there.
    pub fn record(&self, event: &Event) -> Result<()> {
        match (event.owned(), &self.0.owned) {
            (Some(event), Some(stream)) => self.0.gpu.record_owned_event(event, stream),
            _ => self.0.gpu.record_event(event.handle(), self.0.raw),
        }
    }

    /// Makes the work queued from here on wait for `event`. Does not block. As [`GpuStreams::wait_event`](crate::GpuStreams::wait_event).
    ///
    /// # Errors
    /// As there.
    pub fn wait(&self, event: &Event) -> Result<()> {
        match (event.owned(), &self.0.owned) {
            (Some(event), Some(stream)) => self.0.gpu.wait_owned_event(stream, event),
            _ => self.0.gpu.wait_event(self.0.raw, event.handle()),
        }
    }

    /// Waits until the work queued so far is done. As [`GpuStreams::synchronize_stream`](crate::GpuStreams::synchronize_stream).
    ///
    /// # Errors
    /// As there.
    pub fn synchronize(&self) -> Result<()> {
        self.0.gpu.synchronize_stream(self.0.raw)
    }

    /// Whether the work queued so far is done. Does not block. As [`GpuStreams::query_stream`](crate::GpuStreams::query_stream).
    ///
    /// # Errors
    /// As there.
    pub fn is_idle(&self) -> Result<bool> {
        self.0.gpu.query_stream(self.0.raw)
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        if let Some(owned) = self.owned.take()
            && let Err(error) = self.gpu.destroy_owned_stream(owned)
        {
            log_kept(format_args!("stream {:#x}", self.raw), &error);
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:#x})", self.0.raw)
    }
}
