// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes a failing program small: operations go as long as it still fails, then arguments become simpler.

use super::op::Program;

/// The smallest program found that still fails.
pub(crate) fn shrink(program: &Program, mut fails: impl FnMut(&Program) -> bool) -> Program {
    let mut ops = program.0.clone();
    let mut piece = ops.len().div_ceil(2).max(1);
    loop {
        let before = ops.len();
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + piece).min(ops.len()));
            if fails(&Program(fewer.clone())) {
                ops = fewer;
            } else {
                at += piece;
            }
        }
        if piece > 1 {
            piece = piece.div_ceil(2);
        } else if ops.len() == before {
            break;
        }
    }
    for at in 0..ops.len() {
        while let Some(simpler) = ops[at].simpler().into_iter().find_map(|op| {
            let mut changed = ops.clone();
            changed[at] = op;
            fails(&Program(changed.clone())).then_some(changed)
        }) {
            ops = simpler;
        }
    }
    Program(ops)
}
