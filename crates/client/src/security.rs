//! The security settings of a client, in the properties of Kafka's tools (`client.properties`): `security.protocol`, `ssl.*`
//! with PEM, `sasl.mechanism` and `sasl.jaas.config`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sasl::{Mechanism, jaas};

use crate::log_in::LogIn;
use crate::properties::{Properties, parse};

/// The property of Java clients for the source of a token. Only files are supported here.
const TOKEN_URL: &str = "sasl.oauthbearer.token.endpoint.url";

/// The reason why properties cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// The properties file cannot be read.
    #[error("{file} cannot be read: {error}")]
    Unreadable {
        /// Its path.
        file: String,
        /// The cause.
        error: io::Error,
    },
    /// A property in the file cannot be used.
    #[error("{file} cannot be used: {error}")]
    Unusable {
        /// Its path.
        file: String,
        /// The property, and the cause.
        error: Box<SecurityError>,
    },
    /// The protocol is not one of Kafka's four.
    #[error("security.protocol={0}: it is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")]
    Protocol(String),
    /// An empty algorithm turns the check of the server's name off in Java.
    #[error(
        "ssl.endpoint.identification.algorithm cannot be empty: the server's name is always checked here"
    )]
    Unchecked,
    /// The store is JKS or PKCS12.
    #[error("ssl.{0}.type is to be PEM: Java's own key stores are not read here")]
    StoreType(&'static str),
    /// The file in `ssl.NAME.location` cannot be read.
    #[error("ssl.{name}.location={location} cannot be read: {error}")]
    Store {
        /// `keystore` or `truststore`.
        name: &'static str,
        /// The path.
        location: String,
        /// The cause.
        error: io::Error,
    },
    /// Neither the properties nor the system have an authority.
    #[error(
        "ssl.truststore.location has to name the PEM file of the authority that signed the server's certificate"
    )]
    NoAuthority,
    /// The trust store is not PEM.
    #[error("the trust store is no PEM: {0}")]
    TrustStore(PemError),
    /// A certificate in the trust store cannot be an authority.
    #[error("the trust store: {0}")]
    Authority(rustls::Error),
    /// The key store is not PEM, or lacks the key.
    #[error("the key store has to hold a PEM key without a password and its certificates: {0}")]
    KeyStore(PemError),
    /// The key and the certificates do not match.
    #[error("the key store has to hold a PEM key without a password and its certificates: {0}")]
    Identity(rustls::Error),
    /// The cryptography provider does not support the default versions of TLS.
    #[error("TLS: {0}")]
    Tls(rustls::Error),
    /// The mechanism is unknown.
    #[error("sasl.mechanism={0}: it is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER")]
    Mechanism(String),
    /// The log-in module lacks an option.
    #[error("sasl.jaas.config is to say {0}=\"…\"")]
    Jaas(&'static str),
    /// The source of the token is not a file.
    #[error("{TOKEN_URL} is to name a file with a token, as file:///path")]
    TokenUrl,
    /// The file with the token cannot be read.
    #[error("{TOKEN_URL}: {file}: {error}")]
    Token {
        /// Its path.
        file: String,
        /// The cause.
        error: io::Error,
    },
}

/// The security of a client's connections.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// Present for `SSL` and `SASL_SSL`.
    pub tls: Option<Arc<ClientConfig>>,
    /// Present for `SASL_PLAINTEXT` and `SASL_SSL`.
    pub log_in: Option<LogIn>,
}

