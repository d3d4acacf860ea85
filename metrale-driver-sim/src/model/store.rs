// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of device memory, kept only where something was written.
//!
//! Memory is held in blocks of 64 KiB by device address. A block that was never written is absent and shows the fresh
//! byte; a block filled whole with one 32-bit pattern (a memset, zeros of a weight file) costs a few bytes; only mixed
//! content costs its size. So a device of 150 GB with 90 GB allocated, even zeroed, needs megabytes of the host.

use std::collections::BTreeMap;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 64 << 10;

enum Block {
    /// The whole block repeats one little-endian word.
    Fill(u32),
    Bytes(Box<[u8]>),
}

/// Written device memory by block number.
pub(crate) struct Store {
    blocks: BTreeMap<u64, Block>,
    fresh: u8,
    byte_blocks: usize,
}

impl Store {
    pub(crate) fn new(fresh: u8) -> Self {
        Self { blocks: BTreeMap::new(), fresh, byte_blocks: 0 }
    }

    /// Host bytes that hold device content.
    pub(crate) fn backing_bytes(&self) -> u64 {
        (self.byte_blocks * BLOCK) as u64
    }

    pub(crate) fn read(&self, address: u64, out: &mut [u8]) {
        for (block, offset, part) in pieces(address, out.len()) {
            let out = &mut out[part];
            match self.blocks.get(&block) {
                None => out.fill(self.fresh),
                Some(Block::Fill(word)) => repeat(*word, offset, out),
                Some(Block::Bytes(bytes)) => out.copy_from_slice(&bytes[offset..offset + out.len()]),
            }
        }
    }

    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) {
        for (block, offset, part) in pieces(address, bytes.len()) {
            let bytes = &bytes[part];
            if bytes.len() == BLOCK
                && let Some(word) = uniform(bytes)
            {
                self.put(block, Block::Fill(word));
                continue;
            }
            self.bytes_of(block)[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Repeats `word` over `len` bytes; its first byte lands on `address`.
    pub(crate) fn fill(&mut self, address: u64, word: u32, len: u64) {
        let (mut at, mut left) = (address, len);
        while left > 0 {
            let offset = (at % BLOCK as u64) as usize;
            let part = left.min((BLOCK - offset) as u64);
            let block = at / BLOCK as u64;
            // The word as seen from this piece's start.
            let rotated = word.rotate_right(8 * ((at - address) % 4) as u32);
            if part == BLOCK as u64 {
                self.put(block, Block::Fill(rotated));
            } else {
                let bytes = self.bytes_of(block);
                repeat(rotated, 0, &mut bytes[offset..offset + part as usize]);
            }
            at += part;
            left -= part;
        }
    }

    /// Forgets the blocks that lie whole in a range.
    pub(crate) fn forget(&mut self, address: u64, len: u64) {
        let (first, end) = (address.div_ceil(BLOCK as u64), (address + len) / BLOCK as u64);
        let forgotten: Vec<u64> = self.blocks.range(first..first.max(end)).map(|(&block, _)| block).collect();
        for block in forgotten {
            if let Some(Block::Bytes(_)) = self.blocks.remove(&block) {
                self.byte_blocks -= 1;
            }
        }
    }

    fn put(&mut self, block: u64, content: Block) {
        if let Some(Block::Bytes(_)) = self.blocks.insert(block, content) {
            self.byte_blocks -= 1;
        }
    }

    /// The block as bytes, made from what it showed so far.
    fn bytes_of(&mut self, block: u64) -> &mut [u8] {
        let fresh = self.fresh;
        let byte_blocks = &mut self.byte_blocks;
        let content = self.blocks.entry(block).or_insert_with(|| Block::Fill(u32::from_ne_bytes([fresh; 4])));
        if let Block::Fill(word) = *content {
            let mut bytes = vec![0; BLOCK].into_boxed_slice();
            repeat(word, 0, &mut bytes);
            *content = Block::Bytes(bytes);
            *byte_blocks += 1;
        }
        match content {
            Block::Bytes(bytes) => bytes,
            Block::Fill(_) => &mut [],
        }
    }
}

/// Cuts a range at block borders: block, offset in it, range of the caller's buffer.
fn pieces(address: u64, len: usize) -> impl Iterator<Item = (u64, usize, core::ops::Range<usize>)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = address + done as u64;
        let offset = (at % BLOCK as u64) as usize;
        let part = done..done + (len - done).min(BLOCK - offset);
        done = part.end;
        Some((at / BLOCK as u64, offset, part))
    })
}

/// Writes a word over and over, as if begun `offset` bytes earlier.
fn repeat(word: u32, offset: usize, out: &mut [u8]) {
    let word = word.rotate_right(8 * (offset % 4) as u32).to_le_bytes();
    if word.iter().all(|&byte| byte == word[0]) {
        return out.fill(word[0]);
    }
    for piece in out.chunks_mut(4) {
        piece.copy_from_slice(&word[..piece.len()]);
    }
}

/// The word that the bytes repeat, if they do.
fn uniform(bytes: &[u8]) -> Option<u32> {
    let first: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    bytes.chunks_exact(4).all(|word| word == first).then(|| u32::from_le_bytes(first))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        Fill(u64, u32, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let at = 0..3 * BLOCK as u64;
        let length = prop_oneof![0..64u64, BLOCK as u64 - 4..2 * BLOCK as u64];
        prop_oneof![
            (at.clone(), length.clone(), any::<u8>())
                .prop_map(|(at, len, seed)| Step::Write(at, (0..len).map(|i| seed ^ (i as u8)).collect())),
            (at, any::<u32>(), length).prop_map(|(at, word, len)| Step::Fill(at, word, len)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn behaves_as_one_flat_array(steps in prop::collection::vec(step(), 1..12)) {
            let mut flat = vec![0xA7; 6 * BLOCK];
            let mut store = Store::new(0xA7);
            for step in steps {
                match step {
                    Step::Write(at, bytes) => {
                        flat[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                        store.write(at, &bytes);
                    }
                    Step::Fill(at, word, len) => {
                        for i in 0..len {
                            flat[(at + i) as usize] = word.to_le_bytes()[(i % 4) as usize];
                        }
                        store.fill(at, word, len);
                    }
                }
            }
            let mut seen = vec![0; flat.len()];
            store.read(0, &mut seen);
            prop_assert!(seen == flat);
            let mut part = vec![0; BLOCK];
            store.read(777, &mut part);
            prop_assert!(part == flat[777..777 + BLOCK]);
        }
    }

    #[test]
    fn fills_and_uniform_writes_cost_no_bytes_and_forgotten_blocks_none() {
        let mut store = Store::new(0xFF);
        store.fill(0, 0, 90 << 30);
        store.write(0, &[7; 4 * BLOCK]);
        assert_eq!(store.backing_bytes(), 0);
        store.write(5, &[1, 2, 3]);
        assert_eq!(store.backing_bytes(), BLOCK as u64);
        store.forget(0, 90 << 30);
        assert_eq!((store.backing_bytes(), store.blocks.len()), (0, 0));
        let mut byte = [0];
        store.read(5, &mut byte);
        assert_eq!(byte, [0xFF]);
    }
}
