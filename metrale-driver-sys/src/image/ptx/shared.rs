// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much shared memory each kernel takes, through the functions it reaches.

use super::declaration::{Linkage, StateSpace, Variable};
use super::module::{Body, Symbol};

/// What functions declare and mention, walked from one kernel after another.
pub(super) struct SharedMemory<'r, 'a> {
    variables: &'r [Variable<'a>],
    bodies: &'r mut [Body],
    /// The number of the walk that came by last, by function and by variable; walks count from 1.
    functions_seen: Vec<u32>,
    variables_seen: Vec<u32>,
    walk: u32,
    steps_left: usize,
    /// The largest alignment of a dynamic array of the text.
    dynamic_align: u64,
}

/// The kernels' walks took more steps than there were.
pub(super) struct TooManySteps;

impl<'r, 'a> SharedMemory<'r, 'a> {
    /// Forgets all mentions that lead to no shared memory, so that walks do not go there.
    pub(super) fn new(variables: &'r [Variable<'a>], bodies: &'r mut [Body], steps: usize) -> Self {
        let is_shared = |symbol: &Symbol| match *symbol {
            Symbol::Variable(index) => variables[index as usize].space == StateSpace::Shared,
            Symbol::Function(_) => false,
        };
        let leads = leads_to(bodies, |body| !body.shared.is_empty() || body.mentions.iter().any(is_shared));
        for (index, body) in (0..).zip(&mut *bodies) {
            let is_other = |symbol: &Symbol| matches!(*symbol, Symbol::Function(other) if other != index);
            body.calls = body.mentions.iter().any(is_other);
            body.mentions.retain(|symbol| match *symbol {
                Symbol::Function(index) => leads[index as usize],
                Symbol::Variable(_) => is_shared(symbol),
            });
            body.mentions.shrink_to_fit();
        }
        let dynamic = variables.iter().filter(|variable| is_dynamic(variable));
        Self {
            functions_seen: vec![0; bodies.len()],
            variables_seen: vec![0; variables.len()],
            walk: 0,
            steps_left: steps,
            dynamic_align: dynamic.map(|variable| variable.align).max().unwrap_or(1),
            variables,
            bodies,
        }
    }

    /// Shared memory of a function and of everything it reaches, one behind the other, in bytes.
    ///
    /// The dynamic part has no size here, but the static part is rounded up to where it may begin. As assemblers do,
    /// a kernel that calls anything is assumed to use every dynamic array of the text.
    pub(super) fn of(&mut self, function: usize) -> Result<u64, TooManySteps> {
        self.walk += 1;
        let mut waiting = vec![function];
        self.functions_seen[function] = self.walk;
        let mut total = 0_u64;
        let mut dynamic_align = if self.bodies[function].calls { self.dynamic_align } else { 1 };
        while let Some(index) = waiting.pop() {
            let body = &self.bodies[index];
            let steps = body.shared.len() + body.mentions.len();
            self.steps_left = self.steps_left.checked_sub(steps).ok_or(TooManySteps)?;
            for &(bytes, align) in &body.shared {
                total = place(total, bytes, align);
            }
            for &mention in &body.mentions {
                match mention {
                    Symbol::Function(callee) => {
                        let callee = callee as usize;
                        if std::mem::replace(&mut self.functions_seen[callee], self.walk) != self.walk {
                            waiting.push(callee);
                        }
                    }
                    Symbol::Variable(index) => {
                        let index = index as usize;
                        if std::mem::replace(&mut self.variables_seen[index], self.walk) == self.walk {
                            continue;
                        }
                        let variable = &self.variables[index];
                        if is_dynamic(variable) {
                            dynamic_align = dynamic_align.max(variable.align);
                        } else {
                            total = place(total, variable.bytes, variable.align);
                        }
                    }
                }
            }
        }
        Ok(place(total, 0, dynamic_align))
    }
}

fn is_dynamic(variable: &Variable<'_>) -> bool {
    variable.space == StateSpace::Shared && variable.linkage == Linkage::Extern
}

fn place(total: u64, bytes: u64, align: u64) -> u64 {
    total.checked_next_multiple_of(align).unwrap_or(u64::MAX).saturating_add(bytes)
}

/// The functions that are, or reach, one that `is_goal`.
fn leads_to(bodies: &[Body], is_goal: impl Fn(&Body) -> bool) -> Vec<bool> {
    let callees = |body: &Body| {
        let functions = |symbol: &Symbol| match *symbol {
            Symbol::Function(index) => Some(index as usize),
            Symbol::Variable(_) => None,
        };
        body.mentions.iter().filter_map(functions).collect::<Vec<_>>()
    };
    // The callers of each function, one function's behind the other's.
    let mut ends = vec![0_usize; bodies.len() + 1];
    for callee in bodies.iter().flat_map(callees) {
        ends[callee + 1] += 1;
    }
    for index in 1..ends.len() {
        ends[index] += ends[index - 1];
    }
    let mut next = ends.clone();
    let mut callers = vec![0_u32; ends[bodies.len()]];
    for (caller, body) in (0..).zip(bodies) {
        for callee in callees(body) {
            callers[next[callee]] = caller;
            next[callee] += 1;
        }
    }
    let mut leads: Vec<bool> = bodies.iter().map(is_goal).collect();
    let mut waiting: Vec<usize> = (0..bodies.len()).filter(|&index| leads[index]).collect();
    while let Some(index) = waiting.pop() {
        for &caller in &callers[ends[index]..ends[index + 1]] {
            if !std::mem::replace(&mut leads[caller as usize], true) {
                waiting.push(caller as usize);
            }
        }
    }
    leads
}
