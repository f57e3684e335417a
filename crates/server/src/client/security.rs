//! How the commands prove who they are and whom they talk to, as Kafka's tools are told in their `--command-config`:
//! `security.protocol`, `ssl.*` with PEM, `sasl.mechanism` and `sasl.jaas.config`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sasl::scram::{Hash, random_nonce};
use sasl::{Mechanism, jaas, scram};

use crate::properties;

type Properties = BTreeMap<String, String>;

/// A user, and what proves it.
#[derive(Clone)]
pub enum LogIn {
    Plain { user: String, password: String },
    Scram { hash: Hash, user: String, password: String },
    Token(String),
}

impl fmt::Debug for LogIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mechanism().name())
    }
}

impl LogIn {
    pub fn mechanism(&self) -> Mechanism {
        match self {
            LogIn::Plain { .. } => Mechanism::Plain,
            LogIn::Scram { hash, .. } => Mechanism::Scram(*hash),
            LogIn::Token(_) => Mechanism::OauthBearer,
        }
    }

    /// Goes through the exchange; `send` brings a message to the server and its answer back.
    pub fn run<E>(&self, mut send: impl FnMut(String) -> Result<String, E>) -> Result<Result<(), String>, E> {
        match self {
            LogIn::Plain { user, password } => send(format!("\0{user}\0{password}")).map(|_| Ok(())),
            LogIn::Token(token) => {
                let answer = send(format!("n,,\x01auth=Bearer {token}\x01\x01"))?;
                Ok(if answer.is_empty() { Ok(()) } else { Err(answer) })
            }
            LogIn::Scram { hash, user, password } => {
                let Some(nonce) = random_nonce() else {
                    return Ok(Err("the system has no random numbers".into()));
                };
                let mut client = scram::Client::new(*hash, user, password, nonce);
                let challenge = send(client.first())?;
                match client.last(&challenge) {
                    Ok(last) => {
                        let last = send(last)?;
                        Ok(client.check(&last).map_err(|error| error.to_string()))
                    }
                    Err(error) => Ok(Err(error.to_string())),
                }
            }
        }
    }
}

/// What goes on between connecting and the first request.
#[derive(Clone, Debug, Default)]
pub struct Security {
    tls: Option<Arc<ClientConfig>>,
    pub log_in: Option<LogIn>,
}

impl Security {
    /// As the properties file says; none without one.
    pub fn load(file: Option<&Path>) -> anyhow::Result<Security> {
        let Some(file) = file else { return Ok(Security::default()) };
        let shown = file.display();
        let text = std::fs::read_to_string(file).with_context(|| format!("{shown} cannot be read"))?;
        Security::of(&properties::parse(&text)).with_context(|| format!("{shown} cannot be used"))
    }

    fn of(properties: &Properties) -> anyhow::Result<Security> {
        let protocol = properties.get("security.protocol").map_or("PLAINTEXT", String::as_str);
        let (tls, sasl) = match protocol.to_uppercase().as_str() {
            "PLAINTEXT" => (false, false),
            "SSL" => (true, false),
            "SASL_PLAINTEXT" => (false, true),
            "SASL_SSL" => (true, true),
            _ => bail!("security.protocol={protocol}: it is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
        };
        Ok(Security {
            tls: tls.then(|| client_config(properties)).transpose()?,
            log_in: sasl.then(|| log_in(properties)).transpose()?,
        })
    }

    /// Wraps a new connection to `address`, which is `host:port`.
    pub fn wrap(&self, stream: TcpStream, address: &str) -> io::Result<Stream> {
        let Some(config) = &self.tls else { return Ok(Stream::Plain(stream)) };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let session = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(session, stream))))
    }
}

/// A connection, encrypted or not.
#[derive(Debug)]
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(buffer),
            Stream::Tls(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// The PEM text that `ssl.NAME.location` or one of `inline` gives.
fn pem(properties: &Properties, name: &str, inline: &[&str]) -> anyhow::Result<Option<String>> {
    let given: Vec<&str> = inline.iter().filter_map(|key| properties.get(*key)).map(String::as_str).collect();
    if !given.is_empty() {
        return Ok(Some(given.join("\n")));
    }
    let Some(location) = properties.get(&format!("ssl.{name}.location")) else { return Ok(None) };
    if !properties.get(&format!("ssl.{name}.type")).is_some_and(|kind| kind.eq_ignore_ascii_case("PEM")) {
        bail!("ssl.{name}.type is to be PEM: Java's own key stores are not read here");
    }
    let text = std::fs::read_to_string(location);
    text.map(Some).with_context(|| format!("ssl.{name}.location={location} cannot be read"))
}

fn client_config(properties: &Properties) -> anyhow::Result<Arc<ClientConfig>> {
    if properties.get("ssl.endpoint.identification.algorithm").is_some_and(String::is_empty) {
        bail!(
            "ssl.endpoint.identification.algorithm cannot be empty: the server's name is always checked here"
        );
    }
    let mut roots = RootCertStore::empty();
    match pem(properties, "truststore", &["ssl.truststore.certificates"])? {
        Some(text) => {
            for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
                roots.add(certificate.context("the trust store is no PEM")?).context("the trust store")?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        bail!(
            "ssl.truststore.location has to name the PEM file of the authority that signed the server's certificate"
        );
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let own = pem(properties, "keystore", &["ssl.keystore.key", "ssl.keystore.certificate.chain"])?;
    let Some(own) = own else { return Ok(Arc::new(builder.with_no_client_auth())) };
    let wrong = "the key store has to hold a PEM key without a password and its certificates";
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(own.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(own.as_bytes()).context(wrong)?;
    Ok(Arc::new(builder.with_client_auth_cert(chain.context(wrong)?, key).context(wrong)?))
}

fn log_in(properties: &Properties) -> anyhow::Result<LogIn> {
    // Where a token comes from, as Java clients may be told.
    const TOKEN: &str = "sasl.oauthbearer.token.endpoint.url";
    let name = properties.get("sasl.mechanism").map_or("", String::as_str);
    let line = properties.get("sasl.jaas.config").map_or("", String::as_str);
    let option =
        |name| jaas::option(line, name).with_context(|| format!("sasl.jaas.config is to say {name}=\"…\""));
    match Mechanism::from_name(name) {
        Some(Mechanism::Plain) => {
            Ok(LogIn::Plain { user: option("username")?, password: option("password")? })
        }
        Some(Mechanism::Scram(hash)) => {
            Ok(LogIn::Scram { hash, user: option("username")?, password: option("password")? })
        }
        Some(Mechanism::OauthBearer) => {
            let file = properties.get(TOKEN).and_then(|url| url.strip_prefix("file://"));
            let file =
                file.with_context(|| format!("{TOKEN} is to name a file with a token, as file:///path"))?;
            let token = std::fs::read_to_string(file).with_context(|| format!("{TOKEN}: {file}"))?;
            Ok(LogIn::Token(token.trim().to_owned()))
        }
        None => bail!("sasl.mechanism={name}: it is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> anyhow::Result<Security> {
        Security::of(&properties::parse(text))
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
    fn what_is_missing_is_named() {
        let error = |text: &str| format!("{:#}", of(text).unwrap_err());
        assert!(error("security.protocol=TLS").contains("security.protocol=TLS"));
        assert!(
            error("security.protocol=SSL\nssl.truststore.location=x.jks").contains("ssl.truststore.type")
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
}
