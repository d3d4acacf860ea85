// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work: what a stream's queue and a graph's nodes hold, and its running.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use metrale_driver_sys::{CUDA_ERROR_ILLEGAL_ADDRESS, CUresult};

use super::event::EventState;
use super::graph::Body;
use super::host;
use super::kernel::{KernelFault, KernelLaunch, LaunchConfig, Parameters};
use super::memory::{Access, Memory, Stray};
use super::stream::Point;
use super::{Model, loaded::FunctionState};
use crate::profile::MissingKernel;
use crate::thread;

/// Bytes moved at once.
const PIECE: usize = super::store::BLOCK;

/// One end of a copy.
#[derive(Clone)]
pub(crate) enum Place {
    /// Memory the device reaches.
    Device(u64),
    /// Host memory, read or written when the work runs.
    Host {
        address: usize,
        /// The serial of the pinned or managed allocation it lies in, if any, which must still be there.
        owner: Option<u64>,
    },
    /// Host memory whose bytes were read at submission.
    Staged(Arc<[u8]>),
}

/// A rectangle of bytes copied from one place to another; a linear copy is one row.
#[derive(Clone)]
pub(crate) struct Copy {
    pub(crate) source: Place,
    pub(crate) source_pitch: u64,
    pub(crate) target: Place,
    pub(crate) target_pitch: u64,
    pub(crate) width: u64,
    pub(crate) rows: u64,
}

impl Copy {
    pub(crate) fn linear(source: Place, target: Place, bytes: u64) -> Self {
        Self { source, source_pitch: 0, target, target_pitch: 0, width: bytes, rows: 1 }
    }
}

/// One kernel launch.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) function: Arc<FunctionState>,
    pub(crate) config: LaunchConfig,
    pub(crate) parameters: Arc<Parameters>,
}

/// One operation.
#[derive(Clone)]
pub(crate) enum Work {
    Copy(Copy),
    /// A little-endian word repeated.
    Fill {
        address: u64,
        word: u32,
        bytes: u64,
    },
    Kernel(Launch),
    /// An event is passed.
    Record {
        event: u64,
        serial: u64,
    },
    /// A free in stream order is reached.
    Free {
        address: u64,
        serial: u64,
    },
    /// Nothing; stands for what it waits for.
    Wait,
    Graph(Arc<Body>),
}

impl Work {
    /// What kind of node it is: two graphs with the same kinds can update each other.
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Copy(copy) => 1 + 3 * place_kind(&copy.source) + place_kind(&copy.target),
            Self::Fill { .. } => 20,
            Self::Kernel(_) => 21,
            Self::Record { .. } | Self::Free { .. } | Self::Wait => 22,
            Self::Graph(_) => 23,
        }
    }

    /// Whether it keeps the device busy for a while.
    pub(crate) fn keeps_busy(&self) -> bool {
        !matches!(self, Self::Record { .. } | Self::Free { .. } | Self::Wait)
    }

    /// Where a copy or fill begins in memory of the device.
    pub(crate) fn device_addresses(&self) -> impl Iterator<Item = u64> {
        let device = |place: &Place| match place {
            Place::Device(address) => Some(*address),
            _ => None,
        };
        let ends = match self {
            Self::Copy(copy) => [device(&copy.source), device(&copy.target)],
            Self::Fill { address, .. } => [Some(*address), None],
            _ => [None, None],
        };
        ends.into_iter().flatten()
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Copy(copy) => copy.width.saturating_mul(copy.rows),
            Self::Fill { bytes, .. } => *bytes,
            _ => 0,
        }
    }
}

fn place_kind(place: &Place) -> u8 {
    match place {
        Place::Device(_) => 0,
        Place::Host { .. } => 1,
        Place::Staged(_) => 2,
    }
}

impl Model {
    /// Runs all that must be done for `point` to be passed.
    pub(crate) fn run(&mut self, point: Point) {
        let mut wanted = vec![point];
        while let Some((device, work)) = self.streams.next_for(&mut wanted) {
            self.execute(device, &work, Access::Strict);
        }
    }

    /// Runs everything a context has pending.
    pub(crate) fn run_all(&mut self, device: usize) {
        for point in self.streams.ends(device) {
            self.run(point);
        }
    }

    fn execute(&mut self, device: usize, work: &Work, access: Access) {
        if self.contexts[device].fault.is_some() {
            return;
        }
        self.contexts[device].clock_ns += 1000 + work.bytes() / 1024;
        let outcome = match work {
            Work::Copy(copy) => copy_rows(&mut self.memory, copy, access).map_err(KernelFault::from),
            Work::Fill { address, word, bytes } => {
                self.memory.fill(*address, *word, *bytes, access).map_err(KernelFault::from)
            }
            Work::Kernel(launch) => self.execute_kernel(launch, access),
            Work::Record { event, serial } => {
                let clock = self.contexts[device].clock_ns;
                if let Some(event) = self.events.get_mut(event)
                    && event.serial == *serial
                    && let EventState::Recorded { at_ns, .. } = &mut event.state
                {
                    *at_ns = Some(clock);
                }
                Ok(())
            }
            Work::Free { address, serial } => {
                self.memory.finish_free(*address, *serial);
                Ok(())
            }
            Work::Wait => Ok(()),
            Work::Graph(body) => {
                // No graph is captured, so none holds another.
                for node in &body.nodes {
                    self.execute(device, &node.work, Access::Replay);
                }
                if let Some(Stray { address, bytes }) = self.memory.take_freed_touch() {
                    self.diagnose(format!(
                        "a graph replay touched {bytes} bytes at {address:#x}, which were freed after its capture"
                    ));
                }
                Ok(())
            }
        };
        if let Err(fault) = outcome {
            let what = match work {
                Work::Kernel(launch) => format!("kernel {}", launch.function.entry),
                _ => "a copy or memset".to_owned(),
            };
            self.fault(device, fault.status(), format!("{what} {fault}"));
        }
    }

