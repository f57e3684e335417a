//! Checks of a Rust file: its first line, its size, the places of `unsafe`, and the names it may use.
//!
//! [`code_of`] is a minimal lexer: it blanks out comments and the insides of literals.

/// The aimed number of lines of a file without its tests. A longer file needs an entry in the recorded list.
pub const LINES_MAX: usize = 600;

/// Whether `mainstem-wire-gen` writes the file.
pub fn is_generated(path: &str) -> bool {
    path.starts_with("crates/wire/src/generated/")
}

/// Whether the whole file is for tests.
pub fn is_test(path: &str) -> bool {
    let mut parts = path.split('/');
    let test = |part: &str| matches!(part, "tests" | "tests.rs" | "fuzz") || part.ends_with("_tests.rs");
    parts.any(test)
}

/// Finds a file that does not begin with a description.
pub fn without_opening(path: &str, text: &str) -> Option<String> {
    let opens = text.starts_with("//!") || is_generated(path);
    (!opens).then(|| format!("{path} does not open with //!"))
}

/// The number of lines before the tests at the file's tail.
pub fn lines_without_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tests =
        lines.windows(2).position(|pair| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod tests {"));
    tests.unwrap_or(lines.len())
}

/// Finds a file that is longer than [`LINES_MAX`], or than its entry in the list of exceptions.
pub fn too_long(path: &str, text: &str, recorded: &[(&str, usize)]) -> Option<String> {
    if is_generated(path) || is_test(path) {
        return None;
    }
    let lines = lines_without_tests(text);
    let max = recorded.iter().find(|(name, _)| *name == path).map_or(LINES_MAX, |(_, lines)| *lines);
    (lines > max).then(|| format!("{path} has {lines} lines without its tests, {max} are allowed"))
}

/// Finds `unsafe` outside of the crate for unsafe code and of the files in `allowed`.
pub fn unsafe_outside(path: &str, text: &str, allowed: &[&str]) -> Option<String> {
    let may = path.starts_with("crates/disk/") || allowed.contains(&path);
    (!may && has_word(&code_of(text), "unsafe")).then(|| format!("{path} has unsafe code"))
}

/// Finds names `of::name` in a file's code, for the crate `of`, that are not among `names`.
pub fn names_beyond(path: &str, text: &str, of: &str, names: &[&str]) -> Vec<String> {
    let code = code_of(text);
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&format!("{of}::")) {
        if at > 0 && is_word(code.as_bytes()[at - 1]) {
            continue;
        }
        let rest = &code[at + of.len() + 2..];
        let name: &str = &rest[..rest.bytes().take_while(|byte| is_word(*byte)).count()];
        if !names.contains(&name) {
            found.push(format!("{path} names {of}::{name}"));
        }
    }
    found
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether `text` contains `word` as a whole word.
pub fn has_word(text: &str, word: &str) -> bool {
    let bytes = text.as_bytes();
    text.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).is_some_and(|before| is_word(bytes[before]));
        let after = bytes.get(at + word.len()).is_some_and(|after| is_word(*after));
        !before && !after
    })
}

/// The text with comments, strings and characters blanked out. The number of lines stays the same.
pub fn code_of(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => find(bytes, at, b"\n"),
            b'/' if bytes[at..].starts_with(b"/*") => comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if !at
                .checked_sub(1)
                .is_some_and(|before| is_word(bytes[before]) && bytes[before] != b'b') =>
            {
                raw_string_end(bytes, at).unwrap_or(at)
            }
            b'\'' => character_end(bytes, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            at += 1;
            continue;
        }
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8(code).expect("whole literals and comments are blanked out")
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> usize {
    let found = bytes[from..].windows(what.len()).position(|window| window == what);
    found.map_or(bytes.len(), |at| from + at)
}

fn comment_end(bytes: &[u8], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn raw_string_end(bytes: &[u8], from: usize) -> Option<usize> {
    let hashes = bytes[from + 1..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(from + 1 + hashes) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let end = find(bytes, from + 2 + hashes, &close) + close.len();
    Some(end.min(bytes.len()))
}

/// The end of a character literal. `None` for a lifetime.
fn character_end(bytes: &[u8], from: usize) -> Option<usize> {
    if bytes.get(from + 1) == Some(&b'\\') {
        return Some((find(bytes, from + 3, b"'") + 1).min(bytes.len()));
    }
    let rest = std::str::from_utf8(&bytes[from + 1..]).ok()?;
    let length = rest.chars().next()?.len_utf8();
    (bytes.get(from + 1 + length) == Some(&b'\'')).then_some(from + length + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_must_say_what_it_is_for() {
        assert_eq!(without_opening("crates/a/src/a.rs", "//! It is.\n"), None);
        assert!(without_opening("crates/a/src/a.rs", "use a;\n//! late").is_some());
        assert_eq!(without_opening("crates/wire/src/generated/a.rs", "use a;"), None);
    }

    #[test]
    fn tests_do_not_count_and_growth_past_the_list_does() {
        let text = "line\n".repeat(700) + "#[cfg(test)]\nmod tests {\n" + &"test\n".repeat(500) + "}\n";
        assert_eq!(lines_without_tests(&text), 700);
        let path = "crates/a/src/a.rs";
        assert_eq!(
            too_long(path, &text, &[]).unwrap(),
            format!("{path} has 700 lines without its tests, 600 are allowed")
        );
        assert_eq!(too_long(path, &text, &[(path, 700)]), None);
        assert!(too_long(path, &text, &[(path, 699)]).is_some());
        assert_eq!(too_long("crates/a/src/tests/a.rs", &text, &[]), None);
        assert_eq!(too_long("crates/wire/src/generated/a.rs", &text, &[]), None);
    }

    #[test]
    fn unsafe_is_found_in_code_only() {
        let path = "crates/a/src/a.rs";
        assert!(unsafe_outside(path, "fn f() { unsafe { g() } }", &[]).is_some());
        assert_eq!(unsafe_outside(path, "fn f() { unsafe { g() } }", &[path]), None);
        assert_eq!(unsafe_outside("crates/disk/src/a.rs", "unsafe fn f() {}", &[]), None);
        let harmless = "//! unsafe\n/* unsafe /* deep */ unsafe */ #![deny(unsafe_code)]\nlet a = \"unsafe \\\" unsafe\"; \
            let b = r#\"unsafe \" unsafe\"#; let c = '\"'; let d: &'static str = br\"unsafe\"; let e = '\\'';";
        assert_eq!(unsafe_outside(path, harmless, &[]), None);
        assert!(unsafe_outside(path, &format!("{harmless} unsafe {{}}"), &[]).is_some());
    }

    #[test]
    fn lines_stay_lines() {
        let text = "a // b\n\"c\nd\" e\n/* f\n */ g 'é' 'h";
        assert_eq!(code_of(text).lines().count(), text.lines().count());
        assert_eq!(code_of(text).split_whitespace().collect::<String>(), "aeg'h");
    }

    #[test]
    fn names_of_another_crate_are_found() {
        let text = "fn f(d: disk::Disk, e: disk::Engine) { my_disk::open(); } // disk::SimDisk";
        assert_eq!(names_beyond("a.rs", text, "disk", &["Disk"]), ["a.rs names disk::Engine"]);
        assert_eq!(names_beyond("a.rs", "use disk::{Disk, Engine};", "disk", &["Disk"]).len(), 1);
    }
}
