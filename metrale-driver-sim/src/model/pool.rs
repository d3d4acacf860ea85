// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocation in stream order, as calls see it: which pool, what must run before, what a synchronization settles.

use metrale_driver_sys::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUresult};

use super::Model;
use super::handle::Kind;
use super::stream::StreamKind;
use super::work::Work;

impl Model {
    /// `cuMemAllocAsync`, or from a pool that is named. 0 bytes are answered by address 0.
    pub(crate) fn alloc_async(
        &mut self,
        pool: Option<u64>,
        bytes: u64,
        stream: u64,
    ) -> Result<u64, CUresult> {
        let stream = self.stream(stream)?;
        self.not_in_a_graph(stream)?;
        let device = self.streams.get(stream).map_or(0, |stream| stream.device);
        let pool = match pool {
            Some(pool) => {
                self.memory.pools.usable(pool)?;
                pool
            }
            None => self.memory.pools.current_of(device),
        };
        if bytes == 0 {
            return Ok(0);
        }
        self.memory.alloc_of_pool(pool, stream, bytes)
    }

    /// `cuMemFreeAsync`.
    pub(crate) fn free_async(&mut self, address: u64, stream: u64) -> Result<(), CUresult> {
        let stream = self.stream(stream)?;
        self.not_in_a_graph(stream)?;
        if address == 0 {
            return Ok(());
        }
        let serial = self.memory.freeable(address)?;
        self.streams.submit(stream, Work::Free { address, serial }, Vec::new());
        // Streams run late, so work that was submitted and not waited for is unfinished. No other stream may use the memory before
        // that work is done, unless the stream waits for it.
        let unfinished = self.streams.has_work(stream);
        self.memory.begin_free(address, stream, unfinished);
        Ok(())
    }

    /// `cuDeviceSetMemPool`: 1 for a pool of another device and for a number that never was a pool's. Measured: a pool that was
    /// destroyed is accepted.
    pub(crate) fn set_pool(&mut self, device: usize, pool: u64) -> Result<(), CUresult> {
        match self.memory.pools.usable(pool).map(|found| found.device == device) {
            Ok(true) => {}
            Err(_) if self.handles.was_made(Kind::Pool, pool) => self.diagnose(format!(
                "cuDeviceSetMemPool: the pool {pool:#x} was destroyed; allocations of device {device} are refused until \
                 another pool is made current; a real driver may crash first"
            )),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        self.memory.pools.set_current(device, pool);
        Ok(())
    }

    pub(crate) fn pool_create(&mut self, device: usize, max_bytes: u64) -> u64 {
        let handle = self.handles.make(Kind::Pool);
        self.memory.create_pool(handle, device, max_bytes);
        handle
    }

    /// Settles the frees of a stream that was waited for; for the legacy stream also those of the streams it waits for.
    pub(crate) fn settle_frees(&mut self, stream: u64) {
        let Some(of) = self.streams.get(stream) else { return };
        let (device, legacy) = (of.device, of.kind == StreamKind::Legacy);
        let waited_for: Vec<u64> = self
            .streams
            .iter()
            .filter(|&(handle, other)| {
                handle == stream || (legacy && other.device == device && other.is_blocking())
            })
            .map(|(handle, _)| handle)
            .collect();
        for stream in waited_for {
            self.memory.synchronize_stream(stream);
        }
    }

    /// Refuses a capturing stream: memory nodes of graphs are not modelled.
    fn not_in_a_graph(&mut self, stream: u64) -> Result<(), CUresult> {
        if self.route(stream)?.is_some() {
            self.diagnose("allocations and frees as nodes of a graph are not modelled".to_owned());
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        Ok(())
    }
}