impl Security {
    /// Reads the properties file. Without a file the protocol is PLAINTEXT.
    ///
    /// # Errors
    /// [`SecurityError::Unreadable`] and [`SecurityError::Unusable`].
    pub fn load(file: Option<&Path>) -> Result<Security, SecurityError> {
        let Some(path) = file else { return Ok(Security::default()) };
        let file = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Security::of(&parse(&text))
                .map_err(|error| SecurityError::Unusable { file, error: Box::new(error) }),
            Err(error) => Err(SecurityError::Unreadable { file, error }),
        }
    }

    /// Takes `security.protocol`, `ssl.*` and `sasl.*`, and reads the files that they name.
    ///
    /// # Errors
    /// All errors but those that [`Security::load`] adds.
    pub fn of(properties: &Properties) -> Result<Security, SecurityError> {
        let protocol = properties.get("security.protocol").map_or("PLAINTEXT", String::as_str);
        let (tls, sasl) = match protocol.to_uppercase().as_str() {
            "PLAINTEXT" => (false, false),
            "SSL" => (true, false),
            "SASL_PLAINTEXT" => (false, true),
            "SASL_SSL" => (true, true),
            _ => return Err(SecurityError::Protocol(protocol.to_owned())),
        };
        Ok(Security {
            tls: tls.then(|| client_config(properties, systems_authorities)).transpose()?,
            log_in: sasl.then(|| log_in(properties)).transpose()?,
        })
    }
}

/// The server's name in its certificate; `address` is `host:port`.
///
/// # Errors
/// The host is neither an IP address nor a DNS name.
pub fn server_name(address: &str) -> Result<ServerName<'static>, InvalidDnsNameError> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    ServerName::try_from(host.to_owned())
}

/// The authorities of this system. The environment variable `SSL_CERT_FILE` replaces them.
fn systems_authorities() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}

/// The PEM text of a store: the values of the properties `inline`, or the file in `ssl.NAME.location`.
fn pem(
    properties: &Properties,
    name: &'static str,
    inline: &[&str],
) -> Result<Option<String>, SecurityError> {
    let given: Vec<&str> = inline.iter().filter_map(|key| properties.get(*key)).map(String::as_str).collect();
    if !given.is_empty() {
        return Ok(Some(given.join("\n")));
    }
    let Some(location) = properties.get(&format!("ssl.{name}.location")) else { return Ok(None) };
    if !properties.get(&format!("ssl.{name}.type")).is_some_and(|kind| kind.eq_ignore_ascii_case("PEM")) {
        return Err(SecurityError::StoreType(name));
    }
    let unreadable = |error| SecurityError::Store { name, location: location.clone(), error };
    std::fs::read_to_string(location).map(Some).map_err(unreadable)
}

