// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GpuBackend`] for [`MetraleCudaBackend`]: each method is the inherent one of the same name.

use core::ffi::c_void;
use core::time::Duration;

use anyhow::Result;
use metrale_ledger::{LedgerProbe, ScopeGuard};

use crate::backend::MetraleCudaBackend;
use crate::gpu::{DevicePtr, GpuBackend, GraphHandle, KernelHandle};
use crate::graph::{GraphInfo, GraphUpdate};
use crate::launch::KernelLaunch;
use crate::memory::{
    Account, Copy2d, EffectiveFree, Freed, LowMemoryHandler, MemoryInfo, OwnedMemory, PinnedPtr, PolledFree,
    WatchdogThread,
};
use crate::redzone::ScanReport;
use crate::tensormap::{TensorMap, TensorMapSpec};

impl GpuBackend for MetraleCudaBackend {
    #[track_caller]
    fn alloc(&self, bytes: usize) -> Result<DevicePtr> {
        Self::alloc(self, bytes)
    }

    #[track_caller]
    fn alloc_managed(&self, bytes: usize) -> Result<DevicePtr> {
        Self::alloc_managed(self, bytes)
    }

    #[track_caller]
    fn free(&self, ptr: DevicePtr) -> Result<()> {
        Self::free(self, ptr)
    }

    #[track_caller]
    fn alloc_owned(&self, bytes: usize) -> Result<OwnedMemory> {
        Self::alloc_owned(self, bytes)
    }

    #[track_caller]
    fn free_owned(&self, memory: OwnedMemory) -> Result<Freed> {
        Self::free_owned(self, memory)
    }

    #[track_caller]
    fn alloc_arena(&self, bytes: usize) -> Result<DevicePtr> {
        Self::alloc_arena(self, bytes)
    }

    #[track_caller]
    fn free_arena(&self, ptr: DevicePtr) -> Result<()> {
        Self::free_arena(self, ptr)
    }

    #[track_caller]
    fn alloc_pinned(&self, bytes: usize) -> Result<PinnedPtr> {
        Self::alloc_pinned(self, bytes)
    }

    #[track_caller]
    fn free_pinned(&self, pinned: PinnedPtr) -> Result<()> {
        Self::free_pinned(self, pinned)
    }

    fn copy_h2d(&self, src: &[u8], dst: DevicePtr) -> Result<()> {
        Self::copy_h2d(self, src, dst)
    }

    fn copy_d2h(&self, src: DevicePtr, dst: &mut [u8]) -> Result<()> {
        Self::copy_d2h(self, src, dst)
    }

    fn copy_d2d(&self, src: DevicePtr, dst: DevicePtr, bytes: usize) -> Result<()> {
        Self::copy_d2d(self, src, dst, bytes)
    }

    fn copy_h2d_async(&self, src: &[u8], dst: DevicePtr, stream: u64) -> Result<()> {
        Self::copy_h2d_async(self, src, dst, stream)
    }

    unsafe fn copy_h2d_async_retained(
        &self,
        src: *const u8,
        bytes: usize,
        dst: DevicePtr,
        stream: u64,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { Self::copy_h2d_async_retained(self, src, bytes, dst, stream) }
    }

    fn copy_d2h_on_stream(&self, src: DevicePtr, dst: &mut [u8], stream: u64) -> Result<()> {
        Self::copy_d2h_on_stream(self, src, dst, stream)
    }

    unsafe fn copy_d2h_async_retained(
        &self,
        src: DevicePtr,
        dst: *mut u8,
        bytes: usize,
        stream: u64,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { Self::copy_d2h_async_retained(self, src, dst, bytes, stream) }
    }

    fn copy_d2d_async(&self, src: DevicePtr, dst: DevicePtr, bytes: usize, stream: u64) -> Result<()> {
        Self::copy_d2d_async(self, src, dst, bytes, stream)
    }

    unsafe fn copy_2d_async(&self, copy: &Copy2d, stream: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { Self::copy_2d_async(self, copy, stream) }
    }

