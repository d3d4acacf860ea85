// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Op`]: one operation of a program, its text form, and programs made by chance.

use core::fmt;
use core::str::FromStr;

/// What an argument may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Domain {
    /// A place for device memory.
    Buffer,
    /// A place for pinned memory.
    Host,
    /// A place for a stream; the first is always the legacy stream.
    Stream,
    Event,
    Graph,
    Module,
    /// Bytes to allocate.
    Size,
    /// An offset into the part of memory whose content is followed.
    Offset,
    /// Bytes of a copy or a fill.
    Length,
    Byte,
    Word,
    StreamFlags,
    EventFlags,
    Mode,
    Pitch,
    Rows,
}

/// Bytes at the start of each allocation whose content is followed.
pub(crate) const WINDOW: usize = 256;

impl Domain {
    /// The letter that marks a place, and how many there are.
    pub(crate) const fn places(self) -> Option<(char, u64)> {
        match self {
            Self::Buffer => Some(('b', 5)),
            Self::Host => Some(('h', 2)),
            Self::Stream => Some(('s', 4)),
            Self::Event => Some(('e', 3)),
            Self::Graph => Some(('g', 2)),
            Self::Module => Some(('m', 2)),
            _ => None,
        }
    }

    fn choose(self, chance: &mut Chance) -> u64 {
        const MIB: u64 = 1 << 20;
        if let Some((_, places)) = self.places() {
            return chance.below(places);
        }
        match self {
            Self::Size => match chance.below(20) {
                0 => 0,
                1 => 1 << 50,
                2..=6 => (1 + chance.below(12)) * MIB / 2,
                7..=10 => MIB - 256 + chance.below(512),
                _ => 1 + chance.below(9000),
            },
            Self::Offset => match chance.below(3) {
                0 => 4 * chance.below(WINDOW as u64 / 4),
                1 => 0,
                _ => chance.below(WINDOW as u64),
            },
            Self::Length => match chance.below(8) {
                0 => 0,
                1 => WINDOW as u64 + chance.below(8000),
                _ => 1 + chance.below(WINDOW as u64),
            },
            Self::Byte => chance.below(256),
            Self::Word => chance.below(1 << 32),
            Self::StreamFlags => [1, 1, 1, 0, 0, 7][chance.below(6) as usize],
            Self::EventFlags => [0, 0, 2, 2, 2, 8][chance.below(6) as usize],
            Self::Mode => [0, 1, 2, 2, 2, 2, 2, 3][chance.below(8) as usize],
            Self::Pitch => 1 + chance.below(64),
            Self::Rows => chance.below(5),
            _ => 0,
        }
    }
}

macro_rules! verbs {
    ($($weight:literal $name:ident $text:literal [$($domain:ident)*];)*) => {
        /// What an operation does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Verb { $($name),* }

        impl Verb {
            const ALL: &[(Self, &'static str, u64, &'static [Domain])] =
                &[$((Self::$name, $text, $weight, &[$(Domain::$domain),*])),*];
        }
    };
}

// How often by chance, the name, the name in texts, the arguments.
verbs! {
    8 Alloc "alloc" [Buffer Size];
    2 Managed "managed" [Buffer Size];
    4 Free "free" [Buffer];
    1 FreeInside "free-inside" [Buffer Offset];
    1 FreeAgain "free-again" [Buffer];
    2 Range "range" [Buffer Offset];
    3 Pinned "pinned" [Host];
    1 Unpin "unpin" [Host];
    4 Write "write" [Host Byte];
    3 Upload "upload" [Buffer Offset Host Offset Length];
    3 Download "download" [Host Offset Buffer Offset Length];
    2 Copy "copy" [Buffer Offset Buffer Offset Length];
    4 UploadAsync "upload-async" [Buffer Offset Host Offset Length Stream];
    3 DownloadAsync "download-async" [Host Offset Buffer Offset Length Stream];
    4 CopyAsync "copy-async" [Buffer Offset Buffer Offset Length Stream];
    2 Copy2d "copy-2d" [Buffer Pitch Buffer Pitch Pitch Rows Stream];
    2 Fill "fill" [Buffer Offset Byte Length];
    5 FillAsync "fill-async" [Buffer Offset Byte Length Stream];
    2 FillWords "fill-words" [Buffer Offset Word Length Stream];
    2 Poke "poke" [Module Buffer Offset Word Stream];
    4 Twist "twist" [Module Buffer Offset Word Stream];
    6 Read "read" [Buffer];
    3 Stream "stream" [Stream StreamFlags];
    1 DestroyStream "destroy-stream" [Stream];
    3 SyncStream "sync-stream" [Stream];
    2 QueryStream "query-stream" [Stream];
    3 Event "event" [Event EventFlags];
    1 DestroyEvent "destroy-event" [Event];
    6 Record "record" [Event Stream];
    6 Wait "wait" [Stream Event];
    2 QueryEvent "query-event" [Event];
    2 SyncEvent "sync-event" [Event];
    1 Elapsed "elapsed" [Event Event];
    7 Begin "begin" [Stream Mode];
    8 End "end" [Stream Graph];
    2 Update "update" [Stream Graph];
    6 Launch "launch" [Graph Stream];
    1 DestroyGraph "destroy-graph" [Graph];
    2 Load "load" [Module];
    1 Unload "unload" [Module];
    1 Sync "sync" [];
}

