//! The sources and licences of dependencies, compared with `deny.toml`. `cargo deny` checks the same and more, but is
//! not on every machine. This check needs no network.

use std::collections::BTreeSet;

use serde_json::Value;

/// The only allowed registry.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The licences that `deny.toml` allows.
pub fn allowed(deny: &toml::Table) -> BTreeSet<String> {
    let list = deny["licenses"]["allow"].as_array().expect("it is a list");
    list.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect()
}

/// The violations among the packages of `cargo metadata`.
pub fn violations(metadata: &Value, allowed: &BTreeSet<String>) -> Vec<String> {
    let packages = metadata["packages"].as_array().expect("there are packages");
    let mut found = Vec::new();
    for package in packages {
        let name = format!("{} {}", text(&package["name"]), text(&package["version"]));
        match &package["source"] {
            Value::Null => {}
            source if text(source) == REGISTRY => {}
            source => found.push(format!("{name} comes from {source}")),
        }
        let licence = text(&package["license"]);
        if !is_allowed(licence, allowed) {
            found.push(format!("{name} has the licence {licence:?}, which deny.toml does not allow"));
        }
    }
    found
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Whether an SPDX expression leaves an allowed choice. In old expressions `/` stands for OR.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (holds, rest) = any(&words, allowed);
    holds && rest.is_empty()
}

/// Evaluates choices. AND binds closer than OR.
fn any<'a>(words: &'a [&'a str], allowed: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    let (mut holds, mut rest) = all(words, allowed);
    while let ["OR", after @ ..] = rest {
        let (other, left) = all(after, allowed);
        (holds, rest) = (holds || other, left);
    }
    (holds, rest)
}

fn all<'a>(words: &'a [&'a str], allowed: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    let (mut holds, mut rest) = one(words, allowed);
    while let ["AND", after @ ..] = rest {
        let (other, left) = one(after, allowed);
        (holds, rest) = (holds && other, left);
    }
    (holds, rest)
}

fn one<'a>(words: &'a [&'a str], allowed: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    match words {
        ["(", inside @ ..] => match any(inside, allowed) {
            (holds, [")", rest @ ..]) => (holds, rest),
            (_, rest) => (false, rest),
        },
        // A licence with an exception counts as a separate licence, which must be allowed by its whole name.
        [licence, "WITH", exception, rest @ ..] => {
            (allowed.contains(&format!("{licence} WITH {exception}")), rest)
        }
        [licence, rest @ ..] => (allowed.contains(*licence), rest),
        [] => (false, words),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ours() -> BTreeSet<String> {
        ["MIT", "Apache-2.0", "ISC"].map(str::to_owned).into()
    }

    #[test]
    fn an_expression_must_leave_an_allowed_choice() {
        for good in [
            "MIT",
            "GPL-3.0 OR MIT",
            "Apache-2.0 AND ISC",
            "(GPL-3.0 OR MIT) AND ISC",
            "GPL-3.0/MIT",
            "Apache-2.0 WITH LLVM-exception OR MIT",
        ] {
            assert!(is_allowed(good, &ours()), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR ISC) AND GPL-3.0",
            "MIT )",
            "( MIT",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(!is_allowed(bad, &ours()), "{bad}");
        }
    }

    #[test]
    fn a_package_from_elsewhere_or_under_another_licence_is_named() {
        let package = |name, source, licence| json!({"name": name, "version": "1", "source": source, "license": licence});
        let metadata = json!({"packages": [
            package("own", Value::Null, "MIT"),
            package("good", REGISTRY.into(), "ISC OR GPL-3.0"),
            package("git", "git+file:///x".into(), "MIT"),
            package("gpl", REGISTRY.into(), "GPL-3.0"),
        ]});
        let found = violations(&metadata, &ours());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("git 1 comes from") && found[1].starts_with("gpl 1 has the licence"));
    }
}
