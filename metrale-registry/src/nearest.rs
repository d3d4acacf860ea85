// SPDX-License-Identifier: MIT OR Apache-2.0
//! The known names nearest to one that is not there.

/// How many are named.
const MOST: usize = 3;

/// The names nearest to `asked`, best first: equal but for case, then those that hold it (as a mangled name holds the
/// plain one) or that it holds, then those a few letters away. Ties go by name.
pub(crate) fn nearest<'a>(asked: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut ranked: Vec<(usize, &str)> =
        known.into_iter().filter_map(|name| Some((distance(asked, name)?, name))).collect();
    ranked.sort_unstable();
    ranked.dedup();
    ranked.into_iter().take(MOST).map(|(_, name)| name.to_owned()).collect()
}

/// How far a name is from the asked one, or `None` where it is no likely meaning.
fn distance(asked: &str, name: &str) -> Option<usize> {
    if asked.is_empty() {
        return None;
    }
    if asked.eq_ignore_ascii_case(name) {
        return Some(0);
    }
    // A name of two letters is in half of all others.
    if asked.len() > 2 && name.contains(asked) || name.len() > 2 && asked.contains(name) {
        return Some(1);
    }
    let most = (asked.len() / 3).max(1);
    // Each letter more is an edit: a name that is much longer is not worth a table of both lengths.
    if asked.chars().count().abs_diff(name.chars().count()) > most {
        return None;
    }
    let edits = strsim::damerau_levenshtein(asked, name);
    (edits <= most).then_some(1 + edits)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn case_then_containment_then_few_edits() {
        let known = ["gemm", "GEMM_bf16", "_Z9gemm_bf16Pf", "softmax", "gemm_bf61"];
        assert_eq!(nearest("gemm_bf16", known), ["GEMM_bf16", "_Z9gemm_bf16Pf", "gemm"]);
        assert_eq!(nearest("sofmtax", known), ["softmax"]);
        assert_eq!(nearest("attention", known), [""; 0]);
        assert_eq!(nearest("", known), [""; 0]);
    }

    /// A table of both lengths would take a gigabyte here.
    #[test]
    fn a_name_of_quite_another_length_is_not_near() {
        let long = "x".repeat(1 << 25);
        assert_eq!(nearest("gemm", [&*long, "gem"]), ["gem"]);
        assert_eq!(nearest("gemm\u{e4}", ["gemm\u{e4}\u{e4}"]), ["gemm\u{e4}\u{e4}"]);
    }

    #[test]
    fn one_letter_names_do_not_match_everything() {
        assert_eq!(nearest("k", ["kernel", "j", "xyz"]), ["j"]);
    }
}
