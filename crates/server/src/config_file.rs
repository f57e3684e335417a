//! A configuration file as a flat list: TOML whose keys are Kafka's dotted names.
//!
//! TOML reads `log.retention.ms = 5` as nested tables. This module joins them again, so that a name can be written
//! bare, quoted or below a `[log]` heading. It does not know which names are valid.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One line of the file.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    /// The value as text, whatever its type in the file.
    pub value: String,
    /// Counted from 1.
    pub line: usize,
}

/// The reason why the file cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub struct FileError {
    /// Counted from 1.
    pub line: usize,
    pub problem: String,
}

/// All entries, ordered by line.
pub fn parse(text: &str) -> Result<Vec<Entry>, FileError> {
    let line_of = |position: usize| {
        1 + text.as_bytes()[..position.min(text.len())].iter().filter(|b| **b == b'\n').count()
    };
    let table = DeTable::parse(text).map_err(|error| FileError {
        line: line_of(error.span().map_or(0, |span| span.start)),
        problem: error.message().replace('\n', ", "),
    })?;
    let mut entries = Vec::new();
    flatten("", table.get_ref(), &line_of, &mut entries)?;
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

fn flatten(
    prefix: &str,
    table: &DeTable<'_>,
    line_of: &dyn Fn(usize) -> usize,
    entries: &mut Vec<Entry>,
) -> Result<(), FileError> {
    for (key, value) in table {
        let name =
            if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
        let line = line_of(key.span().start);
        match value.get_ref() {
            DeValue::Table(inner) => flatten(&name, inner, line_of, entries)?,
            _ => {
                let value = scalar(value).map_err(|kind| FileError {
                    line,
                    problem: format!("{name} must be one value, not {kind}"),
                })?;
                entries.push(Entry { name, value, line });
            }
        }
    }
    Ok(())
}

fn scalar(value: &Spanned<DeValue<'_>>) -> Result<String, &'static str> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Boolean(truth) => Ok(truth.to_string()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Integer(number) => {
            let radix = number.radix();
            let parsed = i64::from_str_radix(number.as_str(), radix).ok();
            Ok(parsed.map_or_else(|| number.as_str().to_owned(), |number| number.to_string()))
        }
        DeValue::Datetime(_) => Err("a date"),
        DeValue::Array(_) => Err("an array"),
        DeValue::Table(_) => Err("a table"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_joined_and_lines_are_known() {
        let text = "# first\na.b.c = 0x10\n\"a.d\" = true\n\n[x.y]\nz = 'q' # end\nw = 1.5\n";
        let entries = parse(text).unwrap();
        let flat: Vec<_> =
            entries.iter().map(|entry| (entry.name.as_str(), entry.value.as_str(), entry.line)).collect();
        assert_eq!(flat, [("a.b.c", "16", 2), ("a.d", "true", 3), ("x.y.z", "q", 6), ("x.y.w", "1.5", 7)]);
    }

    #[test]
    fn what_is_not_one_value_is_refused_with_its_line() {
        assert_eq!(parse("a = 1\nb.c = []").unwrap_err().line, 2);
        let twice = parse("a.b = 1\n\na.b = 2").unwrap_err();
        assert_eq!((twice.line, twice.problem.contains("duplicate key")), (3, true), "{}", twice.problem);
    }
}
