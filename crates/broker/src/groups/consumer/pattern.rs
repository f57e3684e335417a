//! Regular expressions of subscriptions. KIP-848 gives them RE2/J's syntax, and a topic is meant when its whole name
//! matches. Rust's syntax is RE2's but for what [`translate`] sees to; topics' names are ASCII, so what the two make of
//! other letters does not show.

use std::collections::BTreeSet;

use regex::{Regex, RegexBuilder};

/// Bytes that a compiled expression may take; the next is refused.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Compiles an expression.
///
/// # Errors
/// What is wrong with it.
pub fn compile(expression: &str) -> Result<Regex, String> {
    let inner = translate(expression)?;
    let whole = RegexBuilder::new(&format!("^(?:{inner})$")).size_limit(COMPILED_BYTES_MAX).build();
    whole.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "it is too large".to_owned(),
        // The last line says what is wrong; the others show where, drawn below the expression.
        other => {
            let text = other.to_string();
            text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    })
}

/// The names that an expression stands for.
pub fn matching(pattern: &Regex, names: &[String]) -> BTreeSet<String> {
    names.iter().filter(|name| pattern.is_match(name)).cloned().collect()
}

/// Rewrites what RE2 reads otherwise: `\Q...\E` takes all between as it stands, and inside of brackets `[`, `&&`, `--` and
/// `~~` are only letters. A group that closes without having been opened is refused: it would close the one around it all.
fn translate(expression: &str) -> Result<String, String> {
    let mut out = String::with_capacity(expression.len());
    let mut rest = expression;
    let mut in_class = false;
    let mut open_groups = 0_i32;
    while let Some(letter) = rest.chars().next() {
        if let Some(quoted) = rest.strip_prefix("\\Q") {
            let (literal, after) = quoted.split_once("\\E").unwrap_or((quoted, ""));
            out.push_str(&regex::escape(literal));
            rest = after;
            continue;
        }
        if letter == '\\' {
            let length = 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
            out.push_str(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        if !in_class && letter == '[' {
            in_class = true;
            // A bracket that comes first is one of the letters.
            let length =
                ["[^]", "[]", "[^"].iter().find(|begin| rest.starts_with(**begin)).map_or(1, |b| b.len());
            out.push_str(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        if in_class && rest.starts_with("[:") && rest.contains(":]") {
            let length = rest.find(":]").unwrap_or(0) + 2;
            out.push_str(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        if !in_class {
            open_groups += i32::from(letter == '(') - i32::from(letter == ')');
            if open_groups < 0 {
                return Err("unopened group".to_owned());
            }
        }
        if in_class {
            in_class = letter != ']';
            let doubled = ["&&", "--", "~~"].iter().any(|pair| rest.starts_with(pair));
            if letter == '[' || doubled {
                out.push('\\');
            }
        }
        out.push(letter);
        rest = &rest[letter.len_utf8()..];
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(expression: &str, names: &[&str]) -> Vec<String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        matching(&compile(expression).unwrap(), &names).into_iter().collect()
    }

    #[test]
    fn a_whole_name_matches() {
        assert_eq!(found("a|ab", &["a", "ab", "abc", "ba"]), ["a", "ab"]);
        assert_eq!(found("orders-.*", &["orders-1", "my-orders-1", "orders"]), ["orders-1"]);
        assert_eq!(found("(?i)ORDERS", &["orders"]), ["orders"]);
        assert_eq!(found("", &["a"]), Vec::<String>::new());
    }

    #[test]
    fn the_syntax_is_that_of_re2() {
        assert_eq!(found(r"\Qa.b\E.*", &["a.b", "axb", "a.bc"]), ["a.b", "a.bc"]);
        assert_eq!(found(r"\Qa.b", &["a.b", "axb"]), ["a.b"]);
        assert_eq!(found("[[:alpha:]]+", &["abc", "a1"]), ["abc"]);
        assert_eq!(found("[a&&b]+", &["ab", "a&b"]), Vec::from(["a&b", "ab"]));
        assert_eq!(found("[][]", &["]", "["]), ["[", "]"]);
        assert_eq!(found(r"\pL+", &["abc", "a1"]), ["abc"]);
        assert_eq!(found(r"[^\pL]+|\p{Greek}", &["abc", "1"]), ["1"]);
        assert_eq!(found(r"\d+\.[^.]+", &["1.x", "1x"]), ["1.x"]);
        // No names of Kafka's have such letters, but nothing may break on them.
        assert_eq!(found("[é]", &["a"]), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for wrong in ["(", "a)(b", "[a", "*", r"\", r"(?<=a)b", r"(a)\1", "a{1001}{1001}"] {
            let error = compile(wrong).unwrap_err();
            assert!(!error.is_empty() && !error.contains('\n'), "{wrong}: {error}");
        }
    }
}
