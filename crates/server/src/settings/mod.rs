//! The settings of the whole server: its own and the broker's, from flags, environment, file and defaults.
//!
//! Precedence: flag, then `MAINSTEM_*` environment variable, then file, then default. Every refusal names the setting,
//! the value, its source and the problem. The broker crate defines the meaning of the broker's settings.

mod files;
mod kafka;
mod listeners;
mod references;
mod spelling;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use broker::{Config, ConfigError, Kind, Setting};
use disk::Engine;

use crate::arguments::ServerArguments;
pub use listeners::{
    ClientAuthentication, ListenerSettings, OauthSettings, Pem, SaslSettings, SslSettings, TlsVersion,
};
pub use spelling::list;
use spelling::{host_port, json_value, most_similar, toml_value, variable_suffix};
use table::{HIDDEN, ROWS, Scope, Text, Texts};

/// Environment variables with this prefix are settings.
const ENVIRONMENT_PREFIX: &str = "MAINSTEM_";
/// Suffixes of variables that are no settings of the server. The project's scripts read them, and `mainstem user` reads
/// the last one.
const OF_OTHERS: [&str; 8] =
    ["BENCH_BIN", "BIN", "BLESS", "CACHE", "SEEDS", "WIRE_DUMP", "WRITE_DOCS", "PASSWORD"];

/// A setting of one listener is written `listener.name.<name>.<setting>`.
pub const OVERRIDE_PREFIX: &str = "listener.name.";

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    Text,
    Json,
}

const LOG_FORMATS: [(&str, LogFormat); 3] =
    [("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json)];

/// All settings.
#[derive(Clone, Debug)]
pub struct Settings {
    pub data_dir: PathBuf,
    /// As given: `log.dir`, and `log.dirs`, which takes precedence.
    pub log_dir: Option<PathBuf>,
    pub log_dirs: Vec<PathBuf>,
    /// Host and port as given. They are resolved at the bind.
    pub listen: String,
    /// The settings of each listener; at least one.
    pub listeners: Vec<ListenerSettings>,
    /// `None` for no admin listener.
    pub admin_listen: Option<String>,
    pub log_level: String,
    pub log_format: LogFormat,
    pub engine: Engine,
    pub broker: Config,
    /// The given settings of `table.rs`.
    texts: Texts,
    /// The sources of values that are not defaults.
    sources: BTreeMap<String, Source>,
    /// Names of Kafka's settings in the file that mean nothing here.
    without_meaning: Vec<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        let mut settings = Settings {
            data_dir: PathBuf::new(),
            log_dir: None,
            log_dirs: Vec::new(),
            listen: String::new(),
            listeners: Vec::new(),
            admin_listen: None,
            log_level: String::new(),
            log_format: LogFormat::Auto,
            engine: Engine::Auto,
            broker: Config::default(),
            texts: Texts::new(),
            sources: BTreeMap::new(),
            without_meaning: Vec::new(),
        };
        for (name, default, _) in OWN {
            settings.set(name, default).expect("the defaults are valid");
        }
        settings.resolve().expect("the defaults are valid");
        settings
    }
}

/// The settings that are not the broker's: name, default, description.
const OWN: [(&str, &str, &str); 8] = [
    ("data.dir", "./data", "Where the metadata is kept and, where log.dirs names no others, the log."),
    (
        "log.dirs",
        "",
        "Directories, separated by commas, each with a log of its own, best each on a disk of its own. A new partition\n\
         goes to the one with the most free space and stays there; a directory that is lost takes only its partitions\n\
         down. Empty for log.dir.",
    ),
    ("log.dir", "", "The only directory with a log; empty for data.dir."),
    ("listen", "127.0.0.1:9092", "Where clients connect in plain text, host:port, if listeners is empty."),
    ("admin.listen", "127.0.0.1:9644", "Where metrics and health are served over HTTP; empty for nowhere."),
    (
        "log.level",
        "info",
        "What is logged: error, warn, info, debug or trace, also by module (broker=debug,info).",
    ),
    (
        "log.format",
        "auto",
        "How it is logged: text, json, or auto for text on a terminal and JSON elsewhere.",
    ),
    (
        "disk.engine",
        "auto",
        "How the disk is written to: uring (io_uring and O_DIRECT), direct (O_DIRECT and threads), plain (the page cache and a\n\
         thread), or auto for the first of them that works.",
    ),
];

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    Flag(&'static str),
    Environment(String),
    File {
        path: PathBuf,
        line: usize,
    },
    /// Set while the server ran.
    Client,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => write!(f, "the default"),
            Source::Flag(flag) => write!(f, "flag {flag}"),
            Source::Environment(name) => write!(f, "environment variable {name}"),
            Source::File { path, line } => write!(f, "{}:{line}", path.display()),
            Source::Client => write!(f, "set by a client"),
        }
    }
}

