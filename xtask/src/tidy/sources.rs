// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every file must open with, and what must be in none.

const LICENCE: &str = "SPDX-License-Identifier: MIT OR Apache-2.0";

/// Words with their reasons, each in two halves so that this file does not hold them.
const FORBIDDEN: [(&str, &str, &str); 11] = [
    ("TO", "DO", "open work belongs to an issue"),
    ("FIX", "ME", "open work belongs to an issue"),
    ("/wo", "rk/", "a path of one machine"),
    ("/tm", "p/", "a path of one machine"),
    ("/ho", "me/", "a path of one machine"),
    ("/ro", "ot/", "a path of one machine"),
    ("crates", ".io", "a host of a registry"),
    ("pypi", ".org", "a host of a registry"),
    ("python", "hosted.org", "a host of a registry"),
    ("npm", "js.", "a host of a registry"),
    ("anaconda", ".org", "a host of a registry"),
];

/// Files that cargo or a licence's author words, not we.
const NOT_OURS: [&str; 3] = ["Cargo.lock", "LICENSE-MIT", "LICENSE-APACHE"];

/// The only sources that read the environment, so that every variable has one place and one meaning.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("metrale-cuda-backend/src/config.rs", "every METRALE_* knob of a running backend"),
    ("metrale-driver-sys/build.rs", "METRALE_TARGET_HW, which chooses the driver's variant at build time"),
    ("metrale-registry/src/visible_devices.rs", "the driver's own CUDA_VISIBLE_DEVICES, quoted in errors"),
    ("xtask/", "cargo's own variables; this program is not published"),
];

/// Types by which a static changes after it was made.
const CHANGING: [&str; 9] =
    ["Atomic", "OnceLock", "OnceCell", "LazyLock", "LazyCell", "Mutex", "RwLock", "Cell<", "RunMetrics"];

/// Adds to `found` each static of this file that changes and is not in the architecture's table.
pub(super) fn process_state(path: &str, text: &str, architecture: &str, found: &mut Vec<String>) {
    if !(path.contains("/src/") && path.ends_with(".rs")) || path.starts_with("xtask/") {
        return;
    }
    let code = (1..).zip(text.lines()).take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    for (number, line) in code {
        let Some((_, declared)) = line.split_once("static ").filter(|(before, _)| is_visibility(before))
        else {
            continue;
        };
        let name = declared.split(':').next().unwrap_or_default().trim();
        let changes = CHANGING.iter().any(|kind| declared.contains(kind));
        if changes && !architecture.contains(&format!("`{name}`")) {
            found.push(format!("{path}:{number}: `{name}` is the process's; give it to an instance, or list it in ARCHITECTURE.md"));
        }
    }
}

fn is_visibility(before: &str) -> bool {
    let before = before.trim();
    before.is_empty()
        || before == "pub"
        || (before.starts_with("pub(") && before.ends_with(')') && !before.contains("fn "))
}

/// Adds what is wrong with the text of one file to `found`.
pub(super) fn check(path: &str, text: &str, found: &mut Vec<String>) {
    if NOT_OURS.contains(&path) {
        return;
    }
    header(path, text, found);
    // Recorded input stays as it was found.
    if path.contains("/tests/data/") {
        return;
    }
    for (number, line) in (1..).zip(text.lines()) {
        for (first, second, reason) in FORBIDDEN {
            let word = format!("{first}{second}");
            if line.contains(&word) {
                found.push(format!("{path}:{number}: holds `{word}`: {reason}"));
            }
        }
        if asks_for_feature(path, line) {
            found.push(format!("{path}:{number}: asks for a feature; only parts.rs and features.rs do"));
        }
        if reads_environment(path, line) {
            found.push(format!(
                "{path}:{number}: reads the environment; only these do: {}",
                ENVIRONMENT.map(|(place, why)| format!("{place} ({why})")).join(", ")
            ));
        }
    }
}

fn header(path: &str, text: &str, found: &mut Vec<String>) {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    let mut lines = text.lines().peekable();
    let script = lines.next_if(|line| line.starts_with("#!/")).is_some();
    let comment = match extension {
        "rs" | "cu" | "cpp" => "//",
        _ if script => "#",
        _ => return,
    };
    let licence = lines.next() == Some(&format!("{comment} {LICENCE}"));
    if !licence {
        found.push(format!("{path}:1: does not open with `{comment} {LICENCE}`"));
    }
    let purpose = if extension == "rs" { "//! " } else { comment };
    if !lines.next().is_some_and(|line| line.starts_with(purpose) && line.len() > purpose.len() + 4) {
        found.push(format!("{path}:2: no line `{} ...` that says what the file is for", purpose.trim_end()));
    }
}

