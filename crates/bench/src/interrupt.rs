//! SIGINT and SIGTERM: the first one asks to stop, so that servers are stopped and their data removed; a second one
//! ends the process at once.
//!
//! Signals belong to the process, so what they ask for is global. Whoever waits looks at [`requested`] while waiting.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, bail};
use tokio::signal::unix::{SignalKind, signal};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// As shells report a process that SIGINT ended.
const EXIT_CODE: i32 = 130;

/// Whether to stop.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// An error once a stop was asked for.
pub fn check() -> anyhow::Result<()> {
    if requested() {
        bail!("interrupted");
    }
    Ok(())
}

/// Takes the signals from now on, in a thread of their own.
pub fn listen() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime for signals cannot be built")?;
    // Within the runtime, and before this returns: from here on no signal ends the process.
    let guard = runtime.enter();
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut terminations = signal(SignalKind::terminate())?;
    drop(guard);
    let wait = async move {
        for stop in [false, true] {
            tokio::select! {
                _ = interrupts.recv() => {}
                _ = terminations.recv() => {}
            }
            REQUESTED.store(true, Ordering::Relaxed);
            if stop {
                std::process::exit(EXIT_CODE);
            }
        }
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || runtime.block_on(wait))
        .context("the thread for signals cannot be started")?;
    Ok(())
}
