// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scope under which a tensor is allocated, made from its name.
//!
//! `model.layers.3.mlp.down_proj.weight` belongs to `model.layers.3.mlp`: the last component names the
//! parameter and is dropped; where a component is a number, what follows the one after it is dropped too,
//! so that a report shows blocks and not every matrix.

use metrale_ledger::Label;

/// Longest label, in bytes.
const LONGEST: usize = 200;

/// Label of a tensor whose name holds nothing but dots.
pub const UNNAMED: &str = "(unnamed)";

/// The label for a tensor's name. Control characters come escaped, empty components are passed over, and what
/// is longer than 200 bytes is cut.
pub fn scope_of(name: &str) -> String {
    let mut parts: Vec<&str> = name.split('.').filter(|part| !part.is_empty()).collect();
    if parts.len() > 1 {
        parts.pop();
    }
    if let Some(number) = parts.iter().position(|part| part.bytes().all(|b| b.is_ascii_digit())) {
        parts.truncate(number + 2);
    }
    if parts.is_empty() {
        return UNNAMED.to_owned();
    }
    label_text(&parts.join("."))
}

/// A name as it is shown in a report: escaped like a label, and cut after 200 bytes.
pub(crate) fn label_text(name: &str) -> String {
    let mut label = String::new();
    for c in name.chars() {
        let start = label.len();
        if Label::escapes(c) {
            label.extend(c.escape_debug());
        } else {
            label.push(c);
        }
        if label.len() > LONGEST {
            label.truncate(start);
            label.push_str("...");
            break;
        }
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_real_models() {
        for (name, scope) in [
            ("model.layers.3.mlp.down_proj.weight", "model.layers.3.mlp"),
            ("model.layers.3.mlp.experts.17.up_proj.weight", "model.layers.3.mlp"),
            ("model.layers.0.input_layernorm.weight", "model.layers.0.input_layernorm"),
            ("model.embed_tokens.weight", "model.embed_tokens"),
            ("model.norm.weight", "model.norm"),
            ("lm_head.weight", "lm_head"),
            ("bert.encoder.layer.0.attention.self.query.weight", "bert.encoder.layer.0.attention"),
            ("h.11.ln_1.bias", "h.11.ln_1"),
            ("layers.7.w", "layers.7"),
            ("x", "x"),
            ("7", "7"),
        ] {
            assert_eq!(scope_of(name), scope, "{name}");
        }
    }

    #[test]
    fn odd_names() {
        assert_eq!(scope_of(""), UNNAMED);
        assert_eq!(scope_of("..."), UNNAMED);
        assert_eq!(scope_of(".a"), "a");
        assert_eq!(scope_of("a..b..c"), "a.b");
        assert_eq!(scope_of("a\0b\n.w"), "a\\0b\\n");
        assert_eq!(scope_of("a\u{202e}b.w"), "a\\u{202e}b");
        assert_eq!(scope_of("a3.b.c"), "a3.b");
        assert_eq!(scope_of("../../etc/x"), "/");
        let long = scope_of(&"é".repeat(100_000));
        assert!(long.len() <= LONGEST + 3 && long.ends_with("é..."), "{long}");
    }
}
