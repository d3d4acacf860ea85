// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files and what they import from each other.

use std::collections::{BTreeMap, BTreeSet};

/// Which file imports which names from which other.
#[derive(Default)]
pub(super) struct Imports(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Imports {
    /// Notes that `from` imports `name` from `to`. Within one file nothing is imported.
    pub(super) fn add(&mut self, from: &str, to: &str, name: &str) {
        if from != to {
            let imported = self.0.entry(from.to_owned()).or_default();
            imported.entry(to.to_owned()).or_default().insert(name.to_owned());
        }
    }

    /// The sets of files of which each reaches each other one: the strongly connected components of two files and more.
    pub(super) fn circles(&self) -> Vec<BTreeSet<&str>> {
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            self.0.keys().map(|file| (file.as_str(), self.reach(file))).collect();
        let mut circles: Vec<BTreeSet<&str>> = Vec::new();
        for (file, reached) in &reach {
            if reached.contains(file) && !circles.iter().any(|circle| circle.contains(file)) {
                let back =
                    |other: &&str| reach.get(other).is_some_and(|from_there| from_there.contains(file));
                circles.push(reached.iter().copied().filter(back).collect());
            }
        }
        circles
    }

    /// The files that imports lead to from `file`, itself only where they lead back.
    fn reach<'own>(&'own self, file: &'own str) -> BTreeSet<&'own str> {
        let mut seen = BTreeSet::new();
        let mut waiting = vec![file];
        while let Some(file) = waiting.pop() {
            let imported = self.0.get(file).into_iter().flat_map(BTreeMap::keys);
            waiting.extend(imported.map(String::as_str).filter(|next| seen.insert(*next)));
        }
        seen
    }

    /// A circle with every import between its files, one line for two files.
    pub(super) fn shown(&self, circle: &BTreeSet<&str>) -> String {
        let files: Vec<&str> = circle.iter().copied().collect();
        let mut text = format!("circle of {} files: {}", files.len(), files.join(", "));
        for (from, imported) in self.0.iter().filter(|(from, _)| circle.contains(from.as_str())) {
            for (to, names) in imported.iter().filter(|(to, _)| circle.contains(to.as_str())) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                text.push_str(&format!("\n  {from} -> {to}: {}", names.join(", ")));
            }
        }
        text
    }
}
