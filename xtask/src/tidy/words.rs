// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words that no file uses any more: names of our own making where the field has a word, and what to say instead.
//!
//! A word is found in prose and as a part of an identifier, in any case and with a final `s`. Words that are ordinary
//! English too are refused anyway: a reader who searches for one should find nothing.

/// Each in two halves so that this file does not hold it. A space means a space or for the joint of an identifier, an
/// underscore for that joint alone.
const RETIRED: [(&str, &str, &str); 38] = [
    ("und", "ealt", "say what is free or not yet assigned"),
    ("de", "alt", "say `assigned`, `distributed` or `handled`"),
    ("deal o", "ut", "say `distribute`"),
    ("call b", "ack", "say `collect` or `revoke`"),
    ("called b", "ack", "say `collected` or `revoked`"),
    ("la", "ne", "say what it is: a stream, a queue, a thread of a warp"),
    ("ne", "ws", "say what changed"),
    ("fl", "ips", "say what changes"),
    ("stan", "ding", "say `live`, `current` or `kept`"),
    ("it", "em", "say what it is: an element, a row, an allocation"),
    ("she", "et", "say what it is: a page, a table"),
    ("fi", "ne", "say `small`, `allowed` or `correct`"),
    ("grave", "yard", "say `tombstones`"),
    ("sto", "ne", "say `tombstone`"),
    ("bu", "ry", "say `add a tombstone`"),
    ("bur", "ied", "say `freed`, `ended` or `hidden`"),
    ("look ah", "ead", "say what is read or computed early"),
    ("longer lo", "ok", "say which checks are made"),
    ("whole_o", "ften", "say what is counted"),
    ("at_o", "nce", "say what is counted"),
    ("m", "et", "say `found`, `reached` or `fulfilled`"),
    ("se", "at", "say what it is: a handle, a slot, a client"),
    ("tu", "rns", "say `alternate`, `rounds`, `order` or `converts`"),
    ("sie", "ve", "say `Bloom filter`"),
    ("na", "p", "say `back-off` or `sleep`"),
    ("ho", "me", "say `origin`, `own` or `default`"),
    ("ro", "om", "say `space` or `capacity`, or what shares it"),
    ("ad", "mit", "say `add` or `accept`"),
    ("admi", "tted", "say `added` or `accepted`"),
    ("str", "ike", "say `remove`"),
    ("str", "uck", "say `removed`"),
    ("dism", "iss", "say `remove` or `release`"),
    ("dismi", "ssed", "say `removed` or `released`"),
    ("lay to r", "est", "say `end` or `destroy`"),
    ("laid to r", "est", "say `ended` or `destroyed`"),
    ("give_t", "o_driver", "say `driver_free`"),
    ("give_b", "ack", "say `free` or `release`"),
    ("given_b", "ack", "say `freed` or `released`"),
];

/// Names that several types had. One name is one type.
const RETIRED_TYPES: [(&str, &str, &str); 2] = [
    ("Kn", "own", "name what is known, such as `KernelInfo`"),
    ("Sh", "ape", "name what has it, such as `LaunchDims`"),
];

/// What reads Rust by its grammar.
const GRAMMAR: &str = "xtask/src/circles/";

/// The kinds of file that are written by us.
const OURS: [&str; 6] = ["rs", "md", "toml", "sh", "cu", "cpp"];

/// Adds each retired word of one file to `found`.
pub(super) fn check(path: &str, text: &str, found: &mut Vec<String>) {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    // Recorded input stays as it was found.
    if !OURS.contains(&extension) || path.contains("/tests/data/") {
        return;
    }
    for (number, line) in (1..).zip(text.lines()) {
        let words = words_of(line);
        for (first, second, instead) in RETIRED {
            let retired = format!("{first}{second}");
            let pattern = pattern_of(&retired);
            if (0..words.len()).any(|at| matches_at(&words[at..], &pattern, path)) {
                found.push(format!("{path}:{number}: holds `{retired}`: {instead}"));
            }
        }
        for (first, second, instead) in RETIRED_TYPES {
            let name = format!("{first}{second}");
            if declares(line, &name) {
                found.push(format!("{path}:{number}: declares a type `{name}`: {instead}"));
            }
        }
    }
}

