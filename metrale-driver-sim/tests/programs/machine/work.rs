// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory, and the work that streams and blocking calls do on it.

use std::ffi::c_void;

use metrale_driver_sim::driver_sys::{CU_MEM_ATTACH_GLOBAL, CU_MEMORYTYPE_DEVICE, CUDA_MEMCPY2D};

use super::super::content::{Content, Effect, Memory, Place};
use super::super::op::{Op, Verb, WINDOW};
use super::{Buffer, Host, KERNELS, LEGACY, Machine, Module};

/// A range of a piece of memory.
#[derive(Clone, Copy)]
struct Range {
    place: Place,
    offset: usize,
}

impl Machine {
    pub(super) fn alloc(&mut self, place: usize, bytes: usize, managed: bool) -> Option<()> {
        if self.buffers[place].is_some() {
            return None;
        }
        let made = match managed {
            false => self.cuda.alloc(bytes),
            // More than there is would take the host's memory.
            true => self.cuda.alloc_managed(bytes.min(64 << 20), CU_MEM_ATTACH_GLOBAL),
        };
        let address = self.noted(made);
        self.look_at_captures();
        let address = address?;
        self.freed = [None; 5];
        let (generation, content) = (self.generation(), vec![None; bytes.min(WINDOW)]);
        self.buffers[place] = Some(Buffer { address, bytes, generation, content, busy: None });
        Some(())
    }

    pub(super) fn free(&mut self, place: usize) -> Option<()> {
        let address = self.buffers[place].as_ref().map_or(0, |buffer| buffer.address);
        let status = self.cuda.free(address);
        if self.note(status) && address != 0 {
            self.buffers[place] = None;
            self.freed[place] = Some(address);
        }
        self.look_at_captures()
    }

    pub(super) fn pin(&mut self, place: usize) -> Option<()> {
        if self.hosts[place].is_some() {
            return None;
        }
        let made = self.cuda.alloc_host(WINDOW);
        let pointer = self.noted(made);
        self.look_at_captures();
        let generation = self.generation();
        let content = vec![None; WINDOW];
        self.hosts[place] = Some(Host { pointer: pointer?.cast(), generation, content, busy: None });
        Some(())
    }

    pub(super) fn unpin(&mut self, place: usize) -> Option<()> {
        let pointer = self.hosts[place].as_ref()?.pointer;
        self.settle(&[Place::Host(place)], None)?;
        let status = self.cuda.free_host(pointer.cast());
        if self.note(status) {
            self.hosts[place] = None;
        }
        self.look_at_captures()
    }

    pub(super) fn load(&mut self, place: usize) -> Option<()> {
        if self.modules[place].is_some() {
            return None;
        }
        let loaded = self.cuda.load(KERNELS.as_bytes());
        let handle = self.noted(loaded)?;
        let functions = [self.cuda.function(handle, "poke"), self.cuda.function(handle, "twist")];
        let [poke, twist] = functions.map(|function| self.noted(function));
        self.modules[place] = Some(Module { handle, poke: poke?, twist: twist? });
        Some(())
    }

    /// What a buffer holds, compared with what it must.
    pub(super) fn read(&mut self, place: usize) -> Option<()> {
        self.settle(&[Place::Buffer(place)], None)?;
        let buffer = self.buffers[place].as_ref()?;
        let (address, expected) = (buffer.address, buffer.content.clone());
        let mut bytes = vec![0; expected.len()];
        let status = self.cuda.download(&mut bytes, address);
        if self.note(status) {
            self.compare(Place::Buffer(place), &bytes, &expected);
        }
        self.look_at_captures()
    }

    /// Keeps bytes that were read, without those that nobody wrote.
    fn compare(&mut self, place: Place, bytes: &[u8], expected: &Content) {
        let wrong =
            bytes.iter().zip(expected).position(|(byte, expected)| expected.is_some_and(|e| e != *byte));
        if let Some(at) = wrong {
            let (is, should) = (bytes[at], expected[at].unwrap_or(0));
            let line = format!(
                "{}: byte {at} of {place:?} is {is:#04x} and was written as {should:#04x}",
                self.step.op
            );
            self.transcript.wrong.push(line);
        }
        self.step.bytes =
            bytes.iter().zip(expected).map(|(byte, expected)| expected.map(|_| *byte)).collect();
    }

    /// The memory that has a place now.
    pub(super) fn memory(&self, place: Place) -> Option<Memory> {
        let generation = match place {
            Place::Buffer(at) => self.buffers[at].as_ref()?.generation,
            Place::Host(at) => self.hosts[at].as_ref()?.generation,
        };
        Some(Memory { place, generation })
    }

