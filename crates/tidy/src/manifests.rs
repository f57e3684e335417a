//! Checks of dependencies: each is named once for the whole workspace, used by the crates that name it, and explained.

use std::collections::BTreeSet;

use crate::documents::{section, table_rows, words_in_backticks};
use crate::source::has_word;

/// The names in `[workspace.dependencies]`: the workspace's own crates, and the external ones.
pub fn workspace_dependencies(manifest: &toml::Table) -> (BTreeSet<String>, BTreeSet<String>) {
    let all = manifest["workspace"]["dependencies"].as_table().expect("it is a table");
    let own = |value: &toml::Value| value.get("path").is_some();
    let (ours, others): (Vec<_>, Vec<_>) = all.iter().partition(|(_, value)| own(value));
    let names = |list: Vec<(&String, &toml::Value)>| list.into_iter().map(|(name, _)| name.clone()).collect();
    (names(ours), names(others))
}

/// The dependencies of one crate.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// Dependencies of the crate itself.
    pub normal: BTreeSet<String>,
    /// Further dependencies of its tests.
    pub dev: BTreeSet<String>,
}

/// Reads a crate's manifest. A dependency that is not from the workspace is a violation.
pub fn dependencies(path: &str, manifest: &toml::Table) -> (Dependencies, Vec<String>) {
    let (mut read, mut found) = (Dependencies::default(), Vec::new());
    for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
        let Some(table) = manifest.get(kind).and_then(toml::Value::as_table) else { continue };
        for (name, value) in table {
            if value.get("workspace").and_then(toml::Value::as_bool) != Some(true) {
                found.push(format!("{path}: {name} is not taken from the workspace's dependencies"));
            }
            let names = if kind == "dev-dependencies" { &mut read.dev } else { &mut read.normal };
            names.insert(name.clone());
        }
    }
    (read, found)
}

/// Finds dependencies that the code does not name. `code` is the crate's whole code, without comments and literals.
pub fn unused(path: &str, names: &BTreeSet<String>, code: &str) -> Vec<String> {
    let unused = names.iter().filter(|name| !has_word(code, &name.replace('-', "_")));
    unused.map(|name| format!("{path}: no code names the dependency {name}")).collect()
}

/// Finds dependencies that the table in `ARCHITECTURE.md` does not explain, and rows that are no dependency.
pub fn unexplained(others: &BTreeSet<String>, architecture: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut explained = BTreeSet::new();
    for cells in table_rows(section(architecture, "## Dependencies")) {
        let Some(name) = cells.first().and_then(|cell| words_in_backticks(cell).into_iter().next()) else {
            continue;
        };
        if cells.get(1).is_none_or(|reason| reason.split_whitespace().count() < 3) {
            found.push(format!("ARCHITECTURE.md gives no reason for {name}"));
        }
        explained.insert(name);
    }
    found
        .extend(others.difference(&explained).map(|name| format!("ARCHITECTURE.md does not explain {name}")));
    found.extend(
        explained
            .difference(others)
            .map(|name| format!("ARCHITECTURE.md explains {name}, which nothing uses")),
    );
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> toml::Table {
        text.parse().unwrap()
    }

    #[test]
    fn dependencies_come_from_the_workspace() {
        let manifest = table(
            "[dependencies]\na.workspace = true\nb = \"1\"\n[dev-dependencies]\nc = { workspace = true }",
        );
        let (read, found) = dependencies("m", &manifest);
        assert_eq!((read.normal.len(), read.dev.len()), (2, 1));
        assert_eq!(found, ["m: b is not taken from the workspace's dependencies"]);
    }

    #[test]
    fn unused_dependencies_are_found() {
        let names = BTreeSet::from(["io-uring".to_owned(), "bytes".to_owned()]);
        assert_eq!(
            unused("m", &names, "use io_uring::x; my_bytes"),
            ["m: no code names the dependency bytes"]
        );
    }

    #[test]
    fn dependencies_and_their_reasons_match() {
        let root = table("[workspace.dependencies]\na = \"1\"\nb = \"1\"\nm = { path = \"m\" }");
        let (ours, others) = workspace_dependencies(&root);
        assert_eq!((ours.len(), others.len()), (1, 2));
        let text = "## Dependencies\n| crate | why |\n|---|---|\n| `a` | it is the best |\n| `c` | old |\n";
        assert_eq!(
            unexplained(&others, text),
            [
                "ARCHITECTURE.md gives no reason for c",
                "ARCHITECTURE.md does not explain b",
                "ARCHITECTURE.md explains c, which nothing uses"
            ]
        );
    }
}
