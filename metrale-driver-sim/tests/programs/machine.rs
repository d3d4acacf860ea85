// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`run`]: a program on a driver, whichever it is.
//!
//! Every program is one that a real driver survives, however it was made. What would crash it or be undefined is left out,
//! and its step has no status: a place that is empty, a handle that was destroyed, a graph whose memory was freed. Work of
//! two streams on the same memory is ordered by a wait of the runner, whose status is in the step too; where a capture
//! forbids that wait, the work is left out.

mod captures;
mod work;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use metrale_driver_sim::SimDriver;
use metrale_driver_sim::driver_sys::DriverApi;

use super::content::{Content, Effect, Memory, Place};
use super::op::{Op, Program, Verb, WINDOW};
use super::transcript::{Step, Transcript};
use crate::common::{self, Answer, Cuda, PTX};

/// `twist` makes the word `w` into `3 w + value`.
const TWIST: &str = "
.visible .entry twist(
    .param .u64 twist_at,
    .param .u32 twist_value
)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [twist_at];
    ld.param.u32 %r1, [twist_value];
    ld.global.u32 %r2, [%rd1];
    mad.lo.u32 %r3, %r2, 3, %r1;
    st.global.u32 [%rd1], %r3;
    ret;
}
\0";

/// The kernels of all tests, and `twist`.
static KERNELS: LazyLock<String> = LazyLock::new(|| PTX.trim_end_matches('\0').to_owned() + TWIST);

/// Registers the functions of the kernels.
pub(crate) fn register(driver: &SimDriver) {
    common::register(driver);
    driver.register_kernel("twist", |launch| {
        let (at, value) = (launch.parameter::<u64>(0)?, launch.parameter::<u32>(1)?);
        let word = launch.load::<u32>(at)?;
        launch.store(at, word.wrapping_mul(3).wrapping_add(value))
    });
}

/// The legacy stream's place.
const LEGACY: usize = 0;
/// Not ready: whether work is done by now is a matter of time.
const NOT_READY: i32 = 600;

/// Device memory.
struct Buffer {
    address: u64,
    bytes: usize,
    generation: u64,
    content: Content,
    /// The stream that may be at work on it.
    busy: Option<usize>,
}

impl Buffer {
    fn has(&self, offset: u64) -> bool {
        offset < self.bytes as u64
    }
}

/// Pinned memory of [`WINDOW`] bytes.
struct Host {
    pointer: *mut u8,
    generation: u64,
    content: Content,
    busy: Option<usize>,
}

#[derive(Clone, Copy)]
struct Stream {
    handle: u64,
    capture: Option<u64>,
}

struct Event {
    handle: u64,
    /// The capture that it was last recorded in.
    capture: Option<u64>,
}

/// What a capture recorded.
#[derive(Default)]
struct Recorded {
    effects: Vec<Effect>,
    /// What is used, and by which stream: branches of a graph have no order among them.
    used: Vec<(Memory, usize)>,
}

struct Graph {
    exec: u64,
    recorded: Recorded,
}

struct Module {
    handle: u64,
    poke: u64,
    twist: u64,
}

/// A program that runs.
struct Machine {
    cuda: Cuda,
    buffers: [Option<Buffer>; 5],
    hosts: [Option<Host>; 2],
    streams: [Option<Stream>; 4],
    events: [Option<Event>; 3],
    graphs: [Option<Graph>; 2],
    modules: [Option<Module>; 2],
    captures: HashMap<u64, (usize, Recorded)>,
    /// The last address that was freed, by place; forgotten when memory is allocated.
    freed: [Option<u64>; 5],
    generations: u64,
    start_free: usize,
    transcript: Transcript,
    step: Step,
}

/// Runs a program in the context that is current, and frees everything it made.
pub(crate) fn run(driver: &Arc<dyn DriverApi>, program: &Program) -> Transcript {
    let cuda = Cuda::new(driver);
    let start_free = cuda.info().map_or(0, |(free, _)| free);
    let mut machine = Machine {
        cuda,
        buffers: Default::default(),
        hosts: Default::default(),
        streams: [Some(Stream { handle: 0, capture: None }), None, None, None],
        events: Default::default(),
        graphs: Default::default(),
        modules: Default::default(),
        captures: HashMap::new(),
        freed: [None; 5],
        generations: 0,
        start_free,
        transcript: Transcript::default(),
        step: Step::new(String::new()),
    };
    for &op in &program.0 {
        machine.step = Step::new(op.to_string());
        // What is left out has no status.
        let _ = machine.act(op);
        machine.close_step();
    }
    machine.step = Step::new("(the end)".to_owned());
    machine.clean();
    machine.close_step();
    machine.transcript
}

impl Machine {
    fn close_step(&mut self) {
        let step = std::mem::replace(&mut self.step, Step::new(String::new()));
        let used = self.cuda.info().map(|(free, _)| self.start_free as i64 - free as i64);
        self.transcript.steps.push(Step { used, ..step });
    }

    /// Notes a status. Whether work is done by now does not count.
    fn note(&mut self, status: i32) -> bool {
        self.step.statuses.push(if status == NOT_READY { 0 } else { status });
        status == 0
    }

    fn noted<T>(&mut self, answer: Answer<T>) -> Option<T> {
        self.note(answer.as_ref().err().copied().unwrap_or(0));
        answer.ok()
    }

    fn generation(&mut self) -> u64 {
        self.generations += 1;
        self.generations
    }

