//! The settings of listeners, TLS, SASL and connections: names, defaults, descriptions, and checks of values.
//!
//! Values are kept as text, because each may be given for all listeners and again for one of them
//! (`listener.name.<name>.<setting>`). `listeners.rs` derives the settings of a listener from them.

use std::collections::BTreeMap;
use std::fmt;

use broker::{Config, ConfigError};

use super::listeners::{self, ClientAuthentication, TlsVersion};
use crate::principal_mapping::MappingRules;

/// The placeholder for secrets.
pub const HIDDEN: &str = "[hidden]";

type Check = fn(&str) -> Result<(), String>;

/// The scope of a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The whole server.
    Server,
    /// All listeners. The value of a single listener takes precedence.
    Listeners,
    /// A single listener. Without a value, the broker's setting of this name applies, if there is one.
    OneListener,
}

/// One setting.
#[derive(Debug)]
pub struct Row {
    pub name: &'static str,
    pub default: &'static str,
    pub doc: &'static str,
    pub scope: Scope,
    pub secret: bool,
    pub check: Check,
}

const fn row(
    name: &'static str,
    default: &'static str,
    scope: Scope,
    check: Check,
    doc: &'static str,
) -> Row {
    Row { name, default, doc, scope, secret: false, check }
}

const fn secret(name: &'static str, scope: Scope, check: Check, doc: &'static str) -> Row {
    Row { name, default: "", doc, scope, secret: true, check }
}

