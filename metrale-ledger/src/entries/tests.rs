// SPDX-License-Identifier: MIT OR Apache-2.0
//! Entries of a page beside a map in order of bases, whichever way the page keeps them.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const GRAIN: u32 = 1 << GRAIN_SHIFT;
const PAGE: u32 = 1 << PAGE_SHIFT;

#[derive(Clone, Debug)]
enum Op {
    PutClean(u32, u32),
    Put(u32, u32),
    Take(u32),
    SetGroup(u32, u32),
    Look(u32, u32),
}

/// Ranges such as a driver gives, in few enough places that they meet, and any others.
fn ranges() -> impl Strategy<Value = (u32, u32)> {
    let inside = |(offset, bytes): (u32, u32)| (offset, bytes.min(PAGE - offset));
    let driver = (0..64u32, prop_oneof![1..4 * GRAIN, Just(70 * GRAIN), Just(PAGE)])
        .prop_map(|(place, bytes)| (place * 64 * GRAIN % PAGE + place % 8 * GRAIN, bytes));
    let any = (0..PAGE, 1..=PAGE);
    let close = (0..4 * GRAIN, 1..GRAIN);
    prop_oneof![6 => driver.prop_map(inside), 1 => any.prop_map(inside), 1 => close]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => ranges().prop_map(|(offset, bytes)| Op::PutClean(offset, bytes)),
        1 => ranges().prop_map(|(offset, bytes)| Op::Put(offset, bytes)),
        5 => ranges().prop_map(|(offset, _)| Op::Take(offset)),
        1 => (ranges(), 0..9u32).prop_map(|((offset, _), group)| Op::SetGroup(offset, group)),
        2 => ranges().prop_map(|(offset, bytes)| Op::Look(offset, bytes)),
    ];
    // Some end with a page that is emptied and filled again.
    (prop::collection::vec(op.clone(), 1..150), any::<bool>(), prop::collection::vec(op, 0..40)).prop_map(
        |(mut ops, empties, more)| {
            if empties {
                let put = |op: &Op| match op {
                    Op::PutClean(offset, _) | Op::Put(offset, _) => Some(Op::Take(*offset)),
                    _ => None,
                };
                let takes: Vec<_> = ops.iter().filter_map(put).collect();
                ops.extend(takes);
            }
            ops.extend(more);
            ops
        },
    )
}

type Plain = BTreeMap<u32, (u32, Item)>;

fn sharing(plain: &Plain, offset: u32, end: u32) -> impl DoubleEndedIterator<Item = u32> {
    plain.iter().filter(move |&(&at, &(bytes, _))| at < end && at + bytes > offset).map(|(&at, _)| at)
}

fn seen(entry: Option<Entry>) -> Option<(u32, (u32, Item))> {
    entry.map(|entry| (entry.offset(), (entry.bytes(), entry.item)))
}

fn agree(entries: &Entries, plain: &Plain) {
    assert_eq!(entries.count as usize, plain.len());
    assert_eq!(entries.is_empty(), plain.is_empty());
    let mut all: Vec<_> = entries.iter().map(|entry| seen(Some(entry)).unwrap()).collect();
    all.sort_unstable_by_key(|&(offset, _)| offset);
    assert_eq!(all, plain.iter().map(|(&at, &rest)| (at, rest)).collect::<Vec<_>>());
    assert_eq!(seen(entries.first()), plain.first_key_value().map(|(&at, &rest)| (at, rest)));
}

fn look(entries: &Entries, plain: &Plain, offset: u32, bytes: u32) {
    let known = |at: Option<u32>| at.map(|at| (at, plain[&at]));
    assert_eq!(seen(entries.find(offset)), plain.get(&offset).map(|&rest| (offset, rest)));
    assert_eq!(seen(entries.owner(offset)), known(sharing(plain, offset, offset + 1).next_back()));
    let before = sharing(plain, offset, offset + bytes).rfind(|&at| at <= offset);
    let nearest = before.or_else(|| sharing(plain, offset, offset + bytes).next());
    assert_eq!(seen(entries.clash(offset, bytes)), known(nearest));
}

