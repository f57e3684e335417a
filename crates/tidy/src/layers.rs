//! Dependencies between crates point downwards: compares the manifests with the table of layers in `ARCHITECTURE.md`.
//!
//! A row is `` | `crate` | `crates` `it` `may` `use` | what it is | ``. Rows are ordered from the top layer to the
//! bottom one. A row may name only rows below it, so no cycle is possible. Only tests may depend on [`OF_TESTS`],
//! whatever the table says.

use std::collections::BTreeSet;

use crate::documents::{section, table_rows, words_in_backticks};

/// The crate that only tests may depend on.
pub const OF_TESTS: &str = "testing";

/// One row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Layer {
    pub name: String,
    pub may_use: BTreeSet<String>,
}

/// The table of layers.
pub fn layers(architecture: &str) -> Vec<Layer> {
    let rows = table_rows(section(architecture, "## Layers"));
    rows.into_iter()
        .filter_map(|cells| {
            let name = words_in_backticks(cells.first()?).into_iter().next()?;
            let may_use = words_in_backticks(cells.get(1)?).into_iter().collect();
            Some(Layer { name, may_use })
        })
        .collect()
}

/// The crates of the workspace and the normal and build dependencies between them, from `cargo metadata --no-deps`,
/// without the common prefix of the packages.
pub fn crates_and_arrows(metadata: &serde_json::Value) -> (Vec<String>, Vec<(String, String)>) {
    let short = |name: &serde_json::Value| {
        let name = name.as_str().expect("names are strings");
        name.strip_prefix("mainstem-").unwrap_or(name).to_owned()
    };
    let (mut crates, mut arrows) = (Vec::new(), Vec::new());
    for package in metadata["packages"].as_array().expect("metadata has packages") {
        let from = short(&package["name"]);
        for dependency in package["dependencies"].as_array().expect("a package has dependencies") {
            if dependency["kind"] != "dev" && dependency["path"].is_string() {
                arrows.push((from.clone(), short(&dependency["name"])));
            }
        }
        crates.push(from);
    }
    (crates, arrows)
}

/// The differences between the table and the manifests.
pub fn violations(layers: &[Layer], crates: &[String], arrows: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    let place = |name: &str| layers.iter().position(|layer| layer.name == name);
    for (at, layer) in layers.iter().enumerate() {
        if !crates.contains(&layer.name) {
            found.push(format!("the table of layers names {}, which is no crate", layer.name));
        }
        for used in &layer.may_use {
            match place(used) {
                Some(below) if below > at => {}
                Some(_) => {
                    found.push(format!("the table lets {} use {used}, which is not below it", layer.name))
                }
                None => {
                    found.push(format!("the table lets {} use {used}, which has no row", layer.name));
                }
            }
        }
    }
    for name in crates {
        if place(name).is_none() {
            found.push(format!("crate {name} is not in the table of layers"));
        }
    }
    for (from, to) in arrows {
        if to == OF_TESTS {
            found.push(format!("{from} depends on {to} outside of its tests"));
            continue;
        }
        if place(from).is_some_and(|at| !layers[at].may_use.contains(to)) {
            found.push(format!("{from} depends on {to}, which the table of layers does not let it"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# A\n## Layers\ntext\n\n| crate | may use | what |\n|---|---|---|\n\
        | `top` | `middle` `low` | x |\n| `middle` | `low` | y |\n| `low` | | z |\n\n## More\n| `no` | `row` | |\n";

    fn given(arrows: &[(&str, &str)]) -> Vec<String> {
        let crates = ["low", "middle", "top"].map(String::from);
        let arrows: Vec<_> = arrows.iter().map(|(from, to)| ((*from).into(), (*to).into())).collect();
        violations(&layers(TABLE), &crates, &arrows)
    }

    #[test]
    fn arrows_down_are_fine_and_all_others_are_found() {
        assert_eq!(given(&[("top", "low"), ("top", "middle"), ("middle", "low")]), [""; 0]);
        assert_eq!(
            given(&[("low", "top")]),
            ["low depends on top, which the table of layers does not let it"]
        );
        assert_eq!(given(&[("middle", "middle")]).len(), 1);
    }

    #[test]
    fn the_crate_of_tests_is_for_tests_whatever_the_table_says() {
        let table = "## Layers\n| `top` | `testing` | x |\n| `testing` | | y |\n";
        let crates = ["top", OF_TESTS].map(String::from);
        let arrow = ("top".to_owned(), OF_TESTS.to_owned());
        assert_eq!(
            violations(&layers(table), &crates, &[arrow]),
            ["top depends on testing outside of its tests"]
        );
        let metadata = serde_json::json!({"packages": [
            {"name": "mainstem-top", "dependencies": [{"name": "mainstem-testing", "kind": "dev", "path": "/p"}]},
            {"name": "mainstem-testing", "dependencies": []},
        ]});
        let (crates, arrows) = crates_and_arrows(&metadata);
        assert_eq!(violations(&layers(table), &crates, &arrows), [""; 0]);
    }

    #[test]
    fn a_table_with_an_arrow_up_or_a_crate_too_many_or_too_few_is_found() {
        let up = TABLE.replace("| `low` | |", "| `low` | `top` |");
        let crates = ["low", "middle", "top"].map(String::from);
        assert_eq!(
            violations(&layers(&up), &crates, &[]),
            ["the table lets low use top, which is not below it"]
        );
        let found = violations(&layers(TABLE), &["low".into(), "middle".into(), "new".into()], &[]);
        assert_eq!(
            found,
            ["the table of layers names top, which is no crate", "crate new is not in the table of layers"]
        );
    }

    #[test]
    fn arrows_are_read_from_metadata_and_those_of_tests_do_not_count() {
        let metadata = serde_json::json!({"packages": [
            {"name": "mainstem-a", "dependencies": [
                {"name": "mainstem-b", "kind": null, "path": "/p"},
                {"name": "mainstem-c", "kind": "dev", "path": "/p"},
                {"name": "bytes", "kind": null},
            ]},
            {"name": "mainstem-b", "dependencies": [{"name": "mainstem-c", "kind": "build", "path": "/p"}]},
        ]});
        let (crates, arrows) = crates_and_arrows(&metadata);
        assert_eq!(crates, ["a", "b"]);
        assert_eq!(arrows, [("a".into(), "b".into()), ("b".into(), "c".into())]);
    }
}
