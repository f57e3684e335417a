//! The progress of a test, for people.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::stats::Totals;

/// Minimum interval between lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress lines: one line that is overwritten on a terminal, otherwise a line now and then.
pub struct Progress {
    terminal: bool,
    last: Option<Instant>,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { terminal: std::io::stderr().is_terminal(), last: None }
    }

    pub fn say(
        &mut self,
        what: &str,
        length: f64,
        since: Totals,
        backlog: u64,
        p99: Option<f64>,
        left: Option<f64>,
    ) {
        if !self.terminal && self.last.is_some_and(|last| last.elapsed() < LINE_EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        let rate = |messages: u64, bytes: u64| {
            format!("{:.0} msg/s {:.1} MB/s", messages as f64 / length, bytes as f64 / length / 1e6)
        };
        let mut line = format!(
            "{what}: out {}, in {}, backlog {backlog}",
            rate(since.published, since.published_bytes),
            rate(since.received, since.received_bytes)
        );
        if let Some(p99) = p99 {
            line.push_str(&format!(", publish p99 {:.2} ms", p99 / 1e3));
        }
        if let Some(left) = left {
            line.push_str(&format!(", {left:.0} s left"));
        }
        if self.terminal {
            eprint!("\r\x1b[K{line}");
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }

    pub fn end(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}
