// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices and their primary contexts: reference counts, the current context of each thread, the end of a context.

use metrale_driver_sys::{
    CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED, CUresult, attribute,
};

use super::Model;
use super::handle::{Handles, Kind};
use super::stream::{Stream, StreamKind};
use crate::leaks::{LeakedMemory, Leaks};
use crate::profile::Profile;
use crate::thread;

/// The primary context of a device. Its handle stays the same when it is destroyed and made anew.
pub(crate) struct Context {
    pub(crate) handle: u64,
    /// References; 0 while there is no context.
    pub(crate) references: usize,
    /// The legacy stream's handle.
    pub(crate) legacy: u64,
    /// The sticky status, once work has faulted. It outlives the context: no process gets another on that device.
    pub(crate) fault: Option<CUresult>,
    /// Synthetic time, in nanoseconds.
    pub(crate) clock_ns: u64,
}

impl Context {
    pub(crate) fn new(handles: &mut Handles) -> Self {
        let (handle, legacy) = (handles.make(Kind::Context), handles.make(Kind::Stream));
        Self { handle, references: 0, legacy, fault: None, clock_ns: 0 }
    }
}

impl Model {
    pub(crate) fn initialize(&mut self) {
        self.initialized = true;
    }

    pub(crate) fn initialized(&self) -> Result<(), CUresult> {
        if self.initialized { Ok(()) } else { Err(CUDA_ERROR_NOT_INITIALIZED) }
    }

    /// A device by the number that `cuDeviceGet` gave.
    pub(crate) fn device(&self, device: i32) -> Result<usize, CUresult> {
        self.initialized()?;
        let index = usize::try_from(device).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?;
        if index < self.profiles.len() { Ok(index) } else { Err(CUDA_ERROR_INVALID_DEVICE) }
    }

    /// The device of the current context, which must be alive and sound.
    pub(crate) fn context(&self) -> Result<usize, CUresult> {
        self.initialized()?;
        let device = *self.current.get(&thread::number()).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        self.alive(device)?;
        Ok(device)
    }