/// All of them.
pub const ROWS: &[Row] = &[
    row(
        "listeners",
        "",
        Scope::Server,
        |text| listeners::parse(text).map(drop),
        "Where clients connect: NAME://host:port, separated by commas. A name is one of PLAINTEXT, SSL, SASL_PLAINTEXT and\n\
         SASL_SSL, or any other that listener.security.protocol.map explains. Empty for PLAINTEXT on `listen`.",
    ),
    row(
        "advertised.listeners",
        "",
        Scope::Server,
        |text| listeners::parse_advertised(text).map(drop),
        "The addresses that clients are told to connect to, by listener: NAME://host:port. A listener that is not named\n\
         here tells the address that was reached.",
    ),
    row(
        "listener.security.protocol.map",
        "",
        Scope::Server,
        |text| listeners::parse_protocols(text).map(drop),
        "What the listeners speak that are not named after it: INTERNAL:PLAINTEXT,OUTSIDE:SASL_SSL.",
    ),
    row(
        "allow.insecure.listeners",
        "false",
        Scope::Server,
        truth,
        "Whether a listener that others can reach may do without encryption or without authentication.",
    ),
    row(
        "connection.failed.authentication.delay.ms",
        "100",
        Scope::Server,
        natural::<0>,
        "How long a client that failed to authenticate waits for its answer, in milliseconds.",
    ),
    row(
        "sasl.authentication.timeout.ms",
        "10000",
        Scope::Server,
        natural::<1>,
        "A connection that has not authenticated within so many milliseconds, TLS and SASL together, is closed.",
    ),
    row(
        "sasl.server.max.receive.size",
        "524288",
        Scope::Server,
        natural::<1024>,
        "Largest request before authentication, in bytes.",
    ),
    row(
        "etcd.endpoints",
        "",
        Scope::Server,
        anything,
        "The etcd of the cluster that this server is a broker of: http://host:port or https://host:port, of one or more\n\
         members, separated by commas. Empty for a server that is in no cluster. A cluster keeps its records in object.store.",
    ),
    row("etcd.user", "", Scope::Server, anything, "The user of etcd, if it asks for one."),
    secret("etcd.password", Scope::Server, anything, "And the password."),
    row(
        "etcd.ssl.truststore.location",
        "",
        Scope::Server,
        anything,
        "File with the certificates of the authorities that etcd's certificate comes from, as PEM. Empty for those of the\n\
         system.",
    ),
    row(
        "etcd.ssl.certificate.location",
        "",
        Scope::Server,
        anything,
        "File with the certificate that this server shows to etcd, as PEM.",
    ),
    row("etcd.ssl.key.location", "", Scope::Server, anything, "And the private key that belongs to it."),
    row(
        "inter.broker.listener.name",
        "",
        Scope::Server,
        anything,
        "The listener at which the brokers of a cluster reach each other. Empty for the first one of listeners.",
    ),
    row(
        "inter.broker.client.config",
        "",
        Scope::Server,
        anything,
        "How they do that, a file as Kafka's tools take it (client.properties): security.protocol, and the settings of ssl and\n\
         sasl. Empty for plain text. The user needs the right ClusterAction.",
    ),
    row(
        "cluster.name",
        "main",
        Scope::Server,
        cluster_name,
        "The name of the cluster in etcd, which may have several of them.",
    ),
    row(
        "broker.session.timeout.ms",
        "3000",
        Scope::Server,
        natural::<500>,
        "A broker of a cluster that gave no sign of life for so many milliseconds loses its logs to the others.",
    ),
    secret(
        "admin.token",
        Scope::Server,
        token,
        "What asks for metrics must say (Authorization: Bearer …). Needed where admin.listen is not a loopback address;\n\
         /healthz and /readyz stay open.",
    ),
    row(
        "ready.message",
        "",
        Scope::Server,
        anything,
        "Text that is printed below the line of a server that is ready, for scripts that wait for lines of other servers.",
    ),
    row(
        "ssl.keystore.type",
        "PEM",
        Scope::Listeners,
        pem_key_store,
        "The form of the server's key and certificates: PEM.",
    ),
    row(
        "ssl.keystore.location",
        "",
        Scope::Listeners,
        anything,
        "File with the server's private key (PKCS#8, PKCS#1 or SEC1, not encrypted) and its certificate chain, as PEM. It\n\
         is read again when it changes.",
    ),
    secret(
        "ssl.keystore.key",
        Scope::Listeners,
        anything,
        "The private key itself, as PEM, in place of ssl.keystore.location.",
    ),
    row(
        "ssl.keystore.certificate.chain",
        "",
        Scope::Listeners,
        anything,
        "And the certificate chain that belongs to it, the server's own first.",
    ),
    secret(
        "ssl.key.password",
        Scope::Listeners,
        no_password,
        "For keys that are encrypted, which are not read: there is nothing to set.",
    ),
    row(
        "ssl.truststore.type",
        "PEM",
        Scope::Listeners,
        pem_trust_store,
        "The form of the authorities' certificates: PEM.",
    ),
    row(
        "ssl.truststore.location",
        "",
        Scope::Listeners,
        anything,
        "File with the certificates of the authorities that clients' certificates come from, as PEM. It is read again when\n\
         it changes.",
    ),
    row(
        "ssl.truststore.certificates",
        "",
        Scope::Listeners,
        anything,
        "The certificates of the authorities themselves, as PEM, in place of ssl.truststore.location.",
    ),
    row(
        "ssl.client.auth",
        "none",
        Scope::Listeners,
        |text| ClientAuthentication::parse(text).map(drop),
        "Whether clients show a certificate: none, requested or required. A listener with SASL asks for one only where\n\
         this is said for that listener.",
    ),
    row(
        "ssl.principal.mapping.rules",
        "DEFAULT",
        Scope::Listeners,
        |text| MappingRules::parse(text).map(drop),
        "Makes the name of a principal of a certificate's subject: RULE:pattern/replacement/[L|U], separated by commas; the\n\
         first that fits holds. DEFAULT is the subject as it is.",
    ),
    row(
        "ssl.enabled.protocols",
        "TLSv1.2,TLSv1.3",
        Scope::Listeners,
        |text| TlsVersion::parse_list(text).map(drop),
        "Versions of TLS: TLSv1.2, TLSv1.3.",
    ),
    row(
        "ssl.reload.interval.ms",
        "5000",
        Scope::Listeners,
        natural::<10>,
        "How often the files above are looked at for a change, in milliseconds.",
    ),
    row(
        "sasl.enabled.mechanisms",
        "SCRAM-SHA-512,SCRAM-SHA-256",
        Scope::Listeners,
        |text| listeners::parse_mechanisms(text).map(drop),
        "How clients may authenticate: SCRAM-SHA-512, SCRAM-SHA-256, PLAIN, OAUTHBEARER.",
    ),
    row(
        "connections.max.reauth.ms",
        "0",
        Scope::Listeners,
        natural64::<0>,
        "A client must authenticate again after so many milliseconds at most; 0 for never (KIP-368).",
    ),
    row(
        "sasl.oauthbearer.jwks.endpoint.url",
        "",
        Scope::Listeners,
        anything,
        "Where the keys are that tokens are signed with: file:///path, https:// or http://.",
    ),
    row(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "3600000",
        Scope::Listeners,
        natural64::<1>,
        "How often they are fetched again, in milliseconds.",
    ),
    row(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "100",
        Scope::Listeners,
        natural64::<1>,
        "How long to wait before they are fetched again after a failure, in milliseconds, at first.",
    ),
    row(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "10000",
        Scope::Listeners,
        natural64::<1>,
        "And at most.",
    ),
    row(
        "sasl.oauthbearer.expected.audience",
        "",
        Scope::Listeners,
        anything,
        "A token must be for one of these audiences, separated by commas; empty refuses tokens that name one.",
    ),
    row(
        "sasl.oauthbearer.expected.issuer",
        "",
        Scope::Listeners,
        anything,
        "A token must come from this issuer; empty for any.",
    ),
    row(
        "sasl.oauthbearer.scope.claim.name",
        "scope",
        Scope::Listeners,
        some,
        "The claim of a token that holds its scope.",
    ),
    row(
        "sasl.oauthbearer.sub.claim.name",
        "sub",
        Scope::Listeners,
        some,
        "The claim of a token that names its principal.",
    ),
    row(
        "sasl.oauthbearer.clock.skew.seconds",
        "30",
        Scope::Listeners,
        natural::<0>,
        "How far clocks may be apart, in seconds.",
    ),
    row(
        "max.connections",
        "",
        Scope::OneListener,
        |text| of_the_broker("max.connections", text),
        "Connections of this listener at most.",
    ),
    row(
        "max.connection.creation.rate",
        "",
        Scope::OneListener,
        |text| of_the_broker("max.connection.creation.rate", text),
        "New connections of this listener a second at most.",
    ),
    row(
        "socket.request.max.bytes",
        "",
        Scope::OneListener,
        |text| of_the_broker("socket.request.max.bytes", text),
        "Largest request that this listener reads, in bytes.",
    ),
    row(
        "queued.max.request.bytes",
        "",
        Scope::OneListener,
        |text| of_the_broker("queued.max.request.bytes", text),
        "Bytes of requests held in memory that came through this listener, within those of the whole server.",
    ),
];