    pub(super) fn busy(&mut self, place: Place) -> Option<&mut Option<usize>> {
        match place {
            Place::Buffer(at) => self.buffers[at].as_mut().map(|buffer| &mut buffer.busy),
            Place::Host(at) => self.hosts[at].as_mut().map(|host| &mut host.busy),
        }
    }

    /// Forgets which streams are at work, those that match.
    pub(super) fn at_rest(&mut self, is_at_rest: impl Fn(usize) -> bool) {
        let buffers = self.buffers.iter_mut().flatten().map(|buffer| &mut buffer.busy);
        for busy in buffers.chain(self.hosts.iter_mut().flatten().map(|host| &mut host.busy)) {
            *busy = busy.filter(|&stream| !is_at_rest(stream));
        }
    }

    /// Waits for other streams' work on some memory, before work of `stream` or a blocking call. `None` where that cannot be.
    pub(super) fn settle(&mut self, places: &[Place], stream: Option<usize>) -> Option<()> {
        for &place in places {
            let Some(busy) = self.busy(place)?.filter(|&busy| Some(busy) != stream) else { continue };
            self.wait_for(busy)?;
        }
        Some(())
    }

    /// Waits for all work on memory.
    pub(super) fn settle_everything(&mut self) -> Option<()> {
        (0..self.streams.len())
            .try_for_each(|place| self.streams[place].map_or(Some(()), |_| self.wait_for(place)))
    }

    /// Waits for a stream; not for one that captures, nor while a capture forbids it.
    pub(super) fn wait_for(&mut self, place: usize) -> Option<()> {
        let stream = self.streams[place].filter(|stream| stream.capture.is_none())?;
        if !self.captures.is_empty() {
            return None;
        }
        let status = self.cuda.stream_sync(stream.handle);
        self.note(status).then(|| self.at_rest(|busy| busy == place))
    }

    /// Whether a range of `bytes` bytes is inside its memory. Nothing is so everywhere.
    fn fits(&self, range: Range, bytes: usize) -> bool {
        let there = match range.place {
            Place::Buffer(at) => self.buffers[at].as_ref().map_or(0, |buffer| buffer.bytes),
            Place::Host(_) => WINDOW,
        };
        bytes == 0 || range.offset + bytes <= there
    }

    fn address(&self, range: Range) -> Option<u64> {
        Some(
            self.buffers[match range.place {
                Place::Buffer(at) | Place::Host(at) => at,
            }]
            .as_ref()?
            .address
                + range.offset as u64,
        )
    }

    fn pointer(&self, range: Range) -> Option<*mut c_void> {
        let (Place::Host(at) | Place::Buffer(at)) = range.place;
        let host = self.hosts.get(at)?.as_ref()?;
        // SAFETY: offsets are below the memory's size.
        Some(unsafe { host.pointer.add(range.offset) }.cast())
    }

    /// The two ends and the bytes of a copy: its target, its source. Host memory is never left.
    fn ends(op: Op) -> ((Range, Range), usize) {
        let kinds: [fn(usize) -> Place; 2] = match op.verb {
            Verb::Upload | Verb::UploadAsync => [Place::Buffer, Place::Host],
            Verb::Download | Verb::DownloadAsync => [Place::Host, Place::Buffer],
            _ => [Place::Buffer, Place::Buffer],
        };
        let range = |at: usize| Range {
            place: kinds[at](op.at(2 * at) as usize),
            offset: op.at(2 * at + 1) as usize,
        };
        let (to, from) = (range(0), range(1));
        let space = [to, from].into_iter().filter(|range| matches!(range.place, Place::Host(_)));
        let space = space.map(|range| WINDOW - range.offset).min().unwrap_or(usize::MAX);
        ((to, from), (op.at(4) as usize).min(space))
    }