fn client_config(
    properties: &Properties,
    systems: impl FnOnce() -> Vec<CertificateDer<'static>>,
) -> Result<Arc<ClientConfig>, SecurityError> {
    if properties.get("ssl.endpoint.identification.algorithm").is_some_and(String::is_empty) {
        return Err(SecurityError::Unchecked);
    }
    let mut roots = RootCertStore::empty();
    match pem(properties, "truststore", &["ssl.truststore.certificates"])? {
        Some(text) => {
            for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
                roots
                    .add(certificate.map_err(SecurityError::TrustStore)?)
                    .map_err(SecurityError::Authority)?;
            }
        }
        None => {
            roots.add_parsable_certificates(systems());
        }
    }
    if roots.is_empty() {
        return Err(SecurityError::NoAuthority);
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(SecurityError::Tls)?
        .with_root_certificates(roots);
    let own = pem(properties, "keystore", &["ssl.keystore.key", "ssl.keystore.certificate.chain"])?;
    let Some(own) = own else { return Ok(Arc::new(builder.with_no_client_auth())) };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(own.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(own.as_bytes()).map_err(SecurityError::KeyStore)?;
    let config = builder
        .with_client_auth_cert(chain.map_err(SecurityError::KeyStore)?, key)
        .map_err(SecurityError::Identity)?;
    Ok(Arc::new(config))
}

fn log_in(properties: &Properties) -> Result<LogIn, SecurityError> {
    let name = properties.get("sasl.mechanism").map_or("", String::as_str);
    let line = properties.get("sasl.jaas.config").map_or("", String::as_str);
    let option = |name| jaas::option(line, name).ok_or(SecurityError::Jaas(name));
    match Mechanism::from_name(name) {
        Some(Mechanism::Plain) => {
            Ok(LogIn::Plain { user: option("username")?, password: option("password")? })
        }
        Some(Mechanism::Scram(hash)) => {
            Ok(LogIn::Scram { hash, user: option("username")?, password: option("password")? })
        }
        Some(Mechanism::OauthBearer) => {
            let file = properties.get(TOKEN_URL).and_then(|url| url.strip_prefix("file://"));
            let file = file.ok_or(SecurityError::TokenUrl)?;
            let unreadable = |error| SecurityError::Token { file: file.to_owned(), error };
            let token = std::fs::read_to_string(file).map_err(unreadable)?;
            Ok(LogIn::Token(token.trim().to_owned()))
        }
        None => Err(SecurityError::Mechanism(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use sasl::scram::Hash;

    use super::*;

    fn of(text: &str) -> Result<Security, SecurityError> {
        Security::of(&parse(text))
    }

    #[test]
    fn users_are_read_as_for_java() {
        let text = "# who\nsecurity.protocol = SASL_PLAINTEXT\nsasl.mechanism: SCRAM-SHA-512\n\
            sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n  \
            username=\"alice\" \\\n  password=\"it is = secret\";\n";
        let security = of(text).unwrap();
        let Some(LogIn::Scram { hash: Hash::Sha512, user, password }) = &security.log_in else { panic!() };
        assert_eq!((user.as_str(), password.as_str()), ("alice", "it is = secret"));
        assert!(!format!("{security:?}").contains("secret"));
        assert!(of("").unwrap().log_in.is_none());
    }

    #[test]
    fn quotes_in_names_and_passwords_are_read_as_java_writes_them() {
        let jaas = r#"org.apache.kafka.common.security.scram.ScramLoginModule required username="my username" password="a\"b";"#;
        let pairs = [
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanism", "SCRAM-SHA-256"),
            ("sasl.jaas.config", jaas),
        ];
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let security = Security::of(&Properties::from(pairs)).unwrap();
        let log_in = security.log_in.unwrap();
        assert_eq!(log_in.mechanism().name(), "SCRAM-SHA-256");
        assert!(!format!("{log_in:?}").contains("a\""));
        let LogIn::Scram { user, password, .. } = log_in else { panic!() };
        assert_eq!((user.as_str(), password.as_str()), ("my username", "a\"b"));
        assert!(security.tls.is_none());
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = |text: &str| of(text).unwrap_err().to_string();
        assert!(error("security.protocol=TLS").contains("security.protocol=TLS"));
        assert!(
            error("security.protocol=SSL\nssl.truststore.location=x.jks")
                .contains("ssl.truststore.type is to be PEM")
        );
        let pem = "security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=/nowhere";
        assert!(error(pem).contains("/nowhere"));
        assert!(
            error("security.protocol=SSL\nssl.endpoint.identification.algorithm=").contains("always checked")
        );
        let sasl = "security.protocol=SASL_PLAINTEXT\n";
        assert!(error(&format!("{sasl}sasl.mechanism=GSSAPI")).contains("sasl.mechanism=GSSAPI"));
        assert!(error(&format!("{sasl}sasl.mechanism=PLAIN")).contains("username"));
        assert!(error(&format!("{sasl}sasl.mechanism=OAUTHBEARER")).contains("token.endpoint.url"));
    }

    #[test]
    fn without_a_trust_store_the_systems_authorities_count() {
        let error = client_config(&Properties::new(), Vec::new).unwrap_err().to_string();
        assert!(error.contains("ssl.truststore.location"), "{error}");
        // A certificate that cannot be parsed is ignored.
        let broken = || vec![CertificateDer::from(vec![1, 2, 3])];
        assert!(matches!(client_config(&Properties::new(), broken), Err(SecurityError::NoAuthority)));
        let named = parse("ssl.truststore.certificates=nothing");
        let asked = || panic!("the system is not asked where a trust store is named");
        assert!(matches!(client_config(&named, asked), Err(SecurityError::NoAuthority)));
    }

    #[test]
    fn names_are_without_ports_and_brackets() {
        let name = |address| server_name(address).unwrap().to_str().into_owned();
        assert_eq!(name("broker.example.com:9092"), "broker.example.com");
        assert_eq!((name("[::1]:9092").as_str(), name("127.0.0.1:1").as_str()), ("::1", "127.0.0.1"));
        assert!(server_name("a b:1").is_err());
    }
}
