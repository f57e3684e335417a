//! Maps the subjects of certificates to names of principals: `ssl.principal.mapping.rules`.
//!
//! The rules are Kafka's (SslPrincipalMapper): `RULE:pattern/replacement/[L|U]` and `DEFAULT`, separated by commas. The
//! first rule that fits applies. A pattern fits if it matches the whole subject; then each of its matches is replaced.
//! `$1` stands for a group, or for itself if the group does not exist. Patterns use the syntax of the `regex` crate.
//! Java's back references and look-around are refused.

use std::fmt;

use regex::{Captures, Regex};

/// The rules, in order.
#[derive(Clone)]
pub struct MappingRules {
    text: String,
    rules: Vec<Rule>,
}

#[derive(Clone)]
enum Rule {
    Default,
    Replace { whole: Regex, pattern: Regex, replacement: String, case: Case },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Kept,
    Lower,
    Upper,
}

impl fmt::Debug for MappingRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl MappingRules {
    /// Parses the rules. The error names the rule and the problem.
    pub fn parse(text: &str) -> Result<MappingRules, String> {
        let mut rules = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (rule, after) = parse_rule(rest)?;
            rules.extend(rule);
            let after = after.trim_start();
            rest = match after.strip_prefix(',') {
                Some(more) => more.trim_start(),
                None if after.is_empty() => after,
                None => return Err(format!("the rule at {rest} has {after} behind its end")),
            };
        }
        if rules.is_empty() {
            rules.push(Rule::Default);
        }
        Ok(MappingRules { text: text.trim().to_owned(), rules })
    }

    /// The name for a subject. `None` if no rule fits.
    pub fn name(&self, subject: &str) -> Option<String> {
        self.rules.iter().find_map(|rule| match rule {
            Rule::Default => Some(subject.to_owned()),
            Rule::Replace { whole, pattern, replacement, case } => whole.is_match(subject).then(|| {
                let name = replaced(pattern, replacement, subject);
                match case {
                    Case::Kept => name,
                    Case::Lower => name.to_lowercase(),
                    Case::Upper => name.to_uppercase(),
                }
            }),
        })
    }
}

/// Parses the rule at the beginning of `text`, and returns it with the rest. An empty rule is `None`.
fn parse_rule(text: &str) -> Result<(Option<Rule>, &str), String> {
    if let Some(after) = text.strip_prefix("DEFAULT") {
        return Ok((Some(Rule::Default), after));
    }
    if text.starts_with(',') {
        return Ok((None, text));
    }
    let wrong = || format!("{text} is neither DEFAULT nor RULE:pattern/replacement/[L|U]");
    let after = text.strip_prefix("RULE:").ok_or_else(wrong)?;
    let (pattern, after) = until_slash(after).ok_or_else(wrong)?;
    let (replacement, after) = until_slash(after).ok_or_else(wrong)?;
    let (case, after) = match after.as_bytes().first() {
        Some(b'L') => (Case::Lower, &after[1..]),
        Some(b'U') => (Case::Upper, &after[1..]),
        _ => (Case::Kept, after),
    };
    let compile = |pattern: &str| Regex::new(pattern).map_err(|error| error.to_string().replace('\n', " "));
    let whole = compile(&format!(r"\A(?:{pattern})\z"))?;
    let pattern = compile(pattern)?;
    Ok((Some(Rule::Replace { whole, pattern, replacement: replacement.to_owned(), case }), after))
}

/// Splits at the first slash without a backslash before it.
fn until_slash(text: &str) -> Option<(&str, &str)> {
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '/' => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    None
}

/// Replaces as Java's `replaceAll` does: after a non-empty match, an empty match at its end is found as well.
fn replaced(pattern: &Regex, replacement: &str, text: &str) -> String {
    let mut result = String::new();
    let (mut copied, mut from) = (0, 0);
    while let Some(captures) = pattern.captures_at(text, from) {
        let found = captures.get_match();
        result.push_str(&text[copied..found.start()]);
        expand(replacement, &captures, &mut result);
        copied = found.end();
        from = copied;
        if found.is_empty() {
            match text[from..].chars().next() {
                Some(letter) => from += letter.len_utf8(),
                None => break,
            }
        }
    }
    result.push_str(&text[copied..]);
    result
}

fn expand(replacement: &str, captures: &Captures<'_>, into: &mut String) {
    let mut rest = replacement.chars().peekable();
    while let Some(letter) = rest.next() {
        match letter {
            '\\' => into.extend(rest.next()),
            '$' => {
                // Take digits as long as they form the number of an existing group.
                let mut group = None;
                while let Some(digit) = rest.peek().and_then(|letter| letter.to_digit(10)) {
                    let next = group.unwrap_or(0) * 10 + digit as usize;
                    if next >= captures.len() {
                        break;
                    }
                    group = Some(next);
                    rest.next();
                }
                match group {
                    Some(group) => into.push_str(captures.get(group).map_or("", |found| found.as_str())),
                    None => into.push('$'),
                }
            }
            _ => into.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(rules: &str, subject: &str) -> Option<String> {
        MappingRules::parse(rules).unwrap().name(subject)
    }

    #[test]
    fn the_rules_of_kafkas_own_tests_give_the_same_names() {
        let rules = "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, \
                     RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT";
        let of = |subject: &str| name(rules, subject).unwrap();
        assert_eq!(of("CN=Duke,OU=ServiceUsers,O=Org,C=US"), "duke");
        assert_eq!(of("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US"), "duke@sme");
        assert_eq!(of("cn=duke,ou=sme,dc=mycp,dc=com"), "DUKE@SME");
        assert_eq!(of("cN=DUKE.1,dc=com"), "DUKE.1");
        assert_eq!(of("OU=JavaSoft,O=Sun Microsystems,C=US"), "OU=JavaSoft,O=Sun Microsystems,C=US");
    }

    #[test]
    fn a_group_that_is_not_there_stands_for_itself() {
        assert_eq!(name("RULE:^CN=(.*?)$/$1@$4 $0 $12/", "CN=a").unwrap(), "a@$4 CN=a a2");
        assert_eq!(name(r"RULE:^CN=(.*?)$/\$1\/x$/", "CN=a").unwrap(), "$1/x$");
    }

    #[test]
    fn a_pattern_must_match_the_whole_and_rules_may_be_without_a_match() {
        assert_eq!(name("RULE:CN=a/x/", "CN=ab"), None);
        assert_eq!(name("RULE:CN=a/x/,DEFAULT", "CN=ab").unwrap(), "CN=ab");
        assert_eq!(name(r"RULE:CN=a\/b/x/U", "CN=a/b").unwrap(), "X");
        assert_eq!(name("", "CN=a").unwrap(), "CN=a");
        // As in Java, the empty match at the end counts too.
        assert_eq!(name("RULE:.*/x/", "CN=a").unwrap(), "xx");
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for rules in [
            "default",
            "RULE",
            "RULE:",
            "RULE:a/b",
            "RULE:a/b/c",
            "RULE:a/b/LU",
            "DEFAULT/L",
            "RULE:(/b/",
            "DEFAULT,RULE:a",
        ] {
            assert!(MappingRules::parse(rules).is_err(), "{rules}");
        }
    }
}
