// SPDX-License-Identifier: MIT OR Apache-2.0
//! Destroying graphs: one, those that use memory which is freed, those of a backend that is dropped.

use std::sync::Arc;

use metrale_driver_sys::{DriverError, is_sticky};
use metrale_ledger::AllocKind;
use metrale_registry::is_teardown_noop;

use crate::backend::MetraleCudaBackend;
use crate::call::ask;
use crate::error::Result;
use crate::graph::captures::Reach;
use crate::graph::pins::Pin;
use crate::graph::shared::{Graph, GraphState};

impl MetraleCudaBackend {
    /// Destroys a graph that was removed from the table; `there` is false where its context is gone. Where the driver
    /// refuses, the graph is as alive as before.
    pub(crate) fn destroy_removed(&self, graph: &Graph, there: bool) -> Result<(), DriverError> {
        let mut state = graph.state.lock();
        let answer = if there { self.destroy_exec(graph) } else { Ok(()) };
        match answer {
            Err(error) if !is_teardown_noop(error.status) => Err(error),
            // The driver destroyed it, or it went with its context.
            _ => {
                self.end_graph(&mut state);
                Ok(())
            }
        }
    }

    /// The driver's destruction, alone. The graph is locked.
    fn destroy_exec(&self, graph: &Graph) -> Result<(), DriverError> {
        // A graph of another device may use memory of this device, which is freed next.
        let elsewhere = graph.device != self.graph_client().device;
        let host = graph.host.upgrade().filter(|_| elsewhere);
        if elsewhere && host.is_none() {
            // Its context is gone, and the graph with it.
            return Ok(());
        }
        let _current = host.as_ref().map(|host| host.enter()).transpose()?;
        // SAFETY: no memory is passed; the graph is alive, and no other thread uses it while it is locked.
        unsafe { ask!(self.driver(), cuGraphExecDestroy(graph.handle.raw())) }
    }

    /// Marks a graph that was removed from the table as ended, and releases what it pins.
    pub(crate) fn end_graph(&self, state: &mut GraphState) {
        state.alive = false;
        self.graph_client().shared.with(|shared| shared.pins.release(state.id));
    }

    /// Destroys the graphs that use any of these allocations, of which this backend is the owner, and, where `or_may`, those
    /// of its own whose uses are not all known. Captures that use them, and have not ended, end without a graph. The names of the
    /// graphs, by the order of their captures. The context is current.
    pub(crate) fn destroy_graphs_using(&self, memory: &[(AllocKind, u64)], or_may: bool) -> Vec<Arc<str>> {
        if memory.is_empty() {
            return Vec::new();
        }
        let owner = self.graph_client().owner;
        self.graph_client().shared.with(|shared| {
            let pins = memory.iter().map(|&(kind, base)| Pin::of(kind, base));
            for &id in pins.flat_map(|pin| shared.pins.ids(pin)) {
                shared.captures.make_unfit(id, || "memory that it uses was freed with its owner".to_owned());
            }
        });
        self.destroy_graphs(
            "destroyed with memory that it used, which nobody had freed",
            |graph, opaque, uses| {
                (or_may && graph.owner == owner && opaque)
                    || memory.iter().any(|&(kind, base)| uses(Pin::of(kind, base)))
            },
        )
    }

    /// Gives up the captures and destroys the graphs of a backend that goes. `there` is false where the context is gone.
    pub(crate) fn end_all_graphs(&self, there: bool) {
        let client = self.graph_client();
        let owner = client.owner;
        for origin in client.shared.with(|shared| shared.captures.origins_of(owner)) {
            let site = client.within(Reach::Stream(origin), |capture| capture.site);
            if let Some(site) = site.filter(|_| there) {
                tracing::warn!(
                    "the capture begun at {} on stream {origin:#x} had not ended when its backend was dropped, and is given up; \
                     a CaptureGuard ends in time",
                    metrale_ledger::file_line(site)
                );
            }
            if let Err(error) = self.abort_capture_if_active(origin) {
                tracing::error!("a capture could not be given up when its backend was dropped: {error:#}");
            }
        }
        if there {
            self.destroy_graphs("destroyed with its backend", |graph, _, _| graph.owner == owner);
        }
        // What the driver kept, or what went with its context, cannot be launched any more.
        let left = client.shared.with(|shared| {
            let left: Vec<_> = shared.graphs.values().filter(|graph| graph.owner == owner).cloned().collect();
            for graph in &left {
                shared.remove_graph(graph.handle, "gone with its backend");
            }
            for origin in shared.captures.origins_of(owner) {
                if let Some(id) = shared.captures.on_stream(origin).map(|capture| capture.id) {
                    shared.captures.close(id);
                    shared.pins.release(id);
                }
            }
            left
        });
        for graph in left {
            self.end_graph(&mut graph.state.lock());
        }
    }

    /// Destroys the graphs for which `fits` is true; it is told whether a graph has launches of unknown arguments and what
    /// the graph uses. A graph that the driver refuses to destroy cannot be launched any more either, because what it uses is
    /// freed in any case.
    fn destroy_graphs(
        &self,
        how: &'static str,
        fits: impl Fn(&Graph, bool, &dyn Fn(Pin) -> bool) -> bool,
    ) -> Vec<Arc<str>> {
        let shared = &self.graph_client().shared;
        let all: Vec<_> = shared.with(|shared| shared.graphs.values().cloned().collect());
        let mut chosen: Vec<_> = all
            .into_iter()
            .filter_map(|graph| {
                let id = graph.state.lock().id;
                shared.with(|shared| {
                    let uses = shared.pins.of(id);
                    let opaque = uses.is_some_and(|uses| uses.opaque_launches > 0);
                    let pins = |pin: Pin| uses.is_some_and(|uses| uses.memory.contains_key(&pin));
                    fits(&graph, opaque, &pins).then(|| (id, Arc::clone(&graph)))
                })
            })
            .collect();
        chosen.sort_by_key(|&(id, _)| id);
        let (total, mut there) = (chosen.len(), true);
        let mut names = Vec::new();
        for (index, (_, graph)) in chosen.into_iter().enumerate() {
            if shared.with(|shared| shared.remove_graph(graph.handle, how)).is_none() {
                continue;
            }
            names.push(Arc::clone(&graph.name));
            let Err(error) = self.destroy_removed(&graph, there) else { continue };
            self.end_graph(&mut graph.state.lock());
            if is_sticky(error.status) {
                there = false;
                tracing::error!(
                    "{} of {total} graphs cannot be destroyed because the context is lost: {error}",
                    total - index
                );
            } else {
                tracing::error!(
                    "graph {:?} could not be destroyed and stays in the driver: {error}",
                    graph.name
                );
            }
        }
        names
    }
}
