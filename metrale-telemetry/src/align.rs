// SPDX-License-Identifier: MIT OR Apache-2.0
//! Aligns two sequences by a longest common subsequence: Myers' algorithm in linear space.
//!
//! Two steps of one model are nearly the same, and the cost grows with the number of differences, so
//! traces of tens of thousands of launches align at once. Pure; works on small integers (see `trace_diff`).

/// Index pairs `(left, right)` of a longest common subsequence, both rising.
pub(crate) fn align(left: &[u32], right: &[u32]) -> Vec<(usize, usize)> {
    let mut pairs = Vec::with_capacity(left.len().min(right.len()));
    // Diagonals run from -(bound) to +(bound); `bound` is half the number of edits there can be, and one to spare.
    let bound = (left.len() + right.len()).div_ceil(2) + 1;
    let mut search = Search { forward: Diagonals::new(bound), backward: Diagonals::new(bound) };
    search.solve(left, 0, right, 0, &mut pairs);
    pairs
}

/// Furthest x reached on each diagonal k = x - y.
struct Diagonals {
    reach: Vec<isize>,
    bound: isize,
}

impl Diagonals {
    fn new(bound: usize) -> Self {
        let bound = bound as isize;
        Self { reach: vec![0; 2 * bound as usize + 1], bound }
    }

    fn at(&self, k: isize) -> isize {
        self.reach[(k + self.bound) as usize]
    }

    fn set(&mut self, k: isize, x: isize) {
        self.reach[(k + self.bound) as usize] = x;
    }

    /// Where a path of `d` edits that ends on diagonal `k` gets to before it follows equal elements.
    fn step(&self, k: isize, d: isize) -> isize {
        if d == 0 {
            0
        } else if k == -d || (k != d && self.at(k - 1) < self.at(k + 1)) {
            self.at(k + 1)
        } else {
            self.at(k - 1) + 1
        }
    }
}

struct Search {
    forward: Diagonals,
    backward: Diagonals,
}

impl Search {
    /// Appends the pairs of `a` (which starts at `a0` of the whole) and `b` (at `b0`). Each split at least
    /// halves the edits on either side, so the recursion is as deep as the logarithm of the edits.
    fn solve(&mut self, a: &[u32], a0: usize, b: &[u32], b0: usize, out: &mut Vec<(usize, usize)>) {
        let head = a.iter().zip(b).take_while(|(x, y)| x == y).count();
        out.extend((0..head).map(|i| (a0 + i, b0 + i)));
        let (a, b) = (&a[head..], &b[head..]);
        let (a0, b0) = (a0 + head, b0 + head);
        let tail = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
        let (a, b) = (&a[..a.len() - tail], &b[..b.len() - tail]);
        if !a.is_empty() && !b.is_empty() {
            let (x, y) = self.meet(a, b);
            self.solve(&a[..x], a0, &b[..y], b0, out);
            self.solve(&a[x..], a0 + x, &b[y..], b0 + y, out);
        }
        out.extend((0..tail).map(|i| (a0 + a.len() + i, b0 + b.len() + i)));
    }

    /// A point of a shortest edit path near its middle, found by walking from both ends at once. Neither
    /// corner is ever returned, since the first and last elements differ and so at least two edits remain.
    fn meet(&mut self, a: &[u32], b: &[u32]) -> (usize, usize) {
        let (n, m) = (a.len() as isize, b.len() as isize);
        let delta = n - m;
        let odd = delta % 2 != 0;
        let most = (n + m + 1) / 2;
        for d in 0..=most {
            for k in (-d..=d).step_by(2) {
                let start = self.forward.step(k, d);
                let mut x = start;
                while in_grid(x, x - k, n, m) && a[x as usize] == b[(x - k) as usize] {
                    x += 1;
                }
                self.forward.set(k, x);
                let across = delta - k;
                if odd && across.abs() < d && x + self.backward.at(across) >= n {
                    return (start as usize, (start - k) as usize);
                }
            }
            for k in (-d..=d).step_by(2) {
                let mut x = self.backward.step(k, d);
                while in_grid(x, x - k, n, m) && a[(n - 1 - x) as usize] == b[(m - 1 - x + k) as usize] {
                    x += 1;
                }
                self.backward.set(k, x);
                let across = delta - k;
                if !odd && across.abs() <= d && x + self.forward.at(across) >= n {
                    return ((n - x) as usize, (m - x + k) as usize);
                }
            }
        }
        unreachable!("two walks of half the edits each meet: n={n} m={m}")
    }
}

fn in_grid(x: isize, y: isize, n: isize, m: isize) -> bool {
    (0..n).contains(&x) && (0..m).contains(&y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Length of a longest common subsequence by the textbook table.
    fn table(a: &[u32], b: &[u32]) -> usize {
        let mut row = vec![0; b.len() + 1];
        for x in a {
            let mut corner = 0;
            for (j, y) in b.iter().enumerate() {
                let up = row[j + 1];
                row[j + 1] = if x == y { corner + 1 } else { up.max(row[j]) };
                corner = up;
            }
        }
        row[b.len()]
    }

    fn check(a: &[u32], b: &[u32]) {
        let pairs = align(a, b);
        assert!(pairs.iter().all(|&(i, j)| a[i] == b[j]), "{a:?} {b:?} {pairs:?}");
        assert!(pairs.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 < w[1].1), "{a:?} {b:?} {pairs:?}");
        assert_eq!(pairs.len(), table(a, b), "{a:?} {b:?} {pairs:?}");
    }

    #[test]
    fn ends_and_extremes() {
        check(&[], &[]);
        check(&[1], &[]);
        check(&[], &[1, 2]);
        check(&[1], &[2]);
        check(&[1, 2, 3], &[1, 2, 3]);
        check(&[1, 2, 3], &[3, 2, 1]);
        check(&[1; 40], &[1; 3]);
        check(&[1, 2, 1, 2, 1, 2], &[2, 1, 2, 1, 2, 1]);
    }

    #[test]
    fn all_short_sequences_over_two_letters() {
        for n in 0..6u32 {
            for m in 0..6u32 {
                for bits in 0..1u32 << (n + m) {
                    let a: Vec<u32> = (0..n).map(|i| bits >> i & 1).collect();
                    let b: Vec<u32> = (n..n + m).map(|i| bits >> i & 1).collect();
                    check(&a, &b);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn as_long_as_the_table_says(
            a in proptest::collection::vec(0u32..5, 0..60),
            b in proptest::collection::vec(0u32..5, 0..60),
        ) {
            check(&a, &b);
        }
    }

    #[test]
    fn a_long_trace_with_one_insertion() {
        let a: Vec<u32> = (0..50_000).map(|i| i % 97).collect();
        let mut b = a.clone();
        b.insert(25_000, 1000);
        assert_eq!(align(&a, &b).len(), a.len());
    }
}
