//! Tests of the settings from all sources.

use std::path::Path;

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

    /// The error message without the directory of the file.
    fn error(&self) -> String {
        let directory = format!("{}/", self.directory.path().display());
        self.load().unwrap_err().to_string().replace(&directory, "")
    }
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let given =
        Given::new().file("num.partitions = 2\nlog.retention.ms = 5\nlisten = \"h:1\"\nlog.level = \"warn\"");
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
    // TOML itself forbids reopening a table that dotted keys have created.
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
            "log.format = xml (flag --set): it must be auto, text or json",
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
            "disk.engine = fast (flag --set): it must be auto, uring, direct or plain",
        ),
        (
            Given::new().file("num.partitions = [1, 2]"),
            "m.toml:1: this is not valid TOML: num.partitions must be one value, not an array",
        ),
    ];
    for (given, message) in cases {
        assert_eq!(given.error(), message);
    }
    assert!(Given::new().flag("log.level", "a=b=c").error().starts_with("log.level = a=b=c (flag --set): "));
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
    // `make run` passes make's environment on to the server.
    let makefile = include_str!("../../../../Makefile");
    let names = |text: &'static str| text.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
    let found: Vec<&str> = names(makefile).filter(|name| name.starts_with("MAINSTEM_")).collect();
    assert!(found.contains(&"MAINSTEM_SEEDS"), "{found:?}");
    for name in found {
        Given::new().variable(name, "anything").load().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn what_config_prints_is_a_configuration_file_with_the_same_settings() {
    let given = Given::new()
        .flag("advertised.listeners", "PLAINTEXT://[::1]:7")
        .flag("admin.token", "s3cret")
        .flag("listener.name.plaintext.max.connections", "5")
        .flag("listener.name.plaintext.ssl.keystore.key", "-----BEGIN")
        .flag("admin.listen", "")
        .flag("data.dir", "/a \"b\"\\c")
        .flag("log.format", "json")
        .flag("log.dirs", "/x,/y")
        .flag("num.partitions", "12");
    let settings = given.load().unwrap();
    let text = settings.to_toml(true);
    assert!(text.contains(
        "# Partitions of a new topic when the client does not say.\n# default: 1\nnum.partitions = 12\n"
    ));
    assert!(text.contains("advertised.listeners = \"PLAINTEXT://[::1]:7\"\n"));
    assert!(text.contains("\n# admin.token = \"[hidden]\"\n") && !text.contains("s3cret"));
    assert!(text.contains("\nlistener.name.plaintext.max.connections = 5\n"));
    assert!(text.contains("\n# listener.name.plaintext.ssl.keystore.key = \"[hidden]\"\n"));
    let again = Given::new().file(&text).load().unwrap();
    let but_secrets = |settings: &Settings| {
        settings.settings().into_iter().filter(|setting| setting.name != "admin.token").collect::<Vec<_>>()
    };
    assert_eq!(but_secrets(&again), but_secrets(&settings));
    assert_eq!(again.listeners[0].connections_max, Some(5));
    let referred =
        Given::new().variable("TOKEN", "s3cret").flag("admin.token", "${env:TOKEN}").load().unwrap();
    assert_eq!(referred.text("admin.token"), "s3cret");
    assert!(referred.to_toml(true).contains("\nadmin.token = \"${env:TOKEN}\"\n"));
    assert!(!format!("{referred:?}{settings:?}").contains("s3cret"));
    let default = Settings::default().to_toml(true);
    assert_eq!(Given::new().file(&default).load().unwrap().settings(), Settings::default().settings());
}

#[test]
fn every_setting_can_be_given_by_a_variable_of_its_own() {
    let names: std::collections::BTreeSet<_> =
        Settings::default().settings().iter().map(|setting| variable_suffix(setting.name)).collect();
    assert_eq!(names.len(), Settings::default().settings().len());
}

#[test]
fn listeners_have_a_protocol_an_address_and_what_is_said_for_them() {
    let given = Given::new()
        .file(
            "listeners = \"SASL_SSL://0.0.0.0:9093, internal://127.0.0.1:9092,TLS://:9094\"\n\
             listener.security.protocol.map = \"INTERNAL:PLAINTEXT,TLS:SSL\"\n\
             advertised.listeners = \"SASL_SSL://broker.example.com:19093\"\n\
             ssl.keystore.location = \"/keys.pem\"\nssl.truststore.location = \"/cas.pem\"\n\
             ssl.client.auth = \"required\"\n\
             [listener.name.internal]\nsocket.request.max.bytes = 2048\nqueued.max.request.bytes = 1048576\n",
        )
        .variable("MAINSTEM_LISTENER_NAME_TLS_SSL_ENABLED_PROTOCOLS", "TLSv1.3")
        .variable("MAINSTEM_LISTENER_NAME_SASL_SSL_SASL_ENABLED_MECHANISMS", "plain");
    let settings = given.load().unwrap();
    let [sasl, internal, tls] = &settings.listeners[..] else { panic!("not three listeners") };
    assert_eq!((sasl.name.as_str(), sasl.address.as_str()), ("SASL_SSL", "0.0.0.0:9093"));
    assert_eq!(sasl.advertised, Some(("broker.example.com".into(), 19093)));
    let ssl = sasl.ssl.as_ref().unwrap();
    // A client that authenticates by SASL is asked for a certificate only if the listener's own setting requires it.
    assert_eq!(ssl.client_authentication, ClientAuthentication::None);
    assert_eq!(ssl.authorities, None);
    assert_eq!(ssl.versions, [TlsVersion::V1_2, TlsVersion::V1_3]);
    assert_eq!(sasl.sasl.as_ref().unwrap().mechanisms, ["PLAIN"]);
    assert_eq!((internal.name.as_str(), internal.advertised.is_none()), ("INTERNAL", true));
    assert!(internal.ssl.is_none() && internal.sasl.is_none());
    assert_eq!((internal.request_bytes_max, internal.in_flight_bytes), (Some(2048), Some(1_048_576)));
    assert_eq!(tls.address, "0.0.0.0:9094");
    let ssl = tls.ssl.as_ref().unwrap();
    assert_eq!((ssl.versions.as_slice(), tls.request_bytes_max), (&[TlsVersion::V1_3][..], None));
    assert_eq!(ssl.client_authentication, ClientAuthentication::Required);
    assert_eq!(ssl.key, Pem::File("/keys.pem".into()));
    assert!(sasl.is_secure() && tls.is_secure() && !internal.is_secure());
    let alone = Given::new().flag("listen", "h:1").load().unwrap();
    assert_eq!((alone.listeners.len(), alone.listeners[0].address.as_str()), (1, "h:1"));
    assert_eq!(alone.listeners[0].name, "PLAINTEXT");
}

#[test]
fn what_does_not_go_together_is_refused_with_its_source() {
    let cases = [
        (
            Given::new().flag("listeners", "A://h:1"),
            "listeners = A://h:1 (flag --set): A is none of PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL; \
             listener.security.protocol.map must say what it speaks, like A:SASL_SSL",
        ),
        (Given::new().flag("listeners", "h:1"), "listeners = h:1 (flag --set): h:1 is not NAME://host:port"),
        (
            Given::new().flag("listeners", "PLAINTEXT://h:1,plaintext://h:2"),
            "listeners = PLAINTEXT://h:1,plaintext://h:2 (flag --set): two listeners are called PLAINTEXT",
        ),
        (
            Given::new().file("advertised.listeners = \"SSL://h:1\""),
            "advertised.listeners = SSL://h:1 (m.toml:1): there is no listener SSL in listeners",
        ),
        (
            Given::new().flag("advertised.listeners", "PLAINTEXT://0.0.0.0:1"),
            "advertised.listeners = PLAINTEXT://0.0.0.0:1 (flag --set): PLAINTEXT: clients cannot connect to 0.0.0.0; \
             name the host as they know it",
        ),
        (
            Given::new().flag("listener.name.other.max.connections", "3"),
            "listener.name.other.max.connections = 3 (flag --set): there is no listener OTHER in listeners",
        ),
        (
            Given::new().flag("listener.name.plaintext.max.conections", "3"),
            "listener.name.plaintext.max.conections = 3 (flag --set): there is no such setting, did you mean \
             listener.name.plaintext.max.connections?",
        ),
        (
            Given::new().flag("listener.name.plaintext.max.connections", "0"),
            "listener.name.plaintext.max.connections = 0 (flag --set): it must be from 1 to 2147483647",
        ),
        (
            Given::new().flag("listener.name.plaintext.node.id", "3"),
            "listener.name.plaintext.node.id = 3 (flag --set): there is no such setting; `mainstem config` lists them all",
        ),
        (
            Given::new().flag("listeners", "SSL://h:1"),
            "ssl.keystore.location =  (the default): the listener SSL speaks SSL, for which the server needs a private \
             key and a certificate: name the PEM file that holds both",
        ),
        (
            Given::new()
                .flag("listeners", "SSL://h:1")
                .flag("ssl.keystore.location", "/k")
                .flag("ssl.client.auth", "required"),
            "ssl.client.auth = required (flag --set): it is required on the listener SSL, but no authorities are named \
             that clients' certificates come from (ssl.truststore.location or ssl.truststore.certificates)",
        ),
        (
            Given::new().flag("ssl.keystore.type", "JKS"),
            "ssl.keystore.type = JKS (flag --set): only PEM is read; first `keytool -importkeystore -srckeystore STORE.jks \
             -destkeystore STORE.p12 -deststoretype PKCS12`, then `openssl pkcs12 -in STORE.p12 -nodes -out server.pem` \
             converts a PKCS#12 store",
        ),
        (
            Given::new().flag("admin.token", "two words"),
            "admin.token = [hidden] (flag --set): it may hold letters, digits and signs of ASCII, and no blanks",
        ),
        (
            Given::new().flag("admin.tokn", "s3cret"),
            "admin.tokn = [hidden] (flag --set): there is no such setting, did you mean admin.token?",
        ),
        (
            Given::new().flag("admin.token", "${env:GONE}"),
            "admin.token = ${env:GONE} (flag --set): there is no environment variable GONE",
        ),
        (
            Given::new().flag("max.connections.per.ip.overrides", "10.0.0.1"),
            "max.connections.per.ip.overrides = 10.0.0.1 (flag --set): 10.0.0.1 is not ADDRESS:COUNT",
        ),
        (
            Given::new().flag("sasl.enabled.mechanisms", "GSSAPI"),
            "sasl.enabled.mechanisms = GSSAPI (flag --set): GSSAPI is not known; there are SCRAM-SHA-512, SCRAM-SHA-256, \
             PLAIN, OAUTHBEARER",
        ),
        (
            Given::new().file("advertised.listener = \"h:1\""),
            "advertised.listener = h:1 (m.toml:1): there is no such setting, did you mean advertised.listeners?",
        ),
    ];
    for (given, message) in cases {
        assert_eq!(given.error(), message);
    }
    let mut both = Given::new().file("listeners = \"PLAINTEXT://h:1\"");
    both.arguments.listen = Some("h:2".into());
    assert_eq!(both.error(), "listen = h:2 (flag --listen): listeners is given as well; only one can hold");
}

#[test]
fn a_file_of_kafkas_is_taken_and_what_means_nothing_here_is_named() {
    let mut given = Given::new();
    let path = given.directory.path().join("server.properties");
    let text = "# Kafka's\nprocess.roles=broker,controller\nnode.id=7\nlisteners=PLAINTEXT://127.0.0.1:19092,CONTROLLER://:9093\n\
                controller.listener.names=CONTROLLER\nlog.dirs=/tmp/kafka-logs\nlog.retention.hours=2\nnum.io.threads=8\n";
    std::fs::write(&path, text).unwrap();
    given.arguments.config = Some(path.clone());
    let settings = given.load().unwrap();
    assert_eq!((settings.broker.node_id, settings.broker.retention_ms), (7, 7_200_000));
    assert_eq!(settings.data_dir, Path::new("/tmp/kafka-logs"));
    assert_eq!(settings.listeners.len(), 1);
    let ignored = ["process.roles", "controller.listener.names", "num.io.threads"];
    assert_eq!(settings.without_meaning(), ignored);
    let diff = settings.to_toml(false);
    assert!(diff.contains("log.retention.ms = 7200000\n") && !diff.contains("num.partitions"), "{diff}");
    let check = || Settings::check_file(&path, std::iter::empty());
    assert!(check().0.is_empty() && check().1 == ignored);

    std::fs::write(&path, "num.partition=3\nnum.io.threads=8\nlog.retention.ms=soon\n").unwrap();
    let shown = path.display().to_string();
    let errors: Vec<String> = check().0.iter().map(|error| error.to_string().replace(&shown, "F")).collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert_eq!(errors[0], "num.partition = 3 (F:1): there is no such setting, did you mean num.partitions?");
    assert!(errors[1].starts_with("log.retention.ms = soon (F:3): "), "{}", errors[1]);
    assert_eq!(given.load().unwrap_err().to_string().replace(&shown, "F"), errors[0]);
    // What changes nothing here is checked as Kafka does, and names of older versions are known.
    std::fs::write(&path, "num.io.threads=abc\ncompression.type=brotli\nzookeeper.connect=z:1\n").unwrap();
    let errors: Vec<String> = check().0.iter().map(|error| error.to_string().replace(&shown, "F")).collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert_eq!(errors[0], "num.io.threads = abc (F:1): Not a number of type INT");
    assert!(
        errors[1].starts_with("compression.type = brotli (F:2): String must be one of: "),
        "{}",
        errors[1]
    );
    assert_eq!(given.load().unwrap_err().to_string().replace(&shown, "F"), errors[0]);
    std::fs::write(&path, "min.insync.replicas=2\ninter.broker.protocol.version=3.4\n").unwrap();
    assert_eq!(given.load().unwrap().broker.in_sync_min, 2);
    assert_eq!(check().1, ["inter.broker.protocol.version"]);
    // In TOML, and from other sources, a name must be the server's own.
    assert!(Given::new().file("num.io.threads = 8").load().is_err());
}
