// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cargo xtask circles`: which files of the backend import each other in a circle.
//!
//! A file imports the file that defines what it names, through re-exports too. A re-export is an import of the file that has
//! it; a `mod` declaration is none. Tests and documentation do not count.

mod graph;
mod modules;
mod names;

use std::path::Path;

use anyhow::{Result, bail};

use crate::cargo::root;
use graph::Imports;
use modules::Modules;

/// The root file of the crate that is looked at.
const BACKEND: &str = "metrale-cuda-backend/src/lib.rs";

pub(crate) fn run() -> Result<()> {
    let found = circles(&root())?;
    for circle in &found {
        println!("{circle}");
    }
    match found.len() {
        0 => {
            println!("no circles");
            Ok(())
        }
        count => bail!("{count} circles of files that import each other"),
    }
}

/// Each circle as text: its files, and which of them imports what from which.
pub(crate) fn circles(root: &Path) -> Result<Vec<String>> {
    let imports = of_crate(&root.join(BACKEND))?;
    Ok(imports.circles().iter().map(|circle| imports.shown(circle)).collect())
}

fn of_crate(lib: &Path) -> Result<Imports> {
    Modules::read(lib)?.imports()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What is found in a crate of these files.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let imports = of_crate(&dir.path().join("lib.rs")).unwrap();
        imports.circles().iter().map(|circle| imports.shown(circle)).collect()
    }

    const AB: (&str, &str) = ("lib.rs", "mod a;\nmod b;\n");
    const CIRCLE_OF_AB: &str = "circle of 2 files: a.rs, b.rs\n  a.rs -> b.rs: B\n  b.rs -> a.rs: A";

    #[test]
    fn one_direction_is_no_circle() {
        let a = ("a.rs", "use crate::b::{self, B};\npub struct A(B);\nimpl A { fn f() { b::f(); } }");
        assert!(found(&[AB, a, ("b.rs", "pub struct B;\npub fn f() {}")]).is_empty());
    }

    #[test]
    fn circle_of_two_is_told_with_what_is_imported() {
        let a = ("a.rs", "use crate::b::B;\npub struct A;\nimpl B { fn a() -> A { A } }");
        let b = ("b.rs", "use super::a::A;\npub struct B(A);");
        assert_eq!(found(&[AB, a, b]), [CIRCLE_OF_AB]);
    }

    #[test]
    fn circle_of_three_leaves_out_who_only_imports_it() {
        let found = found(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\npub use d::D;"),
            ("a.rs", "use crate::b;\npub struct A;\nfn f() -> b::B { b::B }"),
            ("b.rs", "pub struct B;\nfn f(c: crate::c::C) {}"),
            ("c.rs", "use crate::a::A as Other;\npub enum C { A(Other) }"),
            ("d.rs", "pub struct D(crate::a::A);"),
        ]);
        let told =
            "circle of 3 files: a.rs, b.rs, c.rs\n  a.rs -> b.rs: B\n  b.rs -> c.rs: C\n  c.rs -> a.rs: A";
        assert_eq!(found, [told]);
    }

    #[test]
    fn two_circles_are_two() {
        let found = found(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;"),
            ("a.rs", "pub struct A(crate::b::B, crate::c::C);"),
            ("b.rs", "pub struct B(super::a::A);"),
            ("c.rs", "pub struct C(super::d::D);"),
            ("d.rs", "pub struct D(super::c::C);"),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("circle of 2 files: a.rs, b.rs\n"), "{found:?}");
        assert!(found[1].starts_with("circle of 2 files: c.rs, d.rs\n"), "{found:?}");
    }

    #[test]
    fn re_exported_name_leads_to_the_file_that_defines_it() {
        let lib = ("lib.rs", "mod m;\nmod n;\npub use m::*;");
        let m = ("m/mod.rs", "mod a;\nmod b;\npub use self::a::A as First;\npub(crate) use b::B;");
        let (a, n) = ("pub struct A(super::B);", ("n.rs", "use crate::First;\npub struct N(First);"));
        // Neither goes through m/mod.rs, which re-exports both.
        assert!(found(&[lib, m, n, ("m/a.rs", a), ("m/b.rs", "pub struct B;")]).is_empty());
        let found = found(&[lib, m, n, ("m/a.rs", a), ("m/b.rs", "use crate::First;\npub struct B(First);")]);
        assert_eq!(
            found,
            ["circle of 2 files: m/a.rs, m/b.rs\n  m/a.rs -> m/b.rs: B\n  m/b.rs -> m/a.rs: A"]
        );
    }

    #[test]
    fn re_export_is_an_import_of_the_file_that_has_it() {
        let m = ("m/mod.rs", "mod a;\npub use a::A;\npub(crate) fn helper() {}");
        let found =
            found(&[("lib.rs", "mod m;"), m, ("m/a.rs", "pub struct A;\nfn f() { super::helper() }")]);
        let told =
            "circle of 2 files: m/a.rs, m/mod.rs\n  m/a.rs -> m/mod.rs: helper\n  m/mod.rs -> m/a.rs: A";
        assert_eq!(found, [told]);
    }

    #[test]
    fn name_of_another_crate_leads_to_no_file() {
        let a = ("a.rs", "pub use std::fmt::Debug;\npub struct A(crate::b::B);");
        assert!(found(&[AB, a, ("b.rs", "use crate::a::Debug;\npub struct B;")]).is_empty());
    }

    #[test]
    fn glob_is_an_import_of_every_name_it_brings() {
        let a = ("a.rs", "use crate::b::*;\npub struct A(B);");
        assert_eq!(found(&[AB, a, ("b.rs", "pub struct B(crate::a::A);")]), [CIRCLE_OF_AB]);
    }

    #[test]
    fn paths_in_macros_signatures_bodies_and_local_imports_count() {
        let b = ("b.rs", "pub struct B(crate::a::A);\nimpl B { pub const N: u8 = 1; }");
        for line in [
            "fn f() { println!(\"{}\", crate::b::B::N); }",
            "macro_rules! m { () => { $crate::b::B }; }",
            "fn f() { use crate::b; b::B::N; }",
            "fn f(_: impl Fn(Vec<crate::b::B>)) {}",
            "impl Iterator for A { type Item = Option<super::b::B>; }",
            "mod inner { use crate::b::B; }",
            "mod inner { fn f() { super::super::b::B::N; } }",
        ] {
            let a = format!("pub struct A;\n{line}");
            assert_eq!(found(&[AB, ("a.rs", &a), b]), [CIRCLE_OF_AB], "{line}");
        }
    }

    #[test]
    fn tests_and_documentation_do_not_count() {
        let b = ("b.rs", "pub struct B(crate::a::A);");
        for line in [
            "#[cfg(test)]\nmod tests { use crate::b::B; }",
            "#[cfg(test)]\nmod not_there;",
            "#[cfg(all(test, unix))]\nfn f(_: crate::b::B) {}",
            "impl A { #[cfg(test)] fn f(_: crate::b::B) {} }",
            "#[cfg(test)]\nuse crate::b::B;",
            "/// As [`B`](crate::b::B).\npub struct C;",
            "// crate::b::B",
            "const TEXT: &str = \"crate::b::B\";",
        ] {
            let a = format!("pub struct A;\n{line}");
            assert!(found(&[AB, ("a.rs", &a), b]).is_empty(), "{line}");
        }
        // What is built without tests counts, by whatever condition.
        let a = ("a.rs", "pub struct A;\n#[cfg(any(test, feature = \"f\"))]\nfn f(_: crate::b::B) {}");
        assert_eq!(found(&[AB, a, b]), [CIRCLE_OF_AB]);
        let a = ("a.rs", "pub struct A;\n#[cfg(not(test))]\nfn f(_: crate::b::B) {}");
        assert_eq!(found(&[AB, a, b]), [CIRCLE_OF_AB]);
    }

    #[test]
    fn macro_that_is_named_as_an_item_counts_where_it_is_defined() {
        let a = ("a.rs", "macro_rules! ask { () => {}; }\npub(crate) use ask;\nuse crate::b::B;");
        let b = ("b.rs", "use crate::a::ask;\npub struct B;\nfn f() { ask!() }");
        let told = "circle of 2 files: a.rs, b.rs\n  a.rs -> b.rs: B\n  b.rs -> a.rs: ask";
        assert_eq!(found(&[AB, a, b]), [told]);
    }

    #[test]
    fn what_a_macro_defines_counts_where_it_is_called() {
        let a = "macro_rules! make { ($name:ident) => { pub struct $name; }; }\nmake!(A);\nuse crate::b::B;";
        let b = ("b.rs", "use crate::a::A;\npub struct B(A);");
        assert_eq!(found(&[AB, ("a.rs", a), b]), [CIRCLE_OF_AB]);
    }

    #[test]
    fn files_are_found_where_the_compiler_finds_them() {
        let found = found(&[
            ("lib.rs", "mod a;\nmod inline { mod c; }"),
            ("a.rs", "#[path = \"odd.rs\"]\nmod other;\nmod b;\npub struct A(other::O);"),
            ("odd.rs", "pub struct O(super::b::B);"),
            ("a/b.rs", "pub struct B(super::A);"),
            ("inline/c.rs", "use crate::a;\nfn c(_: a::A) {}"),
        ]);
        let told = "circle of 3 files: a.rs, a/b.rs, odd.rs\n  a.rs -> odd.rs: O\n  a/b.rs -> a.rs: A\n  odd.rs -> a/b.rs: B";
        assert_eq!(found, [told]);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let lib = dir.path().join("lib.rs");
        fs::write(&lib, "mod lost;").unwrap();
        let error = format!("{:#}", of_crate(&lib).err().unwrap());
        assert!(error.contains("lib.rs: `mod lost;` has no file"), "{error}");
        fs::write(&lib, "mod a { use super::b::Lost; }\nmod b {}").unwrap();
        let error = format!("{:#}", of_crate(&lib).err().unwrap());
        assert!(error.contains("lib.rs: `use super::b::Lost;` leads nowhere"), "{error}");
        fs::write(&lib, "fn (").unwrap();
        let error = format!("{:#}", of_crate(&lib).err().unwrap());
        assert!(error.contains("parsing") && error.contains("lib.rs"), "{error}");
    }
}
