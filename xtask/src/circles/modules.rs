// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modules of a crate, and where a path leads in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use syn::visit::Visit;
use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta};

use super::graph::Imports;
use super::names::{Names, Segments, attributes_and_name, is_of_tests, words};
use crate::tidy::tree;

/// What a path begins with that leads into no other crate.
const OWN: [&str; 3] = ["crate", "self", "super"];

/// The modules of a crate; the first is its root.
pub(super) struct Modules {
    /// The folder of the root file.
    folder: PathBuf,
    modules: Vec<Module>,
}

struct Module {
    /// The file that it is written in, as seen from the crate's folder.
    file: String,
    parent: Option<usize>,
    /// One name may stand for a type, a function and a macro at once.
    names: BTreeMap<String, Vec<Meaning>>,
    /// The modules whose every name it imports.
    globs: Vec<Segments>,
    /// What macros may define that are called where items stand: every word that they are given.
    made: BTreeSet<String>,
    /// The paths in its code.
    paths: Vec<Segments>,
}

enum Meaning {
    DefinedHere,
    Module(usize),
    Imported(Segments),
}

/// Where a path leads.
#[derive(Clone)]
enum Target {
    Module(usize),
    /// What is defined under this name in this module, or is part of it.
    Defined(usize, String),
    /// Into another crate.
    Elsewhere,
}

impl Modules {
    /// Reads the crate whose root file is `lib`.
    pub(super) fn read(lib: &Path) -> Result<Self> {
        let folder = lib.parent().unwrap_or(Path::new("")).to_path_buf();
        let mut modules = Self { folder: folder.clone(), modules: Vec::new() };
        modules.read_file(lib, folder, None)?;
        Ok(modules)
    }

