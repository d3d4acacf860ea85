// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`GraphUpdate`]: what became of an instantiated graph that was to do other work.

use std::fmt;

use metrale_driver_sys::CUgraphExecUpdateResult;

/// What became of an update in place.
///
/// On everything but [`Updated`](Self::Updated) the graph is as it was, launches as before, and keeps its memory pinned;
/// the new capture is over. Capture again and [end](crate::GpuGraphs::end_capture) that for a graph of its own.
///
/// `node` is the place, in the order of capture, of the first node of the new capture that does not fit, where the driver
/// named one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "only `Updated` means that the graph does the new work"]
pub enum GraphUpdate {
    /// The graph does the new work from its next launch on.
    Updated,
    /// The nodes differ, or the nodes that they wait for.
    TopologyChanged {
        /// Nodes of the graph.
        nodes_before: usize,
        /// Nodes of the new capture.
        nodes_now: usize,
        /// The first that does not fit.
        node: Option<usize>,
    },
    /// A node is of another kind, such as a fill where a kernel was.
    NodeTypeChanged {
        /// The first that does not fit.
        node: Option<usize>,
    },
    /// A node launches a kernel that cannot take the place of the one before.
    FunctionChanged {
        /// The first that does not fit.
        node: Option<usize>,
    },
    /// A parameter changed that the driver cannot change in place, such as the kind of memory of a copy.
    ParametersChanged {
        /// The first that does not fit.
        node: Option<usize>,
    },
    /// An attribute changed that the driver cannot change in place.
    AttributesChanged {
        /// The first that does not fit.
        node: Option<usize>,
    },
    /// The driver can update no such node.
    NodeNotSupported {
        /// The first of them.
        node: Option<usize>,
    },
    /// Another reason.
    Refused {
        /// The driver's number for it.
        code: u32,
        /// The first that does not fit.
        node: Option<usize>,
    },
}

impl GraphUpdate {
    /// Whether the graph does the new work.
    #[must_use]
    pub const fn is_updated(self) -> bool {
        matches!(self, Self::Updated)
    }

    /// The driver's reason for a refusal.
    pub(crate) const fn refused(
        code: CUgraphExecUpdateResult,
        nodes_before: usize,
        nodes_now: usize,
        node: Option<usize>,
    ) -> Self {
        match code {
            2 => Self::TopologyChanged { nodes_before, nodes_now, node },
            3 => Self::NodeTypeChanged { node },
            4 | 7 => Self::FunctionChanged { node },
            5 => Self::ParametersChanged { node },
            6 => Self::NodeNotSupported { node },
            8 => Self::AttributesChanged { node },
            _ => Self::Refused { code, node },
        }
    }
}

impl fmt::Display for GraphUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = match *self {
            Self::Updated => return f.write_str("updated"),
            Self::TopologyChanged { nodes_before, nodes_now, node } => {
                write!(
                    f,
                    "not updated: the topology changed ({nodes_before} nodes before, {nodes_now} now)"
                )?;
                node
            }
            Self::NodeTypeChanged { node } => {
                f.write_str("not updated: a node is of another kind")?;
                node
            }
            Self::FunctionChanged { node } => {
                f.write_str("not updated: a kernel cannot take the place of the one before")?;
                node
            }
            Self::ParametersChanged { node } => {
                f.write_str("not updated: a parameter cannot be changed in place")?;
                node
            }
            Self::AttributesChanged { node } => {
                f.write_str("not updated: an attribute cannot be changed in place")?;
                node
            }
            Self::NodeNotSupported { node } => {
                f.write_str("not updated: the driver can update no such node")?;
                node
            }
            Self::Refused { code, node } => {
                write!(f, "not updated: the driver's reason is {code}")?;
                node
            }
        };
        match node {
            Some(node) => write!(f, ", first at node {node}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_of_the_driver_has_its_own_answer() {
        let of = |code| GraphUpdate::refused(code, 3, 4, Some(1));
        assert_eq!(of(2), GraphUpdate::TopologyChanged { nodes_before: 3, nodes_now: 4, node: Some(1) });
        assert_eq!(of(3), GraphUpdate::NodeTypeChanged { node: Some(1) });
        assert_eq!(of(5), GraphUpdate::ParametersChanged { node: Some(1) });
        assert_eq!(of(99), GraphUpdate::Refused { code: 99, node: Some(1) });
        assert!((0..20).all(|code| !of(code).is_updated()));
        assert_eq!(
            of(2).to_string(),
            "not updated: the topology changed (3 nodes before, 4 now), first at node 1"
        );
    }
}
