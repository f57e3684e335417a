//! `mainstem storage status`: what lies in a bucket, what is dead of it, what the server asks for, and an estimate of the
//! bill.
//!
//! The bill counts what is in the bucket now for a month, and the requests of a month if the server goes on as since its
//! start. It does not count deletions, which are free at the large clouds, nor minimum storage times, discounts and taxes.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use objects::{RequestKind, list_all};
use serde_json::{Value, json};

use super::admin::metrics;
use super::objects::logs_of;
use super::store::{Store, pause};
use super::{Table, show};
use crate::arguments::{Output, StatusArguments, StorageVerb};

const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);
/// A rate over a shorter time says nothing about a month.
const RATE_SECONDS_MIN: f64 = 60.0;
const GB: f64 = 1e9;

/// Runs the command.
pub fn storage(verb: &StorageVerb, output: Output) -> anyhow::Result<()> {
    let StorageVerb::Status(arguments) = verb;
    let store = Store::open(&arguments.from)?;
    // Asked first, so that a wrong address is known before many objects are read.
    let requests = arguments.metrics.as_deref().map(requests_of).transpose()?;
    let (mut all, mut others) = (Part::default(), Part::default());
    let (mut snapshots, mut manifests) = (Part::default(), Part::default());
    for object in list_all(&*store.bucket, "", "", pause)? {
        all.add(object.bytes);
        if object.key.starts_with("metadata/") {
            snapshots.add(object.bytes);
        } else if object.key.starts_with("manifests/") {
            manifests.add(object.bytes);
        } else if !object.key.starts_with("logs/") {
            others.add(object.bytes);
        }
    }
    let mut table = Table::new(&["WHAT", "OBJECTS", "BYTES", "LIVE BYTES", "DEAD BYTES"]);
    let mut damaged = 0;
    for log in logs_of(&store)? {
        let inspected = store.asking("reading", |asking| log.inspect(&asking))?;
        damaged += inspected.findings.len();
        let objects = &inspected.objects;
        let sum = |of: fn(&storage::bucket::ObjectSummary) -> u64| objects.iter().map(of).sum::<u64>();
        let (batches, live) = (sum(|object| object.batch_bytes), sum(|object| object.live_bytes));
        table.row([
            format!("log {:032x}", log.id),
            objects.len().to_string(),
            sum(|object| object.bytes).to_string(),
            live.to_string(),
            (batches - live).to_string(),
        ]);
    }
    let row = |what: &str, part: &Part| {
        [what.to_owned(), part.objects.to_string(), part.bytes.to_string(), "-".into(), "-".into()]
    };
    table.row(row("metadata snapshots", &snapshots));
    table.row(row("manifests", &manifests));
    if others.objects > 0 {
        table.row(row("others", &others));
    }
    table.row(row("all", &all));
    let bill = Bill::of(arguments, all.bytes, requests.as_ref());
    let text = || {
        let mut text = table.to_text();
        if damaged > 0 {
            text.push_str(&format!(
                "{damaged} findings: `mainstem log verify --from {}` names them\n",
                arguments.from
            ));
        }
        format!("{text}\n{}", bill.to_text())
    };
    let found = || json!({"objects": table.to_json(), "findings": damaged, "month": bill.to_json()});
    show(output, text, found)
}

/// Objects of one kind.
#[derive(Default)]
struct Part {
    objects: u64,
    bytes: u64,
}

impl Part {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}

/// The requests of a server since its start.
#[derive(Debug, Default, PartialEq)]
struct Requests {
    seconds: f64,
    by_kind: BTreeMap<String, f64>,
    received_bytes: f64,
}

/// The estimate for a month.
struct Bill<'a> {
    stored: Cost,
    requests: Option<&'a Requests>,
    /// What is asked for as since the start; nothing of a server that started a moment ago.
    asked: Vec<Cost>,
}

struct Cost {
    count: f64,
    unit: &'static str,
    /// Of all of them.
    price: f64,
}

