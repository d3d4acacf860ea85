// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams, captures and graphs, and what is freed at the end.

use metrale_driver_sim::driver_sys::{CUgraphExecUpdateResultInfo, DriverFn, SCALE};

use super::super::content::Place;
use super::{Graph, LEGACY, Machine, Recorded, Stream};

impl Machine {
    pub(super) fn make_stream(&mut self, place: usize, flags: u32) -> Option<()> {
        if self.streams[place].is_some() {
            return None;
        }
        let made = self.cuda.stream(flags);
        let handle = self.noted(made)?;
        self.streams[place] = Some(Stream { handle, capture: None });
        Some(())
    }

    pub(super) fn destroy_stream(&mut self, place: usize) -> Option<()> {
        if place == LEGACY {
            return None;
        }
        self.wait_for(place)?;
        let stream = self.streams[place].take()?;
        let status = self.cuda.stream_destroy(stream.handle);
        self.note(status);
        Some(())
    }

    pub(super) fn begin(&mut self, place: usize, mode: u32) -> Option<()> {
        let stream = self.streams[place]?;
        let status = self.cuda.capture_begin(stream.handle, mode);
        if self.note(status) {
            let capture = self.generation();
            self.captures.insert(capture, (place, Recorded::default()));
            self.streams[place] = Some(Stream { capture: Some(capture), ..stream });
        }
        self.look_at_captures()
    }

    /// Asks which streams capture, while any does; a capture that no stream is in is over. SCALE's driver cannot be asked.
    pub(super) fn look_at_captures(&mut self) -> Option<()> {
        if self.captures.is_empty() || SCALE {
            return Some(());
        }
        for place in LEGACY + 1..self.streams.len() {
            let Some(stream) = self.streams[place] else { continue };
            let state = self.cuda.capture_state(stream.handle);
            let state = self.noted(state).unwrap_or(0);
            self.step.answers.push(i64::from(state));
            if state == 0 {
                self.streams[place] = Some(Stream { capture: None, ..stream });
            }
        }
        let streams = self.streams;
        self.captures
            .retain(|capture, _| streams.iter().flatten().any(|stream| stream.capture == Some(*capture)));
        Some(())
    }

    /// Ends a capture; its graph, where there is one.
    pub(super) fn end(&mut self, place: usize) -> Option<(u64, Recorded)> {
        let stream = self.streams[place]?;
        let (status, graph) = self.cuda.end(stream.handle);
        let is_ended = self.note(status);
        let recorded = stream.capture.and_then(|capture| self.captures.get_mut(&capture));
        let recorded = recorded.map(|(_, recorded)| std::mem::take(recorded)).unwrap_or_default();
        if SCALE {
            self.streams
                .iter_mut()
                .flatten()
                .filter(|of| of.capture == stream.capture)
                .for_each(|of| of.capture = None);
            self.captures.retain(|capture, _| Some(*capture) != stream.capture);
        }
        self.look_at_captures();
        if !is_ended {
            return None;
        }
        let nodes = self.cuda.nodes(graph);
        let nodes = self.noted(nodes)?;
        self.step.answers.push(nodes as i64);
        Some((graph, recorded))
    }

    /// Makes a graph ready, in the place of the one that was there.
    pub(super) fn instantiate(&mut self, place: usize, graph: u64, recorded: Recorded) {
        // A driver crashes on copies and fills of memory that was freed.
        if !self.is_gone(&recorded) && self.destroy_graph(place).is_some() {
            let made = self.cuda.instantiate(graph);
            self.graphs[place] = self.noted(made).map(|exec| Graph { exec, recorded });
            self.look_at_captures();
        }
        let status = self.cuda.graph_destroy(graph);
        self.note(status);
        self.look_at_captures();
    }

    /// Whether memory that was recorded has been freed.
    fn is_gone(&self, recorded: &Recorded) -> bool {
        recorded.used.iter().any(|(memory, _)| self.memory(memory.place) != Some(*memory))
    }

    /// Ends a capture and gives its work to a graph that there is.
    pub(super) fn update(&mut self, stream: usize, place: usize) -> Option<()> {
        let exec = self.graphs[place].as_ref()?.exec;
        self.cuda.api.provides(DriverFn::cuGraphExecUpdate_v2).then_some(())?;
        let (graph, recorded) = self.end(stream)?;
        if !self.is_gone(&recorded) {
            let mut info = CUgraphExecUpdateResultInfo::default();
            // SAFETY: both are live; the result pointer is a local.
            let status = unsafe { self.cuda.api.cuGraphExecUpdate_v2(exec, graph, &mut info) };
            self.step.answers.push(i64::from(info.result));
            if self.note(status) {
                self.graphs[place].as_mut()?.recorded = recorded;
            }
        }
        let status = self.cuda.graph_destroy(graph);
        self.note(status);
        Some(())
    }

    pub(super) fn launch(&mut self, place: usize, stream_place: usize) -> Option<()> {
        let stream = self.streams[stream_place]?;
        let graph = self.graphs[place].as_ref()?;
        let exec = graph.exec;
        if self.is_gone(&graph.recorded) {
            return None;
        }
        let effects = graph.recorded.effects.clone();
        let places: Vec<Place> = graph.recorded.used.iter().map(|(memory, _)| memory.place).collect();
        if stream.capture.is_none() {
            self.settle(&places, Some(stream_place))?;
        }
        let status = self.cuda.graph_launch(exec, stream.handle);
        if self.note(status) && stream.capture.is_none() {
            for effect in &effects {
                self.apply(effect);
            }
            for place in places {
                *self.busy(place)? = Some(stream_place);
            }
        }
        self.look_at_captures()
    }

    /// `None` where there is a graph, and it is refused.
    pub(super) fn destroy_graph(&mut self, place: usize) -> Option<()> {
        let Some(graph) = self.graphs[place].as_ref() else { return Some(()) };
        let status = self.cuda.exec_destroy(graph.exec);
        let is_destroyed = self.note(status);
        if is_destroyed {
            self.graphs[place] = None;
        }
        self.look_at_captures();
        is_destroyed.then_some(())
    }

    /// Ends and frees everything, so that the next program begins as this one did.
    pub(super) fn clean(&mut self) {
        for place in LEGACY + 1..self.streams.len() {
            let capture = self.streams[place].and_then(|stream| stream.capture);
            let origin = capture.and_then(|capture| self.captures.get(&capture)).map(|(origin, _)| *origin);
            if origin == Some(place)
                && let Some((graph, _)) = self.end(place)
            {
                let status = self.cuda.graph_destroy(graph);
                self.note(status);
            }
        }
        let _ = self.settle_everything();
        for place in 0..self.graphs.len() {
            let _ = self.destroy_graph(place);
        }
        for event in std::mem::take(&mut self.events).into_iter().flatten() {
            let status = self.cuda.event_destroy(event.handle);
            self.note(status);
        }
        for stream in self.streams.into_iter().skip(1).flatten() {
            let status = self.cuda.stream_destroy(stream.handle);
            self.note(status);
        }
        for buffer in std::mem::take(&mut self.buffers).into_iter().flatten() {
            let status = self.cuda.free(buffer.address);
            self.note(status);
        }
        for host in std::mem::take(&mut self.hosts).into_iter().flatten() {
            let status = self.cuda.free_host(host.pointer.cast());
            self.note(status);
        }
        for module in std::mem::take(&mut self.modules).into_iter().flatten() {
            let status = self.cuda.unload(module.handle);
            self.note(status);
        }
    }
}
