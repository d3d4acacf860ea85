// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the launches of one step differ from another's.
//!
//! Launches are aligned by kind and function, so a changed grid reads as a change and not as one launch
//! gone and one come; what the alignment leaves over stands on one side only.

use std::collections::HashMap;
use std::fmt;

use crate::align::align;
use crate::launch_trace::{Dim3, Launch, LaunchArg, LaunchKind, Trace};

/// When two device addresses count as the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointerRule {
    /// When they are equal.
    Exact,
    /// When the two steps use them alike: the first pair seen binds one address to the other, both ways.
    Renamed,
    /// Always.
    Ignore,
}

/// One field of an aligned pair of launches that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldChange {
    /// The grid, earlier and later.
    Grid([u32; 3], [u32; 3]),
    /// The block.
    Block([u32; 3], [u32; 3]),
    /// Dynamic shared memory, in bytes.
    SharedBytes(u32, u32),
    /// The number of arguments.
    ArgCount(usize, usize),
    /// The argument of this index.
    Arg(usize, LaunchArg, LaunchArg),
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grid(a, b) => write!(f, "grid {} -> {}", Dim3::from(*a), Dim3::from(*b)),
            Self::Block(a, b) => write!(f, "block {} -> {}", Dim3::from(*a), Dim3::from(*b)),
            Self::SharedBytes(a, b) => write!(f, "shared {a} B -> {b} B"),
            Self::ArgCount(a, b) => write!(f, "{a} arguments -> {b}"),
            Self::Arg(index, a, b) => write!(f, "arg {index}: {a} -> {b}"),
        }
    }
}

/// One place where the traces differ. Indices count the launches of a trace from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// Only the earlier trace has this launch.
    OnlyEarlier(usize, Launch),
    /// Only the later trace has this launch.
    OnlyLater(usize, Launch),
    /// Both have it, with other values.
    Changed {
        /// Index in the earlier trace.
        earlier: usize,
        /// Index in the later trace.
        later: usize,
        /// What it is.
        kind: LaunchKind,
        /// Its function.
        function: String,
        /// What differs; never empty.
        fields: Vec<FieldChange>,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnlyEarlier(index, launch) => write!(f, "- [{index}] {launch}"),
            Self::OnlyLater(index, launch) => write!(f, "+ [{index}] {launch}"),
            Self::Changed { earlier, later, kind, function, fields } => {
                write!(f, "~ [{earlier} -> {later}] {kind} {}: ", function.escape_debug())?;
                for (i, field) in fields.iter().enumerate() {
                    write!(f, "{}{field}", if i == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
        }
    }
}

/// The comparison of two traces. Its `Display` is the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceDiff {
    /// Where they differ, in order.
    pub differences: Vec<Difference>,
    /// Launches that are the same in both.
    pub same: usize,
    /// Launches that either trace only counted; about these nothing is known.
    pub dropped: (u64, u64),
}

impl TraceDiff {
    pub(crate) fn new(earlier: &Trace, later: &Trace, rule: PointerRule) -> Self {
        let mut keys = HashMap::new();
        let left = classes(&mut keys, earlier);
        let right = classes(&mut keys, later);
        let mut pointers = Pointers { rule, forth: HashMap::new(), back: HashMap::new() };
        let mut diff = Self { differences: Vec::new(), same: 0, dropped: (earlier.dropped, later.dropped) };
        let (mut i, mut j) = (0, 0);
        // A last pair behind both ends, so that what is left over is flushed by the same lines.
        let ends = std::iter::once((left.len(), right.len()));
        for (x, y) in align(&left, &right).into_iter().chain(ends) {
            diff.differences.extend(
                (i..x)
                    .filter_map(|n| Some(Difference::OnlyEarlier(n, earlier.launches.get(n)?.clone())))
                    .chain(
                        (j..y).filter_map(|n| Some(Difference::OnlyLater(n, later.launches.get(n)?.clone()))),
                    ),
            );
            if let (Some(a), Some(b)) = (earlier.launches.get(x), later.launches.get(y)) {
                let fields = pointers.compare(a, b);
                if fields.is_empty() {
                    diff.same += 1;
                } else {
                    let function = a.function.to_string();
                    let kind = a.kind;
                    diff.differences.push(Difference::Changed {
                        earlier: x,
                        later: y,
                        kind,
                        function,
                        fields,
                    });
                }
            }
            (i, j) = (x + 1, y + 1);
        }
        diff
    }

    /// Whether the traces are the same, with nothing dropped.
    pub fn is_same(&self) -> bool {
        self.differences.is_empty() && self.dropped == (0, 0)
    }
}

impl fmt::Display for TraceDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} launches the same, {} differences", self.same, self.differences.len())?;
        if self.dropped != (0, 0) {
            let (a, b) = self.dropped;
            writeln!(f, "not compared: {a} and {b} launches beyond the trace's limit")?;
        }
        self.differences.iter().try_for_each(|difference| writeln!(f, "{difference}"))
    }
}

/// A small number for each kind and function, the same in both traces.
fn classes<'a>(keys: &mut HashMap<(LaunchKind, &'a str), u32>, trace: &'a Trace) -> Vec<u32> {
    trace
        .launches
        .iter()
        .map(|launch| {
            let next = keys.len() as u32;
            *keys.entry((launch.kind, &*launch.function)).or_insert(next)
        })
        .collect()
}

struct Pointers {
    rule: PointerRule,
    forth: HashMap<u64, u64>,
    back: HashMap<u64, u64>,
}