/// The reason why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("{name} = {value} ({source_of_it}): {problem}")]
    Value { name: String, value: String, source_of_it: Source, problem: String },
    #[error("{}", unknown_text(.name, .value, .source_of_it, .suggestion))]
    Unknown { name: String, value: String, source_of_it: Source, suggestion: Option<String> },
    #[error("the configuration file {} cannot be read: {error}", .path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    #[error("{}:{line}: this is not valid TOML: {problem}", .path.display())]
    Toml { path: PathBuf, line: usize, problem: String },
}

fn unknown_text(name: &str, value: &str, source: &Source, suggestion: &Option<String>) -> String {
    let hint = match suggestion {
        Some(name) => format!(", did you mean {name}?"),
        None => "; `mainstem config` lists them all".into(),
    };
    format!("{name} = {value} ({source}): there is no such setting{hint}")
}

/// The problem with one name or value, before its source is known.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    Unknown,
    Invalid(String),
}

impl Settings {
    /// Loads all settings from all sources. `environment` is the result of [`std::env::vars`].
    pub fn load(
        arguments: &ServerArguments,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        // Sorted, so that the same one of several mistakes is always reported.
        let environment: BTreeMap<String, String> = environment.collect();
        if let Some(path) = &arguments.config {
            settings.apply_file(path, &environment)?;
        }
        for (variable, value) in &environment {
            settings.apply_variable(variable, value, &environment)?;
        }
        let flags = [
            ("--data-dir", "data.dir", &arguments.data_dir),
            ("--listen", "listen", &arguments.listen),
            ("--admin-listen", "admin.listen", &arguments.admin_listen),
        ];
        for (name, value) in &arguments.settings {
            settings.apply(name, value, Source::Flag("--set"), &environment)?;
        }
        for (flag, name, value) in flags {
            if let Some(value) = value {
                settings.apply(name, value, Source::Flag(flag), &environment)?;
            }
        }
        settings.resolve()?;
        if let Some(problem) = settings.broker.connections_problem() {
            return Err(settings.refuse("max.connections.per.ip", problem.into()));
        }
        Ok(settings)
    }

    /// Derives the settings of each listener.
    fn resolve(&mut self) -> Result<(), SettingsError> {
        if matches!(self.sources.get("listen"), Some(Source::Flag("--listen")))
            && !self.text("listeners").is_empty()
        {
            return Err(self.refuse("listen", "listeners is given as well; only one can hold".into()));
        }
        let resolved = listeners::resolve(&self.texts, &self.listen);
        self.listeners = resolved.map_err(|(name, problem)| self.refuse(&name, problem))?;
        Ok(())
    }

    /// The settings of each listener, if clients had set `overrides`. References in their values are not resolved: they could show
    /// clients the server's environment and files.
    pub fn listeners_with(
        &self,
        overrides: &BTreeMap<String, String>,
    ) -> Result<Vec<ListenerSettings>, SettingsError> {
        let mut settings = self.clone();
        for (name, value) in overrides {
            settings.sources.insert(name.clone(), Source::Client);
            let value = value.trim();
            settings
                .set_shown(name, value, value)
                .map_err(|refusal| settings.refused(name, value, Source::Client, refusal))?;
        }
        settings.resolve()?;
        Ok(settings.listeners)
    }

    /// The error for a value of `name` that cannot be used.
    pub fn refuse(&self, name: &str, problem: String) -> SettingsError {
        let shown = self.override_of(name).map(|key| self.shown(&key.0, key.1));
        let known =
            || self.settings().into_iter().find(|setting| setting.name == name).map(|setting| setting.value);
        let value = shown.or_else(known).unwrap_or_default();
        let source_of_it = self.sources.get(name).cloned().unwrap_or(Source::Default);
        SettingsError::Value { name: name.into(), value, source_of_it, problem }
    }

    /// The value of a setting that holds for the whole server.
    pub fn text(&self, name: &'static str) -> String {
        self.values().text(name)
    }