    /// A copy or a fill that the caller waits for.
    pub(super) fn blocking(&mut self, op: Op) -> Option<()> {
        if op.verb == Verb::Fill {
            let to = Range { place: Place::Buffer(op.at(0) as usize), offset: op.at(1) as usize };
            let (byte, bytes) = (op.at(2) as u8, op.at(3) as usize);
            let fits = self.fits(to, bytes);
            let address = self.address(to)?;
            self.settle(&[to.place], Some(LEGACY))?;
            let status = self.cuda.memset(address, byte, bytes);
            let effect = Effect::Fill { to: (to.place, to.offset), pattern: vec![byte], bytes };
            return self.done(status, fits, effect, &[to.place]);
        }
        let ((to, from), bytes) = Self::ends(op);
        let fits = self.fits(to, bytes) && self.fits(from, bytes);
        self.memory(to.place).and(self.memory(from.place))?;
        self.settle(&[to.place, from.place], Some(LEGACY))?;
        if op.verb == Verb::Download {
            // The host looks at it after the copy, which waits for nothing where it has no bytes.
            self.settle(&[to.place], None)?;
        }
        let status = match op.verb {
            // SAFETY: the host's side has that many bytes, and no work is left on it.
            Verb::Upload => unsafe {
                self.cuda.api.cuMemcpyHtoD_v2(self.address(to)?, self.pointer(from)?, bytes)
            },
            // SAFETY: as above.
            Verb::Download => unsafe {
                self.cuda.api.cuMemcpyDtoH_v2(self.pointer(to)?, self.address(from)?, bytes)
            },
            _ => self.cuda.copy_on_device(self.address(to)?, self.address(from)?, bytes),
        };
        let effect = Effect::copy((to.place, to.offset), (from.place, from.offset), bytes);
        self.done(status, fits, effect, &[to.place, from.place])?;
        if let (0, Place::Host(at)) = (status, to.place) {
            let expected = self.hosts[at].as_ref()?.content.clone();
            // SAFETY: the copy was blocking, and no other work is left on the memory.
            let bytes =
                unsafe { std::slice::from_raw_parts(self.hosts[at].as_ref()?.pointer, WINDOW) }.to_vec();
            self.compare(to.place, &bytes, &expected);
        }
        Some(())
    }

    /// A blocking call's outcome: the legacy stream may still be at work.
    fn done(&mut self, status: i32, fits: bool, effect: Effect, places: &[Place]) -> Option<()> {
        if self.note(status) {
            if !fits {
                self.transcript
                    .wrong
                    .push(format!("{}: memory was left, and the driver allowed it", self.step.op));
            }
            self.apply(&effect);
            for &place in places {
                *self.busy(place)? = Some(LEGACY);
            }
        }
        self.look_at_captures()
    }

    pub(super) fn apply(&mut self, effect: &Effect) {
        let (buffers, hosts) = (&mut self.buffers, &mut self.hosts);
        let mut nowhere = Vec::new();
        effect.apply(|place, with| {
            let content = match place {
                Place::Buffer(at) => buffers[at].as_mut().map(|buffer| &mut buffer.content),
                Place::Host(at) => hosts[at].as_mut().map(|host| &mut host.content),
            };
            with(content.unwrap_or(&mut nowhere));
        });
    }

    /// Work in the order of a stream.
    pub(super) fn queued(&mut self, op: Op) -> Option<()> {
        let place = match op.verb {
            Verb::FillAsync | Verb::FillWords | Verb::Poke | Verb::Twist => op.at(4),
            Verb::Copy2d => op.at(6),
            _ => op.at(5),
        } as usize;
        let stream = self.streams[place]?;
        let (places, effect) = self.effect_of(op)?;
        let memory: Vec<Memory> = places.iter().map(|&place| self.memory(place)).collect::<Option<_>>()?;
        match stream.capture.and_then(|capture| self.captures.get(&capture)) {
            // Branches of a graph are in no order.
            Some((_, recorded)) => {
                let other = |used: &(Memory, usize)| memory.contains(&used.0) && used.1 != place;
                if recorded.used.iter().any(other) {
                    return None;
                }
            }
            None => self.settle(&places, Some(place))?,
        }
        let status = self.submit(op, stream.handle)?;
        if self.note(status) {
            match stream.capture.and_then(|capture| self.captures.get_mut(&capture)) {
                Some((_, recorded)) => {
                    recorded.effects.push(effect);
                    recorded.used.extend(memory.into_iter().map(|memory| (memory, place)));
                }
                None => {
                    self.apply(&effect);
                    for at in places {
                        *self.busy(at)? = Some(place);
                    }
                }
            }
        }
        self.look_at_captures()
    }

