//! The settings of the whole server: its own few and the broker's, from flags, environment, file and defaults.
//!
//! Precedence: flag, then `MAINSTEM_*` environment variable, then file, then default. Every refusal says which setting,
//! which value, where it came from and what is wrong. What the broker's settings mean is not known here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use broker::{Config, ConfigError, Kind, Setting};
use disk::Engine;

use crate::arguments::ServerArguments;
use crate::config_file;

/// Environment variables with this prefix are settings.
const ENVIRONMENT_PREFIX: &str = "MAINSTEM_";
/// What follows the prefix in variables that the project's own scripts read, which are no settings of the server.
const OF_THE_TEST_SCRIPTS: [&str; 4] = ["BIN", "BLESS", "CACHE", "SEEDS"];

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// Everything that can be set.
#[derive(Clone, Debug)]
pub struct Settings {
    pub data_dir: PathBuf,
    /// As given: `log.dir`, and `log.dirs`, which comes first.
    pub log_dir: Option<PathBuf>,
    pub log_dirs: Vec<PathBuf>,
    /// Host and port as given; resolved when bound.
    pub listen: String,
    /// What Metadata answers with in place of the address that the client reached.
    pub advertised: Option<(String, u16)>,
    /// `None`: no admin listener.
    pub admin_listen: Option<String>,
    pub log_level: String,
    pub log_format: LogFormat,
    pub engine: Engine,
    pub broker: Config,
}

impl Default for Settings {
    fn default() -> Settings {
        let mut settings = Settings {
            data_dir: PathBuf::new(),
            log_dir: None,
            log_dirs: Vec::new(),
            listen: String::new(),
            advertised: None,
            admin_listen: None,
            log_level: String::new(),
            log_format: LogFormat::Text,
            engine: Engine::Auto,
            broker: Config::default(),
        };
        for (name, default, _) in OWN {
            settings.set(name, default).expect("the defaults are valid");
        }
        settings
    }
}

/// The settings that are not the broker's: name, default, what it is for.
const OWN: [(&str, &str, &str); 9] = [
    ("data.dir", "./data", "Where the metadata is kept and, where log.dirs names no others, the log."),
    (
        "log.dirs",
        "",
        "Directories, separated by commas, each with a log of its own, best each on a disk of its own. A new partition\n\
         goes to the one with the most free space and stays there; a directory that is lost takes only its partitions\n\
         down. Empty for log.dir.",
    ),
    ("log.dir", "", "The only directory with a log; empty for data.dir."),
    ("listen", "127.0.0.1:9092", "Where clients connect, host:port."),
    (
        "advertised.listener",
        "",
        "The host:port that clients are told to connect to; empty for the address that they reached.",
    ),
    ("admin.listen", "127.0.0.1:9644", "Where metrics and health are served over HTTP; empty for nowhere."),
    (
        "log.level",
        "info",
        "What is logged: error, warn, info, debug or trace, also by module (broker=debug,info).",
    ),
    ("log.format", "text", "How it is logged, on standard error: text or json."),
    (
        "disk.engine",
        "auto",
        "How the disk is written to: uring (io_uring and O_DIRECT), plain, or auto for the best that works.",
    ),
];

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Flag(&'static str),
    Environment(String),
    File { path: PathBuf, line: usize },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag(flag) => write!(f, "flag {flag}"),
            Source::Environment(name) => write!(f, "environment variable {name}"),
            Source::File { path, line } => write!(f, "{}:{line}", path.display()),
        }
    }
}

/// Why the settings cannot be used.
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

/// What is wrong with one name or value, before it is known where it came from.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    Unknown,
    Invalid(String),
}

impl Settings {
    /// All settings from all sources. `environment` is what [`std::env::vars`] gives.
    pub fn load(
        arguments: &ServerArguments,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        if let Some(path) = &arguments.config {
            settings.apply_file(path)?;
        }
        // Sorted, so that of several mistakes always the same one is reported.
        for (variable, value) in environment.collect::<BTreeMap<_, _>>() {
            settings.apply_variable(&variable, &value)?;
        }
        let flags = [
            ("--data-dir", "data.dir", &arguments.data_dir),
            ("--listen", "listen", &arguments.listen),
            ("--admin-listen", "admin.listen", &arguments.admin_listen),
        ];
        for (name, value) in &arguments.settings {
            settings.apply(name, value, Source::Flag("--set"))?;
        }
        for (flag, name, value) in flags {
            if let Some(value) = value {
                settings.apply(name, value, Source::Flag(flag))?;
            }
        }
        Ok(settings)
    }

