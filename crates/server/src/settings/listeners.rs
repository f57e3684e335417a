//! The settings of each listener, derived from the given values.
//!
//! Single values were checked when they were given. This module checks the rules between them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::spelling::{host_port, list};
use super::table::{Row, Scope, Text, Texts, find_for_one};
use crate::principal_mapping::MappingRules;

/// The protocol of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    Plaintext,
    Ssl,
    SaslPlaintext,
    SaslSsl,
}

impl Protocol {
    const ALL: [Protocol; 4] =
        [Protocol::Plaintext, Protocol::Ssl, Protocol::SaslPlaintext, Protocol::SaslSsl];

    pub fn name(self) -> &'static str {
        match self {
            Protocol::Plaintext => "PLAINTEXT",
            Protocol::Ssl => "SSL",
            Protocol::SaslPlaintext => "SASL_PLAINTEXT",
            Protocol::SaslSsl => "SASL_SSL",
        }
    }

    fn of(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.name().eq_ignore_ascii_case(name))
    }

    /// Whether the connection is encrypted.
    pub fn encrypts(self) -> bool {
        matches!(self, Protocol::Ssl | Protocol::SaslSsl)
    }

    /// Whether clients authenticate by SASL.
    pub fn has_sasl(self) -> bool {
        matches!(self, Protocol::SaslPlaintext | Protocol::SaslSsl)
    }
}

/// `ssl.client.auth`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientAuthentication {
    None,
    Requested,
    Required,
}

impl ClientAuthentication {
    pub fn parse(text: &str) -> Result<ClientAuthentication, String> {
        match text {
            "none" => Ok(ClientAuthentication::None),
            "requested" => Ok(ClientAuthentication::Requested),
            "required" => Ok(ClientAuthentication::Required),
            _ => Err("it must be none, requested or required".into()),
        }
    }
}

/// A version of TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsVersion {
    V1_2,
    V1_3,
}

impl TlsVersion {
    pub fn parse_list(text: &str) -> Result<Vec<TlsVersion>, String> {
        let one = |name: &str| match name {
            "TLSv1.2" => Ok(TlsVersion::V1_2),
            "TLSv1.3" => Ok(TlsVersion::V1_3),
            _ => Err(format!("{name} is not spoken; there are TLSv1.2 and TLSv1.3")),
        };
        let versions: Vec<TlsVersion> = list(text).map(one).collect::<Result<_, String>>()?;
        if versions.is_empty() { Err("at least one version must be spoken".into()) } else { Ok(versions) }
    }
}

/// PEM: the path of a file, or the text itself.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    File(PathBuf),
    Inline(String),
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::File(path) => write!(f, "{}", path.display()),
            Pem::Inline(_) => f.write_str("inline"),
        }
    }
}

/// The TLS settings of a listener.
#[derive(Clone, Debug)]
pub struct SslSettings {
    /// The server's private key and its certificates.
    pub key: Pem,
    pub certificates: Pem,
    /// The authorities of clients' certificates. Present if such certificates are requested.
    pub authorities: Option<Pem>,
    pub client_authentication: ClientAuthentication,
    pub mapping_rules: MappingRules,
    pub versions: Vec<TlsVersion>,
    pub reload_interval: Duration,
}

/// The SASL settings of a listener.
#[derive(Clone, Debug)]
pub struct SaslSettings {
    /// In upper case, in the given order.
    pub mechanisms: Vec<String>,
    /// `sasl.server.max.receive.size`.
    pub request_bytes_max: usize,
    /// `connections.max.reauth.ms`.
    pub reauthentication: Option<Duration>,
    /// `connection.failed.authentication.delay.ms`.
    pub failure_delay: Duration,
    pub oauth: OauthSettings,
}

/// The rules for checking tokens (`sasl.oauthbearer.*`).
#[derive(Clone, Debug)]
pub struct OauthSettings {
    pub jwks_url: String,
    pub jwks_refresh: Duration,
    pub jwks_retry_backoff: Duration,
    pub jwks_retry_backoff_max: Duration,
    /// Empty if any audience is allowed.
    pub audiences: Vec<String>,
    pub issuer: Option<String>,
    pub scope_claim: String,
    pub subject_claim: String,
    pub clock_skew: Duration,
}