    /// Reads a module of its own file; the files of its children lie in `children`.
    fn read_file(&mut self, file: &Path, children: PathBuf, parent: Option<usize>) -> Result<usize> {
        let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("parsing {}", file.display()))?;
        self.add(file, &children, parent, &parsed.items)
    }

    fn add(&mut self, file: &Path, children: &Path, parent: Option<usize>, items: &[Item]) -> Result<usize> {
        let module = self.modules.len();
        self.modules.push(Module {
            file: tree::relative(&self.folder, file),
            parent,
            names: BTreeMap::new(),
            globs: Vec::new(),
            made: BTreeSet::new(),
            paths: Vec::new(),
        });
        let mut code = Names::default();
        for item in items {
            let (attributes, name) = attributes_and_name(item);
            if is_of_tests(attributes) {
                continue;
            }
            let meaning = if let Item::Mod(child) = item {
                Meaning::Module(self.add_child(child, file, children, module)?)
            } else {
                code.visit_item(item);
                Meaning::DefinedHere
            };
            if let Item::Macro(called) = item
                && name.is_none()
            {
                words(called.mac.tokens.clone(), &mut self.modules[module].made);
            }
            if let Some(name) = name {
                self.modules[module].names.entry(name.to_string()).or_default().push(meaning);
            }
        }
        let this = &mut self.modules[module];
        this.paths = code.paths;
        for (name, path) in code.uses {
            if name == "*" {
                this.globs.push(path);
            } else {
                this.names.entry(name).or_default().push(Meaning::Imported(path));
            }
        }
        Ok(module)
    }

    fn add_child(&mut self, child: &ItemMod, file: &Path, children: &Path, parent: usize) -> Result<usize> {
        let name = child.ident.to_string();
        let folder = children.join(&name);
        if let Some((_, items)) = &child.content {
            return self.add(file, &folder, Some(parent), items);
        }
        if let Some(named) = path_attribute(&child.attrs) {
            let own = file.with_file_name(named);
            let beside = own.parent().unwrap_or(children).to_path_buf();
            return self.read_file(&own, beside, Some(parent));
        }
        let places = [children.join(format!("{name}.rs")), folder.join("mod.rs")];
        let own = places.into_iter().find(|place| place.is_file());
        let own = own.with_context(|| format!("{}: `mod {name};` has no file", file.display()))?;
        self.read_file(&own, folder, Some(parent))
    }

    /// What each file imports from each other one.
    pub(super) fn imports(&self) -> Result<Imports> {
        let mut imports = Imports::default();
        for (at, module) in self.modules.iter().enumerate() {
            let mut targets = Vec::new();
            for meaning in module.names.values().flatten() {
                if let Meaning::Imported(path) = meaning {
                    let found = self.imported(at, path, &mut Vec::new());
                    // What is not found must not be missed in silence.
                    ensure!(!found.is_empty(), "{}: `use {};` leads nowhere", module.file, path.join("::"));
                    targets.extend(found);
                }
            }
            targets.extend(module.paths.iter().flat_map(|path| self.targets(at, path, &mut Vec::new())));
            for glob in self.globbed(at, &mut Vec::new()) {
                let names = self.modules[glob].names.keys();
                targets.extend(names.flat_map(|name| self.named(glob, name, &mut Vec::new())));
            }
            for target in targets {
                // A module is only a way to names, which count where they are used.
                if let Target::Defined(defining, name) = target {
                    imports.add(&module.file, &self.modules[defining].file, &name);
                }
            }
        }
        Ok(imports)
    }

    /// Where the path of a `use` in `module` leads.
    fn imported(&self, module: usize, path: &[String], asked: &mut Vec<(usize, String)>) -> Vec<Target> {
        let mut targets = self.targets(module, path, asked);
        let is_of_this_crate = path.first().is_some_and(|first| OWN.contains(&first.as_str()));
        if targets.is_empty() && !is_of_this_crate {
            targets.push(Target::Elsewhere);
        }
        targets
    }

    /// Where `path` leads from the module `from`; nothing where that is not known. `asked` has the names that are being
    /// looked for already, since imports may lead back to themselves.
    fn targets(&self, from: usize, path: &[String], asked: &mut Vec<(usize, String)>) -> Vec<Target> {
        let Some((first, rest)) = path.split_first() else { return vec![Target::Module(from)] };
        let firsts = match first.as_str() {
            "crate" => vec![Target::Module(0)],
            "self" => vec![Target::Module(from)],
            "super" => self.modules[from].parent.into_iter().map(Target::Module).collect(),
            name => self.named(from, name, asked),
        };
        let mut targets = Vec::new();
        for target in firsts {
            match target {
                Target::Module(module) => targets.extend(self.targets(module, rest, asked)),
                Target::Defined(..) | Target::Elsewhere => targets.push(target),
            }
        }
        targets
    }

    /// What `name` stands for in `module`.
    fn named(&self, module: usize, name: &str, asked: &mut Vec<(usize, String)>) -> Vec<Target> {
        let question = (module, name.to_owned());
        if asked.contains(&question) {
            return Vec::new();
        }
        asked.push(question);
        let mut targets = Vec::new();
        if let Some(meanings) = self.modules[module].names.get(name) {
            for meaning in meanings {
                match meaning {
                    Meaning::DefinedHere => targets.push(Target::Defined(module, name.to_owned())),
                    Meaning::Module(child) => targets.push(Target::Module(*child)),
                    Meaning::Imported(path) => targets.extend(self.imported(module, path, asked)),
                }
            }
        } else {
            for glob in self.globbed(module, asked) {
                targets.extend(self.named(glob, name, asked));
            }
            if targets.is_empty() && self.modules[module].made.contains(name) {
                targets.push(Target::Defined(module, name.to_owned()));
            }
        }
        asked.pop();
        targets
    }

    /// The modules whose every name `module` imports.
    fn globbed(&self, module: usize, asked: &mut Vec<(usize, String)>) -> Vec<usize> {
        let globs = &self.modules[module].globs;
        let targets = globs.iter().flat_map(|path| self.targets(module, path, asked));
        let module_of = |target| match target {
            Target::Module(module) => Some(module),
            Target::Defined(..) | Target::Elsewhere => None,
        };
        targets.filter_map(module_of).collect()
    }
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    match &attribute.meta {
        Meta::NameValue(meta) => match &meta.value {
            Expr::Lit(ExprLit { lit: Lit::Str(path), .. }) => Some(path.value()),
            _ => None,
        },
        _ => None,
    }
}
