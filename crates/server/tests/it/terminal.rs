//! A terminal to run the program on.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use testing::process::text;

/// Runs a command that succeeds, with a terminal as its standard error. Returns what that shows, and standard output.
pub fn on_terminal(mut command: Command) -> (String, String) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let end = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let child = command.env("TERM", "xterm").stdout(Stdio::piped()).stderr(end).spawn().unwrap();
    // It holds the end of the program open.
    drop(command);
    let watch = std::thread::spawn(move || {
        let (mut shown, mut piece) = (Vec::new(), [0; 4096]);
        let mut terminal = File::from(terminal);
        // The end of a terminal is an error.
        while let Ok(count @ 1..) = terminal.read(&mut piece) {
            shown.extend_from_slice(&piece[..count]);
        }
        text(&shown)
    });
    let done = child.wait_with_output().unwrap();
    let shown = watch.join().unwrap();
    assert_eq!(done.status.code(), Some(0), "{shown}");
    (shown, text(&done.stdout))
}
