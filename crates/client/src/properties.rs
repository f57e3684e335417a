//! Java's properties files: `key=value`, `key: value` or `key value`, comments with # or !, and \ before a line's end. As in
//! Java the last value of a key counts, and a key alone has an empty value. Other escapes than \ at a line's end are not
//! supported: \ stands for itself.

use std::collections::BTreeMap;

/// Values by their keys.
pub type Properties = BTreeMap<String, String>;

/// One key with its value, as it stands in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Where it begins, counted from 1.
    pub line: usize,
}

/// Parses the text of a file.
pub fn parse(text: &str) -> Properties {
    lines(text).into_iter().map(|Property { key, value, .. }| (key, value)).collect()
}

/// All keys of a file in their order, also those that stand there twice.
pub fn lines(text: &str) -> Vec<Property> {
    let mut all = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let mut line = line.trim_start().to_owned();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        while line.ends_with('\\') {
            line.pop();
            match lines.next() {
                Some((more, _)) => line.push_str(more.trim_start()),
                None => break,
            }
        }
        let end = line.find(['=', ':', ' ', '\t']).unwrap_or(line.len());
        let (key, rest) = line.split_at(end);
        let rest = rest.trim_start();
        let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim();
        all.push(Property { key: key.to_owned(), value: value.to_owned(), line: number });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(all: &Properties) -> Vec<(&str, &str)> {
        all.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    #[test]
    fn lines_are_read_as_java_reads_them() {
        let text =
            "# a=b\n! c=d\n key = one two \nurl: http=x\nlong=a \\\n   b\\\n c\nkey=three\nnothing\nopen=x\\";
        let expected =
            [("key", "three"), ("long", "a bc"), ("nothing", ""), ("open", "x"), ("url", "http=x")];
        assert_eq!(pairs(&parse(text)), expected);
    }

    #[test]
    fn all_separators_are_javas() {
        let all =
            parse("a=1\n# no\n b : 2 \nc 3\nd=x=\\\n   y\ne\n!no\nsasl.jaas.config=M required u=\"v\";");
        let expected = [
            ("a", "1"),
            ("b", "2"),
            ("c", "3"),
            ("d", "x=y"),
            ("e", ""),
            ("sasl.jaas.config", "M required u=\"v\";"),
        ];
        assert_eq!(pairs(&all), expected);
    }
}
