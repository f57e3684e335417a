//! How `mainstem consume` prints a record: its value, key and value, JSON, hexadecimal, or by a template.

use std::io::{self, Write};

use anyhow::bail;
use serde_json::{Map, Value, json};
use wire::Bytes;
use wire::records::RecordView;

use super::Misuse;
use crate::arguments::{ConsumeArguments, Format, Output};

/// A record with its place.
#[derive(Debug)]
pub struct Found<'a> {
    pub topic: &'a str,
    pub partition: i32,
    pub offset: i64,
    /// Milliseconds since the Unix epoch.
    pub timestamp: i64,
    pub record: &'a RecordView,
}

/// What is printed of each record.
#[derive(Debug)]
pub enum Printed {
    Line(Format),
    Template(Vec<Piece>),
}

/// A part of a template, with kcat's letters.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    Text(Vec<u8>),
    Topic,
    Partition,
    Offset,
    Timestamp,
    Key,
    KeyBytes,
    Value,
    ValueBytes,
    Headers,
}

impl Printed {
    pub fn of(arguments: &ConsumeArguments) -> anyhow::Result<Printed> {
        Ok(match &arguments.template {
            Some(template) => Printed::Template(parse(template).map_err(|error| Misuse(error.to_string()))?),
            None if arguments.bootstrap.shown.output == Output::Json => Printed::Line(Format::Json),
            None => Printed::Line(arguments.format),
        })
    }

    /// Prints a record: a line, or what the template says and nothing else.
    pub fn print(&self, found: &Found<'_>, output: &mut impl Write) -> io::Result<()> {
        let (key, value) = (found.record.key.as_deref(), found.record.value.as_deref());
        match self {
            Printed::Template(pieces) => {
                return pieces.iter().try_for_each(|piece| piece.print(found, output));
            }
            Printed::Line(Format::Value) => output.write_all(value.unwrap_or_default())?,
            Printed::Line(Format::KeyValue) => {
                output.write_all(key.unwrap_or(b"null"))?;
                output.write_all(b"\t")?;
                output.write_all(value.unwrap_or(b"null"))?;
            }
            Printed::Line(Format::Hex) => {
                output.write_all(hexadecimal(value.unwrap_or_default()).as_bytes())?
            }
            Printed::Line(Format::Json) => serde_json::to_writer(&mut *output, &to_json(found))?,
        }
        output.write_all(b"\n")
    }
}

impl Piece {
    fn print(&self, found: &Found<'_>, output: &mut impl Write) -> io::Result<()> {
        let (key, value) = (found.record.key.as_deref(), found.record.value.as_deref());
        // As in kcat: the length of what is null is -1.
        let bytes = |of: Option<&[u8]>| of.map_or("-1".to_owned(), |of| of.len().to_string());
        match self {
            Piece::Text(text) => output.write_all(text),
            Piece::Topic => output.write_all(found.topic.as_bytes()),
            Piece::Partition => write!(output, "{}", found.partition),
            Piece::Offset => write!(output, "{}", found.offset),
            Piece::Timestamp => write!(output, "{}", found.timestamp),
            Piece::Key => output.write_all(key.unwrap_or_default()),
            Piece::KeyBytes => output.write_all(bytes(key).as_bytes()),
            Piece::Value => output.write_all(value.unwrap_or_default()),
            Piece::ValueBytes => output.write_all(bytes(value).as_bytes()),
            Piece::Headers => {
                for (number, (name, value)) in found.record.headers.iter().enumerate() {
                    output.write_all(if number > 0 { b"," } else { b"" })?;
                    output.write_all(&name)?;
                    output.write_all(b"=")?;
                    output.write_all(value.as_deref().unwrap_or(b"NULL"))?;
                }
                Ok(())
            }
        }
    }
}

