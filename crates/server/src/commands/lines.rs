//! The records in what `mainstem produce` reads: lines of text, with or without a key in them, or lines of JSON as `consume --format
//! json` prints them.

use std::borrow::Cow;

use anyhow::{Context, bail};
use serde_json::{Map, Value};
use wire::Bytes;

use crate::arguments::{Input, ProduceArguments};

/// One record, as far as its line says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Line<'a> {
    pub partition: Option<i32>,
    /// Milliseconds since the Unix epoch.
    pub timestamp: Option<i64>,
    pub key: Option<Cow<'a, [u8]>>,
    pub value: Option<Cow<'a, [u8]>>,
    pub headers: Vec<(Bytes, Option<Bytes>)>,
}

impl Line<'_> {
    /// Bytes of the record, without what is around them.
    pub fn len(&self) -> usize {
        let of = |bytes: &Option<Cow<'_, [u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
        let header =
            |(name, value): &(Bytes, Option<Bytes>)| name.len() + value.as_ref().map_or(0, Bytes::len);
        of(&self.key) + of(&self.value) + self.headers.iter().map(header).sum::<usize>()
    }
}

/// Reads a line. What the arguments say of all records holds where the line says nothing.
pub fn parse<'a>(bytes: &'a [u8], arguments: &'a ProduceArguments) -> anyhow::Result<Line<'a>> {
    let mut line = match arguments.input {
        Input::Lines => of_text(bytes, arguments)?,
        Input::Json => of_json(bytes)?,
    };
    line.partition = line.partition.or(arguments.partition);
    line.timestamp = line.timestamp.or(arguments.timestamp);
    if line.key.is_none() && arguments.key_separator.is_none() {
        line.key = arguments.key.as_deref().map(|key| Cow::Borrowed(key.as_bytes()));
    }
    let header = |(name, value): &(String, String)| {
        (Bytes::copy_from_slice(name.as_bytes()), Some(Bytes::copy_from_slice(value.as_bytes())))
    };
    line.headers.extend(arguments.headers.iter().map(header));
    Ok(line)
}

fn of_text<'a>(bytes: &'a [u8], arguments: &ProduceArguments) -> anyhow::Result<Line<'a>> {
    let (key, value) = match arguments.key_separator.as_deref().filter(|text| !text.is_empty()) {
        None => (None, bytes),
        Some(separator) => {
            let separator = separator.as_bytes();
            let at = bytes.windows(separator.len()).position(|window| window == separator);
            let at = at.context("it has no key: the key separator does not occur in it")?;
            (Some(&bytes[..at]), &bytes[at + separator.len()..])
        }
    };
    let is_null = |bytes: &&[u8]| arguments.null.as_deref().is_some_and(|null| null.as_bytes() == *bytes);
    let given = |bytes: Option<&'a [u8]>| bytes.filter(|bytes| !is_null(bytes)).map(Cow::Borrowed);
    Ok(Line { key: given(key), value: given(Some(value)), ..Line::default() })
}

fn of_json(bytes: &[u8]) -> anyhow::Result<Line<'static>> {
    let Value::Object(mut object) = serde_json::from_slice(bytes).context("it is no JSON")? else {
        bail!("it is no JSON object");
    };
    let mut number = |name: &str| -> anyhow::Result<Option<i64>> {
        match object.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(number) => Ok(Some(number.as_i64().with_context(|| format!("{name} is no whole number"))?)),
        }
    };
    let (partition, timestamp) = (number("partition")?, number("timestamp")?);
    let partition = partition.map(i32::try_from).transpose().context("there is no such partition")?;
    let (key, value) = (take_bytes(&mut object, "key")?, take_bytes(&mut object, "value")?);
    let headers = match object.remove("headers") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(headers)) => headers.into_iter().map(of_header).collect::<anyhow::Result<_>>()?,
        Some(_) => bail!("headers is no array"),
    };
    // Where a record was is in what `consume` prints, and does not say where this one goes.
    for known in ["topic", "offset"] {
        object.remove(known);
    }
    if let Some(name) = object.keys().next() {
        bail!("there is no field {name}");
    }
    Ok(Line { partition, timestamp, key: key.map(Cow::Owned), value: value.map(Cow::Owned), headers })
}

