// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls made during a capture, as recorded on an H200 (driver 580.159.04) in `data/capture_on_h200.txt`: every row of
//! the file in each of the three modes, on both drivers.

mod common;

use common::{Cuda, PTX, on_another_thread, status, visible};
use metrale_driver_sim::{ContextGuard, on_both_drivers};

const RECORDED: &str = include_str!("data/capture_on_h200.txt");
const NON_BLOCKING: u32 = 1;
const MODES: [u32; 3] = [0, 1, 2];

/// What a row says of one mode.
#[derive(Debug, PartialEq, Eq)]
struct Cell {
    call: i32,
    state: u32,
    end: i32,
    graph: bool,
}

impl Cell {
    /// `900 2 901-`, `0 1 0g`
    fn parse(text: &str) -> Self {
        let [call, state, end] = text.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{text}") };
        let (end, graph) = end.split_at(end.len() - 1);
        Self {
            call: call.parse().unwrap(),
            state: state.parse().unwrap(),
            end: end.parse().unwrap(),
            graph: match graph {
                "g" => true,
                "-" => false,
                _ => panic!("{text}"),
            },
        }
    }
}

/// The table's rows: call, and a cell for each mode.
fn rows() -> Vec<(&'static str, [Cell; 3])> {
    RECORDED
        .lines()
        .filter_map(|line| line.split_once(" | "))
        .filter(|(call, _)| *call != "call")
        .map(|(call, cells)| {
            let cells: Vec<Cell> = cells.split(" ; ").map(Cell::parse).collect();
            (call, cells.try_into().unwrap())
        })
        .collect()
}

/// What the calls work on, made anew for each row and mode.
struct Scene {
    cuda: Cuda,
    context: u64,
    /// The capturing stream.
    s: u64,
    other: u64,
    module: u64,
    nothing: u64,
    memory: u64,
    victim: u64,
    /// Recorded and passed before the capture began.
    before: u64,
}

impl Scene {
    fn new(cuda: &Cuda, context: u64, blocking: bool) -> Self {
        let module = cuda.load(PTX.as_bytes()).unwrap();
        let scene = Self {
            cuda: cuda.clone(),
            context,
            s: cuda.stream(if blocking { 0 } else { NON_BLOCKING }).unwrap(),
            other: cuda.stream(NON_BLOCKING).unwrap(),
            module,
            nothing: cuda.function(module, "nothing").unwrap(),
            memory: cuda.alloc(4096).unwrap(),
            victim: cuda.alloc(4096).unwrap(),
            before: cuda.event(0).unwrap(),
        };
        // A first launch outside, so that nothing is loaded lazily during the capture.
        assert_eq!(cuda.nothing(scene.nothing, scene.s), 0);
        assert_eq!(cuda.event_record(scene.before, scene.other), 0);
        assert_eq!(cuda.sync(), 0);
        scene
    }

    fn elsewhere<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        on_another_thread(&self.cuda, self.context, call)
    }

    fn clean(self) {
        let cuda = &self.cuda;
        assert_eq!(cuda.sync(), 0);
        assert_eq!(cuda.free(self.memory), 0);
        // Freed by its row in some modes.
        assert!(matches!(cuda.free(self.victim), 0 | 1));
        assert_eq!(cuda.event_destroy(self.before), 0);
        assert_eq!(cuda.stream_destroy(self.s), 0);
        assert_eq!(cuda.stream_destroy(self.other), 0);
        assert_eq!(cuda.unload(self.module), 0);
    }
}

/// What undoes a call once the capture is over.
type Undo = Box<dyn FnOnce(&Cuda)>;