impl<'a> Bill<'a> {
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    fn of(arguments: &StatusArguments, bytes: u64, requests: Option<&'a Requests>) -> Bill<'a> {
        let cost = |count, unit, each| Cost { count, unit, price: count * each };
        let mut asked = Vec::new();
        if let Some(requests) = requests.filter(|requests| requests.seconds >= RATE_SECONDS_MIN) {
            let month = MONTH.as_secs_f64() / requests.seconds;
            let writes = (requests.of(RequestKind::Put) + requests.of(RequestKind::List)) * month;
            let reads = (requests.of(RequestKind::Get) + requests.of(RequestKind::Head)) * month;
            let received = requests.received_bytes / GB * month;
            asked = vec![
                cost(writes / 1000.0, "thousand puts and lists", arguments.write_price),
                cost(reads / 1000.0, "thousand reads", arguments.read_price),
                cost(received, "GB received", arguments.transfer_price),
            ];
        }
        Bill { stored: cost(bytes as f64 / GB, "GB stored", arguments.storage_price), requests, asked }
    }

    fn sum(&self) -> f64 {
        self.stored.price + self.asked.iter().map(|cost| cost.price).sum::<f64>()
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        if let Some(requests) = self.requests {
            let shown: Vec<String> = RequestKind::ALL
                .iter()
                .map(|kind| format!("{} {}", kind.name(), requests.of(*kind)))
                .collect();
            text.push_str(&format!(
                "requests in the {:.0} s since the server started: {}; {} bytes received\n",
                requests.seconds,
                shown.join(", "),
                requests.received_bytes
            ));
        }
        text.push_str("estimate for a month of 30 days, at the given prices:\n");
        let Cost { count, unit, price } = &self.stored;
        text.push_str(&format!("  {count:.3} {unit}, as now: {price:.2}\n"));
        for Cost { count, unit, price } in &self.asked {
            text.push_str(&format!("  {count:.3} {unit}, as since the start: {price:.2}\n"));
        }
        match self.requests {
            Some(_) if self.asked.is_empty() => {
                text.push_str("  requests: the server started a moment ago\n");
            }
            Some(_) => {}
            None => {
                text.push_str("  requests: not counted; --metrics names the admin listener of the server\n");
            }
        }
        text.push_str(&format!("  sum: {:.2}\n", self.sum()));
        text
    }

    fn to_json(&self) -> Value {
        let cost = |cost: &Cost| json!({"count": cost.count, "unit": cost.unit, "price": cost.price});
        let requests = self.requests.map(|requests| {
            json!({
                "seconds": requests.seconds, "by_kind": requests.by_kind,
                "received_bytes": requests.received_bytes,
            })
        });
        let costs: Vec<Value> = [&self.stored].into_iter().chain(&self.asked).map(cost).collect();
        json!({"requests_since_start": requests, "costs": costs, "sum": self.sum()})
    }
}

impl Requests {
    fn of(&self, kind: RequestKind) -> f64 {
        self.by_kind.get(kind.name()).copied().unwrap_or_default()
    }

    /// Reads the metrics of a server.
    fn parse(text: &str, now: f64) -> anyhow::Result<Requests> {
        let mut requests = Requests::default();
        let mut started = None;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            match name {
                "process_start_time_seconds" => started = Some(value),
                "mainstem_object_store_received_bytes_total" => requests.received_bytes = value,
                _ => {
                    let labels = name.strip_prefix("mainstem_object_store_requests_total{kind=\"");
                    if let Some(kind) = labels.and_then(|rest| rest.strip_suffix("\"}")) {
                        requests.by_kind.insert(kind.to_owned(), value);
                    }
                }
            }
        }
        if requests.by_kind.is_empty() {
            bail!("the server has no metrics of an object store");
        }
        requests.seconds = (now - started.context("the server does not say when it started")?).max(0.0);
        Ok(requests)
    }
}

/// Asks a server for its requests.
fn requests_of(address: &str) -> anyhow::Result<Requests> {
    let text = metrics(address).with_context(|| format!("the metrics of {address}"))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Requests::parse(&text, now.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bill_counts_bytes_and_requests_of_a_month() {
        let text = "# HELP x\nprocess_start_time_seconds 1000\n\
                    mainstem_object_store_requests_total{kind=\"put\"} 100\n\
                    mainstem_object_store_requests_total{kind=\"get\"} 1000\n\
                    mainstem_object_store_received_bytes_total 2000000000\n";
        let requests = Requests::parse(text, 1000.0 + 25_920.0).unwrap();
        assert_eq!((requests.seconds, requests.of(RequestKind::Put)), (25_920.0, 100.0));
        let arguments = StatusArguments {
            from: String::new(),
            metrics: None,
            storage_price: 0.02,
            write_price: 0.005,
            read_price: 0.0004,
            transfer_price: 0.01,
        };
        // A month has a hundred times these seconds.
        let bill = Bill::of(&arguments, 500_000_000_000, Some(&requests));
        let said = bill.to_text();
        for line in [
            "requests in the 25920 s since the server started: put 100, get 1000, head 0, list 0, delete 0; 2000000000 bytes received",
            "  500.000 GB stored, as now: 10.00",
            "  10.000 thousand puts and lists, as since the start: 0.05",
            "  100.000 thousand reads, as since the start: 0.04",
            "  200.000 GB received, as since the start: 2.00",
            "  sum: 12.09",
        ] {
            assert!(said.lines().any(|other| other == line), "{line} in {said}");
        }
        let found = bill.to_json();
        assert_eq!(found["requests_since_start"]["by_kind"], json!({"put": 100.0, "get": 1000.0}));
        assert_eq!(found["costs"][0], json!({"count": 500.0, "unit": "GB stored", "price": 10.0}));
        assert_eq!((found["costs"].as_array().unwrap().len(), found["sum"].as_f64()), (4, Some(bill.sum())));
        assert_eq!(Bill::of(&arguments, 0, None).to_json()["requests_since_start"], Value::Null);
        assert!(Requests::parse("a 1\n", 1.0).is_err());
    }
}
