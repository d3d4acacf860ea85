// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`End`]: which end of a copy.

use core::fmt;

/// Which end of a copy or fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Where the data comes from.
    Source,
    /// Where it goes.
    Destination,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Destination => "destination",
        })
    }
}