    /// The values for the whole server.
    pub fn values(&self) -> listeners::Values<'_> {
        listeners::Values { texts: &self.texts, listener: "" }
    }

    /// The listener and the setting in `listener.name.<name>.<setting>`.
    fn override_of(&self, name: &str) -> Option<(String, &'static str)> {
        let rest = name.strip_prefix(OVERRIDE_PREFIX)?;
        let (listener, setting) = rest.split_once('.')?;
        Some((listener.to_lowercase(), table::find_for_one(setting)?.name))
    }

    /// The value in a form without secrets.
    fn shown(&self, listener: &str, name: &'static str) -> String {
        let given = self.texts.get(&(listener.to_owned(), name));
        given.map_or_else(|| self.text(name), |text| text.shown.clone())
    }

    /// Names of Kafka's settings in the file that mean nothing here.
    pub fn without_meaning(&self) -> &[String] {
        &self.without_meaning
    }

    fn apply_variable(
        &mut self,
        variable: &str,
        value: &str,
        environment: &BTreeMap<String, String>,
    ) -> Result<(), SettingsError> {
        let Some(rest) = variable.strip_prefix(ENVIRONMENT_PREFIX) else { return Ok(()) };
        if made_by_kubernetes(rest) || OF_OTHERS.contains(&rest) {
            return Ok(());
        }
        let all = self.settings();
        let name = all.iter().map(|setting| setting.name).find(|name| variable_suffix(name) == rest);
        let name = name.map(str::to_owned).or_else(|| override_by_variable(rest));
        let guess = || rest.to_lowercase().replace('_', ".");
        let source = Source::Environment(variable.into());
        self.apply(&name.unwrap_or_else(guess), value, source, environment)
    }

    fn apply(
        &mut self,
        name: &str,
        given: &str,
        source_of_it: Source,
        environment: &BTreeMap<String, String>,
    ) -> Result<(), SettingsError> {
        let resolved = references::resolve(given.trim(), environment);
        let result = resolved.map_err(Refusal::Invalid).and_then(|value| self.set_shown(name, &value, given));
        result.map_err(|refusal| self.refused(name, given, source_of_it.clone(), refusal))?;
        self.sources.insert(name.to_owned(), source_of_it);
        Ok(())
    }

    /// The error for a setting that was refused.
    fn refused(&self, name: &str, given: &str, source_of_it: Source, refusal: Refusal) -> SettingsError {
        match refusal {
            Refusal::Unknown => {
                let suggestion = self.most_similar(name);
                // A misspelled name of a secret setting holds a secret too.
                let secret = suggestion.as_deref().is_some_and(|name| {
                    ROWS.iter().any(|row| {
                        row.secret && (name == row.name || name.ends_with(&format!(".{}", row.name)))
                    })
                });
                // So do other names that a server.properties of Kafka may contain.
                let lower = name.to_lowercase();
                let secret = secret
                    || ["password", "secret", "jaas", "token", "key", "credential"]
                        .iter()
                        .any(|word| lower.contains(word));
                let (name, value) = (name.to_owned(), shown(given, secret));
                SettingsError::Unknown { name, value, source_of_it, suggestion }
            }
            Refusal::Invalid(problem) => {
                let row =
                    ROWS.iter().find(|row| name == row.name || name.ends_with(&format!(".{}", row.name)));
                let value = shown(given, row.is_some_and(|row| row.secret));
                SettingsError::Value { name: name.into(), value, source_of_it, problem }
            }
        }
    }

    /// Sets one setting to `value`. `given` is the value in a form that may be shown.
    fn set_shown(&mut self, name: &str, value: &str, given: &str) -> Result<(), Refusal> {
        let key = match self.override_of(name) {
            Some(key) => Some(key),
            None if name.starts_with(OVERRIDE_PREFIX) => return Err(Refusal::Unknown),
            None => table::find(name).map(|row| (String::new(), row.name)),
        };
        let Some((listener, name)) = key else { return self.set(name, value) };
        let row = if listener.is_empty() { table::find(name) } else { table::find_for_one(name) };
        let row = row.ok_or(Refusal::Unknown)?;
        // An empty value means that nothing is set.
        if !value.is_empty() || !row.default.is_empty() {
            (row.check)(value).map_err(Refusal::Invalid)?;
        }
        let shown = if row.secret { shown(given, true) } else { value.to_owned() };
        self.texts.insert((listener, row.name), Text { value: value.to_owned(), shown });
        Ok(())
    }

    /// Sets one setting from text.
    fn set(&mut self, name: &str, value: &str) -> Result<(), Refusal> {
        let value = value.trim();
        match name {
            "data.dir" if value.is_empty() => {
                return Err(Refusal::Invalid("it must name a directory".into()));
            }
            "data.dir" => self.data_dir = value.into(),
            "log.dirs" => self.log_dirs = directories(value)?,
            "log.dir" => self.log_dir = (!value.is_empty()).then(|| value.into()),
            "listen" => self.listen = address(value)?,
            "admin.listen" => {
                self.admin_listen = if value.is_empty() { None } else { Some(address(value)?) };
            }
            "log.level" => {
                tracing_subscriber::EnvFilter::builder()
                    .parse(value)
                    .map_err(|error| Refusal::Invalid(error.to_string()))?;
                self.log_level = value.into();
            }
            "log.format" => {
                let named = LOG_FORMATS.iter().find(|(name, _)| *name == value);
                let refused = || Refusal::Invalid("it must be auto, text or json".into());
                self.log_format = named.ok_or_else(refused)?.1;
            }
            "disk.engine" => self.engine = parse_engine(value).map_err(Refusal::Invalid)?,
            _ => {
                return self.broker.set(name, value).map_err(|error| match error {
                    ConfigError::Unknown { .. } => Refusal::Unknown,
                    ConfigError::Invalid { problem, .. } => Refusal::Invalid(problem),
                });
            }
        }
        Ok(())
    }

    /// The directories that each hold a log.
    pub fn log_directories(&self) -> Vec<PathBuf> {
        match (self.log_dirs.as_slice(), &self.log_dir) {
            ([], None) => vec![self.data_dir.clone()],
            ([], Some(directory)) => vec![directory.clone()],
            (several, _) => several.to_vec(),
        }
    }

    /// All settings: the server's own, then the broker's. Secrets are hidden.
    pub fn settings(&self) -> Vec<Setting> {
        let setting = |name: &'static str, default: &str, value: String, doc: &'static str| Setting {
            name,
            default: default.into(),
            value,
            doc,
            kind: Kind::String,
            bounds: Default::default(),
            of_machine: false,
        };
        let own = OWN.map(|(name, default, doc)| setting(name, default, self.own_value(name), doc));
        let rows = ROWS.iter().filter(|row| row.scope != Scope::OneListener);
        let rows = rows.map(|row| setting(row.name, row.default, self.shown("", row.name), row.doc));
        own.into_iter().chain(rows).chain(self.broker.settings()).collect()
    }

    fn own_value(&self, name: &str) -> String {
        match name {
            "data.dir" => self.data_dir.display().to_string(),
            "log.dirs" => {
                self.log_dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(",")
            }
            "log.dir" => self.log_dir.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default(),
            "listen" => self.listen.clone(),
            "admin.listen" => self.admin_listen.clone().unwrap_or_default(),
            "log.level" => self.log_level.clone(),
            "log.format" => {
                LOG_FORMATS.iter().find(|of| of.1 == self.log_format).map_or("", |of| of.0).into()
            }
            "disk.engine" => engine_name(self.engine).into(),
            _ => unreachable!("{name} is not in the table of own settings"),
        }
    }

    /// The settings as a configuration file with explanations: all, or those that are not as by default.
    pub fn to_toml(&self, all_of_them: bool) -> String {
        let what = if all_of_them { "Every setting of mainstem" } else { "What is not as by default" };
        let mut text = format!(
            "# {what}. Flags come first, then the environment (MAINSTEM_NUM_PARTITIONS=3), then this file.\n",
        );
        let all = self.settings();
        for setting in all.iter().filter(|setting| all_of_them || setting.value != setting.default) {
            text.push('\n');
            for line in setting.doc.lines() {
                text.push_str(&format!("# {}\n", line.trim()));
            }
            if setting.value != setting.default {
                text.push_str(&format!("# default: {}\n", toml_value(&setting.default)));
            }
            // Written bare, both names could not be in one file, because TOML takes the dots for tables.
            let longer = |other: &Setting| {
                setting.name.strip_prefix(other.name).is_some_and(|rest| rest.starts_with('.'))
            };
            let name = setting.name;
            let name = if all.iter().any(longer) { format!("\"{name}\"") } else { name.to_owned() };
            // The file may be meant for another machine.
            if setting.of_machine && setting.value == setting.default {
                text.push_str("# ");
            }
            text.push_str(&toml_line(&name, &setting.value));
        }
        let overrides: Vec<_> = self.texts.iter().filter(|((listener, _), _)| !listener.is_empty()).collect();
        if !overrides.is_empty() {
            text.push_str("\n# Of single listeners.\n");
        }
        for ((listener, name), value) in overrides {
            text.push_str(&toml_line(&format!("{OVERRIDE_PREFIX}{listener}.{name}"), &value.shown));
        }
        text
    }

    /// The same as an object. Settings whose default is a number or a truth value are such, all others are texts.
    pub fn to_json(&self, all_of_them: bool) -> serde_json::Value {
        let all = self.settings();
        let shown = all.iter().filter(|setting| all_of_them || setting.value != setting.default);
        let own =
            shown.map(|setting| (setting.name.to_owned(), json_value(&setting.value, &setting.default)));
        let overrides = self.texts.iter().filter(|((listener, _), _)| !listener.is_empty());
        let overrides = overrides.map(|((listener, name), value)| {
            (format!("{OVERRIDE_PREFIX}{listener}.{name}"), value.shown.as_str().into())
        });
        serde_json::Value::Object(own.chain(overrides).collect())
    }

    /// The name with the smallest edit distance to `name`, if that distance is small.
    fn most_similar(&self, name: &str) -> Option<String> {
        if let Some((listener, setting)) =
            name.strip_prefix(OVERRIDE_PREFIX).and_then(|rest| rest.split_once('.'))
        {
            let rows = ROWS.iter().filter(|row| row.scope != Scope::Server).map(|row| row.name);
            return most_similar(setting, rows).map(|best| format!("{OVERRIDE_PREFIX}{listener}.{best}"));
        }
        let all = self.settings();
        most_similar(name, all.iter().map(|setting| setting.name)).map(str::to_owned)
    }
}