/// Does the call of a row; what must be freed after the capture is pushed to `after`.
fn call(scene: &Scene, row: &str, host: &mut [u8; 64], after: &mut Vec<Undo>) -> i32 {
    let cuda = &scene.cuda;
    let (s, other) = (scene.s, scene.other);
    let mut keep = |memory: Result<u64, i32>| {
        if let Ok(memory) = memory {
            after.push(Box::new(move |cuda: &Cuda| assert_eq!(cuda.free(memory), 0)));
        }
        status(memory)
    };
    match row {
        "cuMemAlloc same thread" => keep(cuda.alloc(4096)),
        "cuMemAlloc other thread" => keep(scene.elsewhere(|| cuda.alloc(4096))),
        "cuMemFree same thread" => cuda.free(scene.victim),
        "cuStreamSynchronize(s)" => cuda.stream_sync(s),
        "cuCtxSynchronize same" => cuda.sync(),
        "cuCtxSynchronize other" => scene.elsewhere(|| cuda.sync()),
        "sync of another stream" => cuda.stream_sync(other),
        "cuStreamQuery(s)" => cuda.stream_query(s),
        "launch legacy same thread" => cuda.nothing(scene.nothing, 0),
        "launch legacy other thread" => scene.elsewhere(|| cuda.nothing(scene.nothing, 0)),
        "cuEventQuery recorded before" => cuda.event_query(scene.before),
        "cuEventQuery before, other thread" => scene.elsewhere(|| cuda.event_query(scene.before)),
        "waitEvent recorded before" => cuda.stream_wait(s, scene.before, 0),
        "cuModuleLoadData" | "cuModuleLoadData other thread" => {
            let module = match row {
                "cuModuleLoadData" => cuda.load(PTX.as_bytes()),
                _ => scene.elsewhere(|| cuda.load(PTX.as_bytes())),
            };
            if let Ok(module) = module {
                after.push(Box::new(move |cuda: &Cuda| assert_eq!(cuda.unload(module), 0)));
            }
            status(module)
        }
        "cuModuleGetFunction" => status(cuda.function(scene.module, "poke")),
        "cuMemGetInfo" => status(cuda.info()),
        "cuMemGetInfo other" => scene.elsewhere(|| status(cuda.info())),
        "cuMemcpyDtoH sync" => cuda.download(host, scene.memory),
        // SAFETY: the caller's buffer outlives the capture, and the graph is never launched.
        "cuMemcpyHtoDAsync pageable on s" => unsafe {
            cuda.upload_async(scene.memory, host.as_ptr(), host.len(), s)
        },
        // SAFETY: as above.
        "cuMemcpyDtoHAsync pageable on s" => unsafe {
            cuda.download_async(host.as_mut_ptr(), scene.memory, host.len(), s)
        },
        "cuMemsetD8 sync" => cuda.memset(scene.memory, 0, 4096),
        "cuStreamCreate" => {
            let stream = cuda.stream(NON_BLOCKING);
            if let Ok(stream) = stream {
                after.push(Box::new(move |cuda: &Cuda| assert_eq!(cuda.stream_destroy(stream), 0)));
            }
            status(stream)
        }
        "cuEventCreate" => {
            let event = cuda.event(0);
            if let Ok(event) = event {
                after.push(Box::new(move |cuda: &Cuda| assert_eq!(cuda.event_destroy(event), 0)));
            }
            status(event)
        }
        "cuMemAllocHost" => {
            let pinned = cuda.alloc_host(4096);
            if let Ok(pinned) = pinned {
                after.push(Box::new(move |cuda: &Cuda| assert_eq!(cuda.free_host(pinned), 0)));
            }
            status(pinned)
        }
        "cuFuncSetAttribute" => cuda.function_set(scene.nothing, 8, 64 << 10),
        "cuStreamIsCapturing" => status(cuda.capture_state(s)),
        "end from other thread" => {
            let (status, graph) = scene.elsewhere(|| cuda.end(s));
            if graph != 0 {
                after.push(Box::new(move |cuda: &Cuda| assert_eq!(cuda.graph_destroy(graph), 0)));
            }
            status
        }
        _ => panic!("a row without a call: {row}"),
    }
}

