//! Regular expressions in subscriptions. KIP-848 specifies RE2/J's syntax; a topic matches if its whole name matches.
//! [`translate`] handles the differences between RE2 and Rust's syntax. Topic names are ASCII, so differences for other
//! letters have no effect.

use std::collections::BTreeSet;

use regex::{Regex, RegexBuilder};

/// Bound in bytes of a compiled expression. A larger expression is refused.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Compiles an expression.
///
/// # Errors
/// A description of the syntax error.
pub fn compile(expression: &str) -> Result<Regex, String> {
    let inner = translate(expression)?;
    let whole = RegexBuilder::new(&format!("^(?:{inner})$")).size_limit(COMPILED_BYTES_MAX).build();
    whole.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "it is too large".to_owned(),
        // The last line describes the error. The lines before it mark the position in the expression.
        other => {
            let text = other.to_string();
            text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    })
}

/// The names that an expression matches.
pub fn matching(pattern: &Regex, names: &[String]) -> BTreeSet<String> {
    names.iter().filter(|name| pattern.is_match(name)).cloned().collect()
}

/// Rewrites the constructs that RE2 reads differently. `\Q...\E` quotes the text between them. Inside brackets, `[`,
/// `&&`, `--` and `~~` are plain letters. An unmatched closing parenthesis is refused, because it would close the group
/// around the whole expression.
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
            // A closing bracket in first position is a letter of the class.
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
        // Kafka's topic names have no such letters, but the code must handle them.
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
