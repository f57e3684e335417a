//! The rskafka program of the clients matrix; the operations are those of matrix/program.py.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::BufRead;

use base64::{Engine, engine::general_purpose::STANDARD};
use chrono::{DateTime, Utc};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;
use serde_json::{Value, json};

type Outcome = Result<Value, Box<dyn Error>>;

const TIMEOUT_MS: i32 = 10_000;
const FETCH_BYTES: i32 = 8 << 20;
const FETCH_MS: i32 = 250;
const OPERATIONS: [&str; 7] =
    ["create_topic", "topics", "delete_topic", "produce", "read", "offset_at", "delete_records"];
const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
// Headers are a map, sorted by name, with values that are there.
const LACKS: [&str; 3] = ["null headers", "repeated headers", "header order"];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let bootstrap = std::env::args().nth(1).ok_or("usage: program HOST:PORT")?;
    let client = ClientBuilder::new(vec![bootstrap]).build().await?;
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let mut answer = match answered(&client, &request).await {
            Ok(result) => json!({ "result": result }),
            Err(error) => json!({ "error": error.to_string(), "code": -1 }),
        };
        answer["id"] = request["id"].clone();
        println!("{answer}");
    }
    Ok(())
}

async fn answered(client: &Client, request: &Value) -> Outcome {
    let topic = || request["topic"].as_str().ok_or("no topic is named");
    match request["op"].as_str().unwrap_or_default() {
        "offers" => Ok(json!({ "operations": OPERATIONS, "codecs": CODECS, "lacks": LACKS })),
        "create_topic" => {
            if request["configs"].as_object().is_some_and(|configs| !configs.is_empty()) {
                return Err("a topic is created without settings".into());
            }
            let partitions = i32::try_from(request["partitions"].as_i64().unwrap_or(1))?;
            client.controller_client()?.create_topic(topic()?, partitions, 1, TIMEOUT_MS).await?;
            Ok(Value::Null)
        }
        "topics" => Ok(client.list_topics().await?.into_iter().map(|topic| topic.name).collect()),
        "delete_topic" => {
            client.controller_client()?.delete_topic(topic()?, TIMEOUT_MS).await?;
            Ok(Value::Null)
        }
        "produce" => produce(client, topic()?, request).await,
        "read" => read(client, topic()?, &request["ends"]).await,
        "offset_at" => {
            let at = match (&request["at"], request["at"].as_str()) {
                (_, Some("earliest")) => OffsetAt::Earliest,
                (_, Some(_)) => OffsetAt::Latest,
                (at, None) => OffsetAt::Timestamp(time(at)?),
            };
            let partition = i32::try_from(request["partition"].as_i64().unwrap_or(0))?;
            Ok(json!(partition_of(client, topic()?, partition).await?.get_offset(at).await?))
        }
        "delete_records" => {
            let partition = i32::try_from(request["partition"].as_i64().unwrap_or(0))?;
            let offset = request["offset"].as_i64().ok_or("no offset")?;
            partition_of(client, topic()?, partition).await?.delete_records(offset, TIMEOUT_MS).await?;
            Ok(Value::Null)
        }
        other => Err(format!("there is no operation {other}").into()),
    }
}

async fn partition_of(client: &Client, topic: &str, partition: i32) -> Result<PartitionClient, Box<dyn Error>> {
    Ok(client.partition_client(topic, partition, UnknownTopicHandling::Retry).await?)
}

async fn produce(client: &Client, topic: &str, request: &Value) -> Outcome {
    let codec = match request["codec"].as_str() {
        Some("gzip") => Compression::Gzip,
        Some("snappy") => Compression::Snappy,
        Some("lz4") => Compression::Lz4,
        Some("zstd") => Compression::Zstd,
        _ => Compression::NoCompression,
    };
    // A call of the library has the records of one partition.
    let mut batches: BTreeMap<i32, Vec<(usize, Record)>> = BTreeMap::new();
    let records = request["records"].as_array().ok_or("no records")?;
    for (place, record) in records.iter().enumerate() {
        let mut headers = BTreeMap::new();
        for pair in record["headers"].as_array().into_iter().flatten() {
            headers.insert(pair[0].as_str().unwrap_or_default().to_owned(), bytes(&pair[1])?.unwrap_or_default());
        }
        let (key, value) = (bytes(&record["key"])?, bytes(&record["value"])?);
        let made = Record { key, value, headers, timestamp: time(&record["timestamp"])? };
        let partition = i32::try_from(record["partition"].as_i64().ok_or("no partition")?)?;
        batches.entry(partition).or_default().push((place, made));
    }
    let mut places = vec![Value::Null; records.len()];
    for (partition, batch) in batches {
        let (numbers, batch): (Vec<usize>, Vec<Record>) = batch.into_iter().unzip();
        let offsets = partition_of(client, topic, partition).await?.produce(batch, codec).await?;
        for (place, offset) in numbers.into_iter().zip(offsets) {
            places[place] = json!([partition, offset]);
        }
    }
    Ok(Value::Array(places))
}

async fn read(client: &Client, topic: &str, ends: &Value) -> Outcome {
    let mut all = Vec::new();
    for (partition, end) in ends.as_object().ok_or("no ends")? {
        let (partition, end) = (partition.parse()?, end.as_i64().ok_or("no end")?);
        let source = partition_of(client, topic, partition).await?;
        let mut next = source.get_offset(OffsetAt::Earliest).await?;
        while next < end {
            let (found, _) = source.fetch_records(next, 1..FETCH_BYTES, FETCH_MS).await?;
            for one in found.into_iter().filter(|one| one.offset >= next && one.offset < end).collect::<Vec<_>>() {
                next = one.offset + 1;
                let Record { key, value, headers, timestamp } = one.record;
                let headers: Vec<Value> =
                    headers.into_iter().map(|(name, value)| json!([name, STANDARD.encode(value)])).collect();
                all.push(json!({
                    "partition": partition, "offset": one.offset, "timestamp": timestamp.timestamp_millis(),
                    "key": key.map(|key| STANDARD.encode(key)), "value": value.map(|value| STANDARD.encode(value)),
                    "headers": headers,
                }));
            }
        }
    }
    Ok(Value::Array(all))
}

/// Base64, or null.
fn bytes(text: &Value) -> Result<Option<Vec<u8>>, Box<dyn Error>> {
    Ok(text.as_str().map(|text| STANDARD.decode(text)).transpose()?)
}

fn time(millis: &Value) -> Result<DateTime<Utc>, Box<dyn Error>> {
    let millis = millis.as_i64().ok_or("no time")?;
    Ok(DateTime::from_timestamp_millis(millis).ok_or("a time out of bounds")?)
}
