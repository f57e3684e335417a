//! What is done of long work, on standard error: a bar on a terminal, elsewhere a line now and then.

use std::cell::Cell;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Without a terminal a line is written so often.
const LINE_EVERY: Duration = Duration::from_secs(5);
/// A bar is drawn so many times a second at most.
const DRAWN_HZ: u8 = 10;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Objects,
}

/// The progress of one piece of work. A bar goes away with it.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    on_terminal: bool,
    unit: Unit,
    lined: Cell<Instant>,
}

impl Progress {
    /// Nothing is shown until there is something to show.
    pub fn new(unit: Unit) -> Progress {
        let counts = match unit {
            Unit::Bytes => "{bytes} of {total_bytes}",
            Unit::Objects => "{pos} of {len} objects",
        };
        let template = format!("mainstem: {{msg}} [{{wide_bar}}] {counts}, {{eta}} left");
        let style =
            ProgressStyle::with_template(&template).expect("a template of ours").progress_chars("=> ");
        let bar = ProgressBar::hidden().with_style(style);
        Progress { bar, on_terminal: !drawn().is_hidden(), unit, lined: Cell::new(Instant::now()) }
    }

    /// Shows that `done` of `all` is done of what `doing` names.
    pub fn show(&self, doing: &'static str, done: u64, all: u64) {
        if !self.on_terminal {
            self.line(doing, done, all);
            return;
        }
        let begins = self.bar.message() != doing;
        if begins {
            // That of the work before goes away, and this one is drawn when all of it is known.
            self.bar.finish_and_clear();
            self.bar.set_draw_target(ProgressDrawTarget::hidden());
            self.bar.reset();
            self.bar.set_message(doing);
        }
        self.bar.set_length(all);
        self.bar.set_position(done);
        if begins {
            self.bar.set_draw_target(drawn());
            self.bar.tick();
        }
    }

    fn line(&self, doing: &str, done: u64, all: u64) {
        if self.lined.get().elapsed() >= LINE_EVERY {
            self.lined.set(Instant::now());
            let unit = match self.unit {
                Unit::Bytes => "bytes",
                Unit::Objects => "objects",
            };
            eprintln!("mainstem: {doing}: {done} of {all} {unit}");
        }
    }
}

fn drawn() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr_with_hz(DRAWN_HZ)
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
