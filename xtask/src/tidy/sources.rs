// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every file must open with, and what must stand in none.

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

/// Adds what is wrong with the text of one file to `found`.
pub(super) fn check(path: &str, text: &str, found: &mut Vec<String>) {
    if NOT_OURS.contains(&path) {
        return;
    }
    header(path, text, found);
    for (number, line) in (1..).zip(text.lines()) {
        for (first, second, reason) in FORBIDDEN {
            let word = format!("{first}{second}");
            if line.contains(&word) {
                found.push(format!("{path}:{number}: holds `{word}`: {reason}"));
            }
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
        "rs" | "cu" => "//",
        _ if script => "#",
        _ => return,
    };
    let licence = lines.next() == Some(&format!("{comment} {LICENCE}"));
    if !licence {
        found.push(format!("{path}:1: does not open with `{comment} {LICENCE}`"));
    }
    let purpose = if extension == "rs" { "//! " } else { comment };
    if !lines.next().is_some_and(|line| line.starts_with(purpose) && line.len() > purpose.len() + 8) {
        found.push(format!("{path}:2: no line `{purpose} ...` that says what the file is for"));
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
            let found = wrong("README.md", &format!("fine\nnot {first}{second} fine\n"));
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
}
