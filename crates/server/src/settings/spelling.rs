//! The syntax of settings: addresses, numbers in files, and suggestions for misspelled names.

/// Host and port of `host:port`.
pub fn host_port(text: &str) -> Result<(String, u16), String> {
    let wrong = || "it must be host:port, like 127.0.0.1:9092 or [::1]:9092".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if host.is_empty() || (bare.is_none() && host.contains(':')) {
        return Err(wrong());
    }
    let port = port.parse().map_err(|_| format!("{port} is not a port number"))?;
    Ok((bare.unwrap_or(host).to_owned(), port))
}

/// The parts of a list separated by commas. An empty text is an empty list.
pub fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// The environment variable for a setting, without its prefix.
pub fn variable_suffix(name: &str) -> String {
    name.to_uppercase().replace(['.', '-'], "_")
}

/// A value in TOML: numbers and truth values bare, everything else in quotes.
pub fn toml_value(text: &str) -> String {
    let bare = text.parse::<i64>().is_ok() || matches!(text, "true" | "false");
    if bare { text.to_owned() } else { toml::Value::String(text.to_owned()).to_string() }
}

/// The value of a setting in JSON, of the type of its default: a number, a truth value or a text.
pub fn json_value(text: &str, default: &str) -> serde_json::Value {
    if let (Ok(number), Ok(_)) = (text.parse::<i64>(), default.parse::<i64>()) {
        return number.into();
    }
    if let (Ok(number), Ok(_)) = (text.parse::<f64>(), default.parse::<f64>()) {
        return number.into();
    }
    match (text.parse::<bool>(), default.parse::<bool>()) {
        (Ok(either), Ok(_)) => either.into(),
        _ => text.into(),
    }
}

/// The name in `names` with the smallest edit distance to `name`, if that distance is small.
pub fn most_similar<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (letters, best) = names.map(|other| (letters_apart(name, other), other)).min()?;
    (letters <= name.len().max(6) / 3).then_some(best)
}

/// Levenshtein distance.
fn letters_apart(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let here = (diagonal + usize::from(x != *y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], here);
        }
    }
    row[b.len()]
}
