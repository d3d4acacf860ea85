// SPDX-License-Identifier: MIT OR Apache-2.0
//! Named parts of arenas: under their arena in reports, in no total, ended with it, and mistakes answered.

use std::panic::Location;

use metrale_ledger::{AllocKind, ForgetError, Ledger, SubRangeError, Whois};

const ARENA: u64 = 0x7f00_0000_0000;
const MIB: usize = 1 << 20;

fn here() -> &'static Location<'static> {
    Location::caller()
}

fn with_arena(bytes: usize) -> Ledger {
    let ledger = Ledger::new();
    assert!(ledger.record_as(ARENA, bytes, here(), AllocKind::Arena).misuse.is_none());
    ledger
}

#[test]
fn parts_are_in_no_total_and_stand_under_their_arena() {
    let ledger = with_arena(8 * MIB);
    let bare = ledger.snapshot();
    {
        let _scope = ledger.scope("layers.0");
        ledger.record_sub_range(ARENA, 0, 3 * MIB, "layers.0.w", here()).unwrap();
        ledger.record_sub_range(ARENA, 4 << 20, 100, "layers.0.b", here()).unwrap();
    }
    ledger.record_sub_range(ARENA, 5 << 20, 3 * MIB, "head", here()).unwrap();
    let snapshot = ledger.snapshot();
    assert_eq!((snapshot.totals, &snapshot.groups), (bare.totals, &bare.groups));
    assert_eq!((ledger.live_count(), ledger.arena_count(), ledger.arena_bytes()), (0, 1, 8 * MIB));

    let [arena] = &snapshot.arenas[..] else { panic!("{:?}", snapshot.arenas) };
    assert_eq!((arena.bytes, arena.used_bytes()), (8 << 20, (6 << 20) + 100));
    let parts: Vec<_> = arena
        .parts
        .iter()
        .map(|part| (&*part.name, part.offset_bytes, part.bytes, part.scope.as_deref()))
        .collect();
    assert_eq!(
        parts,
        [
            ("layers.0.w", 0, 3 << 20, Some("layers.0")),
            ("layers.0.b", 4 << 20, 100, Some("layers.0")),
            ("head", 5 << 20, 3 << 20, None)
        ]
    );
    let scopes: Vec<_> =
        snapshot.parts_by_scope().into_iter().map(|row| (row.label, row.bytes, row.count)).collect();
    assert_eq!(scopes, [(Some("layers.0".into()), (3 << 20) + 100, 2), (None, 3 << 20, 1)]);
    assert_eq!(snapshot.parts_by_site().iter().map(|row| row.count).sum::<u64>(), 3);

    let report = ledger.report(1, 0);
    let tree: Vec<_> = report.lines().skip_while(|line| *line != "arenas:").collect();
    assert_eq!(tree.len(), 5, "{report}");
    assert!(tree[1].contains("8.00 MiB  in 3 parts") && tree[1].contains("sub_range.rs:"), "{report}");
    assert_eq!(
        tree[2..],
        [
            "      3.00 MiB  layers.0.w",
            "      3.00 MiB  in 2 more parts",
            "      2.00 MiB  (free, or between parts)"
        ]
    );
    assert!(!bare.report(10, 0).contains("arenas:\n"), "an arena without parts is one line of the header");
    assert!(ledger.peak_snapshot().arenas.is_empty());
}

#[test]
fn parts_end_one_by_one_or_with_their_arena_and_come_back_with_it() {
    let ledger = with_arena(4 * MIB);
    for (name, offset) in [("a", 0), ("b", 1 << 20), ("c", 2 << 20)] {
        ledger.record_sub_range(ARENA, offset, MIB, name, here()).unwrap();
    }
    assert_eq!(&*ledger.end_sub_range(ARENA + (1 << 20)).unwrap().name, "b");
    assert_eq!(ledger.sub_ranges(ARENA).iter().map(|part| &*part.name).collect::<Vec<_>>(), ["a", "c"]);
    ledger.record_sub_range(ARENA, 1 << 20, 512, "b2", here()).unwrap();
    assert_eq!(&*ledger.sub_range_at(ARENA + (1 << 20) + 511).unwrap().name, "b2");
    assert_eq!(ledger.sub_range_at(ARENA + (1 << 20) + 512), None);

    let record = ledger.try_forget_arena(ARENA).unwrap();
    assert_eq!((ledger.sub_ranges(ARENA).len(), ledger.sub_range_at(ARENA)), (0, None));
    assert!(ledger.snapshot().arenas.is_empty());
    assert!(matches!(ledger.whois(ARENA), Whois::Freed { .. }));
    // The driver refused.
    assert!(ledger.restore(ARENA, &record).misuse.is_none());
    assert_eq!(ledger.sub_ranges(ARENA).iter().map(|part| &*part.name).collect::<Vec<_>>(), ["a", "b2", "c"]);
    // A later arena at the same address has none of them.
    ledger.try_forget_arena(ARENA).unwrap();
    assert!(ledger.record_as(ARENA, 4 * MIB, here(), AllocKind::Arena).misuse.is_none());
    assert!(ledger.sub_ranges(ARENA).is_empty());
}

