// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ledger shows the caller's own line, however the call is made.

mod common;

use std::sync::Arc;

use common::pinned::PinnedGuard;
use common::{MIB, address, backend, logged, sim};
use metrale_cuda_backend::{DevicePtr, GpuBackend};
use metrale_ledger::{AllocKind, ForgetError};

fn site_of(backend: &dyn GpuBackend, ptr: DevicePtr) -> String {
    let live = backend.live_allocations();
    live.into_iter().find(|(at, ..)| *at == ptr).map(|(.., site)| site).expect("the allocation is live")
}

fn by_generic<B: GpuBackend>(backend: &B) -> (DevicePtr, u32) {
    (backend.alloc(100).unwrap(), line!())
}

fn by_object(backend: &dyn GpuBackend) -> (DevicePtr, u32) {
    (backend.alloc(100).unwrap(), line!())
}

fn by_shared_object(backend: &Arc<dyn GpuBackend>) -> (DevicePtr, u32) {
    (backend.alloc_managed(100).unwrap(), line!())
}

#[test]
fn an_allocation_has_the_callers_line_through_inherent_generic_and_dynamic_calls() {
    let backend = Arc::new(backend(sim()));
    let shared: Arc<dyn GpuBackend> = Arc::<metrale_cuda_backend::MetraleCudaBackend>::clone(&backend);
    let inherent = (backend.alloc(100).unwrap(), line!());
    for (ptr, line) in [inherent, by_generic(&*backend), by_object(&*backend), by_shared_object(&shared)] {
        assert_eq!(site_of(&*shared, ptr), format!("{}:{line}", file!()));
        shared.free(ptr).unwrap();
    }
}

#[test]
fn arenas_and_pinned_memory_have_it_too() {
    let backend = backend(sim());
    let face: &dyn GpuBackend = &backend;
    let (arena, arena_line) = (face.alloc_arena(100).unwrap(), line!());
    let (pinned, pinned_line) = (face.alloc_pinned(100).unwrap(), line!());
    let (buffer, buffer_line) = (PinnedGuard::new(&backend, 50).unwrap(), line!());
    let probe = face.ledger_probe();
    let lines = |kind| -> Vec<u32> {
        probe.allocations_of(kind).iter().map(|(_, record)| record.site.line()).collect()
    };
    assert_eq!(lines(AllocKind::Arena), [arena_line]);
    assert_eq!(lines(AllocKind::Pinned), [pinned_line, buffer_line]);
    drop(buffer);
    face.free_pinned(pinned).unwrap();
    face.free_arena(arena).unwrap();
    probe.assert_nothing_live();
}

#[test]
fn a_double_free_names_the_allocation_the_first_free_and_the_second() {
    let backend = backend(sim());
    let face: &dyn GpuBackend = &backend;
    let (ptr, alloc_line) = (face.alloc(5000).unwrap(), line!());
    let free_line = line!() + 1;
    face.free(ptr).unwrap();
    let (error, again_line) = (face.free(ptr).unwrap_err(), line!());

    let error = error.downcast_ref::<metrale_cuda_backend::FreeError>().expect("typed");
    assert_eq!((error.site.file(), error.site.line()), (file!(), again_line));
    let ForgetError::DoubleFree { freed, .. } = &error.cause else { panic!("{error}") };
    assert_eq!((freed.freed_at.line(), freed.record.site.line()), (free_line, alloc_line));
    let text = error.to_string();
    for line in [alloc_line, free_line, again_line] {
        assert!(text.contains(&format!("{}:{line}", file!())), "{line} is not in {text}");
    }
}

/// `.rs:12:34` is in it.
fn has_column(text: &str) -> bool {
    let behind = text.split(".rs:").skip(1);
    behind
        .map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()))
        .any(|rest| rest.strip_prefix(':').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())))
}