    fn execute_kernel(&mut self, launch: &Launch, access: Access) -> Result<(), KernelFault> {
        let state = &launch.function;
        let Some(function) = self.kernels.find(&state.image, &state.entry) else {
            // Refused when it was launched, unless missing kernels are to be ignored.
            return Ok(());
        };
        let mut view =
            KernelLaunch::new(&state.entry, launch.config, &launch.parameters, &mut self.memory, access);
        self.kernel_thread.store(thread::number(), Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(|| function(&mut view)));
        self.kernel_thread.store(0, Ordering::Relaxed);
        match (view.into_fault(), outcome) {
            (_, Err(panic)) => {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                Err(KernelFault::Panicked { message: text.unwrap_or_else(|| "no message".to_owned()) })
            }
            (Some(fault), Ok(_)) => Err(fault),
            (None, Ok(outcome)) => outcome,
        }
    }

    /// Whether a function may be launched; 801 and a diagnostic where no Rust function is registered for it.
    pub(crate) fn kernel_is_there(&mut self, device: usize, state: &FunctionState) -> Result<(), CUresult> {
        if self.kernels.find(&state.image, &state.entry).is_some() {
            return Ok(());
        }
        let entry = &state.entry;
        self.diagnose(format!(
            "launch of {entry:?}: no Rust function stands for this kernel; register one with \
             SimDriver::register_kernel({entry:?}, ..)"
        ));
        match self.profiles[device].missing_kernel {
            MissingKernel::Ignore => Ok(()),
            MissingKernel::Refuse => Err(metrale_driver_sys::CUDA_ERROR_NOT_SUPPORTED),
        }
    }

    /// Loses a context: its pending work is dropped, and every later call answers `status`.
    pub(crate) fn fault(&mut self, device: usize, status: CUresult, why: String) {
        self.diagnose(format!("device {device} lost with status {status}: {why}"));
        let fault = if status == 0 { CUDA_ERROR_ILLEGAL_ADDRESS } else { status };
        self.contexts[device].fault.get_or_insert(fault);
        self.streams.abandon(device);
    }
}

fn copy_rows(memory: &mut Memory, copy: &Copy, access: Access) -> Result<(), Stray> {
    let mut piece = vec![0; PIECE.min(copy.width as usize)];
    for row in 0..copy.rows {
        let from = row * copy.source_pitch;
        let to = row * copy.target_pitch;
        // An overlapping copy that moves bytes up goes from the end, so that nothing is read after it was overwritten.
        let backward = match (&copy.source, &copy.target) {
            (Place::Device(source), Place::Device(target)) => target > source && target - source < copy.width,
            _ => false,
        };
        let mut done = 0;
        while done < copy.width {
            let part = (copy.width - done).min(PIECE as u64);
            let at = if backward { copy.width - done - part } else { done };
            let piece = &mut piece[..part as usize];
            read_place(memory, &copy.source, from + at, piece, access)?;
            write_place(memory, &copy.target, to + at, piece, access)?;
            done += part;
        }
    }
    Ok(())
}

fn read_place(
    memory: &mut Memory,
    place: &Place,
    at: u64,
    out: &mut [u8],
    access: Access,
) -> Result<(), Stray> {
    match place {
        Place::Device(address) => memory.read(address + at, out, access),
        Place::Host { address, owner } => {
            let address = address + at as usize;
            still_there(memory, address, out.len(), *owner)?;
            // SAFETY: the submitter of the copy promised that the range is readable until the work is done; memory of this
            // instance was just found alive.
            unsafe { host::read(address, out) }
            Ok(())
        }
        Place::Staged(bytes) => {
            let at = at as usize;
            out.copy_from_slice(&bytes[at..at + out.len()]);
            Ok(())
        }
    }
}

fn write_place(
    memory: &mut Memory,
    place: &Place,
    at: u64,
    bytes: &[u8],
    access: Access,
) -> Result<(), Stray> {
    match place {
        Place::Device(address) => memory.write(address + at, bytes, access),
        Place::Host { address, owner } => {
            let address = address + at as usize;
            still_there(memory, address, bytes.len(), *owner)?;
            // SAFETY: the submitter of the copy promised that the range is writable until the work is done; memory of this
            // instance was just found alive.
            unsafe { host::write(address, bytes) }
            Ok(())
        }
        // Never built as a target.
        Place::Staged(_) => Ok(()),
    }
}

/// Pinned and managed memory may be freed before a graph replays a copy. That is a fault, and must not become an access of the
/// software driver to freed memory.
fn still_there(memory: &Memory, address: usize, len: usize, owner: Option<u64>) -> Result<(), Stray> {
    match owner {
        Some(serial) if !memory.is_still(address as u64, len as u64, serial) => {
            Err(Stray { address: address as u64, bytes: len as u64 })
        }
        _ => Ok(()),
    }
}