#[test]
fn mistakes_are_answered_and_change_nothing() {
    let ledger = with_arena(MIB);
    ledger.record_sub_range(ARENA, 4096, 4096, "weights", here()).unwrap();
    let begin = |offset, bytes| ledger.record_sub_range(ARENA, offset, bytes, "new", here()).unwrap_err();
    assert!(matches!(begin(0, 0), SubRangeError::Empty { .. }));
    for (offset, bytes) in [(0, 4097), (4096, 1), (8191, 1), (0, MIB), (5000, 10)] {
        let error = begin(offset, bytes);
        assert!(matches!(&error, SubRangeError::Overlap { with, .. } if &*with.name == "weights"), "{error}");
    }
    for (offset, bytes, excess) in [
        (8192, MIB, 8192),
        (MIB as u64, 1, 1),
        // What begins behind the end passes it by the way there as well.
        (MIB as u64 + 4096, 1, 4097),
        // No place of any arena, and told by how much all the same.
        (u64::MAX, 1, u64::MAX - MIB as u64 + 1),
        (8192, usize::MAX, usize::MAX as u64 - (MIB as u64 - 8192)),
    ] {
        let error = begin(offset, bytes);
        assert!(
            matches!(&error, SubRangeError::PastEnd { excess_bytes, .. } if *excess_bytes == excess),
            "{error}"
        );
    }
    for addr in [ARENA + 4096, 0, 0x1234] {
        let error = ledger.record_sub_range(addr, 0, 1, "new", here()).unwrap_err();
        assert_eq!(error, SubRangeError::NoArena { addr });
    }
    // Plain device memory is no arena.
    ledger.record(0x10_0000_0000, MIB, here());
    assert!(matches!(
        ledger.record_sub_range(0x10_0000_0000, 0, 1, "new", here()),
        Err(SubRangeError::NoArena { .. })
    ));

    let error = ledger.end_sub_range(ARENA + 5000).unwrap_err();
    assert!(error.to_string().contains("904 bytes inside weights"), "{error}");
    assert!(matches!(ledger.end_sub_range(ARENA), Err(SubRangeError::Unknown { .. })));
    let error = ledger.try_forget(ARENA + 4096).unwrap_err();
    assert!(matches!(&error, ForgetError::SubRange { part } if &*part.name == "weights"), "{error}");
    assert_eq!(ledger.sub_ranges(ARENA).len(), 1);
    let freed_line = line!() + 1;
    ledger.end_sub_range(ARENA + 4096).unwrap();
    let error = ledger.end_sub_range(ARENA + 4096).unwrap_err();
    let SubRangeError::EndedBefore { was, ended_at } = &error else { panic!("{error}") };
    assert_eq!((&*was.name, ended_at.line()), ("weights", freed_line));
    // A part at the arena's own first byte is not the arena.
    ledger.record_sub_range(ARENA, 0, 1, "first", here()).unwrap();
    assert!(matches!(ledger.try_forget(ARENA), Err(ForgetError::SubRange { .. })));
    ledger.try_forget_arena(ARENA).unwrap();
}

#[test]
fn a_parts_scope_forges_no_line_either() {
    let ledger = with_arena(MIB);
    let _scope = ledger.scope("two\nlines");
    ledger.record_sub_range(ARENA, 0, 512, "w\n", here()).unwrap();
    let part = ledger.sub_range_at(ARENA).unwrap();
    assert!(part.to_string().contains("scope two\\nlines"), "{part}");
    let error = ledger.end_sub_range(ARENA + 1).unwrap_err().to_string();
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_part_past_the_address_space_is_past_its_arena() {
    let ledger = Ledger::new();
    let base = u64::MAX - 4095;
    // Its size is wrong, and it is on the ledger nevertheless, up to the end.
    ledger.record_as(base, 2 * MIB, here(), AllocKind::Arena);
    for (offset, bytes, excess) in
        [(4096, 1, 1), (5000, 1, 905), (4000, 200, 104), (u64::MAX, 1, u64::MAX - 4095)]
    {
        let error = ledger.record_sub_range(base, offset, bytes, "w", here()).unwrap_err();
        let SubRangeError::PastEnd { excess_bytes, .. } = error else { panic!("{offset}: {error}") };
        assert_eq!(excess_bytes, excess, "{offset}");
    }
    assert_eq!(ledger.sub_ranges(base), []);
    // The last byte there is can be a part's, and only one's.
    ledger.record_sub_range(base, 4000, 96, "last", here()).unwrap();
    let error = ledger.record_sub_range(base, 4095, 1, "again", here()).unwrap_err();
    assert!(matches!(error, SubRangeError::Overlap { .. }), "{error}");
    assert_eq!(&*ledger.sub_range_at(u64::MAX).unwrap().name, "last");
}

#[test]
fn an_arena_that_begins_within_another_hides_none_of_its_parts() {
    for bytes in [0, MIB] {
        let ledger = with_arena(8 * MIB);
        ledger.record_sub_range(ARENA, 4 << 20, MIB, "w", here()).unwrap();
        let inner = ARENA + (2 << 20);
        assert!(ledger.record_as(inner, bytes, here(), AllocKind::Arena).misuse.is_some());
        assert_eq!(&*ledger.sub_range_at(ARENA + (4 << 20) + 1).unwrap().name, "w");
        assert!(matches!(ledger.try_forget(ARENA + (4 << 20)), Err(ForgetError::SubRange { .. })));
        assert!(matches!(ledger.end_sub_range(ARENA + (4 << 20) + 1), Err(SubRangeError::Interior { .. })));
        assert_eq!(&*ledger.end_sub_range(ARENA + (4 << 20)).unwrap().name, "w");
    }
}
