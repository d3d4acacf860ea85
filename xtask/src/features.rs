// SPDX-License-Identifier: MIT OR Apache-2.0
//! The feature combinations worth building: each published crate bare, then each of its features alone.

use cargo_metadata::Package;

/// Arguments that select one combination, such as `-p metrale-ledger --no-default-features --features serde`.
pub(crate) fn combinations(packages: &[&Package]) -> Vec<Vec<String>> {
    packages
        .iter()
        .flat_map(|package| of(&package.name, package.features.keys().map(String::as_str)))
        .collect()
}

fn of<'a>(package: &str, features: impl Iterator<Item = &'a str>) -> Vec<Vec<String>> {
    let bare: Vec<String> = ["-p", package, "--no-default-features"].map(str::to_owned).into();
    // `default` is what the rest of the list builds.
    let alone = features.filter(|feature| *feature != "default").map(|feature| {
        let mut arguments = bare.clone();
        arguments.extend(["--features".to_owned(), feature.to_owned()]);
        arguments
    });
    std::iter::once(bare.clone()).chain(alone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_first_then_each_feature_alone_without_default() {
        let all = of("a", ["default", "link", "serde"].into_iter());
        let lines: Vec<String> = all.iter().map(|arguments| arguments.join(" ")).collect();
        assert_eq!(
            lines,
            [
                "-p a --no-default-features",
                "-p a --no-default-features --features link",
                "-p a --no-default-features --features serde",
            ]
        );
    }
}