/// Whether a line of library or program code, not of a test, asks for an environment variable.
fn reads_environment(path: &str, line: &str) -> bool {
    let code = path.ends_with("/build.rs") || (path.contains("/src/") && path.ends_with(".rs"));
    let calls = ["env::var(", "env::var_os(", "env::vars(", "env::vars_os("];
    code && !ENVIRONMENT.iter().any(|(place, _)| path.starts_with(place))
        && !line.trim_start().starts_with("//")
        && calls.iter().any(|call| line.contains(call))
}

/// Whether a line of the backend depends on a feature outside the file that picks real or empty parts.
fn asks_for_feature(path: &str, line: &str) -> bool {
    let backend = path
        .strip_prefix("metrale-cuda-backend/src/")
        .is_some_and(|file| !["features.rs", "parts.rs"].contains(&file));
    backend
        && !line.trim_start().starts_with("//")
        && ["cfg(", "cfg!("].iter().any(|cfg| line.contains(&format!("{cfg}feature")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(path: &str, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        check(path, text, &mut found);
        found
    }

    #[test]
    fn source_opens_with_licence_and_purpose() {
        let good = format!("// {LICENCE}\n//! Tells pages apart.\n");
        assert!(wrong("a/src/page.rs", &good).is_empty());
        assert_eq!(wrong("a/src/page.rs", "//! Tells pages apart.\n").len(), 2);
        assert_eq!(wrong("a/src/page.rs", &format!("// {LICENCE}\nuse std::env;\n")).len(), 1);
        assert_eq!(wrong("a/src/page.rs", "").len(), 2);
        assert!(wrong("a/k.cu", &format!("// {LICENCE}\n// Scans all bands.\n")).is_empty());
    }

    #[test]
    fn script_opens_with_licence_after_its_interpreter() {
        assert!(wrong(".ci/run", &format!("#!/bin/sh\n# {LICENCE}\n# Runs everything.\n")).is_empty());
        assert_eq!(wrong(".ci/run", "#!/bin/sh\nset -eu\n").len(), 2);
        assert!(wrong("README.md", "# Title\n").is_empty());
    }

    #[test]
    fn forbidden_words_are_found_with_their_line() {
        for (first, second, _) in FORBIDDEN {
            let found = wrong("README.md", &format!("allowed\nnot {first}{second} at all\n"));
            assert_eq!(found.len(), 1, "{first}{second}");
            assert!(found[0].starts_with("README.md:2: "), "{}", found[0]);
        }
        assert!(wrong("Cargo.lock", &format!("{}{}", FORBIDDEN[6].0, FORBIDDEN[6].1)).is_empty());
    }

    #[test]
    fn environment_is_read_in_its_places_only() {
        let read = format!("// {LICENCE}\n//! Tells pages apart.\nlet a = std::env::var(\"METRALE_X\");\n");
        assert_eq!(wrong("metrale-ledger/src/page.rs", &read).len(), 1);
        assert_eq!(wrong("metrale-cuda-backend/src/graph.rs", &read).len(), 1);
        assert!(wrong("metrale-cuda-backend/src/config.rs", &read).is_empty());
        assert!(wrong("metrale-cuda-backend/tests/config.rs", &read).is_empty());
    }

    #[test]
    fn only_two_files_ask_for_features() {
        let text = format!("// {LICENCE}\n//! Tells pages apart.\n#[cfg(feature = \"sim\")]\n");
        assert_eq!(wrong("metrale-cuda-backend/src/graph.rs", &text).len(), 1);
        assert!(wrong("metrale-cuda-backend/src/parts.rs", &text).is_empty());
        assert!(wrong("metrale-cuda-backend/src/features.rs", &text).is_empty());
        assert!(wrong("metrale-driver-sys/src/lib.rs", &text).is_empty());
    }

    #[test]
    fn static_that_changes_is_listed() {
        let text = "static A: AtomicU64 = AtomicU64::new(0);\npub(crate) static B: Mutex<u8> = Mutex::new(0);\n\
                    static TEXT: &str = \"\";\npub fn f(x: u8) -> &'static Mutex<u8> {}\n#[cfg(test)]\nstatic C: AtomicU8 = x;\n";
        let mut found = Vec::new();
        process_state("a/src/a.rs", text, "| `B` |", &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("a/src/a.rs:1: `A`"), "{found:?}");
    }
}
