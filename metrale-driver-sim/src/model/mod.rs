// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model: what the software driver knows, as state machines that never touch a caller's pointer.
//!
//! One [`Model`] stands behind one lock. Its methods answer what the driver would, `Err` holding the status; `driver`
//! converts raw arguments to theirs and back. Host memory is reached in `host` only, when work runs.

pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod handle;
pub(crate) mod host;
pub(crate) mod kernel;
pub(crate) mod loaded;
pub(crate) mod memory;
pub(crate) mod module;
mod order;
mod pool;
mod space;
mod store;
pub(crate) mod stream;
pub(crate) mod tensor_map;
pub(crate) mod work;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use self::capture::Capture;
use self::context::Context;
use self::event::Event;
use self::graph::{Exec, Graph};
use self::handle::{Handles, Kind};
use self::kernel::Kernels;
use self::loaded::{Function, Module};
use self::memory::Memory;
use self::stream::Streams;
use crate::leaks::Leaks;
use crate::profile::Profile;

/// Diagnostics kept; older ones are dropped.
const MAX_DIAGNOSTICS: usize = 1000;

/// All state of one software driver.
pub(crate) struct Model {
    pub(crate) profiles: Vec<Profile>,
    initialized: bool,
    handles: Handles,
    /// One for each device: there are only primary contexts.
    contexts: Vec<Context>,
    /// Device whose context is current, by thread.
    current: HashMap<u64, usize>,
    /// Per-thread default streams, by thread and device.
    thread_streams: HashMap<(u64, usize), u64>,
    pub(crate) memory: Memory,
    pub(crate) streams: Streams,
    events: HashMap<u64, Event>,
    captures: HashMap<u64, Capture>,
    next_capture: u64,
    graphs: HashMap<u64, Graph>,
    execs: HashMap<u64, Exec>,
    modules: HashMap<u64, Module>,
    functions: HashMap<u64, Function>,
    pub(crate) kernels: Kernels,
    /// What was left when contexts ended.
    lost: Leaks,
    diagnostics: VecDeque<String>,
    /// The thread that is inside a kernel's function, 0 for none.
    kernel_thread: Arc<AtomicU64>,
}

impl Model {
    pub(crate) fn new(profiles: Vec<Profile>, kernel_thread: Arc<AtomicU64>) -> Self {
        let mut handles = Handles::default();
        let contexts = profiles.iter().map(|_| Context::new(&mut handles)).collect();
        let default_pools = profiles.iter().map(|_| handles.make(Kind::Pool)).collect();
        Self {
            memory: Memory::new(&profiles, default_pools),
            profiles,
            initialized: false,
            handles,
            contexts,
            current: HashMap::new(),
            thread_streams: HashMap::new(),
            streams: Streams::default(),
            events: HashMap::new(),
            captures: HashMap::new(),
            next_capture: 0,
            graphs: HashMap::new(),
            execs: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            kernels: Kernels::default(),
            lost: Leaks::default(),
            diagnostics: VecDeque::new(),
            kernel_thread,
        }
    }

    /// Keeps a message for people.
    pub(crate) fn diagnose(&mut self, message: String) {
        if self.diagnostics.len() == MAX_DIAGNOSTICS {
            self.diagnostics.pop_front();
        }
        self.diagnostics.push_back(message);
    }

    pub(crate) fn diagnostics(&self) -> Vec<String> {
        self.diagnostics.iter().cloned().collect()
    }
}