    fn apply_file(&mut self, path: &Path) -> Result<(), SettingsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| SettingsError::Unreadable { path: path.to_owned(), error })?;
        let entries = config_file::parse(&text).map_err(|error| SettingsError::Toml {
            path: path.to_owned(),
            line: error.line,
            problem: error.problem,
        })?;
        for entry in entries {
            self.apply(&entry.name, &entry.value, Source::File { path: path.to_owned(), line: entry.line })?;
        }
        Ok(())
    }

    fn apply_variable(&mut self, variable: &str, value: &str) -> Result<(), SettingsError> {
        let Some(rest) = variable.strip_prefix(ENVIRONMENT_PREFIX) else { return Ok(()) };
        if made_by_kubernetes(rest) || OF_THE_TEST_SCRIPTS.contains(&rest) {
            return Ok(());
        }
        let all = self.settings();
        let name = all.iter().map(|setting| setting.name).find(|name| variable_suffix(name) == rest);
        let guess = rest.to_lowercase().replace('_', ".");
        self.apply(name.unwrap_or(&guess), value, Source::Environment(variable.into()))
    }

    fn apply(&mut self, name: &str, value: &str, source_of_it: Source) -> Result<(), SettingsError> {
        self.set(name, value).map_err(|refusal| match refusal {
            Refusal::Unknown => SettingsError::Unknown {
                name: name.into(),
                value: value.into(),
                source_of_it,
                suggestion: self.most_similar(name),
            },
            Refusal::Invalid(problem) => {
                SettingsError::Value { name: name.into(), value: value.into(), source_of_it, problem }
            }
        })
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
            "listen" => self.listen = host_port(value).map(|_| value.into())?,
            "advertised.listener" => {
                self.advertised = if value.is_empty() { None } else { Some(host_port(value)?) };
            }
            "admin.listen" => {
                self.admin_listen =
                    if value.is_empty() { None } else { Some(host_port(value).map(|_| value.into())?) };
            }
            "log.level" => {
                tracing_subscriber::EnvFilter::builder()
                    .parse(value)
                    .map_err(|error| Refusal::Invalid(error.to_string()))?;
                self.log_level = value.into();
            }
            "log.format" => {
                self.log_format = match value {
                    "text" => LogFormat::Text,
                    "json" => LogFormat::Json,
                    _ => return Err(Refusal::Invalid("it must be text or json".into())),
                }
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

    /// All settings: the server's own, then the broker's.
    pub fn settings(&self) -> Vec<Setting> {
        let own = OWN.map(|(name, default, doc)| Setting {
            name,
            default: default.into(),
            value: self.own_value(name),
            doc,
            kind: Kind::String,
            bounds: Default::default(),
        });
        own.into_iter().chain(self.broker.settings()).collect()
    }

    fn own_value(&self, name: &str) -> String {
        match name {
            "data.dir" => self.data_dir.display().to_string(),
            "log.dirs" => {
                self.log_dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(",")
            }
            "log.dir" => self.log_dir.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default(),
            "listen" => self.listen.clone(),
            "advertised.listener" => {
                self.advertised.as_ref().map(|(host, port)| join_host_port(host, *port)).unwrap_or_default()
            }
            "admin.listen" => self.admin_listen.clone().unwrap_or_default(),
            "log.level" => self.log_level.clone(),
            "log.format" => if self.log_format == LogFormat::Json { "json" } else { "text" }.into(),
            "disk.engine" => match self.engine {
                Engine::Auto => "auto",
                Engine::Uring => "uring",
                Engine::Plain => "plain",
            }
            .into(),
            _ => unreachable!("{name} is not in the table of own settings"),
        }
    }

    /// The settings as a configuration file that explains itself.
    pub fn to_toml(&self) -> String {
        let mut text = String::from(
            "# Every setting of mainstem. Flags come first, then the environment (MAINSTEM_NUM_PARTITIONS=3), then this file.\n",
        );
        for setting in self.settings() {
            text.push('\n');
            for line in setting.doc.lines() {
                text.push_str(&format!("# {}\n", line.trim()));
            }
            if setting.value != setting.default {
                text.push_str(&format!("# default: {}\n", toml_value(&setting.default)));
            }
            text.push_str(&format!("{} = {}\n", setting.name, toml_value(&setting.value)));
        }
        text
    }

    /// The name that differs from `name` in the fewest letters, if they are few.
    fn most_similar(&self, name: &str) -> Option<String> {
        let all = self.settings();
        let (letters, best) =
            all.iter().map(|setting| (letters_apart(name, setting.name), setting.name)).min()?;
        (letters <= name.len().max(6) / 3).then(|| best.to_owned())
    }
}

/// Kubernetes gives every container such variables for a service that is called mainstem; they are nobody's mistake.
fn made_by_kubernetes(rest: &str) -> bool {
    rest == "PORT"
        || rest == "SERVICE_HOST"
        || rest.starts_with("SERVICE_PORT")
        || rest
            .strip_prefix("PORT_")
            .is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
}

fn variable_suffix(name: &str) -> String {
    name.to_uppercase().replace('.', "_")
}

/// The engine of this name.
pub fn parse_engine(text: &str) -> Result<Engine, String> {
    match text {
        "auto" => Ok(Engine::Auto),
        "uring" => Ok(Engine::Uring),
        "plain" => Ok(Engine::Plain),
        _ => Err("it must be auto, uring or plain".into()),
    }
}

/// A list that is separated by commas; an empty text is an empty list.
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

fn host_port(text: &str) -> Result<(String, u16), Refusal> {
    let wrong = || Refusal::Invalid("it must be host:port, like 127.0.0.1:9092 or [::1]:9092".into());
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if host.is_empty() || (bare.is_none() && host.contains(':')) {
        return Err(wrong());
    }
    let port = port.parse().map_err(|_| Refusal::Invalid(format!("{port} is not a port number")))?;
    Ok((bare.unwrap_or(host).to_owned(), port))
}

fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Numbers and truth values stand bare, everything else in quotes.
fn toml_value(text: &str) -> String {
    let bare = text.parse::<i64>().is_ok() || matches!(text, "true" | "false");
    if bare { text.to_owned() } else { toml::Value::String(text.to_owned()).to_string() }
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Given {
        arguments: ServerArguments,
        environment: Vec<(String, String)>,
        directory: tempfile::TempDir,
    }

    impl Given {
        fn new() -> Given {
            Given {
                arguments: ServerArguments::default(),
                environment: Vec::new(),
                directory: tempfile::tempdir().unwrap(),
            }
        }

        fn file(mut self, text: &str) -> Given {
            let path = self.directory.path().join("m.toml");
            std::fs::write(&path, text).unwrap();
            self.arguments.config = Some(path);
            self
        }

        fn variable(mut self, name: &str, value: &str) -> Given {
            self.environment.push((name.into(), value.into()));
            self
        }

        fn flag(mut self, name: &str, value: &str) -> Given {
            self.arguments.settings.push((name.into(), value.into()));
            self
        }

        fn load(&self) -> Result<Settings, SettingsError> {
            Settings::load(&self.arguments, self.environment.clone().into_iter())
        }

        /// The message, with the directory of the file cut off.
        fn error(&self) -> String {
            let directory = format!("{}/", self.directory.path().display());
            self.load().unwrap_err().to_string().replace(&directory, "")
        }
    }

    #[test]
    fn flag_beats_environment_beats_file_beats_default() {
        let given = Given::new()
            .file("num.partitions = 2\nlog.retention.ms = 5\nlisten = \"h:1\"\nlog.level = \"warn\"");
        let given = given.variable("MAINSTEM_NUM_PARTITIONS", "3").variable("MAINSTEM_LISTEN", "h:2");
        let mut given = given.flag("num.partitions", "4");
        given.arguments.listen = Some("h:3".into());
        let settings = given.load().unwrap();
        assert_eq!((settings.broker.num_partitions, settings.broker.retention_ms), (4, 5));
        assert_eq!((settings.listen.as_str(), settings.log_level.as_str()), ("h:3", "warn"));
        assert_eq!(settings.admin_listen.as_deref(), Some("127.0.0.1:9644"));
        given.arguments.settings.clear();
        assert_eq!(given.load().unwrap().broker.num_partitions, 3);
    }

    #[test]
    fn every_way_to_write_a_key_is_the_same_setting() {
        let text = "\"num.partitions\" = 7\n[log]\nretention.ms = 1_000\n[log.retention]\nbytes = 9\n";
        // TOML itself forbids to open a table again that dotted keys made.
        assert!(Given::new().file(text).error().starts_with("m.toml:4: this is not valid TOML: "));
        let text = "\"num.partitions\" = 7\n[log]\nretention.ms = 1_000\nretention.bytes = \"9\"\n";
        let settings = Given::new().file(text).load().unwrap();
        assert_eq!(settings.broker.num_partitions, 7);
        assert_eq!((settings.broker.retention_ms, settings.broker.retention_bytes), (1000, 9));
    }

    #[test]
    fn logs_are_where_log_dirs_or_log_dir_or_data_dir_says() {
        let of = |given: Given| given.load().unwrap().log_directories();
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(of(Given::new()), paths(&["./data"]));
        assert_eq!(of(Given::new().flag("data.dir", "/d")), paths(&["/d"]));
        assert_eq!(of(Given::new().flag("log.dir", "/one")), paths(&["/one"]));
        let both = Given::new().file("log.dir = \"/one\"\nlog.dirs = \"/a, /b\"");
        assert_eq!(of(both), paths(&["/a", "/b"]));
        assert_eq!(of(Given::new().variable("MAINSTEM_LOG_DIRS", "/a,/b")), paths(&["/a", "/b"]));
        let error = Given::new().flag("log.dirs", "/a,,/b").error();
        assert_eq!(error, "log.dirs = /a,,/b (flag --set): one of its directories has no name");
    }

    #[test]
    fn refusals_name_the_key_the_value_the_source_and_the_problem() {
        let cases = [
            (
                Given::new().file("\nnum.partitions = 0\n"),
                "num.partitions = 0 (m.toml:2): it must be from 1 to 100000",
            ),
            (
                Given::new().file("node.id = 1\n\nnum.partitons = 3"),
                "num.partitons = 3 (m.toml:3): there is no such setting, did you mean num.partitions?",
            ),
            (
                Given::new().file("listn = \"a:1\""),
                "listn = a:1 (m.toml:1): there is no such setting, did you mean listen?",
            ),
            (
                Given::new().file("completely.wrong = true"),
                "completely.wrong = true (m.toml:1): there is no such setting; `mainstem config` lists them all",
            ),
            (
                Given::new().flag("log.format", "xml"),
                "log.format = xml (flag --set): it must be text or json",
            ),
            (
                Given::new().variable("MAINSTEM_NODE_ID", "x"),
                "node.id = x (environment variable MAINSTEM_NODE_ID): invalid digit found in string",
            ),
            (
                Given::new().variable("MAINSTEM_NODE_IDD", "1"),
                "node.idd = 1 (environment variable MAINSTEM_NODE_IDD): there is no such setting, did you mean node.id?",
            ),
            (
                Given::new().flag("listen", "9092"),
                "listen = 9092 (flag --set): it must be host:port, like 127.0.0.1:9092 or [::1]:9092",
            ),
            (
                Given::new().flag("listen", "host:99999"),
                "listen = host:99999 (flag --set): 99999 is not a port number",
            ),
            (
                Given::new().flag("disk.engine", "fast"),
                "disk.engine = fast (flag --set): it must be auto, uring or plain",
            ),
            (
                Given::new().file("num.partitions = [1, 2]"),
                "m.toml:1: this is not valid TOML: num.partitions must be one value, not an array",
            ),
        ];
        for (given, message) in cases {
            assert_eq!(given.error(), message);
        }
        assert!(
            Given::new().flag("log.level", "a=b=c").error().starts_with("log.level = a=b=c (flag --set): ")
        );
        assert!(Given::new().file("a = \nb = 1").error().starts_with("m.toml:1: this is not valid TOML: "));
        let mut missing = Given::new();
        missing.arguments.config = Some(missing.directory.path().join("none.toml"));
        assert_eq!(
            missing.error(),
            "the configuration file none.toml cannot be read: No such file or directory (os error 2)"
        );
    }

    #[test]
    fn variables_of_kubernetes_and_of_others_are_no_mistakes() {
        let given = Given::new()
            .variable("MAINSTEM_SERVICE_HOST", "10.0.0.1")
            .variable("MAINSTEM_SERVICE_PORT_KAFKA", "9092")
            .variable("MAINSTEM_PORT", "tcp://10.0.0.1:9092")
            .variable("MAINSTEM_PORT_9092_TCP_ADDR", "10.0.0.1")
            .variable("PATH", "/bin");
        given.load().unwrap();
    }

    #[test]
    fn what_config_prints_is_a_configuration_file_with_the_same_settings() {
        let given = Given::new()
            .flag("advertised.listener", "[::1]:7")
            .flag("admin.listen", "")
            .flag("data.dir", "/a \"b\"\\c")
            .flag("log.format", "json")
            .flag("log.dirs", "/x,/y")
            .flag("num.partitions", "12");
        let settings = given.load().unwrap();
        let text = settings.to_toml();
        assert!(text.contains(
            "# Partitions of a new topic when the client does not say.\n# default: 1\nnum.partitions = 12\n"
        ));
        assert!(text.contains("advertised.listener = \"[::1]:7\"\n"));
        let again = Given::new().file(&text).load().unwrap();
        assert_eq!(again.settings(), settings.settings());
        assert_eq!(again.to_toml(), text);
        let default = Settings::default().to_toml();
        assert_eq!(Given::new().file(&default).load().unwrap().settings(), Settings::default().settings());
    }

    #[test]
    fn every_setting_can_be_given_by_a_variable_of_its_own() {
        let names: std::collections::BTreeSet<_> =
            Settings::default().settings().iter().map(|setting| variable_suffix(setting.name)).collect();
        assert_eq!(names.len(), Settings::default().settings().len());
    }
}