/// The row of this name for the server or for all listeners.
pub fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name && row.scope != Scope::OneListener)
}

/// The row of this name, if it may be set for one listener.
pub fn find_for_one(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name && row.scope != Scope::Server)
}

/// A value, and its form that may be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Text {
    pub value: String,
    pub shown: String,
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown.fmt(f)
    }
}

/// The given values: by listener in lower case, or for all listeners (empty), then by name.
pub type Texts = BTreeMap<(String, &'static str), Text>;

fn anything(_: &str) -> Result<(), String> {
    Ok(())
}

fn some(text: &str) -> Result<(), String> {
    if text.is_empty() { Err("it must not be empty".into()) } else { Ok(()) }
}

fn truth(text: &str) -> Result<(), String> {
    matches!(text, "true" | "false").then_some(()).ok_or("it must be true or false".into())
}

fn natural<const MIN: i32>(text: &str) -> Result<(), String> {
    let value: i32 = text.parse().map_err(|error: std::num::ParseIntError| error.to_string())?;
    if value < MIN { Err(format!("it must be from {MIN} to {}", i32::MAX)) } else { Ok(()) }
}

fn natural64<const MIN: i64>(text: &str) -> Result<(), String> {
    let value: i64 = text.parse().map_err(|error: std::num::ParseIntError| error.to_string())?;
    if value < MIN { Err(format!("it must be from {MIN} to {}", i64::MAX)) } else { Ok(()) }
}

fn cluster_name(text: &str) -> Result<(), String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let fit = !text.is_empty() && text.len() <= 100 && text.bytes().all(fits);
    fit.then_some(()).ok_or("it may hold letters, digits and the signs - _ .".into())
}

fn token(text: &str) -> Result<(), String> {
    let fits = text.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then_some(()).ok_or("it may hold letters, digits and signs of ASCII, and no blanks".into())
}

fn no_password(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    Err("encrypted keys are not read; `openssl pkcs8 -topk8 -nocrypt -in KEY.pem -out PLAIN.pem` makes one that is, and \
         mode 0600 keeps it from others"
        .into())
}

fn pem_key_store(text: &str) -> Result<(), String> {
    pem(text, "`openssl pkcs12 -in STORE.p12 -nodes -out server.pem`")
}

fn pem_trust_store(text: &str) -> Result<(), String> {
    pem(text, "`keytool -list -rfc -keystore STORE | sed -n '/BEGIN/,/END/p' > authorities.pem`")
}

fn pem(text: &str, from_pkcs12: &str) -> Result<(), String> {
    let first = match text {
        "PEM" => return Ok(()),
        "JKS" => {
            "first `keytool -importkeystore -srckeystore STORE.jks -destkeystore STORE.p12 -deststoretype PKCS12`, then "
        }
        _ => "",
    };
    Err(format!("only PEM is read; {first}{from_pkcs12} converts a PKCS#12 store"))
}

fn of_the_broker(name: &str, text: &str) -> Result<(), String> {
    Config::default().set(name, text).map_err(|error| match error {
        ConfigError::Invalid { problem, .. } => problem,
        ConfigError::Unknown { .. } => error.to_string(),
    })
}