/// Arguments of an operation at most.
const MOST: usize = 7;

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) verb: Verb,
    arguments: [u64; MOST],
}

impl Op {
    fn entry(self) -> &'static (Verb, &'static str, u64, &'static [Domain]) {
        &Verb::ALL[self.verb as usize]
    }

    fn domains(self) -> &'static [Domain] {
        self.entry().3
    }

    /// An argument by its place.
    pub(crate) fn at(self, place: usize) -> u64 {
        self.arguments[place]
    }

    /// The same operation with simpler arguments, one changed each.
    pub(crate) fn simpler(self) -> Vec<Self> {
        let mut simpler = Vec::new();
        for place in 0..self.domains().len() {
            for value in [0, 1, 256, 4096, self.arguments[place] / 2] {
                let mut op = self;
                op.arguments[place] = value;
                if value < self.arguments[place] && self.domains()[place].places().is_none() {
                    simpler.push(op);
                }
            }
        }
        simpler
    }

    fn by_chance(chance: &mut Chance) -> Self {
        let sum = Verb::ALL.iter().map(|entry| entry.2).sum();
        let mut place = chance.below(sum);
        let entry = Verb::ALL.iter().find(|entry| {
            let found = place < entry.2;
            place = place.saturating_sub(entry.2);
            found
        });
        let (verb, _, _, domains) = entry.unwrap_or(&Verb::ALL[0]);
        let mut arguments = [0; MOST];
        for (argument, domain) in arguments.iter_mut().zip(*domains) {
            *argument = domain.choose(chance);
        }
        Self { verb: *verb, arguments }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry().1)?;
        for (argument, domain) in self.arguments.iter().zip(self.domains()) {
            match domain.places() {
                Some((letter, _)) => write!(f, " {letter}{argument}")?,
                None => write!(f, " {argument}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let entry = Verb::ALL.iter().find(|entry| entry.1 == name);
        let (verb, _, _, domains) =
            entry.ok_or_else(|| format!("{line:?}: no operation is named {name:?}"))?;
        let mut arguments = [0; MOST];
        for (argument, domain) in arguments.iter_mut().zip(*domains) {
            let word = words.next().ok_or_else(|| format!("{line:?}: an argument is missing"))?;
            let digits = match domain.places() {
                Some((letter, _)) => word.strip_prefix(letter),
                None => Some(word),
            };
            let value = digits.and_then(|digits| digits.parse().ok());
            let value = value.filter(|value| domain.places().is_none_or(|(_, places)| *value < places));
            *argument = value.ok_or_else(|| format!("{line:?}: {word:?} is no {domain:?}"))?;
        }
        match words.next() {
            None => Ok(Self { verb: *verb, arguments }),
            Some(word) => Err(format!("{line:?}: {word:?} is one argument too many")),
        }
    }
}

/// A list of operations; what they name is made by them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Program(pub(crate) Vec<Op>);

/// What most programs begin with, so that their operations have something to work on.
const BEGINNING: &str = "alloc b0 4096\nalloc b1 600\nalloc b2 3145728\npinned h0\npinned h1\nwrite h0 3\nwrite h1 77\n\
                         stream s1 1\nstream s2 1\nevent e0 2\nevent e1 2\nload m0\nupload b0 0 h0 0 256\n\
                         upload b1 0 h1 0 256\n";

impl Program {
    /// The program of a seed: the same one everywhere and always.
    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut chance = Chance(seed);
        let mut ops = Vec::new();
        if chance.below(8) > 0 {
            ops.extend(
                BEGINNING.lines().filter_map(|line| line.parse().ok()).filter(|_: &Op| chance.below(16) > 0),
            );
        }
        let more = 5 + chance.below(45);
        ops.extend((0..more).map(|_| Op::by_chance(&mut chance)));
        Self(ops)
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|op| writeln!(f, "{op}"))
    }
}

impl FromStr for Program {
    type Err = String;

    /// One operation a line; what follows `#` is a remark.
    fn from_str(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        lines.filter(|line| !line.is_empty()).map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