    fn act(&mut self, op: Op) -> Option<()> {
        let place = |at: usize| op.at(at) as usize;
        match op.verb {
            Verb::Alloc => self.alloc(place(0), place(1), false),
            Verb::Managed => self.alloc(place(0), place(1), true),
            Verb::Free => self.free(place(0)),
            Verb::FreeInside => {
                let (buffer, offset) = (self.buffers[place(0)].as_ref()?, op.at(1).max(1));
                let status = buffer.has(offset).then(|| self.cuda.free(buffer.address + offset))?;
                self.note(status);
                self.look_at_captures()
            }
            Verb::FreeAgain => {
                // Whether an allocation has had the address since then is each driver's own affair.
                let address = self.freed[place(0)]?;
                let status = self.cuda.free(address);
                self.note(status);
                self.look_at_captures()
            }
            Verb::Range => {
                let buffer = self.buffers[place(0)].as_ref().filter(|buffer| buffer.has(op.at(1)))?;
                let address = buffer.address;
                let range = self.cuda.range(address + op.at(1));
                let (base, bytes) = self.noted(range)?;
                self.step.answers.extend([base.wrapping_sub(address) as i64, bytes as i64]);
                Some(())
            }
            Verb::Pinned => self.pin(place(0)),
            Verb::Unpin => self.unpin(place(0)),
            Verb::Write => {
                let host = Place::Host(place(0));
                self.settle(&[host], None)?;
                let host = self.hosts[place(0)].as_mut()?;
                // SAFETY: the allocation has that many bytes, and no work that was queued is left for it.
                let bytes = unsafe { std::slice::from_raw_parts_mut(host.pointer, WINDOW) };
                for (at, byte) in bytes.iter_mut().enumerate() {
                    *byte = (op.at(1) as usize).wrapping_mul(31).wrapping_add(at * 7) as u8;
                    host.content[at] = Some(*byte);
                }
                Some(())
            }
            Verb::Read => self.read(place(0)),
            Verb::Upload | Verb::Download | Verb::Copy | Verb::Fill => self.blocking(op),
            Verb::UploadAsync
            | Verb::DownloadAsync
            | Verb::CopyAsync
            | Verb::Copy2d
            | Verb::FillAsync
            | Verb::FillWords
            | Verb::Poke
            | Verb::Twist => self.queued(op),
            Verb::Stream => self.make_stream(place(0), op.at(1) as u32),
            Verb::DestroyStream => self.destroy_stream(place(0)),
            Verb::SyncStream => {
                let stream = self.streams[place(0)]?;
                let status = self.cuda.stream_sync(stream.handle);
                if self.note(status) {
                    self.at_rest(|busy| busy == place(0));
                }
                self.look_at_captures()
            }
            Verb::QueryStream => {
                let stream = self.streams[place(0)]?;
                let status = self.cuda.stream_query(stream.handle);
                self.note(status);
                self.look_at_captures()
            }
            Verb::Sync => {
                let status = self.cuda.sync();
                if self.note(status) {
                    self.at_rest(|_| true);
                }
                self.look_at_captures()
            }
            Verb::Event => {
                if self.events[place(0)].is_some() {
                    return None;
                }
                let made = self.cuda.event(op.at(1) as u32);
                let handle = self.noted(made)?;
                self.events[place(0)] = Some(Event { handle, capture: None });
                self.look_at_captures()
            }
            Verb::DestroyEvent => {
                let event = self.events[place(0)].take()?;
                let status = self.cuda.event_destroy(event.handle);
                self.note(status);
                self.look_at_captures()
            }
            Verb::Record => {
                let stream = self.streams[place(1)]?;
                let handle = self.events[place(0)].as_ref()?.handle;
                let status = self.cuda.event_record(handle, stream.handle);
                if self.note(status) {
                    self.events[place(0)].as_mut()?.capture = stream.capture;
                }
                self.look_at_captures()
            }
            Verb::Wait => {
                let stream = self.streams[place(0)]?;
                let event = self.events[place(1)].as_ref()?;
                let (handle, capture) = (event.handle, event.capture);
                let status = self.cuda.stream_wait(stream.handle, handle, 0);
                if self.note(status) && place(0) != LEGACY && stream.capture.is_none() {
                    // Whether it has joined, the driver says.
                    self.streams[place(0)] = Some(Stream { capture, ..stream });
                }
                self.look_at_captures()
            }
            Verb::QueryEvent => {
                let handle = self.events[place(0)].as_ref()?.handle;
                let status = self.cuda.event_query(handle);
                self.note(status);
                self.look_at_captures()
            }
            Verb::SyncEvent => {
                let handle = self.events[place(0)].as_ref()?.handle;
                let status = self.cuda.event_sync(handle);
                self.note(status);
                self.look_at_captures()
            }
            Verb::Elapsed => {
                let (start, end) =
                    (self.events[place(0)].as_ref()?.handle, self.events[place(1)].as_ref()?.handle);
                let answer = self.cuda.elapsed(start, end);
                self.noted(answer);
                self.look_at_captures()
            }
            Verb::Begin => self.begin(place(0), op.at(1) as u32),
            Verb::End => {
                let (graph, recorded) = self.end(place(0))?;
                self.instantiate(place(1), graph, recorded);
                Some(())
            }
            Verb::Update => self.update(place(0), place(1)),
            Verb::Launch => self.launch(place(0), place(1)),
            Verb::DestroyGraph => self.destroy_graph(place(0)),
            Verb::Load => self.load(place(0)),
            Verb::Unload => {
                // Its kernels may be in graphs and queues.
                self.modules[place(0)].as_ref()?;
                self.settle_everything()?;
                let is_used = self.graphs.iter().any(Option::is_some) || !self.captures.is_empty();
                let module = (!is_used).then(|| self.modules[place(0)].take()).flatten()?;
                let status = self.cuda.unload(module.handle);
                self.note(status);
                Some(())
            }
        }
    }
}
