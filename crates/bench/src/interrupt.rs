//! SIGINT and SIGTERM. The first signal requests a stop, so that servers are stopped and their data removed. A second
//! one ends the process at once.
//!
//! Signals belong to the process, so the request is global. Code that waits polls [`requested`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, bail};
use tokio::signal::unix::{SignalKind, signal};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// The exit code that shells report for a process ended by SIGINT.
const EXIT_CODE: i32 = 130;

/// Whether a stop was requested.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Returns an error once a stop was requested.
pub fn check() -> anyhow::Result<()> {
    if requested() {
        bail!("interrupted");
    }
    Ok(())
}

/// Handles the signals from now on, in a separate thread.
pub fn listen() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime for signals cannot be built")?;
    // The handlers are installed before this function returns, so that no later signal ends the process directly.
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