proptest! {
    #[test]
    fn entries_are_as_a_plain_map_has_them(ops in ops()) {
        let (mut entries, mut plain) = (Entries::default(), Plain::new());
        for (index, op) in (0..).zip(ops) {
            let item = Item::new(index, index as u32 % 5, AllocKind::Device);
            match op {
                Op::PutClean(offset, bytes) => {
                    let clean = sharing(&plain, offset, offset + bytes).next().is_none();
                    prop_assert_eq!(entries.put_clean(Entry::new(offset, bytes, item)), clean);
                    if clean {
                        plain.insert(offset, (bytes, item));
                    }
                }
                Op::Put(offset, bytes) if !plain.contains_key(&offset) => {
                    let item = item.overlapped(sharing(&plain, offset, offset + bytes).next().is_some());
                    entries.put(Entry::new(offset, bytes, item));
                    plain.insert(offset, (bytes, item));
                }
                Op::Take(offset) => {
                    prop_assert!(entries.take_if(offset, |_| false).is_none());
                    let gone = plain.remove(&offset).map(|rest| (offset, rest));
                    prop_assert_eq!(seen(entries.take_if(offset, |_| true)), gone);
                }
                Op::SetGroup(offset, group) => {
                    let item = entries.item_mut(offset);
                    prop_assert_eq!(item.is_some(), plain.contains_key(&offset));
                    if let (Some(item), Some((_, known))) = (item, plain.get_mut(&offset)) {
                        item.set_group(group);
                        known.set_group(group);
                    }
                }
                Op::Put(offset, bytes) | Op::Look(offset, bytes) => look(&entries, &plain, offset, bytes),
            }
            agree(&entries, &plain);
        }
    }
}

/// What a driver gives never makes a page keep its entries in order, up to a page full of the smallest.
#[test]
fn a_page_full_of_grains_stays_coarse() {
    let mut entries = Entries::default();
    let grains = PAGE / GRAIN;
    // An odd factor: each grain once, none beside the last.
    let offset = |n: u32| n * 1021 % grains * GRAIN;
    for n in 0..grains {
        assert!(entries.put_clean(Entry::new(
            offset(n),
            1 + n % GRAIN,
            Item::new(n.into(), 0, AllocKind::Device)
        )));
    }
    assert!(entries.fine().is_none());
    assert_eq!(entries.count, grains);
    for n in 0..grains {
        let inside = offset(n) + n % GRAIN;
        assert_eq!(entries.owner(inside).map(|entry| entry.item.index), Some(n.into()));
        assert!(!entries.put_clean(Entry::new(inside, 1, Item::new(0, 0, AllocKind::Device))));
        assert!(entries.take_if(offset(n), Entry::is_small).is_some());
    }
    assert!(entries.is_empty() && entries.fine().is_none());
}

/// Once entries share a grain they are kept in order, and no longer when they are gone.
#[test]
fn a_shared_grain_puts_a_page_in_order_until_it_is_empty() {
    let item = |index| Item::new(index, 0, AllocKind::Device);
    let mut entries = Entries::default();
    assert!(entries.put_clean(Entry::new(0, 100, item(0))) && entries.fine().is_none());
    assert!(entries.put_clean(Entry::new(100, 100, item(1))) && entries.fine().is_some());
    assert!(entries.put_clean(Entry::new(8 * GRAIN, 100, item(2))));
    assert!(!entries.put_clean(Entry::new(199, 1, item(3))), "shares a byte");
    for offset in [0, 100, 8 * GRAIN] {
        assert!(entries.take_if(offset, |_| true).is_some());
    }
    assert!(entries.put_clean(Entry::new(0, 100, item(4))) && entries.fine().is_none());
}

#[test]
fn an_item_keeps_its_parts_apart() {
    for kind in
        [AllocKind::Device, AllocKind::Managed, AllocKind::Arena, AllocKind::Pinned, AllocKind::Padding]
    {
        let item = Item::new(u64::MAX, u32::MAX, kind);
        assert_eq!((item.index, item.group(), item.kind()), (u64::MAX, u32::MAX, kind));
        assert_eq!(item.is_device(), kind == AllocKind::Device);
        assert!(!item.is_overlapped() && !item.is_free_refused());
        let mut item = item.overlapped(true).free_refused();
        item.set_group(7);
        assert_eq!((item.index, item.group(), item.kind()), (u64::MAX, 7, kind));
        assert!(item.is_overlapped() && item.is_free_refused());
        assert!(!item.overlapped(false).is_overlapped());
    }
}
