//! The bytes that the processes of a cluster send to each other on this machine, by the counters of their TCP connections.
//!
//! `ss` of iproute2 shows the counters. Without it, or without the right to see the processes of sockets, nothing is known. What
//! went over a connection that is closed before the end of an observation is not counted.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Both ends of a connection, its own first.
type Ends = (String, String);

/// What was sent over each connection between the processes, by its ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic(BTreeMap<Ends, u64>);

impl Traffic {
    /// The connections between these processes.
    pub fn between(pids: &[u32]) -> Option<Traffic> {
        // TCP, with processes, numbers and counters, one line for each.
        let said = Command::new("ss").args(["-tinpHO", "state", "established"]).output().ok()?;
        said.status.success().then(|| in_lines(&String::from_utf8_lossy(&said.stdout), pids))
    }

    /// The bytes that were sent between `before` and this.
    pub fn since(&self, before: &Traffic) -> u64 {
        let sent =
            |(ends, bytes): (&Ends, &u64)| bytes.saturating_sub(before.0.get(ends).copied().unwrap_or(0));
        self.0.iter().map(sent).sum()
    }
}

/// Parses lines like `0 0 127.0.0.1:9092 127.0.0.2:41234 users:(("mainstem",pid=12,fd=3)) cubic ... bytes_sent:512 ...`.
fn in_lines(lines: &str, pids: &[u32]) -> Traffic {
    let of_server = |line: &&str| pids.iter().any(|pid| line.contains(&format!("pid={pid},")));
    let connections: Vec<(Ends, u64)> = lines.lines().filter(of_server).filter_map(connection).collect();
    let own: BTreeSet<&str> = connections.iter().map(|((own, _), _)| own.as_str()).collect();
    let between = connections.iter().filter(|((_, other), _)| own.contains(other.as_str()));
    Traffic(between.cloned().collect())
}

fn connection(line: &str) -> Option<(Ends, u64)> {
    let mut fields = line.split_whitespace().skip(2);
    let ends = (fields.next()?.to_owned(), fields.next()?.to_owned());
    // A connection that has sent nothing shows no counter.
    let sent =
        fields.find_map(|field| field.strip_prefix("bytes_sent:")).map_or(Some(0), |it| it.parse().ok())?;
    Some((ends, sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = r#"0 0 127.0.0.1:41000 127.0.0.2:9092 users:(("mainstem",pid=11,fd=20)) cubic rto:201 bytes_sent:1000 bytes_acked:1000
0 0 127.0.0.2:9092 127.0.0.1:41000 users:(("mainstem",pid=12,fd=21)) cubic rto:201 bytes_sent:50 bytes_received:1000
0 0 127.0.0.2:9092 127.0.0.1:50000 users:(("mainstem",pid=12,fd=22)) cubic rto:201 bytes_sent:7777 bytes_received:9
0 0 127.0.0.1:50000 127.0.0.2:9092 users:(("load",pid=121,fd=22)) cubic rto:201 bytes_sent:9 bytes_received:7777
"#;

    #[test]
    fn only_what_the_processes_send_to_each_other_counts() {
        let before = in_lines(BEFORE, &[11, 12]);
        assert_eq!(before.since(&Traffic::default()), 1050);
        let later =
            BEFORE.replace("bytes_sent:1000", "bytes_sent:1600").replace("bytes_sent:50 ", "bytes_sent:80 ");
        assert_eq!(in_lines(&later, &[11, 12]).since(&before), 630);
        assert_eq!(in_lines(BEFORE, &[12]), Traffic::default());
        let silent = "0 0 1.1.1.1:1 1.1.1.1:2 users:((\"a\",pid=1,fd=2)) cubic\n0 0 1.1.1.1:2 1.1.1.1:1 users:((\"a\",pid=1,fd=3)) bytes_sent:5";
        assert_eq!(in_lines(silent, &[1]).since(&Traffic::default()), 5);
    }
}
