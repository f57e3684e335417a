//! Checks for text that no file of the repository may contain, whatever its language.

use crate::source::has_word;

/// Hosts that may occur in a file: public, for people or for the usual clients.
const HOSTS: &[&str] = &[
    // All addresses of a machine.
    "0.0.0.0",
    "github.com",
    "kafka.apache.org",
    "keepachangelog.com",
    "maven.apache.org",
    "rustup.rs",
    "semver.org",
    "www.apache.org",
    "www.w3.org",
];

/// Finds marks of unfinished work.
pub fn unfinished(path: &str, text: &str) -> Vec<String> {
    // Spelled in pieces, so that this file does not find itself.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let calls = [concat!("to", "do!"), concat!("unimplemen", "ted!"), concat!("db", "g!")];
    let mut found = Vec::new();
    for (line, text) in numbered(text) {
        let mark = marks.iter().find(|mark| has_word(text, mark));
        if let Some(mark) = mark.or_else(|| calls.iter().find(|call| text.contains(**call))) {
            found.push(format!("{path}:{line} has {mark}"));
        }
    }
    found
}

/// Finds absolute paths of a particular machine.
pub fn machine_paths(path: &str, text: &str) -> Vec<String> {
    let roots = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    let mut found = Vec::new();
    for (line, text) in numbered(text) {
        for root in roots {
            // Inside a longer path it is an ordinary name.
            let absolute = |at: usize| {
                let before = text[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || "_.-~$}*".contains(c))
            };
            if text.match_indices(root).any(|(at, _)| absolute(at)) {
                found.push(format!("{path}:{line} names a path below {root}"));
            }
        }
    }
    found
}

/// Finds addresses on hosts that are not in the list.
pub fn unknown_hosts(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (line, text) in numbered(text) {
        for (at, _) in text.match_indices("://") {
            let scheme: String = text[..at].chars().rev().take_while(char::is_ascii_alphabetic).collect();
            let web = ["ptth", "sptth", "hss", "tig", "ptf"].contains(&scheme.as_str());
            let rest = &text[at + 3..];
            let rest = rest
                .split_once('@')
                .filter(|(user, _)| !user.contains(['/', ' ']))
                .map_or(rest, |(_, rest)| rest);
            let in_host = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
            let host: String = rest.chars().take_while(in_host).collect();
            let host = host.trim_end_matches('.');
            let local = !host.contains('.') || host.starts_with("127.");
            if web && !local && !HOSTS.contains(&host) {
                found.push(format!("{path}:{line} names the host {host}"));
            }
        }
    }
    found
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(at, line)| (at + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_work_is_found() {
        let text = concat!("fine\n// TO", "DO: later\nmktemp XX", "XXXX\n    to", "do!()\n");
        assert_eq!(
            unfinished("a.rs", text),
            [concat!("a.rs:2 has TO", "DO"), concat!("a.rs:4 has to", "do!")]
        );
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        let text =
            concat!("tests/wo", "rk/a ~/ho", "me/a $X/ro", "ot/\nopen(\"/ro", "ot/a\")\n/ho", "me/me\n");
        let found = machine_paths("a", text);
        let expected =
            [concat!("a:2 names a path below /ro", "ot/"), concat!("a:3 names a path below /ho", "me/")];
        assert_eq!(found, expected);
    }

    #[test]
    fn hosts_that_are_not_listed_are_found() {
        let fine = "https://github.com/a http://127.0.0.1:9644/metrics http://localhost/ tcp://10.0.0.1:1 http://{a}/";
        assert_eq!(unknown_hosts("a", fine), [""; 0]);
        let text = concat!(
            "url = \"sparse+https:/",
            "/cargo.example.internal/index\"\nssh:/",
            "/git@git.example.net/a"
        );
        assert_eq!(
            unknown_hosts("a", text),
            ["a:1 names the host cargo.example.internal", "a:2 names the host git.example.net"]
        );
    }
}