on_both_drivers! {
    /// A copy that names its contexts is no node, even within one device; the same copy by the addresses alone is.
    a_copy_between_contexts_is_not_captured(driver) {
        let guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let (s, context) = (cuda.stream(NON_BLOCKING).unwrap(), guard.context());
        let (a, b) = (cuda.alloc(64).unwrap(), cuda.alloc(64).unwrap());
        assert_eq!(cuda.capture_begin(s, 2), 0);
        // SAFETY: no pointer is passed.
        assert_eq!(unsafe { driver.cuMemcpyPeerAsync(b, context, a, context, 64, s) }, 900);
        assert_eq!(cuda.end(s), (901, 0));
        assert_eq!((cuda.capture_begin(s, 2), cuda.copy_on_device_async(b, a, 64, s)), (0, 0));
        let (end, graph) = cuda.end(s);
        assert_eq!((end, cuda.nodes(graph), cuda.graph_destroy(graph)), (0, Ok(1), 0));
        assert_eq!((cuda.stream_destroy(s), cuda.free(a), cuda.free(b)), (0, 0, 0));
    }

    /// Status of the call, state of the stream, status and graph of the end.
    every_row_in_every_mode(driver; sim: common::sim()) {
        let guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let mut wrong = Vec::new();
        let rows = rows();
        assert_eq!(rows.len(), 38);
        for (row, cells) in rows {
            let (blocking, name) = match row.strip_prefix("blocking ") {
                Some(name) => (true, name),
                None => (false, row),
            };
            for (mode, recorded) in MODES.into_iter().zip(cells) {
                let scene = Scene::new(&cuda, guard.context(), blocking);
                let (mut host, mut after) = ([0; 64], Vec::new());
                assert_eq!(cuda.capture_begin(scene.s, mode), 0);
                assert_eq!(cuda.nothing(scene.nothing, scene.s), 0);
                let call = call(&scene, name, &mut host, &mut after);
                let state = cuda.capture_state(scene.s).unwrap();
                let (end, graph) = cuda.end(scene.s);
                let got = Cell { call, state, end, graph: graph != 0 };
                let recorded = Cell { state: visible(recorded.state), ..recorded };
                if got != recorded {
                    wrong.push(format!("{row}, mode {mode}: {got:?}, recorded {recorded:?}"));
                }
                if graph != 0 {
                    assert_eq!(cuda.graph_destroy(graph), 0);
                }
                after.into_iter().for_each(|undo| undo(&cuda));
                scene.clean();
            }
        }
        assert!(wrong.is_empty(), "rows that differ:\n{}", wrong.join("\n"));
    }
}

/// A line below the table, which the body beside it does.
fn recorded(line: &str) {
    assert!(RECORDED.lines().any(|recorded| recorded == line), "not recorded: {line}");
}

