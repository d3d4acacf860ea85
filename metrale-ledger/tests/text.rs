// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes and labels as texts show them.

use metrale_ledger::{ByteSize, Label};

#[test]
fn units_are_true_and_rounding_never_reaches_1024() {
    for (bytes, text) in [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        ((1 << 20) - 1, "1.00 MiB"),
        (1 << 20, "1.00 MiB"),
        (219_030_644, "208.88 MiB"),
        ((1 << 30) - 1, "1.00 GiB"),
        (13_476_831_488, "12.55 GiB"),
        (150_109_880_320, "139.80 GiB"),
        (1 << 40, "1.00 TiB"),
        (u64::MAX, "16777216.00 TiB"),
    ] {
        assert_eq!(ByteSize(bytes).to_string(), text, "{bytes}");
    }
    assert_eq!(format!("[{:>10}]", ByteSize(1536)), "[  1.50 KiB]");
}

#[test]
fn a_label_is_one_line_and_never_nothing() {
    let shown = |label: &str| Label(label).to_string();
    assert_eq!(shown("layers.0/attn größe \"x\""), "layers.0/attn größe \"x\"");
    assert_eq!(shown(""), "\"\"");
    assert_eq!(
        shown("a\n  9 GiB  x1 b\r\t\u{1b}[31m\u{2028}"),
        "a\\n  9 GiB  x1 b\\r\\t\\u{1b}[31m\\u{2028}"
    );
    assert_eq!(
        shown("a\u{202e}w.0\u{2066}\u{200f}\u{61c} שלום 👩\u{200d}🔬"),
        "a\\u{202e}w.0\\u{2066}\\u{200f}\\u{61c} שלום 👩\u{200d}🔬",
        "letters stay, and so does what joins them"
    );
}