    /// 709 where the context was destroyed, or the fault that lost it.
    pub(crate) fn alive(&self, device: usize) -> Result<(), CUresult> {
        let context = &self.contexts[device];
        match context.fault {
            _ if context.references == 0 => Err(CUDA_ERROR_CONTEXT_IS_DESTROYED),
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    /// For calls that need no context: the fault of the one that is current, if that has one.
    pub(crate) fn sound(&self) -> Result<(), CUresult> {
        self.initialized()?;
        let current = self.current.get(&thread::number());
        current.and_then(|&device| self.contexts[device].fault).map_or(Ok(()), Err)
    }

    /// Whether a device has a context now.
    pub(crate) fn has_context(&self, device: usize) -> bool {
        self.contexts.get(device).is_some_and(|context| context.references > 0)
    }

    pub(crate) fn context_handle(&self, device: usize) -> u64 {
        self.contexts[device].handle
    }

    /// The device of a context handle.
    pub(crate) fn context_of(&self, handle: u64) -> Result<usize, CUresult> {
        let device = self.contexts.iter().position(|context| context.handle == handle);
        device.ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    pub(crate) fn current_handle(&self) -> Result<u64, CUresult> {
        self.initialized()?;
        Ok(self.current.get(&thread::number()).map_or(0, |&device| self.contexts[device].handle))
    }

    pub(crate) fn current_device(&self) -> Result<usize, CUresult> {
        self.initialized()?;
        self.current.get(&thread::number()).copied().ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    /// 0 clears. A primary context that ended can be made current all the same; what is then called answers 709.
    pub(crate) fn set_current(&mut self, handle: u64) -> Result<(), CUresult> {
        self.initialized()?;
        if handle == 0 {
            self.current.remove(&thread::number());
            return Ok(());
        }
        let device = self.context_of(handle)?;
        self.current.insert(thread::number(), device);
        Ok(())
    }

    pub(crate) fn retain(&mut self, device: i32) -> Result<u64, CUresult> {
        let device = self.device(device)?;
        if let Some(fault) = self.contexts[device].fault {
            return Err(fault);
        }
        if self.contexts[device].references == 0 {
            self.memory.open_context(device)?;
            let legacy = self.contexts[device].legacy;
            self.streams.insert(legacy, Stream::new(device, StreamKind::Legacy));
        }
        let context = &mut self.contexts[device];
        context.references += 1;
        Ok(context.handle)
    }

    pub(crate) fn release(&mut self, device: i32) -> Result<(), CUresult> {
        let device = self.device(device)?;
        match self.contexts[device].references {
            0 => return Err(CUDA_ERROR_INVALID_CONTEXT),
            1 => self.end_context(device),
            _ => {}
        }
        self.contexts[device].references -= 1;
        Ok(())
    }

    /// Runs out a context's work and destroys everything in it; what the caller had not freed is remembered.
    fn end_context(&mut self, device: usize) {
        self.run_all(device);
        let mut left = self.live(Some(device));
        left.contexts.clear();
        self.lost.extend(left, true);
        self.captures.retain(|_, capture| !capture.is_on(device));
        self.graphs.retain(|_, graph| graph.device != device);
        self.execs.retain(|_, exec| exec.device != device);
        self.events.retain(|_, event| event.device != device);
        self.functions.retain(|_, function| function.device != device);
        self.modules.retain(|_, module| module.device != device);
        self.streams.retain(|stream| stream.device != device);
        self.thread_streams.retain(|&(_, of), _| of != device);
        self.memory.close_context(device);
    }

    /// What is alive now, on one device or all.
    fn live(&self, device: Option<usize>) -> Leaks {
        let on = |of: usize| device.is_none_or(|device| device == of);
        let mut leaks = Leaks {
            contexts: self
                .contexts
                .iter()
                .enumerate()
                .filter(|&(of, context)| on(of) && context.references > 0)
                .map(|(of, context)| (of, context.references).into())
                .collect(),
            memory: self
                .memory
                .iter()
                .filter(|(_, allocation)| on(allocation.device))
                .filter_map(|(address, allocation)| LeakedMemory::of(address, allocation))
                .collect(),
            pools: self
                .memory
                .pools
                .made()
                .filter(|&(_, of)| on(of))
                .map(|(handle, _)| handle.into())
                .collect(),
            address_ranges: Vec::new(),
            modules: handles(&self.modules, |module| on(module.device)),
            streams: self
                .streams
                .iter()
                .filter(|(_, stream)| {
                    on(stream.device) && matches!(stream.kind, StreamKind::Blocking | StreamKind::NonBlocking)
                })
                .map(|(handle, _)| handle.into())
                .collect(),
            events: handles(&self.events, |event| on(event.device)),
            graphs: handles(&self.graphs, |graph| on(graph.device)),
            graph_execs: handles(&self.execs, |exec| on(exec.device)),
        };
        if device.is_none() {
            // These belong to no context, so the end of one leaves them.
            let physical = self.memory.physical();
            leaks
                .memory
                .extend(physical.map(|(handle, of, bytes)| LeakedMemory::physical(handle, of, bytes)));
            leaks.address_ranges = self.memory.address_ranges().map(Into::into).collect();
        }
        leaks.sort();
        leaks
    }

    /// What is alive, and what was left in contexts that ended.
    pub(crate) fn leaks(&self) -> Leaks {
        let mut leaks = self.live(None);
        leaks.extend(self.lost.clone(), true);
        leaks
    }
}

fn handles<T>(
    map: &std::collections::HashMap<u64, T>,
    keep: impl Fn(&T) -> bool,
) -> Vec<crate::leaks::LeakedHandle> {
    map.iter().filter(|(_, value)| keep(value)).map(|(&handle, _)| handle.into()).collect()
}

/// `CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE`
const L2_CACHE_BYTES: u32 = 38;
/// `CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR`
const MAX_BLOCKS_PER_MULTIPROCESSOR: u32 = 106;

/// Blocks that a multiprocessor holds at once, as the programming guide lists them.
fn blocks_per_multiprocessor(compute_capability: (u32, u32)) -> i32 {
    match compute_capability {
        (7, 5) | (8, 6 | 7) => 16,
        (8, 9) | (11.., _) => 24,
        _ => 32,
    }
}

/// `cuDeviceGetAttribute`: 1 for what this model has no answer to.
pub(crate) fn device_attribute(profile: &Profile, number: u32, device: usize) -> Result<i32, CUresult> {
    use attribute as a;
    let (major, minor) = profile.compute_capability;
    Ok(match number {
        a::MAX_THREADS_PER_BLOCK | a::MAX_BLOCK_DIM_X | a::MAX_BLOCK_DIM_Y => 1024,
        a::MAX_BLOCK_DIM_Z => 64,
        a::MAX_GRID_DIM_X => i32::MAX,
        a::MAX_GRID_DIM_Y | a::MAX_GRID_DIM_Z => 65_535,
        a::MAX_SHARED_MEMORY_PER_BLOCK => 48 << 10,
        a::WARP_SIZE => 32,
        // Constant memory, registers of a block and of a multiprocessor.
        9 | a::MAX_REGISTERS_PER_BLOCK | 82 => 65_536,
        a::MULTIPROCESSOR_COUNT => profile.multiprocessors as i32,
        L2_CACHE_BYTES => profile.l2_cache_bytes as i32,
        a::INTEGRATED => profile.integrated.into(),
        // Measured on an H200: no. Modelled: integrated devices read the host's pages.
        a::PAGEABLE_MEMORY_ACCESS => profile.integrated.into(),
        // Mapped host memory, concurrent kernels, stream priorities, cooperative launch.
        19 | 31 | 78 | 95 => 1,
        // Compute mode: default. Page tables shared with the host: no.
        20 | 100 => 0,
        // PCI bus, device and domain.
        33 => device as i32 + 1,
        34 | 50 => 0,
        a::MAX_THREADS_PER_MULTIPROCESSOR => profile.threads_per_multiprocessor as i32,
        a::COMPUTE_CAPABILITY_MAJOR => major as i32,
        a::COMPUTE_CAPABILITY_MINOR => minor as i32,
        a::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => profile.shared_per_multiprocessor_bytes as i32,
        a::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => profile.shared_optin_bytes as i32,
        MAX_BLOCKS_PER_MULTIPROCESSOR => blocks_per_multiprocessor(profile.compute_capability),
        // Reserved shared memory of a block.
        111 => 1024,
        // Handles that memory pools can export: file descriptors, and fabric handles where there is a fabric.
        119 => {
            if matches!(major, 9 | 10) {
                9
            } else {
                1
            }
        }
        a::UNIFIED_ADDRESSING
        | a::MANAGED_MEMORY
        | a::CONCURRENT_MANAGED_ACCESS
        | a::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | a::HOST_REGISTER_SUPPORTED
        | a::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | a::MEMORY_POOLS_SUPPORTED => 1,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}