on_both_drivers! {
    /// A stream that waits for a captured event takes part, and must be joined before the end on the origin.
    forks_and_joins(driver; sim: common::sim()) {
        let guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let scene = Scene::new(&cuda, guard.context(), false);
        let (s1, s2, f) = (scene.s, scene.other, scene.nothing);
        let (fork, join) = (cuda.event(2).unwrap(), cuda.event(2).unwrap());
        let begin_forked = || {
            assert_eq!(cuda.capture_begin(s1, 2), 0);
            assert_eq!(cuda.nothing(f, s1), 0);
            assert_eq!(cuda.event_record(fork, s1), 0);
            assert_eq!(cuda.stream_wait(s2, fork, 0), 0);
            assert_eq!(cuda.nothing(f, s2), 0);
        };

        recorded("forked: end on s2 (903, False) state s1 (0, 2) end s1 unjoined (901, False)");
        begin_forked();
        assert_eq!(cuda.end(s2), (903, 0));
        assert_eq!(cuda.capture_state(s1), Ok(visible(2)));
        assert_eq!(cuda.end(s1), (901, 0));

        recorded("joined end (0, True)");
        begin_forked();
        assert_eq!(cuda.event_record(join, s2), 0);
        assert_eq!(cuda.stream_wait(s1, join, 0), 0);
        let (end, graph) = cuda.end(s1);
        assert_eq!((end, cuda.nodes(graph)), (0, Ok(2)));
        assert_eq!(cuda.graph_destroy(graph), 0);
        assert_eq!((cuda.capture_state(s1), cuda.capture_state(s2)), (Ok(0), Ok(0)));

        for event in [fork, join] {
            assert_eq!(cuda.event_destroy(event), 0);
        }
        scene.clean();
    }

    /// Forked work that is left when the capture ends.
    unjoined_work(driver; sim: common::sim()) {
        let guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let scene = Scene::new(&cuda, guard.context(), false);
        let (s1, s2, f) = (scene.s, scene.other, scene.nothing);
        let fork = cuda.event(2).unwrap();
        assert_eq!(cuda.capture_begin(s1, 2), 0);
        assert_eq!(cuda.event_record(fork, s1), 0);
        assert_eq!(cuda.stream_wait(s2, fork, 0), 0);
        assert_eq!(cuda.nothing(f, s2), 0);
        assert_eq!(cuda.end(s1), (904, 0));
        assert_eq!((cuda.capture_state(s1), cuda.capture_state(s2)), (Ok(0), Ok(0)));
        assert_eq!(cuda.event_destroy(fork), 0);
        scene.clean();
    }

    /// An event of one capture that another waits for.
    merging(driver; sim: common::sim()) {
        let guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let scene = Scene::new(&cuda, guard.context(), false);
        let (s1, s2) = (scene.s, scene.other);
        let event = cuda.event(2).unwrap();
        recorded("merge two captures 902 (0, 2) (0, 2) (901, False) (901, False)");
        assert_eq!((cuda.capture_begin(s1, 2), cuda.capture_begin(s2, 2)), (0, 0));
        assert_eq!(cuda.nothing(scene.nothing, s1), 0);
        assert_eq!(cuda.event_record(event, s1), 0);
        assert_eq!(cuda.stream_wait(s2, event, 0), 902);
        assert_eq!((cuda.capture_state(s1), cuda.capture_state(s2)), (Ok(visible(2)), Ok(visible(2))));
        assert_eq!((cuda.end(s1), cuda.end(s2)), ((901, 0), (901, 0)));
        assert_eq!(cuda.event_destroy(event), 0);
        scene.clean();
    }

    /// Nothing warns of a buffer that is freed while a graph uses it.
    freed_buffer(driver; sim: common::sim()) {
        let guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let scene = Scene::new(&cuda, guard.context(), false);
        recorded("free of a captured buffer 0 launch 0 sync 0");
        assert_eq!(cuda.capture_begin(scene.s, 2), 0);
        assert_eq!(cuda.memset_async(scene.victim, 7, 4096, scene.s), 0);
        let (end, graph) = cuda.end(scene.s);
        assert_eq!(end, 0);
        let exec = cuda.instantiate(graph).unwrap();
        assert_eq!(cuda.free(scene.victim), 0);
        assert_eq!(cuda.graph_launch(exec, scene.s), 0);
        assert_eq!(cuda.stream_sync(scene.s), 0);
        assert_eq!((cuda.exec_destroy(exec), cuda.graph_destroy(graph)), (0, 0));
        scene.clean();
    }

    /// What a capture forbids is answered 900 though the capture is invalid by then, what it would record 901.
    an_invalidated_capture(driver; sim: common::sim()) {
        let guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let scene = Scene::new(&cuda, guard.context(), false);
        let (s, f) = (scene.s, scene.nothing);
        assert_eq!((cuda.capture_begin(s, 2), cuda.nothing(f, s)), (0, 0));
        let (_, graph) = cuda.end(s);
        let exec = cuda.instantiate(graph).unwrap();
        let (event, never) = (cuda.event(0).unwrap(), cuda.event(0).unwrap());
        for mode in MODES {
            assert_eq!((cuda.capture_begin(s, mode), cuda.nothing(f, s)), (0, 0));
            assert_eq!((cuda.stream_query(s), cuda.capture_state(s)), (900, Ok(visible(2))));
            assert_eq!((cuda.stream_query(s), cuda.stream_sync(s)), (900, 900));
            assert_eq!((cuda.nothing(f, s), cuda.memset_async(scene.memory, 0, 16, s)), (901, 901));
            assert_eq!((cuda.event_record(event, s), cuda.stream_wait(s, never, 0)), (901, 901));
            assert_eq!(cuda.capture_begin(s, mode), 401);
            assert_eq!(cuda.graph_launch(exec, s), 900);
            assert_eq!((cuda.capture_state(s), cuda.end(s)), (Ok(visible(2)), (901, 0)));
        }
        for event in [event, never] {
            assert_eq!(cuda.event_destroy(event), 0);
        }
        assert_eq!((cuda.exec_destroy(exec), cuda.graph_destroy(graph)), (0, 0));
        scene.clean();
    }

    /// Each call twice: in the stricter modes the first invalidates, and both are answered 900.
    forbidden_calls_twice(driver; sim: common::sim()) {
        let guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let scene = Scene::new(&cuda, guard.context(), false);
        for mode in MODES {
            let refused = mode != 2;
            let pinned = [cuda.alloc_host(4096).unwrap(), cuda.alloc_host(4096).unwrap()];
            let modules = [cuda.load(PTX.as_bytes()).unwrap(), cuda.load(PTX.as_bytes()).unwrap()];
            let mut made = Vec::new();
            let keep = |memory: Result<u64, i32>, made: &mut Vec<u64>| {
                made.extend(memory.ok());
                status(memory)
            };
            let twice = |name: &str, call: &mut dyn FnMut(usize) -> i32| {
                assert_eq!((cuda.capture_begin(scene.s, mode), cuda.nothing(scene.nothing, scene.s)), (0, 0));
                let (expected, state) = if refused { (900, 2) } else { (0, 1) };
                assert_eq!(call(0), expected, "{name}, mode {mode}");
                assert_eq!(cuda.capture_state(scene.s), Ok(visible(state)), "{name}, mode {mode}");
                assert_eq!(call(1), expected, "{name} again, mode {mode}");
                let (end, graph) = cuda.end(scene.s);
                assert_eq!((end, graph != 0), (if refused { 901 } else { 0 }, !refused), "{name}, mode {mode}");
                if graph != 0 {
                    assert_eq!(cuda.graph_destroy(graph), 0);
                }
            };
            twice("cuMemAlloc", &mut |_| keep(cuda.alloc(4096), &mut made));
            twice("cuMemAllocManaged", &mut |_| keep(cuda.alloc_managed(4096, 1), &mut made));
            twice("cuMemFreeHost", &mut |round| cuda.free_host(pinned[round]));
            twice("cuModuleUnload", &mut |round| cuda.unload(modules[round]));
            if refused {
                for round in 0..2 {
                    assert_eq!((cuda.free_host(pinned[round]), cuda.unload(modules[round])), (0, 0));
                }
            }
            made.into_iter().for_each(|memory| assert_eq!(cuda.free(memory), 0));
        }
        scene.clean();
    }

    /// Calls that no mode minds.
    harmless_calls(driver; sim: common::sim()) {
        let guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let scene = Scene::new(&cuda, guard.context(), false);
        for mode in MODES {
            let inside = cuda.event(0).unwrap();
            assert_eq!((cuda.capture_begin(scene.s, mode), cuda.nothing(scene.nothing, scene.s)), (0, 0));
            assert_eq!(cuda.current(), Ok(guard.context()));
            assert_eq!(cuda.event_record(inside, scene.s), 0);
            assert_eq!(cuda.copy_on_device(scene.memory, scene.memory + 1024, 16), 0);
            assert_eq!(status(cuda.function_get(0, scene.nothing)), 0);
            assert_eq!(status(cuda.range(scene.memory)), 0);
            assert_eq!(cuda.pointer_attribute(2, scene.memory), Ok(2));
            let created = cuda.event(0).unwrap();
            assert_eq!((cuda.capture_state(scene.s), cuda.nothing(scene.nothing, scene.s)), (Ok(visible(1)), 0));
            let (end, graph) = cuda.end(scene.s);
            assert_eq!((end, graph != 0), (0, true), "mode {mode}");
            assert_eq!(cuda.graph_destroy(graph), 0);
            assert_eq!((cuda.event_destroy(inside), cuda.event_destroy(created)), (0, 0));
        }
        scene.clean();
    }

    /// An event that was recorded in a capture is of no use once that is over, until it is recorded again.
    events_of_a_capture_that_ended(driver; sim: common::sim()) {
        let guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        let scene = Scene::new(&cuda, guard.context(), false);
        let s = scene.s;
        let event = cuda.event(0).unwrap();
        assert_eq!((cuda.capture_begin(s, 2), cuda.nothing(scene.nothing, s)), (0, 0));
        assert_eq!(cuda.event_record(event, s), 0);
        let (end, graph) = cuda.end(s);
        assert_eq!((end, graph != 0), (0, true));
        let uses = || (cuda.event_query(event), cuda.event_sync(event), cuda.stream_wait(s, event, 0));
        assert_eq!(uses(), (1, 1, 1));
        assert_eq!((cuda.graph_destroy(graph), cuda.event_query(event)), (0, 1));
        assert_eq!(cuda.event_record(event, s), 0);
        assert_eq!((cuda.event_sync(event), cuda.event_query(event)), (0, 0));
        assert_eq!(cuda.event_destroy(event), 0);
        scene.clean();
    }

    /// A kernel that writes to a bad address: the context is lost, and everything says so.
    lost_context(driver; sim: common::sim()) {
        let _guard = ContextGuard::new(&driver, 0).unwrap();
        let cuda = Cuda::new(&driver);
        recorded(
            "launch oops 0 sync 700 alloc after 700 free after 700 meminfo after 700 ctx sync 700 \
             module load after 700 unload 700",
        );
        let module = cuda.load(PTX.as_bytes()).unwrap();
        let poke = cuda.function(module, "poke").unwrap();
        let memory = cuda.alloc(4096).unwrap();
        assert_eq!(cuda.poke(poke, 0x1000, 1, 0), 0);
        assert_eq!(cuda.sync(), 700);
        assert_eq!(cuda.alloc(4096), Err(700));
        assert_eq!(cuda.free(memory), 700);
        assert_eq!(cuda.info(), Err(700));
        assert_eq!(cuda.sync(), 700);
        assert_eq!(cuda.load(PTX.as_bytes()), Err(700));
        assert_eq!(cuda.unload(module), 700);
    }
}
