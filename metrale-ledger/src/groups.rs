// SPDX-License-Identifier: MIT OR Apache-2.0
//! Groups: what each site holds in each scope, under each tag, of each kind, now and at the peak; and their labels.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxBuildHasher;

use crate::peak::Held;
use crate::record::{AllocKind, SourceLine};

/// Stands for no scope and for no tag.
pub(crate) const NO_LABEL: u32 = u32::MAX;

/// Scope and tag labels by number.
#[derive(Default)]
pub(crate) struct Labels {
    numbers: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
}

impl Labels {
    /// The number of a label, which gets one if it is new.
    pub(crate) fn number(&mut self, label: &str) -> u32 {
        if let Some(&number) = self.numbers.get(label) {
            return number;
        }
        let number = self.names.len() as u32;
        let label: Arc<str> = label.into();
        self.names.push(Arc::clone(&label));
        self.numbers.insert(label, number);
        number
    }

    /// The label with this number; none for [`NO_LABEL`].
    pub(crate) fn name(&self, number: u32) -> Option<Arc<str>> {
        self.names.get(number as usize).cloned()
    }
}

/// What the allocations of a group have in common. Scope and tag are numbers of [`Labels`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupKey {
    pub(crate) site: SourceLine,
    pub(crate) scope: u32,
    pub(crate) tag: u32,
    pub(crate) kind: AllocKind,
}

/// Compares locations by address, which is quick. A site may have several; a snapshot joins their groups.
impl PartialEq for GroupKey {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.site, other.site)
            && (self.scope, self.tag, self.kind) == (other.scope, other.tag, other.kind)
    }
}

impl Eq for GroupKey {}

impl Hash for GroupKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.site, state);
        state.write_u64(u64::from(self.scope) << 32 | u64::from(self.tag));
        state.write_u8(self.kind as u8);
    }
}

/// Bytes and number of allocations. Wide, since callers may claim any sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) bytes: u128,
    pub(crate) count: u64,
}

impl Sum {
    /// Adds (`sign` 1) or subtracts (-1) an allocation of these bytes.
    pub(crate) fn change(&mut self, bytes: usize, sign: i64) {
        self.bytes = self.bytes.wrapping_add_signed(i128::from(sign) * bytes as i128);
        self.count = self.count.wrapping_add_signed(sign);
    }
}

/// All groups a ledger has seen, by number.
#[derive(Default)]
pub(crate) struct Groups {
    numbers: HashMap<GroupKey, u32, FxBuildHasher>,
    keys: Vec<GroupKey>,
    /// Apart from the keys, since only these change with every allocation.
    held: Vec<Held<Sum>>,
}

impl Groups {
    /// The number of a group, which gets one if it is new.
    pub(crate) fn number(&mut self, key: GroupKey) -> u32 {
        self.numbers.get(&key).copied().unwrap_or_else(|| {
            self.numbers.insert(key, self.keys.len() as u32);
            self.keys.push(key);
            self.held.push(Held::default());
            self.keys.len() as u32 - 1
        })
    }

    pub(crate) fn key(&self, number: u32) -> GroupKey {
        self.keys[number as usize]
    }

    /// What a group holds, for a change.
    pub(crate) fn held_mut(&mut self, number: u32) -> &mut Held<Sum> {
        &mut self.held[number as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&GroupKey, &Held<Sum>)> {
        self.keys.iter().zip(&self.held)
    }
}
