// SPDX-License-Identifier: MIT OR Apache-2.0
//! What allocations take off the free figure, and which bytes may be accessed.

use super::*;

const MIB: u64 = 1 << 20;

fn open() -> Memory {
    let mut memory = Memory::new(&[Profile::h200()], vec![1]);
    memory.open_context(0).unwrap();
    memory
}

/// Free bytes before less free bytes after.
fn used(memory: &mut Memory, work: impl FnOnce(&mut Memory)) -> i64 {
    let before = memory.free_bytes(0) as i64;
    work(memory);
    before - memory.free_bytes(0) as i64
}

#[test]
fn what_else_moves_the_free_figure_moves_it_as_measured() {
    let mut memory = open();
    assert_eq!(memory.free_bytes(0), 149_557_477_376);
    // 32 streams.
    assert_eq!(used(&mut memory, |m| (0..32).for_each(|_| assert!(m.open_stream(0).is_ok()))), 16 << 20);
    // Modules with 300 KB of globals each.
    let per_module: Vec<i64> = (0..7)
        .map(|_| used(&mut memory, |m| drop(m.alloc_globals(0, &[(300_000, 4)]).unwrap())) >> 20)
        .collect();
    assert_eq!(per_module, [2, 0, 0, 0, 0, 0, 2]);
    // Graphs, in contexts of their own, which have the stream that captured them.
    let mut memory = open();
    memory.open_stream(0).unwrap();
    assert_eq!(used(&mut memory, |m| assert!(m.open_graph(0, 1).is_ok())), 2 << 20);
    let mut memory = open();
    memory.open_stream(0).unwrap();
    let mut bytes = 0;
    assert_eq!(used(&mut memory, |m| bytes = m.open_graph(0, 5000).unwrap()), 12 << 20);
    assert_eq!(used(&mut memory, |m| m.close_graph(0, bytes)), 0);
    // Pinned and managed memory.
    assert_eq!(used(&mut memory, |m| assert!(m.alloc_host(0, 64 << 20, false).is_ok())), 0);
    let mut managed = 0;
    assert_eq!(used(&mut memory, |m| managed = m.alloc_host(0, 8 << 20, true).unwrap()), 0);
    assert_eq!(used(&mut memory, |m| m.fill(managed, 0, 4, Access::Strict).unwrap()), 128 << 20);
    assert_eq!(used(&mut memory, |m| m.free(managed).unwrap()), -(8 << 20));
}

#[test]
fn a_graph_needs_memory_for_its_place_and_its_nodes_together() {
    // 5,000 kernel nodes take 10 MiB, and the place of a second stream 2.
    for (spare, answers) in [(10, Err(2)), (11, Err(2)), (12, Ok(()))] {
        let mut memory = Memory::new(&[Profile::custom("small", 552_402_944 + spare * MIB)], vec![1]);
        memory.open_context(0).unwrap();
        memory.open_stream(0).unwrap();
        assert_eq!(memory.open_graph(0, 5000).map(drop), answers, "{spare} MiB");
        let left = if answers.is_ok() { 0 } else { spare * MIB };
        assert_eq!(memory.free_bytes(0), left, "what is refused takes nothing");
    }
}

#[test]
fn out_of_memory_comes_exactly_when_the_pages_do_not_fit() {
    let profile = Profile::custom("small", 552_402_944 + 8 * MIB);
    let mut memory = Memory::new(&[profile], vec![1]);
    memory.open_context(0).unwrap();
    assert_eq!(memory.alloc(0, 8 * MIB + 1), Err(2));
    let all = memory.alloc(0, 8 * MIB).unwrap();
    assert_eq!((memory.free_bytes(0), memory.alloc(0, 1)), (0, Err(2)));
    memory.free(all).unwrap();
    let small = memory.alloc(0, 1).unwrap();
    assert_eq!(memory.alloc(0, 6 * MIB + 1), Err(2));
    let rest = memory.alloc(0, 6 * MIB).unwrap();
    // The chunk that is held still has spare.
    assert!(memory.alloc(0, MIB).is_ok());
    assert_eq!(memory.alloc(0, MIB), Err(2));
    memory.free(small).unwrap();
    memory.free(rest).unwrap();
    assert_eq!(memory.alloc(0, u64::MAX), Err(2));
    assert_eq!(memory.alloc(0, 0), Err(1));
}

#[test]
fn no_context_fits_on_a_device_that_is_smaller() {
    let mut memory = Memory::new(&[Profile::custom("tiny", 1)], vec![1]);
    assert_eq!(memory.open_context(0), Err(2));
}

#[test]
fn a_freed_page_forgets_its_bytes_and_a_shared_one_does_not() {
    let mut memory = open();
    let keep = memory.alloc(0, 512).unwrap();
    let freed = memory.alloc(0, 512).unwrap();
    memory.write(freed, &[1, 2, 3], Access::Strict).unwrap();
    memory.free(freed).unwrap();
    let mut seen = [0; 3];
    let stray = Stray { address: freed, bytes: 3 };
    assert_eq!(memory.read(freed, &mut seen, Access::Strict), Err(stray));
    assert_eq!((memory.read(freed, &mut seen, Access::Replay), seen), (Ok(()), [1, 2, 3]));
    assert_eq!(memory.alloc(0, 512).unwrap(), freed);
    memory.free(freed).unwrap();
    memory.free(keep).unwrap();
    assert_eq!((memory.read(freed, &mut seen, Access::Replay), seen), (Ok(()), [0xFF; 3]));
    assert_eq!(memory.write(freed, &seen, Access::Replay), Ok(()));
    assert_eq!(memory.take_freed_touch(), Some(stray));
    // What was never anybody's is a fault in a replay too.
    assert!(memory.write(0x1000, &seen, Access::Replay).is_err());
    assert!(memory.write(freed + 510, &seen, Access::Replay).is_err());
    assert_eq!(memory.backing_bytes(), 0);
}