/// All settings of one listener.
#[derive(Clone, Debug)]
pub struct ListenerSettings {
    /// In upper case.
    pub name: String,
    pub protocol: Protocol,
    /// Host and port, resolved at the bind.
    pub address: String,
    /// The address that clients are told to connect to, if it is not the address that they reached.
    pub advertised: Option<(String, u16)>,
    /// Bounds of this listener, within those of the whole server.
    pub connections_max: Option<usize>,
    /// New connections a second.
    pub connection_rate_max: Option<i32>,
    pub request_bytes_max: Option<usize>,
    pub in_flight_bytes: Option<i64>,
    /// Present if the protocol encrypts.
    pub ssl: Option<SslSettings>,
    /// Present if the protocol has SASL.
    pub sasl: Option<SaslSettings>,
}

impl ListenerSettings {
    /// Whether the listener is safe on a network: it encrypts and authenticates every client.
    pub fn is_secure(&self) -> bool {
        let certificate = |ssl: &SslSettings| ssl.client_authentication == ClientAuthentication::Required;
        self.ssl.as_ref().is_some_and(|ssl| self.sasl.is_some() || certificate(ssl))
    }
}

/// A conflict between settings: the name of the setting to report, and the problem.
pub type Conflict = (String, String);

/// All listeners. If no listener is configured, there is one in plain text at `listen`.
pub fn resolve(texts: &Texts, listen: &str) -> Result<Vec<ListenerSettings>, Conflict> {
    let of_server = Values { texts, listener: "" };
    let conflict = |name: &'static str| move |problem: String| (name.to_owned(), problem);
    let mut named = parse(&of_server.text("listeners")).map_err(conflict("listeners"))?;
    if named.is_empty() {
        named.push(("PLAINTEXT".into(), listen.to_owned()));
    }
    let map_name = "listener.security.protocol.map";
    let protocols = parse_protocols(&of_server.text(map_name)).map_err(conflict(map_name))?;
    let advertised_name = "advertised.listeners";
    let advertised = parse_advertised(&of_server.text(advertised_name)).map_err(conflict(advertised_name))?;
    let is_named = |name: &str| named.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
    if let Some((name, ..)) = advertised.iter().find(|(name, ..)| !is_named(name)) {
        return Err((advertised_name.into(), format!("there is no listener {name} in listeners")));
    }
    for ((listener, name), _) in texts.iter().filter(|((listener, _), _)| !listener.is_empty()) {
        if !is_named(listener) {
            let problem = format!("there is no listener {} in listeners", listener.to_uppercase());
            return Err((format!("listener.name.{listener}.{name}"), problem));
        }
    }
    named
        .into_iter()
        .map(|(name, address)| {
            let mapped = protocols.iter().find(|(other, _)| *other == name).map(|(_, protocol)| *protocol);
            let protocol = mapped.or_else(|| Protocol::of(&name)).ok_or_else(|| {
                let problem = format!(
                    "{name} is none of PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL; \
                     listener.security.protocol.map must say what it speaks, like {name}:SASL_SSL"
                );
                ("listeners".to_owned(), problem)
            })?;
            let advertised = advertised.iter().find(|(other, ..)| *other == name);
            let lower = name.to_lowercase();
            let values = Values { texts, listener: &lower };
            Ok(ListenerSettings {
                advertised: advertised.map(|(_, host, port)| (host.clone(), *port)),
                connections_max: values.of_its_own("max.connections"),
                connection_rate_max: values.of_its_own("max.connection.creation.rate"),
                request_bytes_max: values.of_its_own("socket.request.max.bytes"),
                in_flight_bytes: values.of_its_own("queued.max.request.bytes"),
                ssl: if protocol.encrypts() { Some(values.ssl(&name, protocol)?) } else { None },
                sasl: protocol.has_sasl().then(|| values.sasl()),
                name,
                protocol,
                address,
            })
        })
        .collect()
}

/// The values of the server (empty name) or of one listener.
pub struct Values<'a> {
    pub texts: &'a Texts,
    pub listener: &'a str,
}

