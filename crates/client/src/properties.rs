//! Java's properties files: `key=value`, `key: value` or `key value`, comments with # or !, and \ before a line's end. As in
//! Java the last value of a key counts, and a key alone has an empty value. Other escapes than \ at a line's end are not
//! supported: \ stands for itself.

use std::collections::BTreeMap;

/// Values by their keys.
pub type Properties = BTreeMap<String, String>;

/// Parses the text of a file.
pub fn parse(text: &str) -> Properties {
    let mut all = Properties::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let mut line = line.trim_start().to_owned();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        while line.ends_with('\\') {
            line.pop();
            match lines.next() {
                Some(more) => line.push_str(more.trim_start()),
                None => break,
            }
        }
        let end = line.find(['=', ':', ' ', '\t']).unwrap_or(line.len());
        let (key, rest) = line.split_at(end);
        let rest = rest.trim_start();
        let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim();
        all.insert(key.to_owned(), value.to_owned());
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
