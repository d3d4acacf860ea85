// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a log never frees.

use std::fmt;

use metrale_ledger::ByteSize;
use serde::{Serialize, Serializer};

/// Allocations that are listed one by one; of the rest there is the sum.
const LISTED: usize = 10;

/// What is live at a log's end.
#[derive(Debug, Default, Serialize)]
pub struct StillLive {
    /// How many allocations.
    pub allocations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The first ten of them, in the order of the log.
    pub first: Vec<LiveAllocation>,
}

/// An allocation that is live.
#[derive(Debug, Serialize)]
pub struct LiveAllocation {
    /// The log's address for it.
    #[serde(serialize_with = "hex")]
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The line that allocated it.
    pub line: u64,
}

/// As text, since not every reader of JSON has numbers of 64 bits.
fn hex<S: Serializer>(address: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{address:#x}"))
}

impl FromIterator<LiveAllocation> for StillLive {
    /// Of all that is live, in any order: there may be millions, of which a few are listed.
    fn from_iter<I: IntoIterator<Item = LiveAllocation>>(live: I) -> Self {
        let mut all = Self::default();
        for allocation in live {
            all.allocations += 1;
            all.bytes = all.bytes.saturating_add(allocation.bytes);
            let place = all.first.partition_point(|first| first.line < allocation.line);
            if place < LISTED {
                all.first.truncate(LISTED - 1);
                all.first.insert(place, allocation);
            }
        }
        all
    }
}

impl fmt::Display for StillLive {
    /// A paragraph with its heading; nothing where nothing is live.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.allocations == 0 {
            return Ok(());
        }
        writeln!(f, "\nstill live at the end, in the order of the log")?;
        for LiveAllocation { address, bytes, line } in &self.first {
            writeln!(f, "{:>14}  {address:#x}  line {line}", ByteSize(*bytes).to_string())?;
        }
        let rest = self.allocations - self.first.len() as u64;
        if rest > 0 {
            let bytes = self.first.iter().fold(self.bytes, |rest, first| rest.saturating_sub(first.bytes));
            writeln!(f, "{:>14}  in {rest} more", ByteSize(bytes).to_string())?;
        }
        Ok(())
    }
}