/// Parses a template: `%t` topic, `%p` partition, `%o` offset, `%T` timestamp, `%k` key, `%K` its bytes, `%s` value, `%S` its bytes, `%h`
/// headers, `%%` a percent sign; `\n`, `\t`, `\r` and `\\`.
fn parse(template: &str) -> anyhow::Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut text = Vec::new();
    let mut letters = template.chars();
    while let Some(letter) = letters.next() {
        let plain = match letter {
            '%' => {
                let piece = match letters.next() {
                    Some('t') => Piece::Topic,
                    Some('p') => Piece::Partition,
                    Some('o') => Piece::Offset,
                    Some('T') => Piece::Timestamp,
                    Some('k') => Piece::Key,
                    Some('K') => Piece::KeyBytes,
                    Some('s') => Piece::Value,
                    Some('S') => Piece::ValueBytes,
                    Some('h') => Piece::Headers,
                    Some('%') => {
                        text.push(b'%');
                        continue;
                    }
                    other => bail!(
                        "the template has %{}: there are %t %p %o %T %k %K %s %S %h %%",
                        other.map_or(String::new(), String::from)
                    ),
                };
                if !text.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                }
                pieces.push(piece);
                continue;
            }
            '\\' => match letters.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some('\\') => '\\',
                other => bail!(
                    "the template has \\{}: there are \\n \\t \\r \\\\",
                    other.map_or(String::new(), String::from)
                ),
            },
            other => other,
        };
        text.extend(plain.encode_utf8(&mut [0; 4]).bytes());
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

fn to_json(found: &Found<'_>) -> Value {
    let mut object = Map::new();
    object.insert("topic".into(), found.topic.into());
    object.insert("partition".into(), found.partition.into());
    put_record(&mut object, found.offset, found.timestamp, found.record);
    Value::Object(object)
}

/// Adds a record to an object, with its offset and its timestamp in milliseconds.
pub fn put_record(object: &mut Map<String, Value>, offset: i64, timestamp: i64, record: &RecordView) {
    object.insert("offset".into(), offset.into());
    object.insert("timestamp".into(), timestamp.into());
    put_bytes(object, "key", record.key.as_deref());
    put_bytes(object, "value", record.value.as_deref());
    if !record.headers.is_empty() {
        let header = |(name, value): (Bytes, Option<Bytes>)| {
            let mut header = Map::new();
            put_bytes(&mut header, "name", Some(&name));
            put_bytes(&mut header, "value", value.as_deref());
            header
        };
        object.insert("headers".into(), json!(record.headers.iter().map(header).collect::<Vec<_>>()));
    }
}

/// Adds bytes to an object: as text if they are UTF-8, otherwise in hexadecimal under a name that says so.
fn put_bytes(object: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    match bytes.map(std::str::from_utf8) {
        None => object.insert(name.into(), Value::Null),
        Some(Ok(text)) => object.insert(name.into(), text.into()),
        Some(Err(_)) => object.insert(format!("{name}_hex"), hexadecimal(bytes.unwrap_or_default()).into()),
    };
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> RecordView {
        RecordView {
            offset_delta: 0,
            timestamp_delta: 0,
            key: None,
            value: Some(Bytes::from_static(b"\xff\x01")),
            headers: wire::records::Headers::from(
                &[
                    (Bytes::from_static(b"h"), Some(Bytes::from_static("ä".as_bytes()))),
                    (Bytes::from_static(b"n"), None),
                ][..],
            ),
        }
    }

    fn printed(printed: &Printed) -> Vec<u8> {
        let (record, mut output) = (record(), Vec::new());
        let found = Found { topic: "t", partition: 3, offset: 17, timestamp: 99, record: &record };
        printed.print(&found, &mut output).unwrap();
        output
    }

    #[test]
    fn a_record_as_json_keeps_every_byte() {
        assert_eq!(
            String::from_utf8(printed(&Printed::Line(Format::Json))).unwrap(),
            "{\"headers\":[{\"name\":\"h\",\"value\":\"ä\"},{\"name\":\"n\",\"value\":null}],\"key\":null,\"offset\":17,\
             \"partition\":3,\"timestamp\":99,\"topic\":\"t\",\"value_hex\":\"ff01\"}\n"
        );
    }

    #[test]
    fn other_forms() {
        assert_eq!(printed(&Printed::Line(Format::Hex)), b"ff01\n");
        assert_eq!(printed(&Printed::Line(Format::KeyValue)), b"null\t\xff\x01\n");
        let template = Printed::Template(parse("%t/%p@%o %T k=%k(%K) v=%s(%S) %h 100%%\\t\\\\\\n").unwrap());
        assert_eq!(printed(&template), b"t/3@17 99 k=(-1) v=\xff\x01(2) h=\xc3\xa4,n=NULL 100%\t\\\n");
        for wrong in ["%x", "%", "\\x", "\\"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