impl Values<'_> {
    fn given(&self, listener: &str, name: &'static str) -> Option<&Text> {
        self.texts.get(&(listener.to_owned(), name))
    }

    /// The value of a setting: that of this listener, that for all listeners, or the default.
    pub fn text(&self, name: &'static str) -> String {
        let row = super::table::find(name).or_else(|| find_for_one(name));
        let default = row.map_or("", |row: &Row| row.default);
        let own = self.given(self.listener, name).or_else(|| self.given("", name));
        own.map_or_else(|| default.to_owned(), |text| text.value.clone())
    }

    /// The value as a number. It was checked when it was given.
    pub fn number<T: std::str::FromStr + Default>(&self, name: &'static str) -> T {
        self.text(name).parse().unwrap_or_default()
    }

    pub fn millis(&self, name: &'static str) -> Duration {
        Duration::from_millis(self.number(name))
    }

    fn some(&self, name: &'static str) -> Option<String> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    fn of_its_own<T: std::str::FromStr>(&self, name: &'static str) -> Option<T> {
        debug_assert!(find_for_one(name).is_some_and(|row| row.scope == Scope::OneListener));
        self.given(self.listener, name)?.value.parse().ok()
    }

    /// The name of the setting to report for a missing or invalid value.
    fn blamed(&self, name: &'static str) -> String {
        let own = self.given(self.listener, name).is_some();
        if own { format!("listener.name.{}.{name}", self.listener) } else { name.to_owned() }
    }

    fn ssl(&self, listener: &str, protocol: Protocol) -> Result<SslSettings, Conflict> {
        let conflict = |name: &'static str, problem: String| (self.blamed(name), problem);
        let file = self.some("ssl.keystore.location").map(|path| Pem::File(path.into()));
        let inline = self.some("ssl.keystore.key").map(Pem::Inline);
        let (key, certificates) = match (file, inline, self.some("ssl.keystore.certificate.chain")) {
            (Some(file), None, None) => (file.clone(), file),
            (None, Some(key), Some(chain)) => (key, Pem::Inline(chain)),
            (Some(_), ..) => {
                let problem =
                    "the key and the certificates stand in ssl.keystore.location already; only one can hold";
                return Err(conflict("ssl.keystore.key", problem.into()));
            }
            (None, None, None) => {
                let problem = format!(
                    "the listener {listener} speaks {}, for which the server needs a private key and a certificate: name \
                     the PEM file that holds both",
                    protocol.name()
                );
                return Err(conflict("ssl.keystore.location", problem));
            }
            (None, ..) => {
                let problem =
                    "ssl.keystore.key and ssl.keystore.certificate.chain belong together; one is missing";
                return Err(conflict("ssl.keystore.key", problem.into()));
            }
        };
        let authorities =
            match (self.some("ssl.truststore.location"), self.some("ssl.truststore.certificates")) {
                (Some(_), Some(_)) => {
                    let problem = "ssl.truststore.location is given as well; only one can hold";
                    return Err(conflict("ssl.truststore.certificates", problem.into()));
                }
                (Some(path), None) => Some(Pem::File(path.into())),
                (None, text) => text.map(Pem::Inline),
            };
        let name = "ssl.client.auth";
        // As in Kafka, clients that authenticate by SASL show no certificate, unless this listener's own setting
        // requires one.
        let asked = !protocol.has_sasl() || self.given(self.listener, name).is_some();
        let said = if asked { self.text(name) } else { "none".into() };
        let client_authentication =
            ClientAuthentication::parse(&said).map_err(|problem| conflict(name, problem))?;
        if client_authentication != ClientAuthentication::None && authorities.is_none() {
            let problem = format!(
                "it is {said} on the listener {listener}, but no authorities are named that clients' certificates come \
                 from (ssl.truststore.location or ssl.truststore.certificates)"
            );
            return Err(conflict(name, problem));
        }
        let name = "ssl.principal.mapping.rules";
        let mapping_rules =
            MappingRules::parse(&self.text(name)).map_err(|problem| conflict(name, problem))?;
        let name = "ssl.enabled.protocols";
        let versions = TlsVersion::parse_list(&self.text(name)).map_err(|problem| conflict(name, problem))?;
        Ok(SslSettings {
            key,
            certificates,
            authorities: authorities.filter(|_| client_authentication != ClientAuthentication::None),
            client_authentication,
            mapping_rules,
            versions,
            reload_interval: self.millis("ssl.reload.interval.ms"),
        })
    }

    fn sasl(&self) -> SaslSettings {
        let seconds: u32 = self.number("sasl.oauthbearer.clock.skew.seconds");
        SaslSettings {
            mechanisms: parse_mechanisms(&self.text("sasl.enabled.mechanisms")).unwrap_or_default(),
            request_bytes_max: self.number("sasl.server.max.receive.size"),
            reauthentication: Some(self.millis("connections.max.reauth.ms")).filter(|time| !time.is_zero()),
            failure_delay: self.millis("connection.failed.authentication.delay.ms"),
            oauth: OauthSettings {
                jwks_url: self.text("sasl.oauthbearer.jwks.endpoint.url"),
                jwks_refresh: self.millis("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
                jwks_retry_backoff: self.millis("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
                jwks_retry_backoff_max: self.millis("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
                audiences: list(&self.text("sasl.oauthbearer.expected.audience")).map(Into::into).collect(),
                issuer: self.some("sasl.oauthbearer.expected.issuer"),
                scope_claim: self.text("sasl.oauthbearer.scope.claim.name"),
                subject_claim: self.text("sasl.oauthbearer.sub.claim.name"),
                clock_skew: Duration::from_secs(seconds.into()),
            },
        }
    }
}

/// The name in upper case, and host:port, of each listener.
pub fn parse(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut listeners: Vec<(String, String)> = Vec::new();
    for part in list(text) {
        let (name, address) = part.split_once("://").ok_or(format!("{part} is not NAME://host:port"))?;
        let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
        if name.is_empty() || !name.chars().all(fits) {
            return Err(format!("{name:?} is no name; it may hold letters, digits, _ and -"));
        }
        // As in Kafka, an empty host stands for all addresses.
        let address = if address.starts_with(':') { format!("0.0.0.0{address}") } else { address.to_owned() };
        let (_, port) = host_port(&address).map_err(|problem| format!("{part}: {problem}"))?;
        let name = name.to_uppercase();
        if listeners.iter().any(|(other, _)| *other == name) {
            return Err(format!("two listeners are called {name}"));
        }
        let twice = listeners.iter().find(|(_, other)| port != 0 && *other == address);
        if let Some((other, _)) = twice {
            return Err(format!("{other} and {name} have the same address {address}"));
        }
        listeners.push((name, address));
    }
    Ok(listeners)
}

/// The name of each listener, with the host and port that its clients are told.
pub fn parse_advertised(text: &str) -> Result<Vec<(String, String, u16)>, String> {
    parse(text)?
        .into_iter()
        .map(|(name, address)| {
            let (host, port) = host_port(&address)?;
            let nowhere = matches!(host.as_str(), "0.0.0.0" | "::");
            match (nowhere, port) {
                (true, _) => {
                    Err(format!("{name}: clients cannot connect to {host}; name the host as they know it"))
                }
                (false, 0) => Err(format!("{name}: clients cannot connect to port 0")),
                (false, _) => Ok((name, host, port)),
            }
        })
        .collect()
}

/// The protocols of listeners, by name in upper case.
pub fn parse_protocols(text: &str) -> Result<Vec<(String, Protocol)>, String> {
    let one = |part: &str| {
        let (name, protocol) = part.split_once(':').ok_or(format!("{part} is not NAME:PROTOCOL"))?;
        let names = Protocol::ALL.map(Protocol::name).join(", ");
        let protocol = Protocol::of(protocol.trim()).ok_or(format!("{protocol} is none of {names}"))?;
        Ok((name.trim().to_uppercase(), protocol))
    };
    let all: Vec<(String, Protocol)> = list(text).map(one).collect::<Result<_, String>>()?;
    let twice = |at: usize| all[..at].iter().any(|(name, _)| *name == all[at].0);
    match (0..all.len()).find(|at| twice(*at)) {
        Some(at) => Err(format!("{} has two protocols", all[at].0)),
        None => Ok(all),
    }
}

/// SASL mechanisms, in upper case.
pub fn parse_mechanisms(text: &str) -> Result<Vec<String>, String> {
    const KNOWN: [&str; 4] = ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"];
    let mechanisms: Vec<String> = list(text).map(str::to_uppercase).collect();
    if mechanisms.is_empty() {
        return Err("at least one mechanism must be named".into());
    }
    match mechanisms.iter().find(|name| !KNOWN.contains(&name.as_str())) {
        Some(unknown) => Err(format!("{unknown} is not known; there are {}", KNOWN.join(", "))),
        None => Ok(mechanisms),
    }
}