/// The column is for programs: `Snapshot` and its JSON have it.
#[test]
fn every_text_names_a_line_and_no_column() {
    let backend = backend(sim());
    let ptr = backend.alloc(4096).unwrap();
    let arena = backend.packed_arena(MIB).unwrap();
    let part = arena.alloc("weights", 64).unwrap();
    let event = backend.create_event().unwrap();
    backend.destroy_event(event).unwrap();
    let mut texts = vec![
        backend.alloc_report(10, 0),
        backend.ledger_probe().whois(ptr.addr()).to_string(),
        backend.alloc(0).unwrap_err().to_string(),
        backend.alloc(1 << 60).unwrap_err().to_string(),
        backend.alloc_pinned(0).unwrap_err().to_string(),
        backend.record_event(event, backend.stream()).unwrap_err().to_string(),
        backend.free(address(ptr.addr() + 1)).unwrap_err().to_string(),
        backend.free_arena(address(ptr.addr() + 1)).unwrap_err().to_string(),
        backend.copy_h2d(&[0; 5000], ptr).unwrap_err().to_string(),
        arena.alloc("more", 2 * MIB).unwrap_err().to_string(),
        arena.alloc("none", 0).unwrap_err().to_string(),
        arena.alloc_aligned("odd", 64, 3).unwrap_err().to_string(),
        arena.free_part(address(part.addr() + 1)).unwrap_err().to_string(),
        backend.free_arena(arena.base()).unwrap_err().to_string(),
    ];
    arena.free_part(part).unwrap();
    texts.push(arena.free_part(part).unwrap_err().to_string());
    drop(arena);
    let stream = backend.create_stream().unwrap();
    let (count, lines) = logged(|| backend.sweep_unreleased().unwrap());
    assert_eq!(count, 1);
    texts.extend(lines);
    texts.push(backend.free(ptr).unwrap_err().to_string());
    let ((), lines) = logged(|| drop(backend));
    assert!(!lines.is_empty(), "stream {stream:#x} was left");
    texts.extend(lines);
    let here = format!("{}:", file!());
    for text in &texts {
        assert!(text.contains(&here) && !has_column(text), "{text}");
    }
}

#[cfg(feature = "graph")]
#[test]
fn texts_about_captures_and_graphs_name_a_line_and_no_column() {
    let backend = backend(sim());
    let (at, stream) = (backend.alloc(4096).unwrap(), backend.stream());
    let pinned = backend.alloc_pinned(64).unwrap();
    backend.free_pinned(pinned).unwrap();
    let capture = backend.capture(stream).unwrap();
    backend.memset_async(at, 0, 64, stream).unwrap();
    let mut texts = vec![
        backend.alloc(64).unwrap_err().to_string(),
        backend.begin_capture(stream).unwrap_err().to_string(),
        backend.begin_capture(metrale_cuda_backend::LEGACY_STREAM).unwrap_err().to_string(),
    ];
    let graph = capture.finish("decode").unwrap();
    texts.push(backend.free(at).unwrap_err().to_string());
    texts.push(backend.graphs()[0].to_string());
    texts.push(backend.free_pinned(pinned).unwrap_err().to_string());
    backend.destroy_graph(graph).unwrap();
    backend.begin_capture(stream).unwrap();
    let ((), lines) = logged(|| drop(backend));
    texts.extend(lines);
    let here = format!("{}:", file!());
    for text in &texts {
        assert!(text.contains(&here) && !has_column(text), "{text}");
    }
}

#[test]
fn scopes_label_what_a_thread_allocates() {
    let backend = backend(sim());
    let face: &dyn GpuBackend = &backend;
    let ptr = {
        let _model = face.scope("model");
        let _layer = backend.scope("layers.3");
        face.alloc(100).unwrap()
    };
    let plain = face.alloc(100).unwrap();
    let probe = backend.ledger_probe();
    let scopes: Vec<_> = probe.live_allocations().into_iter().map(|(_, record)| record.scope).collect();
    assert_eq!(scopes, [Some("model/layers.3".into()), None]);
    assert!(backend.alloc_report(10, 0).contains("model/layers.3"));
    face.free(ptr).unwrap();
    face.free(plain).unwrap();
}

#[test]
fn a_tag_names_one_allocation_and_peaks_begin_anew() {
    let backend = backend(sim());
    let face: &dyn GpuBackend = &backend;
    let (first, second) = (backend.alloc(4096).unwrap(), backend.alloc(100).unwrap());
    assert!(face.tag(second, "kv cache"));
    assert!(!backend.tag(first.offset(1), "inside"), "only by its first byte");
    let tags: Vec<_> =
        backend.ledger_probe().snapshot().by_tag().into_iter().map(|row| (row.label, row.bytes)).collect();
    assert_eq!(tags, [(None, 4096), (Some("kv cache".into()), 100)]);
    backend.free(first).unwrap();
    let peak = || backend.ledger_probe().peak_snapshot().totals.live_bytes;
    assert_eq!(peak(), 4196);
    face.reset_peak();
    assert_eq!((peak(), backend.ledger_probe().peak_bytes()), (100, 100));
}