/// What is between a word and the word before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joint {
    /// Nothing or an underscore: both are of one identifier.
    Identifier,
    Space,
    Other,
}

/// A word of a line: a run of letters, or a part of an identifier.
#[derive(Debug)]
struct Word<'line> {
    text: &'line str,
    joint: Joint,
    before: &'line str,
    after: &'line str,
}

fn words_of(line: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut last_end = 0;
    let letters: Vec<(usize, char)> = line.char_indices().collect();
    let mut at = 0;
    while at < letters.len() {
        if !letters[at].1.is_alphabetic() {
            at += 1;
            continue;
        }
        let start = at;
        at += 1;
        while at < letters.len() && letters[at].1.is_alphabetic() && !begins_part(&letters, at) {
            at += 1;
        }
        let (from, to) = (letters[start].0, letters.get(at).map_or(line.len(), |&(to, _)| to));
        let joint = match &line[last_end..from] {
            "" | "_" => Joint::Identifier,
            " " => Joint::Space,
            _ => Joint::Other,
        };
        words.push(Word { text: &line[from..to], joint, before: &line[..from], after: &line[to..] });
        last_end = to;
    }
    words
}

/// Whether a part of a CamelCase name begins here: at `S` of `MyScope`, and of `GPUScope`.
fn begins_part(letters: &[(usize, char)], at: usize) -> bool {
    let is_lower = |at: usize| letters.get(at).is_some_and(|(_, letter)| letter.is_lowercase());
    letters[at].1.is_uppercase() && (is_lower(at - 1) || is_lower(at + 1))
}

/// The words of a pattern, each with whether it must be joined to the one before as an identifier is.
fn pattern_of(retired: &str) -> Vec<(&str, bool)> {
    let mut pattern = Vec::new();
    for phrase in retired.split(' ') {
        pattern.extend(phrase.split('_').enumerate().map(|(place, word)| (word, place > 0)));
    }
    pattern
}

