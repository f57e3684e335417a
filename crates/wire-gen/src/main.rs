//! Writes `crates/wire/src/generated` from the message schemas in Kafka's clients jar, and from this project's own
//! in `schemas/`.
//!
//! `mainstem-wire-gen JAR DIR` writes the files. `mainstem-wire-gen --check JAR DIR` only compares them: it fails and
//! names the first file that differs. The same jar always gives the same text. The jar comes from Maven Central: `mvn
//! dependency:copy -Dartifact=org.apache.kafka:kafka-clients:4.4.0 -DoutputDirectory=DIR`.
//!
//! The toolchain's `rustfmt` formats the text with the workspace's settings, so run the program from the workspace.

mod emit;
mod schema;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

fn main() -> Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let check = arguments.first().is_some_and(|argument| argument == "--check");
    if check {
        arguments.remove(0);
    }
    let [jar, directory] = arguments.as_slice() else {
        bail!("usage: mainstem-wire-gen [--check] KAFKA-CLIENTS.jar DIRECTORY");
    };
    let files = generate(Path::new(jar))?;
    let directory = Path::new(directory);
    if check { compare(&files, directory) } else { write(&files, directory) }
}

/// All files, by name.
fn generate(jar: &Path) -> Result<BTreeMap<String, String>> {
    let schemas = schema::load(jar)?;
    let mut files = BTreeMap::new();
    for (name, schema) in &schemas {
        let text = emit::message(schema).with_context(|| format!("schema {name}"))?;
        files.insert(format!("{}.rs", emit::snake_case(name)), format(&text)?);
    }
    files.insert("api_key.rs".to_owned(), format(&emit::api_keys(&schemas)?)?);
    files.insert("mod.rs".to_owned(), format(&emit::root(&schemas)?)?);
    Ok(files)
}

/// Formats `text` with rustfmt.
fn format(text: &str) -> Result<String> {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--quiet", "--emit", "stdout"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start rustfmt, which comes with the toolchain")?;
    let mut stdin = child.stdin.take().context("rustfmt has no input")?;
    stdin.write_all(text.as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "rustfmt refused:\n{text}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Makes `directory` hold exactly `files`.
fn write(files: &BTreeMap<String, String>, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    for stray in strays(files, directory)? {
        fs::remove_file(directory.join(stray))?;
    }
    for (name, text) in files {
        fs::write(directory.join(name), text).with_context(|| name.clone())?;
    }
    Ok(())
}

/// Fails unless `directory` holds exactly `files`.
fn compare(files: &BTreeMap<String, String>, directory: &Path) -> Result<()> {
    for (name, text) in files {
        let path = directory.join(name);
        let stored = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        ensure!(
            stored == *text,
            "{} is not what the schemas give: run mainstem-wire-gen again",
            path.display()
        );
    }
    match strays(files, directory)?.first() {
        Some(stray) => bail!("{} belongs to no schema", directory.join(stray).display()),
        None => Ok(()),
    }
}

/// Files in `directory` that are not among `files`.
fn strays(files: &BTreeMap<String, String>, directory: &Path) -> Result<Vec<String>> {
    let mut strays = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !files.contains_key(&name) {
            strays.push(name);
        }
    }
    strays.sort();
    Ok(strays)
}