fn of_header(header: Value) -> anyhow::Result<(Bytes, Option<Bytes>)> {
    let Value::Object(mut object) = header else { bail!("a header is no object") };
    let name = take_bytes(&mut object, "name")?.context("a header has no name")?;
    Ok((Bytes::from(name), take_bytes(&mut object, "value")?.map(Bytes::from)))
}

/// The bytes of a field: text, or `NAME_hex` in hexadecimal. Other JSON stands for its own text.
fn take_bytes(object: &mut Map<String, Value>, name: &str) -> anyhow::Result<Option<Vec<u8>>> {
    let hexadecimal = format!("{name}_hex");
    if let Some(digits) = object.remove(&hexadecimal) {
        let digits = digits.as_str().with_context(|| format!("{hexadecimal} is no text"))?;
        return Ok(Some(
            from_hexadecimal(digits).with_context(|| format!("{hexadecimal} is not hexadecimal"))?,
        ));
    }
    Ok(match object.remove(name) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.into_bytes()),
        Some(other) => Some(other.to_string().into_bytes()),
    })
}

fn from_hexadecimal(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn arguments(given: &[&str]) -> ProduceArguments {
        let all = ["mainstem", "produce", "t"].iter().chain(given);
        match Arguments::parse_from(all).command {
            Some(Command::Produce(arguments)) => arguments,
            other => panic!("{other:?}"),
        }
    }

    fn line(key: Option<&'static [u8]>, value: Option<&'static [u8]>) -> Line<'static> {
        Line { key: key.map(Cow::Borrowed), value: value.map(Cow::Borrowed), ..Line::default() }
    }

    #[test]
    fn a_line_is_a_value_or_a_key_and_a_value() {
        let plain = arguments(&[]);
        assert_eq!(parse(b"a b", &plain).unwrap(), line(None, Some(b"a b")));
        let keyed = arguments(&["--key-separator", ":", "--null", "NULL"]);
        assert_eq!(parse(b"k:v:w", &keyed).unwrap(), line(Some(b"k"), Some(b"v:w")));
        assert_eq!(parse(b"k:NULL", &keyed).unwrap(), line(Some(b"k"), None));
        assert_eq!(parse(b"NULL:", &keyed).unwrap(), line(None, Some(b"")));
        assert!(parse(b"nothing", &keyed).unwrap_err().to_string().contains("no key"));
    }

    #[test]
    fn arguments_say_what_lines_do_not() {
        let given =
            ["--key", "k", "--header", "a=b", "--header", "c=", "--timestamp", "5", "--partition", "2"];
        let all = arguments(&given);
        let found = parse(b"v", &all).unwrap();
        let header = |name: &'static str, value: &'static str| (Bytes::from(name), Some(Bytes::from(value)));
        assert_eq!((found.partition, found.timestamp, found.len()), (Some(2), Some(5), 5));
        assert_eq!(
            (found.key.as_deref(), found.headers),
            (Some(&b"k"[..]), vec![header("a", "b"), header("c", "")])
        );
    }

    #[test]
    fn json_is_what_consume_prints() {
        let json = arguments(&["--input", "json"]);
        let text = br#"{"headers":[{"name":"h","value":"x"},{"name":"n","value":null}],"key":null,"offset":17,"partition":3,"timestamp":99,"topic":"t","value_hex":"ff01"}"#;
        let found = parse(text, &json).unwrap();
        assert_eq!((found.partition, found.timestamp), (Some(3), Some(99)));
        assert_eq!((found.key.as_deref(), found.value.as_deref()), (None, Some(&b"\xff\x01"[..])));
        let headers = vec![(Bytes::from("h"), Some(Bytes::from("x"))), (Bytes::from("n"), None)];
        assert_eq!(found.headers, headers);
        assert_eq!(parse(br#"{"key":"k"}"#, &json).unwrap(), line(Some(b"k"), None));
        assert_eq!(parse(br#"{"value":{"a":1}}"#, &json).unwrap(), line(None, Some(br#"{"a":1}"#)));
        for (text, why) in [
            (&b"[]"[..], "no JSON object"),
            (b"{", "no JSON"),
            (br#"{"valeu":"x"}"#, "no field valeu"),
            (br#"{"value_hex":"f"}"#, "not hexadecimal"),
            (br#"{"partition":"x"}"#, "no whole number"),
            (br#"{"headers":[{"value":"x"}]}"#, "no name"),
        ] {
            let error = parse(text, &json).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
