//! The commands for people without a JVM. Topic, group, user, produce and consume are ordinary clients. The log
//! commands read the files of a log, or the objects of a bucket.

mod acl;
mod admin;
mod assignor;
mod broker;
mod cluster;
mod cluster_admin;
pub mod complete;
mod configs;
mod consume;
mod dump;
mod format;
mod generate;
mod group;
mod lines;
mod log;
mod member;
mod names;
mod objects;
mod partitioner;
pub mod peer;
mod produce;
mod progress;
mod quota;
mod restore;
mod storage;
mod store;
mod topic;
mod transaction;
mod user;

use std::io::{self, Write};

pub use self::broker::{broker, log_dirs};
pub use self::storage::storage;
pub use acl::acl;
pub use admin::health;
pub use cluster_admin::cluster;
pub use consume::consume;
pub use generate::generate;
pub use group::group;
pub use log::log;
pub use produce::produce;
pub use quota::quota;
pub use restore::restore;
pub use topic::topic;
pub use transaction::transaction;
pub use user::user;

use client::Security;
use cluster::Cluster;
use serde_json::Value;

use crate::arguments::{Bootstrap, Output};

/// Standard output cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("standard output: {0}")]
pub struct OutputError(#[from] io::Error);

impl OutputError {
    /// Whether the error is a closed pipe.
    pub fn is_broken_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// The arguments cannot be used, which only the command itself could find.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);

/// Prints a text to standard output.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(OutputError)?;
    Ok(())
}

/// Prints what was found or done: as text, or as JSON in one line.
pub fn show(
    output: Output,
    text: impl FnOnce() -> String,
    json: impl FnOnce() -> Value,
) -> anyhow::Result<()> {
    match output {
        Output::Text => print(&text()),
        Output::Json => print(&format!("{}\n", json())),
    }
}

/// Connects to the server in the arguments, with their security settings.
fn connect(bootstrap: &Bootstrap) -> anyhow::Result<Cluster> {
    let security = Security::load(bootstrap.command_config.as_deref())?;
    Ok(Cluster::connect(&bootstrap.address, security)?)
}

/// Columns of numbers, and of lists of ids, in JSON.
const NUMBERS: [&str; 28] = [
    "BEFORE",
    "BROKER",
    "BYTES",
    "COMMITTED",
    "COORDINATOR",
    "DEAD BYTES",
    "DISK",
    "END",
    "EPOCH",
    "FREE",
    "HOME",
    "ITERATIONS",
    "LAG",
    "LAST RECORD AT",
    "LAST SEQUENCE",
    "LEADER",
    "LIMIT",
    "LIVE BYTES",
    "LOGS",
    "MOVES TO",
    "OBJECTS",
    "OPEN SINCE OFFSET",
    "OWNER",
    "PARTITION",
    "PARTITIONS",
    "PRODUCER",
    "RECORDS",
    "START",
];
const LISTS: [&str; 3] = ["COPIES", "IN SYNC", "REPLICAS"];

/// Formats rows under a heading, in columns of equal width. Numbers are aligned to the right.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(heading: &[&str]) -> Table {
        Table { rows: vec![heading.iter().map(ToString::to_string).collect()] }
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// The rows as objects, with the heading as names. The heading says what has numbers, null for an unknown one, and what has
    /// lists.
    fn to_json(&self) -> Value {
        let (heading, rows) = self.rows.split_first().expect("a table has a heading");
        let number = |cell: &str| match (cell.parse::<i64>(), cell.parse::<f64>()) {
            (Ok(whole), _) => Value::from(whole),
            (_, Ok(number)) => Value::from(number),
            _ => Value::Null,
        };
        let item = |cell: &str| cell.parse::<i64>().map_or_else(|_| Value::from(cell), Value::from);
        let field = |(name, cell): (&String, &String)| {
            let value = match name.as_str() {
                name if NUMBERS.contains(&name) => number(cell),
                name if LISTS.contains(&name) => {
                    cell.split(',').filter(|item| *item != "-").map(item).collect()
                }
                _ => Value::from(cell.as_str()),
            };
            let name =
                if name.is_empty() { "note".to_owned() } else { name.to_lowercase().replace(' ', "_") };
            (name, value)
        };
        rows.iter().map(|row| Value::Object(heading.iter().zip(row).map(field).collect())).collect()
    }

    fn to_text(&self) -> String {
        let columns = self.rows[0].len();
        let cells = |column: usize| self.rows.iter().map(move |row| row[column].as_str());
        let width = |column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let numeric = |column: usize| {
            !self.is_empty() && cells(column).skip(1).all(|cell| cell == "-" || cell.parse::<i64>().is_ok())
        };
        let shape: Vec<(usize, bool)> = (0..columns).map(|column| (width(column), numeric(column))).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, (width, numeric)) in row.iter().zip(&shape) {
                let padded = if *numeric { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
                line.push_str(&padded);
                line.push_str("  ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", "LAG", "HOST"]);
        table.row(["a".into(), "5".into(), "x".into()]);
        table.row(["longer".into(), "1234".into(), "".into()]);
        assert_eq!(table.to_text(), "NAME     LAG  HOST\na          5  x\nlonger  1234\n");
    }

    #[test]
    fn rows_are_objects_in_json() {
        let mut table = Table::new(&["NAME", "IN SYNC", "LAG", ""]);
        assert_eq!(table.to_json().to_string(), "[]");
        table.row(["7".into(), "1,2".into(), "5".into(), "internal".into()]);
        table.row(["b".into(), "-".into(), "?".into(), "".into()]);
        let expected = serde_json::json!([
            {"name": "7", "in_sync": [1, 2], "lag": 5, "note": "internal"},
            {"name": "b", "in_sync": [], "lag": null, "note": ""},
        ]);
        assert_eq!(table.to_json(), expected);
    }
}
