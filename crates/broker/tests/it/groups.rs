//! The group coordinator, driven by the scripts in `tests/it/groups/*.script` and by seeded random clients.
//!
//! A script is a list of commands. Each command is followed by all `->` lines that it must produce, in order. A time
//! before a command (or alone) first advances the clock to it. Events on the way are marked `@time`. Every reply and
//! record is shown with its contents. `MAINSTEM_BLESS=1` rewrites the `->` lines; read the difference before committing.
//!
//! ```text
//! config [initial-delay=MS] [max-size=N] [retention=MS] [durable=by-hand] [log=full|free]
//! join CLIENT [v=3] [instance=I] [member=ID] [session=10000] [rebalance=30000] [type=consumer] [protocols=P:META,..]
//! sync CLIENT [member=ID] [generation=N] [type=T] [protocol=P] [assign=CLIENT:BYTES,..]
//! heartbeat CLIENT [member=ID] [generation=N]
//! leave CLIENT|instance=I ..
//! durable                                    with durable=by-hand: all records so far
//! commit CLIENT|- KEY=OFFSET[/NOTE] .. [member=ID] [generation=N] [producer=N] [retain=MS]
//! end-txn N commit|abort
//! fetch KEY .. | delete-offsets KEY .. | expire | delete-group | describe | restart
//! ```
//! A client's member id is its name (or instance id) and a number. Metadata `@t+u` is a consumer's subscription to the
//! topics t and u. Member id, instance and generation default to the last values that the client received.

mod random;
mod runner;

use std::fs;
use std::path::Path;

#[test]
fn scripts_give_what_they_say() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/groups");
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "script"));
    assert!(paths.len() >= 20, "the scripts are there");
    let bless = std::env::var_os("MAINSTEM_BLESS").is_some();
    let mut failures = Vec::new();
    for path in paths {
        let expected = fs::read_to_string(&path).unwrap();
        let actual = runner::run(&expected);
        if bless {
            fs::write(&path, actual).unwrap();
        } else if let Some((line, (said, is))) =
            (1..).zip(pad(&expected).zip(pad(&actual)).take(10_000)).find(|(_, (said, is))| said != is)
        {
            failures.push(format!("{}:{line}\n  script: {said}\n  group:  {is}", path.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The lines of a text, followed by endless empty lines.
fn pad(text: &str) -> impl Iterator<Item = &str> {
    text.lines().chain(std::iter::repeat(""))
}

#[test]
fn random_clients_are_answered_once_and_settle() {
    for seed in 0..4_000 {
        random::run(seed);
    }
}