    /// What queued work uses and does; `None` for what would leave its memory, which no driver need notice in time.
    fn effect_of(&self, op: Op) -> Option<(Vec<Place>, Effect)> {
        let buffer = |at: usize| Place::Buffer(op.at(at) as usize);
        let (to, effect, bytes) = match op.verb {
            Verb::FillAsync | Verb::FillWords => {
                let words = op.verb == Verb::FillWords;
                let offset = if words { op.at(1) as usize & !3 } else { op.at(1) as usize };
                let bytes = op.at(3) as usize * if words { 4 } else { 1 };
                let word = (op.at(2) as u32).to_le_bytes();
                let pattern = if words { word.to_vec() } else { vec![op.at(2) as u8] };
                let to = Range { place: buffer(0), offset };
                (to, Effect::Fill { to: (to.place, offset), pattern, bytes }, bytes)
            }
            Verb::Poke | Verb::Twist => {
                let to = Range { place: buffer(1), offset: op.at(2) as usize & !3 };
                let (at, value) = ((to.place, to.offset), op.at(3) as u32);
                let pattern = value.to_le_bytes().to_vec();
                match op.verb {
                    Verb::Poke => (to, Effect::Fill { to: at, pattern, bytes: 4 }, 4),
                    _ => (to, Effect::Twist { to: at, value }, 4),
                }
            }
            Verb::Copy2d => {
                let (to, from) = (buffer(0), buffer(2));
                let pitches = (op.at(1) as usize, op.at(3) as usize);
                let (width, rows) = (op.at(4) as usize, op.at(5) as usize);
                let fits = |place, pitch| self.fits(Range { place, offset: 0 }, pitch * rows + width);
                let effect = Effect::Copy { to: (to, 0), from: (from, 0), width, rows, pitches };
                return (fits(to, pitches.0) && fits(from, pitches.1)).then_some((vec![to, from], effect));
            }
            _ => {
                let ((to, from), bytes) = Self::ends(op);
                let effect = Effect::copy((to.place, to.offset), (from.place, from.offset), bytes);
                let fits = self.fits(to, bytes) && self.fits(from, bytes);
                return fits.then_some((vec![to.place, from.place], effect));
            }
        };
        self.fits(to, bytes).then_some((vec![to.place], effect))
    }

    /// Asks the driver to queue the work.
    fn submit(&self, op: Op, stream: u64) -> Option<i32> {
        let cuda = &self.cuda;
        let at =
            |place: usize, offset: u64| Some(self.buffers[op.at(place) as usize].as_ref()?.address + offset);
        Some(match op.verb {
            Verb::FillAsync => cuda.memset_async(at(0, op.at(1))?, op.at(2) as u8, op.at(3) as usize, stream),
            Verb::FillWords => {
                cuda.memset_words(at(0, op.at(1) & !3)?, op.at(2) as u32, op.at(3) as usize, stream)
            }
            Verb::Poke | Verb::Twist => {
                let module = self.modules[op.at(0) as usize].as_ref()?;
                let function = if op.verb == Verb::Poke { module.poke } else { module.twist };
                // Both have the parameters of `poke`.
                cuda.poke(function, at(1, op.at(2) & !3)?, op.at(3) as u32, stream)
            }
            Verb::Copy2d => {
                let copy = CUDA_MEMCPY2D {
                    srcXInBytes: 0,
                    srcY: 0,
                    srcMemoryType: CU_MEMORYTYPE_DEVICE,
                    srcHost: std::ptr::null(),
                    srcDevice: at(2, 0)?,
                    srcArray: 0,
                    srcPitch: op.at(3) as usize,
                    dstXInBytes: 0,
                    dstY: 0,
                    dstMemoryType: CU_MEMORYTYPE_DEVICE,
                    dstHost: std::ptr::null_mut(),
                    dstDevice: at(0, 0)?,
                    dstArray: 0,
                    dstPitch: op.at(1) as usize,
                    WidthInBytes: op.at(4) as usize,
                    Height: op.at(5) as usize,
                };
                // SAFETY: both sides are device memory with all the rows.
                unsafe { cuda.api.cuMemcpy2DAsync_v2(&copy, stream) }
            }
            _ => {
                let ((to, from), bytes) = Self::ends(op);
                match (to.place, from.place) {
                    (Place::Host(_), _) => {
                        let (to, from) = (self.pointer(to)?, self.address(from)?);
                        // SAFETY: pinned memory with that many bytes, which stays until its stream was waited for.
                        unsafe { cuda.api.cuMemcpyDtoHAsync_v2(to, from, bytes, stream) }
                    }
                    (_, Place::Host(_)) => {
                        let (to, from) = (self.address(to)?, self.pointer(from)?);
                        // SAFETY: as above.
                        unsafe { cuda.api.cuMemcpyHtoDAsync_v2(to, from, bytes, stream) }
                    }
                    _ => cuda.copy_on_device_async(self.address(to)?, self.address(from)?, bytes, stream),
                }
            }
        })
    }
}
