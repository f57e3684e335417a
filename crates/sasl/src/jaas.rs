//! The line that tells Java clients their credentials (`sasl.jaas.config`).
//!
//! ```text
//! org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="a\"b";
//! ```

/// The value of the option `name`, if the line has it in quotes.
pub fn option(line: &str, name: &str) -> Option<String> {
    let mut rest = line;
    loop {
        let at = rest.find(name)?;
        let starts = rest[..at].chars().next_back().is_none_or(char::is_whitespace);
        let after = rest[at + name.len()..].trim_start();
        rest = &rest[at + name.len()..];
        let (true, Some(value)) = (starts, after.strip_prefix('=')) else { continue };
        let quoted = value.trim_start().strip_prefix('"')?;
        let mut text = String::new();
        let mut characters = quoted.chars();
        loop {
            match characters.next()? {
                '"' => return Some(text),
                '\\' => text.push(characters.next()?),
                character => text.push(character),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_java_writes_them() {
        let line = r#"a.b.UsernameModule required username="my username" password="a\"b\\";"#;
        assert_eq!(option(line, "username").as_deref(), Some("my username"));
        assert_eq!(option(line, "password").as_deref(), Some("a\"b\\"));
        assert_eq!(option(line, "name"), None);
        assert_eq!(option(r#"x username = "a"#, "username"), None);
        assert_eq!(option("x username=a;", "username"), None);
    }
}
