// SPDX-License-Identifier: MIT OR Apache-2.0
//! No files of the backend import each other in a circle.
//!
//! A path counts as an import of the file that defines what it names, through the `pub use` of the modules on its way. `mod` lines,
//! comments and tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use super::tree;

/// Where the files are.
const SOURCES: &str = "metrale-cuda-backend/src";

type Name = Vec<String>;

/// One file: what it defines, what it imports, and what it passes on by `pub use`.
#[derive(Default)]
struct Module {
    file: String,
    defines: BTreeSet<String>,
    imports: Vec<Name>,
    exports: Vec<Name>,
}

pub(crate) fn check(root: &Path, found: &mut Vec<String>) -> Result<()> {
    let mut files = Vec::new();
    for path in tree::files(&root.join(SOURCES))? {
        if let Some(text) = tree::text(&path)? {
            files.push((tree::relative(&root.join(SOURCES), &path), text));
        }
    }
    found.extend(circles(&files));
    Ok(())
}

/// A line for each file that is part of a circle, with those of it that it imports.
fn circles(files: &[(String, String)]) -> Vec<String> {
    let modules: BTreeMap<Name, Module> =
        files.iter().filter_map(|(file, text)| Some((name_of(file)?, read(file, text)))).collect();
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, module) in &modules {
        for path in &module.imports {
            let target = absolute(&modules, name, path).and_then(|path| defining(&modules, &path, 0));
            if let Some(target) = target.filter(|target| *target != module.file) {
                edges.entry(&module.file).or_default().insert(target);
            }
        }
    }
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|file| (*file, reachable(&edges, file))).collect();
    let in_circle = |from: &str, to: &str| reach.get(to).is_some_and(|reach| reach.contains(from));
    let mut lines = Vec::new();
    for (from, targets) in &edges {
        let back: Vec<_> = targets.iter().copied().filter(|to| in_circle(from, to)).collect();
        if !back.is_empty() {
            lines.push(format!("{SOURCES}/{from}: imports in a circle: {}", back.join(", ")));
        }
    }
    lines
}

fn reachable<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut next: Vec<_> = edges.get(from).into_iter().flatten().copied().collect();
    while let Some(file) = next.pop() {
        if seen.insert(file) {
            next.extend(edges.get(file).into_iter().flatten());
        }
    }
    seen
}

/// The module that a file is: `graph/mod.rs` is `graph`. None for what is compiled in tests only.
fn name_of(file: &str) -> Option<Name> {
    let stem = file.strip_suffix(".rs")?;
    let mut name: Name = stem.split('/').map(str::to_owned).collect();
    match name.last()?.as_str() {
        "tests" => return None,
        "mod" | "lib" => drop(name.pop()),
        _ => {}
    }
    Some(name)
}

fn read(file: &str, text: &str) -> Module {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect();
    let mut module = Module { file: file.to_owned(), ..Module::default() };
    let mut rest = String::new();
    let mut statement = String::new();
    for line in code.lines() {
        let bare = without_visibility(line.trim_start());
        if statement.is_empty() && !bare.starts_with("use ") {
            rest.push_str(line);
            rest.push('\n');
            if !line.starts_with(' ') {
                module.defines.extend(defined(bare));
            }
            continue;
        }
        let is_export = statement.is_empty() && bare.len() < line.trim_start().len();
        if is_export {
            statement.push('+');
        }
        statement.push_str(if statement.trim_matches('+').is_empty() {
            &bare["use ".len()..]
        } else {
            line.trim()
        });
        if let Some(tree) = statement.clone().strip_suffix(';') {
            match tree.strip_prefix('+') {
                Some(tree) => expand(&[], tree, &mut module.exports),
                None => expand(&[], tree, &mut module.imports),
            }
            statement.clear();
        }
    }
    module.imports.extend(inline_paths(&rest));
    module
}

fn without_visibility(line: &str) -> &str {
    let Some(after) = line.strip_prefix("pub") else { return line };
    let after =
        after.strip_prefix('(').and_then(|inner| inner.split_once(')')).map_or(after, |(_, after)| after);
    after.strip_prefix(' ').unwrap_or(line)
}