    fn memset(&self, dst: DevicePtr, value: u8, bytes: usize) -> Result<()> {
        Self::memset(self, dst, value, bytes)
    }

    fn memset_async(&self, dst: DevicePtr, value: u8, bytes: usize, stream: u64) -> Result<()> {
        Self::memset_async(self, dst, value, bytes, stream)
    }

    fn memset_d32_async(&self, dst: DevicePtr, value: u32, words: usize, stream: u64) -> Result<()> {
        Self::memset_d32_async(self, dst, value, words, stream)
    }

    #[track_caller]
    fn create_stream(&self) -> Result<u64> {
        Self::create_stream(self)
    }

    #[track_caller]
    fn destroy_stream(&self, stream: u64) -> Result<()> {
        Self::destroy_stream(self, stream)
    }

    #[track_caller]
    unsafe fn adopt_stream(&self, stream: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { Self::adopt_stream(self, stream) }
    }

    #[track_caller]
    fn release_stream(&self, stream: u64) -> Result<()> {
        Self::release_stream(self, stream)
    }

    fn synchronize_stream(&self, stream: u64) -> Result<()> {
        Self::synchronize_stream(self, stream)
    }

    fn query_stream(&self, stream: u64) -> Result<bool> {
        Self::query_stream(self, stream)
    }

    fn stream(&self) -> u64 {
        Self::stream(self)
    }

    fn synchronize(&self) -> Result<()> {
        Self::synchronize(self)
    }

    #[track_caller]
    fn create_event(&self) -> Result<u64> {
        Self::create_event(self)
    }

    #[track_caller]
    fn create_timing_event(&self) -> Result<u64> {
        Self::create_timing_event(self)
    }

    fn record_event(&self, event: u64, stream: u64) -> Result<()> {
        Self::record_event(self, event, stream)
    }

    fn wait_event(&self, stream: u64, event: u64) -> Result<()> {
        Self::wait_event(self, stream, event)
    }

    fn query_event(&self, event: u64) -> Result<bool> {
        Self::query_event(self, event)
    }

    fn synchronize_event(&self, event: u64) -> Result<()> {
        Self::synchronize_event(self, event)
    }

    fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32> {
        Self::elapsed_ms(self, start, end)
    }

    #[track_caller]
    fn destroy_event(&self, event: u64) -> Result<()> {
        Self::destroy_event(self, event)
    }

    #[track_caller]
    unsafe fn adopt_event(&self, event: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { Self::adopt_event(self, event) }
    }

    #[track_caller]
    fn release_event(&self, event: u64) -> Result<()> {
        Self::release_event(self, event)
    }

    #[track_caller]
    fn kernel(&self, module: &str, function: &str) -> Result<KernelHandle> {
        Self::kernel(self, module, function)
    }

    #[track_caller]
    fn optional_kernel(&self, module: &str, function: &str) -> Result<Option<KernelHandle>> {
        Self::optional_kernel(self, module, function)
    }

    fn n_tile(&self, kernel: KernelHandle) -> Option<u32> {
        Self::n_tile(self, kernel)
    }

    fn device_symbol(&self, module: &str, symbol: &str) -> Result<(DevicePtr, usize)> {
        Self::device_symbol(self, module, symbol)
    }

    unsafe fn launch(
        &self,
        kernel: KernelHandle,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        stream: u64,
        params: &mut [*mut c_void],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { Self::launch(self, kernel, grid, block, shared_bytes, stream, params) }
    }

    unsafe fn launch_typed(&self, launch: &mut KernelLaunch, stream: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { Self::launch_typed(self, launch, stream) }
    }

    #[track_caller]
    fn begin_capture(&self, stream: u64) -> Result<()> {
        Self::begin_capture(self, stream)
    }

    fn end_capture(&self, stream: u64) -> Result<GraphHandle> {
        Self::end_capture(self, stream)
    }

    fn end_capture_named(&self, stream: u64, name: &str) -> Result<GraphHandle> {
        Self::end_capture_named(self, stream, name)
    }

