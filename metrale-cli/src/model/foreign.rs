// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recognizes by its first bytes what is not a safetensors file, to say what it is and what to do.

use std::path::Path;

/// What a file holds instead, and the advice that goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// What it is, with an article.
    pub what: &'static str,
    /// What to do.
    pub advice: &'static str,
}

const CONVERT: &str =
    "convert it to safetensors (torch.load on a trusted file, then safetensors.torch.save_file)";
const UNPACK: &str = "unpack it and give the .safetensors files in it";
const DOWNLOAD: &str = "the download failed: fetch the file again";

/// First bytes of a file and what they mean. Longer ones come before shorter ones that begin alike.
const MARKS: &[(&[u8], &str, &str)] = &[
    (b"version https://git-lfs.github.com/spec/", "a Git LFS pointer", "run git lfs pull"),
    (b"GGUF", "a GGUF file", "give the safetensors release of the model"),
    (b"lmgg", "a GGML file", "give the safetensors release of the model"),
    (b"tjgg", "a GGML (ggjt) file", "give the safetensors release of the model"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "convert it to safetensors"),
    (b"\x93NUMPY", "a NumPy array", "convert it to safetensors (safetensors.numpy.save_file)"),
    (b"\x1f\x8b", "a gzip file", UNPACK),
    (b"\x28\xb5\x2f\xfd", "a zstd file", UNPACK),
    (b"\xfd7zXZ\0", "an xz file", UNPACK),
    (b"BZh", "a bzip2 file", UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip file", UNPACK),
    (b"<?xml", "XML (often a store's error page)", DOWNLOAD),
    (b"\xff\xfe", "UTF-16 text", "give the model's .safetensors files; an allocation log must be UTF-8"),
    (b"%PDF", "a PDF", "give the model's .safetensors files"),
];

/// What a file is that cannot be safetensors, by `head`, its first bytes (a few hundred do).
///
/// A file that may be safetensors gives `None`: its ninth byte begins JSON and the length before it has its
/// high half zero, which no format below does.
pub(super) fn recognize(head: &[u8], path: &Path) -> Option<Foreign> {
    if may_be_safetensors(head) {
        return None;
    }
    let foreign = |what, advice| Some(Foreign { what, advice });
    for &(mark, what, advice) in MARKS {
        if head.starts_with(mark) {
            return foreign(what, advice);
        }
    }
    if head.starts_with(b"PK\x03\x04") {
        return if contains(head, b"data.pkl") || has_suffix(path, &["bin", "pt", "pth", "ckpt"]) {
            foreign("a PyTorch pickle (zip)", CONVERT)
        } else {
            foreign("a zip archive", UNPACK)
        };
    }
    if matches!(head, [0x80, 2..=5, ..]) {
        return foreign("a PyTorch pickle", CONVERT);
    }
    if head.get(257..262) == Some(b"ustar") {
        return foreign("a tar archive", UNPACK);
    }
    let text = head.trim_ascii_start();
    let begins = |word: &[u8]| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    if begins(b"<!doctype html") || begins(b"<html") {
        return foreign("HTML", DOWNLOAD);
    }
    None
}

/// What a name promises, for a file whose content says nothing.
pub(super) fn by_suffix(path: &Path) -> Option<Foreign> {
    let foreign = |what, advice| Some(Foreign { what, advice });
    if has_suffix(path, &["bin", "pt", "pth", "ckpt", "pkl"]) {
        foreign("a PyTorch checkpoint, by its name", CONVERT)
    } else if has_suffix(path, &["gguf"]) {
        foreign("a GGUF file, by its name", "give the safetensors release of the model")
    } else if has_suffix(path, &["onnx", "pb", "h5", "msgpack", "tflite", "npz", "npy"]) {
        foreign("another model format, by its name", "convert it to safetensors")
    } else {
        None
    }
}

/// Whether a file that holds nothing was to be a model, by its name.
pub(super) fn is_named_model(path: &Path) -> bool {
    has_suffix(path, &["safetensors", "json"]) || by_suffix(path).is_some()
}

/// Whether the file is JSON text. A safetensors file whose length happens to begin with `{` has zeros behind it.
pub(super) fn is_json_text(head: &[u8]) -> bool {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let first = text.trim_ascii_start().first();
    matches!(first, Some(b'{' | b'[')) && !head[..head.len().min(8)].contains(&0)
}

fn may_be_safetensors(head: &[u8]) -> bool {
    head.get(4..8) == Some(&[0; 4])
        && head.get(8).is_some_and(|b| matches!(b, b'{' | b' ' | b'\t' | b'\r' | b'\n'))
}

fn contains(head: &[u8], needle: &[u8]) -> bool {
    head.windows(needle.len()).any(|window| window == needle)
}

fn has_suffix(path: &Path, suffixes: &[&str]) -> bool {
    let suffix = path.extension().unwrap_or_default();
    suffixes.iter().any(|s| suffix.eq_ignore_ascii_case(s))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(head: &[u8], name: &str) -> Option<&'static str> {
        recognize(head, Path::new(name)).map(|foreign| foreign.what)
    }

    #[test]
    fn known_beginnings() {
        // The first bytes of torch.save's two formats, and of common mistakes.
        assert_eq!(what(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "m.bin"), Some("a PyTorch pickle"));
        assert_eq!(what(b"PK\x03\x04\0\0\x08\x08\0\0archive/data.pkl", "m"), Some("a PyTorch pickle (zip)"));
        assert_eq!(what(b"PK\x03\x04\x14\0\0\0\0\0", "m.pth"), Some("a PyTorch pickle (zip)"));
        assert_eq!(what(b"PK\x03\x04\x14\0\0\0\0\0", "m.zip"), Some("a zip archive"));
        assert_eq!(what(b"GGUF\x03\0\0\0\x23\x01\0\0", "m.safetensors"), Some("a GGUF file"));
        // A gzip member without a time: read as a length it is a plausible 559,903.
        assert_eq!(what(b"\x1f\x8b\x08\0\0\0\0\0\0\x03", "m.safetensors"), Some("a gzip file"));
        assert_eq!(what(b"\n <HTML><body>", "m.safetensors"), Some("HTML"));
        assert_eq!(what(b"\xff\xfev\0e\0r\0", "m"), Some("UTF-16 text"));
        assert_eq!(what(b"", "m.bin"), None);
    }

    #[test]
    fn a_length_that_looks_like_a_mark_is_a_length() {
        // Header lengths 0x280 (pickle), 0x8b1f (gzip), 0x7b ({).
        for length in [0x280u64, 0x8b1f, 0x7b] {
            let mut head = length.to_le_bytes().to_vec();
            head.extend(b"{\"a\":");
            assert_eq!(what(&head, "m.bin"), None);
            assert!(!is_json_text(&head));
        }
        assert!(is_json_text(b"{}"));
        assert!(is_json_text(b"\xef\xbb\xbf\n{\"weight_map\":{}}"));
        assert!(!is_json_text(b""));
    }
}