/// What a line at the margin defines.
fn defined(line: &str) -> Option<String> {
    const KINDS: [&str; 9] =
        ["struct ", "enum ", "trait ", "fn ", "type ", "const ", "static ", "union ", "macro_rules! "];
    let line = line.strip_prefix("unsafe ").unwrap_or(line);
    let line = line.strip_prefix("const fn ").map_or(line, |_| &line["const ".len()..]);
    let after = KINDS.iter().find_map(|kind| line.strip_prefix(kind))?;
    Some(after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
}

/// The paths of a `use` tree.
fn expand(prefix: &[String], tree: &str, paths: &mut Vec<Name>) {
    let tree = tree.trim();
    let (before, inner) = match tree.split_once('{') {
        Some((before, inner)) => (before.trim_end_matches("::"), inner.strip_suffix('}')),
        None => (tree.split(" as ").next().unwrap_or(tree), None),
    };
    let mut path = prefix.to_vec();
    path.extend(before.split("::").filter(|part| !part.is_empty()).map(|part| part.trim().to_owned()));
    let Some(inner) = inner else { return paths.push(path) };
    let (mut depth, mut start) = (0, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[start..at].trim().is_empty() {
                    expand(&path, &inner[start..at], paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// Paths in the code that begin with `crate::` or `super::`.
fn inline_paths(code: &str) -> Vec<Name> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    code.split(|c: char| !is_part(c))
        .filter(|path| path.starts_with("crate::") || path.starts_with("super::"))
        .map(|path| path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect())
        .collect()
}

/// A path from the root of the crate; none for what is of another crate.
fn absolute(modules: &BTreeMap<Name, Module>, from: &[String], path: &[String]) -> Option<Name> {
    let (mut base, mut path) = (from.to_vec(), path);
    match path.first()?.as_str() {
        "crate" => (base, path) = (Vec::new(), &path[1..]),
        "self" => path = &path[1..],
        "super" => {
            while path.first().is_some_and(|part| part == "super") {
                base.pop();
                path = &path[1..];
            }
        }
        child => {
            base.push(child.to_owned());
            let is_child = modules.contains_key(&base);
            base.pop();
            is_child.then_some(())?;
        }
    }
    base.extend_from_slice(path);
    Some(base)
}

/// The file that defines what a path names.
fn defining<'a>(modules: &'a BTreeMap<Name, Module>, path: &[String], depth: usize) -> Option<&'a str> {
    let (name, rest) = (0..=path.len()).rev().find_map(|at| {
        let (name, rest) = path.split_at(at);
        modules.contains_key(name).then_some((name, rest))
    })?;
    let module = &modules[name];
    let Some(named) = rest.first().filter(|named| !module.defines.contains(*named) && depth < 8) else {
        return Some(&module.file);
    };
    let exported = module.exports.iter().find_map(|export| match export.split_last()? {
        (last, _) if last == named => absolute(modules, name, export),
        (last, before) if last == "*" => {
            let mut path = absolute(modules, name, before)?;
            path.push(named.clone());
            Some(path)
        }
        _ => None,
    });
    match exported {
        Some(path) => defining(modules, &path, depth + 1),
        None => Some(&module.file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let owned: Vec<_> = files.iter().map(|(file, text)| (file.to_string(), text.to_string())).collect();
        circles(&owned)
    }

    #[test]
    fn a_circle_of_two_and_of_three_is_found_and_a_chain_is_not() {
        let two =
            [("a.rs", "use crate::b::B;\npub struct A;\n"), ("b.rs", "use crate::a::A;\npub struct B;\n")];
        assert_eq!(found(&two).len(), 2, "{:?}", found(&two));
        let three = [
            ("a.rs", "use crate::b::{B, other};\n"),
            ("b.rs", "pub struct B;\nfn f() { crate::c::g(); }\n"),
            ("c.rs", "use super::a;\npub(crate) fn g() {}\n"),
        ];
        assert_eq!(found(&three).len(), 3, "{:?}", found(&three));
        assert!(
            found(&[("a.rs", "use crate::b::B;\n"), ("b.rs", "use crate::c::C;\n"), ("c.rs", "")]).is_empty()
        );
    }

    #[test]
    fn a_re_export_leads_to_the_file_that_defines() {
        let files = [
            (
                "parts/mod.rs",
                "mod one;\nmod two;\npub use one::One;\npub(crate) use two::{Two as Second, Two};\n",
            ),
            ("parts/one.rs", "use super::Two;\npub struct One;\n"),
            ("parts/two.rs", "use crate::parts::One;\npub(crate) struct Two;\n"),
        ];
        let lines = found(&files);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("parts/one.rs: imports in a circle: parts/two.rs"), "{lines:?}");
    }

    #[test]
    fn tests_comments_and_other_crates_do_not_count() {
        let files = [
            ("a.rs", "use crate::b::B;\nuse std::fmt;\nuse metrale_ledger::{\n    Ledger, b,\n};\n"),
            (
                "b.rs",
                "//! See [`crate::a`].\npub struct B;\n\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
            ),
            ("b/tests.rs", "use crate::a::A;\n"),
        ];
        assert!(found(&files).is_empty(), "{:?}", found(&files));
    }
}