impl Pointers {
    fn same(&mut self, a: u64, b: u64) -> bool {
        match self.rule {
            PointerRule::Exact => a == b,
            PointerRule::Ignore => true,
            PointerRule::Renamed => {
                // Null is no buffer: it only ever equals itself.
                if a == 0 || b == 0 {
                    return a == b;
                }
                match (self.forth.get(&a), self.back.get(&b)) {
                    (None, None) => {
                        self.forth.insert(a, b);
                        self.back.insert(b, a);
                        true
                    }
                    (forth, _) => forth == Some(&b),
                }
            }
        }
    }

    fn compare(&mut self, a: &Launch, b: &Launch) -> Vec<FieldChange> {
        let mut fields = Vec::new();
        if a.grid != b.grid {
            fields.push(FieldChange::Grid(a.grid, b.grid));
        }
        if a.block != b.block {
            fields.push(FieldChange::Block(a.block, b.block));
        }
        if a.shared_bytes != b.shared_bytes {
            fields.push(FieldChange::SharedBytes(a.shared_bytes, b.shared_bytes));
        }
        if a.args.len() != b.args.len() {
            fields.push(FieldChange::ArgCount(a.args.len(), b.args.len()));
        }
        for (i, (x, y)) in a.args.iter().zip(&b.args).enumerate() {
            let same = match (x, y) {
                (LaunchArg::Pointer(p), LaunchArg::Pointer(q)) => self.same(*p, *q),
                _ => x == y,
            };
            if !same {
                fields.push(FieldChange::Arg(i, x.clone(), y.clone()));
            }
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str, args: &[LaunchArg]) -> Launch {
        Launch::new(LaunchKind::Kernel, name).grid([1; 3]).block([32, 1, 1]).args(args.iter().cloned())
    }

    fn trace(launches: &[Launch]) -> Trace {
        Trace { launches: launches.to_vec(), dropped: 0 }
    }

    #[test]
    fn a_trace_equals_itself() {
        let step = trace(&[kernel("a", &[]), kernel("b", &[LaunchArg::F32(f32::NAN)])]);
        let diff = step.diff(&step, PointerRule::Exact);
        assert!(diff.is_same());
        assert_eq!(diff.same, 2);
        assert!(trace(&[]).diff(&trace(&[]), PointerRule::Exact).is_same());
    }

    #[test]
    fn added_gone_and_changed_launches_are_told_apart() {
        let (a, b, c) = (kernel("a", &[]), kernel("b", &[LaunchArg::U32(1)]), kernel("c", &[]));
        let d = kernel("d", &[]);
        let changed = kernel("b", &[LaunchArg::U32(2), LaunchArg::Opaque]).shared_bytes(16);
        let diff = trace(&[a.clone(), b, c.clone()])
            .diff(&trace(&[changed, c.clone(), d.clone()]), PointerRule::Exact);
        assert_eq!(
            diff.differences,
            [
                Difference::OnlyEarlier(0, a),
                Difference::Changed {
                    earlier: 1,
                    later: 0,
                    kind: LaunchKind::Kernel,
                    function: "b".into(),
                    fields: vec![
                        FieldChange::SharedBytes(0, 16),
                        FieldChange::ArgCount(1, 2),
                        FieldChange::Arg(0, LaunchArg::U32(1), LaunchArg::U32(2)),
                    ],
                },
                Difference::OnlyLater(2, d),
            ]
        );
        assert_eq!(diff.same, 1);
        let text = diff.to_string();
        assert!(
            text.contains("~ [1 -> 0] kernel b: shared 0 B -> 16 B; 1 arguments -> 2; arg 0: 1u32 -> 2u32")
        );
        assert!(text.contains("+ [2] kernel d"));
    }

    #[test]
    fn pointer_rules() {
        let p = |x, y| trace(&[kernel("k", &[LaunchArg::Pointer(x)]), kernel("k", &[LaunchArg::Pointer(y)])]);
        let differences = |a: Trace, b: Trace, rule| a.diff(&b, rule).differences.len();
        assert_eq!(differences(p(16, 32), p(64, 96), PointerRule::Exact), 2);
        assert_eq!(differences(p(16, 32), p(64, 96), PointerRule::Ignore), 0);
        assert_eq!(differences(p(16, 32), p(64, 96), PointerRule::Renamed), 0);
        assert_eq!(differences(p(16, 16), p(64, 64), PointerRule::Renamed), 0);
        // One buffer where there were two, two where there was one, none where there was one.
        assert_eq!(differences(p(16, 32), p(64, 64), PointerRule::Renamed), 1);
        assert_eq!(differences(p(16, 16), p(64, 96), PointerRule::Renamed), 1);
        assert_eq!(differences(p(16, 0), p(64, 96), PointerRule::Renamed), 1);
    }

    #[test]
    fn dropped_launches_are_said() {
        let a = Trace { launches: vec![], dropped: 3 };
        let diff = a.diff(&Trace::default(), PointerRule::Exact);
        assert!(!diff.is_same());
        assert!(diff.to_string().contains("not compared: 3 and 0 launches"));
    }

    #[test]
    fn one_function_under_two_kinds_is_two_things() {
        let a = trace(&[Launch::new(LaunchKind::Kernel, "x")]);
        let b = trace(&[Launch::new(LaunchKind::Memset, "x")]);
        assert_eq!(a.diff(&b, PointerRule::Exact).differences.len(), 2);
    }
}