    fn abort_capture_if_active(&self, stream: u64) -> Result<bool> {
        Self::abort_capture_if_active(self, stream)
    }

    fn stream_is_capturing(&self, stream: u64) -> bool {
        Self::stream_is_capturing(self, stream)
    }

    fn pin_in_capture(&self, stream: u64, ptr: DevicePtr) -> Result<()> {
        Self::pin_in_capture(self, stream, ptr)
    }

    fn launch_graph(&self, graph: GraphHandle, stream: u64) -> Result<()> {
        Self::launch_graph(self, graph, stream)
    }

    fn update_graph(&self, graph: GraphHandle, stream: u64) -> Result<GraphUpdate> {
        Self::update_graph(self, graph, stream)
    }

    fn destroy_graph(&self, graph: GraphHandle) -> Result<()> {
        Self::destroy_graph(self, graph)
    }

    fn pin_graph(&self, graph: GraphHandle, ptr: DevicePtr) -> Result<()> {
        Self::pin_graph(self, graph, ptr)
    }

    fn graphs(&self) -> Vec<GraphInfo> {
        Self::graphs(self)
    }

    fn bind_to_thread(&self) -> Result<()> {
        Self::bind_to_thread(self)
    }

    fn ordinal(&self) -> usize {
        Self::ordinal(self)
    }

    fn live_bytes(&self) -> usize {
        Self::live_bytes(self)
    }

    fn live_allocations(&self) -> Vec<(DevicePtr, usize, String)> {
        Self::live_allocations(self)
    }

    fn chunk_slack_bytes(&self) -> usize {
        Self::chunk_slack_bytes(self)
    }

    fn resident_bytes(&self) -> usize {
        Self::resident_bytes(self)
    }

    fn ledger_probe(&self) -> LedgerProbe {
        Self::ledger_probe(self)
    }

    fn alloc_report(&self, top_n: usize, min_mb: usize) -> String {
        Self::alloc_report(self, top_n, min_mb)
    }

    fn scope(&self, label: &str) -> ScopeGuard {
        Self::scope(self, label)
    }

    fn tag(&self, ptr: DevicePtr, tag: &str) -> bool {
        Self::tag(self, ptr, tag)
    }

    fn reset_peak(&self) {
        Self::reset_peak(self);
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        Self::memory_info(self)
    }

    fn free_memory(&self) -> Result<u64> {
        Self::free_memory(self)
    }

    fn device_free_memory(&self) -> Result<u64> {
        Self::device_free_memory(self)
    }

    fn total_memory(&self) -> u64 {
        Self::total_memory(self)
    }

    fn effective_free(&self) -> Result<EffectiveFree> {
        Self::effective_free(self)
    }

    fn poll_free_memory(&self) -> Result<PolledFree> {
        Self::poll_free_memory(self)
    }

    fn account(&self) -> Result<Account> {
        Self::account(self)
    }

    fn spawn_oom_watchdog(&self, threshold_mb: u64, interval: Duration) -> Result<WatchdogThread> {
        Self::spawn_oom_watchdog(self, threshold_mb, interval)
    }

    fn spawn_oom_watchdog_with(
        &self,
        threshold_mb: u64,
        interval: Duration,
        handler: LowMemoryHandler,
    ) -> Result<WatchdogThread> {
        Self::spawn_oom_watchdog_with(self, threshold_mb, interval, handler)
    }

    fn scan_redzones(&self) -> Result<usize> {
        Self::scan_redzones(self)
    }

    fn scan_redzones_report(&self) -> Result<ScanReport> {
        Self::scan_redzones_report(self)
    }

    fn poison_redzones(&self, low: u64, high: u64) -> Result<usize> {
        Self::poison_redzones(self, low, high)
    }

    fn tensor_map_encode(&self, spec: &TensorMapSpec) -> Result<TensorMap> {
        Self::tensor_map_encode(self, spec)
    }

    #[track_caller]
    fn sweep_unreleased(&self) -> Result<usize> {
        Self::sweep_unreleased(self)
    }
}
