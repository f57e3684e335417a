//! Checks of documents: links resolve, decisions are numbered and listed, and the named make targets exist.

use std::collections::BTreeSet;

/// The part of a Markdown text below `heading`, up to the next heading of the same or a higher level.
pub fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let level = heading.bytes().take_while(|byte| *byte == b'#').count();
    let Some(from) = text.find(&format!("{heading}\n")) else { return "" };
    let body = &text[from + heading.len() + 1..];
    let mut end = 0;
    for line in body.split_inclusive('\n') {
        let hashes = line.bytes().take_while(|byte| *byte == b'#').count();
        if (1..=level).contains(&hashes) && line.as_bytes().get(hashes) == Some(&b' ') {
            break;
        }
        end += line.len();
    }
    &body[..end]
}

/// The cells of each table row, including headings and rules.
pub fn table_rows(text: &str) -> Vec<Vec<&str>> {
    let row = |line: &'_ str| line.starts_with('|').then_some(line.len());
    let rows = text.lines().filter(|line| row(line).is_some());
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Finds rows that a blank line cuts off from their table, which then are text.
pub fn torn_tables(path: &str, text: &str) -> Vec<String> {
    let text = prose(text, false);
    let lines: Vec<&str> = text.lines().collect();
    let is_row = |at: usize| lines.get(at).is_some_and(|line| line.starts_with('|'));
    let is_rule = |at: usize| {
        lines.get(at).is_some_and(|line| line.starts_with('|') && line.chars().all(|c| "|-: ".contains(c)))
    };
    let torn = |at: &usize| is_row(*at) && (*at == 0 || !is_row(at - 1)) && !is_rule(at + 1);
    let found = (0..lines.len()).filter(torn);
    found
        .map(|at| format!("{path}:{} is a row of no table: a table begins with a row and a rule", at + 1))
        .collect()
}

/// The words in backticks.
pub fn words_in_backticks(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The text without fenced blocks. With `inline`, also without code in backticks.
fn prose(text: &str, inline: bool) -> String {
    let mut prose = String::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let spans = line.split('`').enumerate();
            prose.extend(spans.filter(|(at, _)| !inline || at % 2 == 0).map(|(_, span)| span));
        }
        prose.push('\n');
    }
    prose
}

/// Finds links to missing files. `path` is the document's path, and `exists` checks paths from the root.
pub fn dead_links(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (line, text) in prose(text, true).lines().enumerate() {
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split([')', ' ']).next().unwrap_or("");
            let file = target.split('#').next().unwrap_or("");
            if file.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            if resolve(path, file).is_none_or(|file| !exists(&file)) {
                found.push(format!("{path}:{} links to {target}, which is not there", line + 1));
            }
        }
    }
    found
}

/// `target`, relative to the document at `path`, as a path from the root. `None` if it is above the root.
fn resolve(path: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The violations of the decision records. `records` holds file names and texts, ordered by name.
pub fn decisions(records: &[(String, String)], architecture: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, (name, text)) in records.iter().enumerate() {
        let number = format!("{:04}", at + 1);
        if !name.starts_with(&format!("{number}-")) || !name.ends_with(".md") {
            found.push(format!("{name}: the decision after {at:04} has to be named {number}-title.md"));
            continue;
        }
        if !text.starts_with(&format!("# {number}: ")) {
            found.push(format!("{name} does not open with its number and title"));
        }
        for heading in ["Context", "Decision", "Consequences"] {
            if section(text, &format!("## {heading}")).trim().is_empty() {
                found.push(format!("{name} says nothing under {heading}"));
            }
        }
        if !architecture.contains(&format!("docs/decisions/{name}")) {
            found.push(format!("ARCHITECTURE.md does not list {name}"));
        }
    }
    found
}

/// The targets of a Makefile that have a description.
pub fn make_targets(makefile: &str) -> BTreeSet<String> {
    let described =
        makefile.lines().filter(|line| line.contains("## ") && !line.starts_with(['\t', '#', ' ']));
    described.filter_map(|line| line.split_once(':')).map(|(name, _)| name.to_owned()).collect()
}

/// Finds `make` commands in a document whose target does not exist.
pub fn unknown_targets(path: &str, text: &str, targets: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        // A command is in backticks or in an indented block. Elsewhere, "make" is the English word.
        let spans = words_in_backticks(line);
        let commands = if line.starts_with("    ") { vec![line.trim().to_owned()] } else { spans };
        for command in commands {
            let mut words = command.split_whitespace();
            let target = (words.next() == Some("make")).then(|| words.next()).flatten();
            if let Some(target) = target.filter(|target| !targets.contains(*target) && !target.contains('='))
            {
                found.push(format!(
                    "{path}:{} names the target {target}, which the Makefile has not",
                    number + 1
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_a_blank_line_cuts_off_are_found() {
        let whole = "text\n\n| a |\n|---|\n| b |\n| c |\n";
        assert!(torn_tables("a.md", whole).is_empty());
        let found = torn_tables("a.md", &whole.replace("| b |\n", "| b |\n\n"));
        assert_eq!(found, ["a.md:7 is a row of no table: a table begins with a row and a rule"]);
    }

    #[test]
    fn sections_end_at_the_next_heading_of_their_level() {
        let text = "# T\n## A\na\n### B\nb\n## C\nc\n";
        assert_eq!(
            (section(text, "## A"), section(text, "## C"), section(text, "## D")),
            ("a\n### B\nb\n", "c\n", "")
        );
        assert_eq!(table_rows("x\n| `a` | b `c` |\n"), [["`a`", "b `c`"]]);
        assert_eq!(words_in_backticks("`a` b `c`"), ["a", "c"]);
    }

    #[test]
    fn dead_links_are_found() {
        let text = "[a](../b.md#c) [d](d.md)\n```\n[e](e.md)\n```\n`[f](f.md)` [g](#g) [h](https://github.com/h) [i](../../../i)";
        let found = dead_links("docs/x/y.md", text, |path| path == "docs/b.md");
        assert_eq!(
            found,
            [
                "docs/x/y.md:1 links to d.md, which is not there",
                "docs/x/y.md:5 links to ../../../i, which is not there"
            ]
        );
    }

    #[test]
    fn decisions_are_numbered_whole_and_listed() {
        let record = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let good = "# 0001: A\n## Context\na\n## Decision\nb\n## Consequences\nc\n";
        let listed = "docs/decisions/0001-a.md docs/decisions/0002-b.md";
        assert_eq!(decisions(&[record("0001-a.md", good)], listed), [""; 0]);
        assert_eq!(
            decisions(&[record("0002-a.md", good)], listed),
            ["0002-a.md: the decision after 0000 has to be named 0001-title.md"]
        );
        let bad = good.replace("0001", "0003").replace("\nb\n", "\n");
        assert_eq!(
            decisions(&[record("0001-z.md", &bad)], listed),
            [
                "0001-z.md does not open with its number and title",
                "0001-z.md says nothing under Decision",
                "ARCHITECTURE.md does not list 0001-z.md"
            ]
        );
    }

    #[test]
    fn make_targets_that_do_not_exist_are_found() {
        let targets = make_targets("A := b\nrun: build ## Runs.\n\t@echo a: ## no\nhidden:\n");
        assert_eq!(targets, BTreeSet::from(["run".to_owned()]));
        let text = "`make run` and `make fly`; we make do\n    make run ARGS=1\n    make walk\n";
        assert_eq!(
            unknown_targets("a.md", text, &targets),
            [
                "a.md:1 names the target fly, which the Makefile has not",
                "a.md:3 names the target walk, which the Makefile has not"
            ]
        );
    }
}
