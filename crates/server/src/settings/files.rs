//! Files of settings: TOML, or a `server.properties` of Kafka's.

use std::collections::BTreeMap;
use std::path::Path;

use client::properties;

use super::kafka::{Translated, translate};
use super::{Settings, SettingsError, Source};
use crate::config_file::{self, Entry};

impl Settings {
    pub(super) fn apply_file(
        &mut self,
        path: &Path,
        environment: &BTreeMap<String, String>,
    ) -> Result<(), SettingsError> {
        let Translated { settings, without_meaning } = self.read_file(path)?;
        without_meaning.iter().try_for_each(|entry| check_without_meaning(path, entry))?;
        settings.iter().try_for_each(|entry| self.apply_entry(path, entry, environment))
    }

    fn apply_entry(
        &mut self,
        path: &Path,
        entry: &Entry,
        environment: &BTreeMap<String, String>,
    ) -> Result<(), SettingsError> {
        let source = Source::File { path: path.to_owned(), line: entry.line };
        self.apply(&entry.name, &entry.value, source, environment)
    }

    /// The settings of a file: of Kafka's if it is called `*.properties`, otherwise TOML.
    fn read_file(&mut self, path: &Path) -> Result<Translated, SettingsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| SettingsError::Unreadable { path: path.to_owned(), error })?;
        if path.extension().is_some_and(|end| end == "properties") {
            let translated = translate(properties::lines(&text));
            self.without_meaning =
                translated.without_meaning.iter().map(|entry| entry.name.clone()).collect();
            return Ok(translated);
        }
        let settings = config_file::parse(&text).map_err(|error| SettingsError::Toml {
            path: path.to_owned(),
            line: error.line,
            problem: error.problem,
        })?;
        Ok(Translated { settings, without_meaning: Vec::new() })
    }

    /// Everything that is wrong with a file by itself, and the names in it that mean nothing here.
    pub fn check_file(
        path: &Path,
        environment: impl Iterator<Item = (String, String)>,
    ) -> (Vec<SettingsError>, Vec<String>) {
        let (mut settings, environment) = (Settings::default(), environment.collect());
        let file = match settings.read_file(path) {
            Ok(file) => file,
            Err(error) => return (vec![error], Vec::new()),
        };
        let wrong = |entry: &Entry| settings.apply_entry(path, entry, &environment).err();
        let mut errors: Vec<SettingsError> = file.settings.iter().filter_map(wrong).collect();
        errors
            .extend(file.without_meaning.iter().filter_map(|entry| check_without_meaning(path, entry).err()));
        if errors.is_empty() {
            errors.extend(settings.resolve().err());
        }
        (errors, settings.without_meaning)
    }
}

/// Checks a value that changes nothing here as Kafka does: what is wrong there is most likely a mistake.
fn check_without_meaning(path: &Path, entry: &Entry) -> Result<(), SettingsError> {
    let Some(problem) = broker::accepted_problem(&entry.name, &entry.value) else { return Ok(()) };
    // Kafka's words begin with the value and the name.
    let begin = format!(" for configuration {}: ", entry.name);
    let problem = problem.split_once(&begin).map_or(problem.clone(), |(_, why)| why.to_owned());
    let source_of_it = Source::File { path: path.to_owned(), line: entry.line };
    Err(SettingsError::Value { name: entry.name.clone(), value: entry.value.clone(), source_of_it, problem })
}
