//! Imports between the rooms of a crate. A room is a module at the root of a crate, with everything below it.
//!
//! No crate has an import circle between its rooms. If `ARCHITECTURE.md` has a table of a crate's rooms, all rooms are
//! in it, from the top to the bottom, and each imports only from rows below its own.

use std::collections::{BTreeMap, BTreeSet};

use crate::documents::{section, table_rows, words_in_backticks};
use crate::source::code_of;

/// The rooms that each room of a crate imports from.
pub type Imports = BTreeMap<String, BTreeSet<String>>;

/// The room of a file of a crate, by its path from `src/`. `None` for the root itself, and for programs beside it.
fn room_of(path: &str) -> Option<&str> {
    let first = path.split('/').next()?;
    let room = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(room, "lib" | "main" | "bin")).then_some(room)
}

/// The number of modules between the root of the crate and a file, including the file's own.
fn depth_of(path: &str) -> usize {
    let file = path.strip_suffix("/mod.rs").or_else(|| path.strip_suffix(".rs")).unwrap_or(path);
    file.split('/').count()
}

/// Reads the imports of the files of one crate. Each file is given by its path from `src/` and its text without tests.
pub fn imports<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Imports {
    let files: Vec<_> =
        files.into_iter().filter_map(|(path, text)| Some((room_of(path)?, path, text))).collect();
    let rooms: BTreeSet<&str> = files.iter().map(|(room, ..)| *room).collect();
    let mut imports: Imports = rooms.iter().map(|room| ((*room).to_owned(), BTreeSet::new())).collect();
    for (room, path, text) in files {
        let code = code_of(text);
        let mut named = roots(&code, "crate::");
        named.extend(roots(&code, &"super::".repeat(depth_of(path))));
        let others = named.into_iter().filter(|name| rooms.contains(name) && *name != room);
        imports.entry(room.to_owned()).or_default().extend(others.map(str::to_owned));
    }
    imports
}

/// The first names behind `prefix`, including those in braces.
fn roots<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        let before = code[..at].bytes().next_back();
        // The match is the end of a longer word, or part of a longer chain of `super::`.
        if before.is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':')) {
            continue;
        }
        let rest = &code[at + prefix.len()..];
        match rest.strip_prefix('{') {
            Some(group) => found.extend(first_names(group)),
            None => found.extend(first_name(rest)),
        }
    }
    found
}

fn first_name(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let end = text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
    (end > 0).then(|| &text[..end])
}

/// The first name of each part of a group. The group's brace is already open.
fn first_names(group: &str) -> Vec<&str> {
    let (mut found, mut depth, mut begins) = (Vec::new(), 0, true);
    for (at, byte) in group.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => break,
            b'}' => depth -= 1,
            b',' if depth == 0 => begins = true,
            _ if begins && !byte.is_ascii_whitespace() => {
                found.extend(first_name(&group[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    found
}

/// The import circles: sets of rooms in which each room reaches all others.
pub fn circles(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reached = |from: &str| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(room) = left.pop() {
            for next in imports.get(room).into_iter().flatten() {
                if seen.insert(next.as_str()) {
                    left.push(next);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|room| (room.as_str(), reached(room))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (room, onward) in &reach {
        let circle: BTreeSet<String> = onward
            .iter()
            .filter(|other| reach[*other].contains(room))
            .map(|other| (*other).to_owned())
            .collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

/// The rows of the table of `name`'s rooms, from the top to the bottom. Empty if there is no table.
pub fn rows(architecture: &str, name: &str) -> Vec<Vec<String>> {
    let rows = table_rows(section(architecture, &format!("### Rooms of `{name}`")));
    rows.into_iter()
        .map(|cells| words_in_backticks(cells.first().unwrap_or(&"")))
        .filter(|row| !row.is_empty())
        .collect()
}

/// The differences between the table of rooms and the imports.
pub fn violations(name: &str, rows: &[Vec<String>], imports: &Imports) -> Vec<String> {
    let row_of = |room: &str| rows.iter().position(|row| row.iter().any(|other| other == room));
    let mut found = Vec::new();
    for room in rows.iter().flatten().filter(|room| !imports.contains_key(*room)) {
        found.push(format!("the table of {name}'s rooms names {room}, which is none"));
    }
    for (room, from) in imports {
        let Some(at) = row_of(room) else {
            found.push(format!("{room} is not in the table of {name}'s rooms"));
            continue;
        };
        for other in from.iter().filter(|other| row_of(other).is_some_and(|below| below <= at)) {
            found.push(format!("{name}: {room} imports from {other}, which is not below it"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [(&str, &str); 5] = [
        ("lib.rs", "mod a; pub use crate::a::X;"),
        ("a.rs", "use crate::b::{self, c::D};\nuse crate::{e::{F, G}, b as other};\n// crate::z\n"),
        ("b/mod.rs", "mod c; use self::c::D; use super::e;"),
        ("b/c.rs", "use super::X; use super::super::a::Y; my_crate::e::Z;"),
        ("e.rs", "let text = \"crate::a\"; crate::Root;"),
    ];

    fn words(words: &[&str]) -> BTreeSet<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn imports_are_read_from_every_form() {
        let found = imports(FILES);
        assert_eq!(found.keys().cloned().collect::<BTreeSet<_>>(), words(&["a", "b", "e"]));
        assert_eq!(
            (&found["a"], &found["b"], &found["e"]),
            (&words(&["b", "e"]), &words(&["a", "e"]), &words(&[]))
        );
    }

    #[test]
    fn a_circle_is_found_and_what_leads_into_it_is_none() {
        assert_eq!(circles(&imports(FILES)), [words(&["a", "b"])]);
        let mut open = imports(FILES);
        open.get_mut("b").unwrap().remove("a");
        assert_eq!(circles(&open), [] as [BTreeSet<String>; 0]);
    }

    #[test]
    fn arrows_up_and_rooms_too_many_or_too_few_are_found() {
        let table = "## Layers\n### Rooms of `it`\n\n| room | what |\n|---|---|\n| `b` | x |\n| `a` `gone` | y |\n\n## More\n";
        let found = violations("it", &rows(table, "it"), &imports(FILES));
        assert_eq!(
            found,
            [
                "the table of it's rooms names gone, which is none",
                "it: a imports from b, which is not below it",
                "e is not in the table of it's rooms",
            ]
        );
    }
}
