//! Java's properties files: `key=value` or `key: value`, comments with # or !, and \ before a line's end. As in Java the
//! last value of a key counts.

use std::collections::BTreeMap;

/// What a file says, by its keys.
pub fn parse(text: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let mut whole = line.trim_start().to_owned();
        if whole.starts_with(['#', '!']) {
            continue;
        }
        while whole.ends_with('\\') {
            whole.pop();
            match lines.next() {
                Some(more) => whole.push_str(more.trim_start()),
                None => break,
            }
        }
        if let Some((key, value)) = whole.split_once(['=', ':']) {
            all.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_java_reads_them() {
        let text =
            "# a=b\n! c=d\n key = one two \nurl: http=x\nlong=a \\\n   b\\\n c\nkey=three\nnothing\nopen=x\\";
        let all = parse(text);
        let shown: Vec<_> = all.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(shown, [("key", "three"), ("long", "a bc"), ("open", "x"), ("url", "http=x")]);
    }
}