fn matches_at(words: &[Word<'_>], pattern: &[(&str, bool)], path: &str) -> bool {
    words.len() >= pattern.len()
        && pattern.iter().zip(words).enumerate().all(|(place, (&(retired, is_joined), word))| {
            let text = word.text.to_lowercase();
            let is_same = text.strip_prefix(retired).is_some_and(|rest| rest.is_empty() || rest == "s");
            let fits = match word.joint {
                _ if place == 0 => true,
                Joint::Identifier => true,
                Joint::Space => !is_joined,
                Joint::Other => false,
            };
            is_same && fits
        })
        && !(pattern.len() == 1 && is_forced(&words[0], path))
}

/// Whether a word is somebody else's name for a thing, which cannot be avoided: the associated type of Rust's iterators, what
/// Rust's grammar calls a definition, the variable that names a user's folder, and CUDA's word for a thread of a warp.
fn is_forced(word: &Word<'_>, path: &str) -> bool {
    let [element, folder, thread] =
        [("It", "em"), ("HO", "ME"), ("la", "ne")].map(|(a, b)| format!("{a}{b}"));
    let is_of_iterators = word.text == element
        && path.ends_with(".rs")
        && (word.before.ends_with("::")
            || word.before.ends_with("type ")
            || [" =", ":"].iter().any(|next| word.after.starts_with(next)));
    let plain = word.text.to_lowercase();
    let plain = plain.trim_end_matches('s');
    let is_of_warps = path.ends_with(".cu") && plain == thread;
    let is_of_grammar = path.starts_with(GRAMMAR) && plain == element.to_lowercase();
    is_of_iterators || is_of_warps || is_of_grammar || word.text == folder
}

fn declares(line: &str, name: &str) -> bool {
    ["struct", "enum", "union", "trait", "type"].iter().any(|kind| {
        line.split_once(&format!("{kind} {name}")).is_some_and(|(before, after)| {
            let is_whole = |next: char| !next.is_alphanumeric() && next != '_';
            (before.is_empty() || before.ends_with(' ')) && after.chars().next().is_none_or(is_whole)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(path: &str, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        check(path, text, &mut found);
        found
    }

    fn is_refused(line: &str) -> bool {
        !wrong("a/src/a.rs", line).is_empty()
    }

    /// A word from its halves.
    fn word(first: &str, second: &str) -> String {
        format!("{first}{second}")
    }

    #[test]
    fn every_retired_word_is_found_with_its_line_in_each_kind_of_file() {
        for (first, second, instead) in RETIRED {
            let retired = word(first, second);
            for extension in OURS {
                let path = format!("a/b.{extension}");
                let found = wrong(&path, &format!("plain\nnot {retired} here\n"));
                let is_cuda = extension == "cu" && retired.starts_with("la") && retired.len() == 4;
                assert_eq!(found.len(), usize::from(!is_cuda), "{retired} {found:?}");
                let told = format!("{path}:2: holds `{retired}`: {instead}");
                assert!(is_cuda || found[0] == told, "{found:?}");
            }
            assert!(wrong("a/b.csv", &retired).is_empty());
            assert!(wrong("a/tests/data/b.md", &retired).is_empty());
        }
    }

    #[test]
    fn the_advice_holds_no_retired_word() {
        for (_, _, instead) in RETIRED.into_iter().chain(RETIRED_TYPES) {
            assert!(wrong("a.md", instead).is_empty(), "{instead}");
        }
    }

    #[test]
    fn words_are_found_in_any_case_inside_identifiers_and_with_an_s() {
        let (se, at) = ("se", "at");
        let upper = word(se, at).to_uppercase();
        let camel = format!("S{}{at}", &se[1..]);
        for line in [
            format!("the {se}{at}, please"),
            format!("let my_{se}{at} = 1;"),
            format!("struct My{camel};"),
            format!("fn {se}{at}s_of()"),
            format!("static {upper}S: u8 = 1;"),
            format!("GPU{camel}"),
            format!("({camel})"),
        ] {
            assert!(is_refused(&line), "{line}");
        }
        // Longer words that only hold the letters.
        for line in [format!("re{se}{at}ed"), format!("{se}{at}tle"), format!("My{camel}tle")] {
            assert!(!is_refused(&line), "{line}");
        }
    }

    #[test]
    fn a_joined_phrase_is_found_in_identifiers_alone_and_a_spaced_one_in_both() {
        let once = word("at_o", "nce");
        assert!(is_refused(&format!("self.whole_{once}")) && is_refused(&["whole", "At", "Once"].concat()));
        assert!(!is_refused(&once.replace('_', " ")));
        let back = word("call b", "ack");
        assert!(is_refused(&back) && is_refused(&back.replace(' ', "_")));
        assert!(!is_refused(&back.replace(' ', "")) && !is_refused(&back.replace(' ', ", ")));
    }

    #[test]
    fn names_of_others_are_allowed() {
        let element = word("It", "em");
        for line in [
            format!("impl Iterator<{element} = u8>"),
            format!("impl IntoIterator<{element}: AsRef<str>>"),
            format!("type {element} = u8;"),
            format!("Option<Self::{element}>"),
            format!("env::var_os(\"{}\")", word("HO", "ME")),
        ] {
            assert!(!is_refused(&line), "{line}");
        }
        assert!(
            wrong("xtask/src/circles/a.rs", &format!("visit_{}(syn::{element})", element.to_lowercase()))
                .is_empty()
        );
        assert!(is_refused(&format!("struct Work{element};")) && is_refused(&element.to_lowercase()));
        assert!(is_refused(&word("ho", "me")));
    }

    #[test]
    fn a_retired_type_is_found_where_it_is_declared() {
        let known = word("Kn", "own");
        assert!(is_refused(&format!("pub(crate) struct {known} {{")));
        assert!(is_refused(&format!("enum {known}<T> {{")));
        assert!(!is_refused(&format!("struct {known}Kernel;")) && !is_refused(&format!("// It is {known}.")));
    }
}
