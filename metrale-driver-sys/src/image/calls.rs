// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Calls`]: which functions of a cubin need one that the cubin does not define.

use super::allowance::Allowance;
use super::bytes::u64_at;
use super::cubin::{CubinError, STT_FUNC, SYMBOL_BYTES, Sections, Symbol};

/// Relocations with addends, and without.
const SHT_RELA: u32 = 4;
const SHT_REL: u32 = 9;

/// For the section of each function, the name (by its place in the string table) of an undefined function that it needs,
/// itself or through others. A file that is linked has none.
pub(super) struct Calls(Vec<Option<u32>>);

impl Calls {
    pub(super) fn read(
        sections: &Sections<'_>,
        image: &[u8],
        symbols: &[u8],
        allowance: &mut Allowance,
    ) -> Result<Self, CubinError> {
        let mut undefined = vec![None; sections.all.len()];
        // Callee and caller, both by their sections: each function has its own.
        let mut calls: Vec<(u16, u16)> = Vec::new();
        for &(name, section) in &sections.all {
            let entry_bytes = match section.kind {
                SHT_RELA => 24,
                SHT_REL => 16,
                _ => continue,
            };
            // Others are of debug information.
            let is_of_code =
                name.trim_start_matches(".rela").trim_start_matches(".rel").starts_with(".text.");
            let Some(caller) = u16::try_from(section.info).ok().filter(|_| is_of_code) else { continue };
            let Some(slot) = undefined.get_mut(usize::from(caller)) else { continue };
            let data = section.data(image).unwrap_or_default();
            allowance.take(data.len() as u64)?;
            for entry in data.chunks_exact(entry_bytes) {
                let index = u64_at(entry, 8).map_or(0, |info| info >> 32) as usize;
                let symbol =
                    index.checked_mul(SYMBOL_BYTES).and_then(|at| symbols.get(at..)).and_then(Symbol::read);
                match symbol.filter(|symbol| symbol.kind == STT_FUNC) {
                    Some(Symbol { section: 0, name, .. }) => *slot = slot.or(Some(name)),
                    Some(symbol) if symbol.section != caller => calls.push((symbol.section, caller)),
                    _ => {}
                }
            }
        }
        calls.sort_unstable();
        calls.dedup();
        let mut waiting: Vec<u16> =
            (0..).zip(&undefined).filter(|slot| slot.1.is_some()).map(|slot| slot.0).collect();
        while let Some(callee) = waiting.pop() {
            let first = calls.partition_point(|call| call.0 < callee);
            for &(_, caller) in calls[first..].iter().take_while(|call| call.0 == callee) {
                if undefined[usize::from(caller)].is_none() {
                    undefined[usize::from(caller)] = undefined[usize::from(callee)];
                    waiting.push(caller);
                }
            }
        }
        Ok(Self(undefined))
    }

    /// What the function in this section needs and nothing defines.
    pub(super) fn undefined_of(&self, section: u16) -> Option<u32> {
        self.0.get(usize::from(section)).copied().flatten()
    }
}