/// A line of the file. A hidden value is commented out, so that the file can be used again.
fn toml_line(name: &str, value: &str) -> String {
    let comment = if value == HIDDEN { "# " } else { "" };
    format!("{comment}{name} = {}\n", toml_value(value))
}

fn shown(given: &str, secret: bool) -> String {
    if secret && !given.is_empty() && !references::is_reference(given) {
        HIDDEN.into()
    } else {
        given.to_owned()
    }
}

/// The listener's setting that a variable such as `LISTENER_NAME_INTERNAL_SSL_CLIENT_AUTH` stands for.
fn override_by_variable(rest: &str) -> Option<String> {
    let rest = rest.strip_prefix("LISTENER_NAME_")?;
    let named = ROWS.iter().filter(|row| row.scope != Scope::Server).filter_map(|row| {
        let listener = rest.strip_suffix(&variable_suffix(row.name))?.strip_suffix('_')?;
        Some((row.name, listener.to_lowercase()))
    });
    let (name, listener) = named.max_by_key(|(name, _)| name.len())?;
    Some(format!("{OVERRIDE_PREFIX}{listener}.{name}"))
}

/// Kubernetes sets such variables in every container for a service with the name mainstem. They are not a mistake.
fn made_by_kubernetes(rest: &str) -> bool {
    rest == "PORT"
        || rest == "SERVICE_HOST"
        || rest.starts_with("SERVICE_PORT")
        || rest
            .strip_prefix("PORT_")
            .is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
}

/// The name of an engine.
pub fn engine_name(engine: Engine) -> &'static str {
    match engine {
        Engine::Auto => "auto",
        Engine::Uring => "uring",
        Engine::Direct => "direct",
        Engine::Plain => "plain",
    }
}

/// The engine with this name.
pub fn parse_engine(text: &str) -> Result<Engine, String> {
    match text {
        "auto" => Ok(Engine::Auto),
        "uring" => Ok(Engine::Uring),
        "direct" => Ok(Engine::Direct),
        "plain" => Ok(Engine::Plain),
        _ => Err("it must be auto, uring, direct or plain".into()),
    }
}

/// Parses a list separated by commas. An empty text is an empty list.
fn directories(text: &str) -> Result<Vec<PathBuf>, Refusal> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let named = |part: &str| match part.trim() {
        "" => Err(Refusal::Invalid("one of its directories has no name".into())),
        part => Ok(PathBuf::from(part)),
    };
    text.split(',').map(named).collect()
}

fn address(text: &str) -> Result<String, Refusal> {
    host_port(text).map_err(Refusal::Invalid)?;
    Ok(text.to_owned())
}
