//! How clients prove who they are and who they talk to, as Java clients are told in their properties.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, bail};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use sasl::{Mechanism, jaas};

use crate::driver::Properties;

/// A user and how to prove to be that user.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub mechanism: Mechanism,
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}", self.mechanism.name(), self.user)
    }
}

/// What goes on between connecting and the first request.
#[derive(Clone, Debug, Default)]
pub struct Security {
    pub tls: Option<Arc<ClientConfig>>,
    pub credentials: Option<Credentials>,
}

impl Security {
    /// From `security.protocol`, `ssl.*` and `sasl.*`.
    pub fn of(properties: &Properties) -> anyhow::Result<Security> {
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
            credentials: sasl.then(|| credentials(properties)).transpose()?,
        })
    }
}

/// A PEM file named by `ssl.NAME.location`.
fn pem_file<'a>(properties: &'a Properties, name: &str) -> anyhow::Result<Option<&'a str>> {
    let Some(location) = properties.get(&format!("ssl.{name}.location")) else { return Ok(None) };
    let kind = properties.get(&format!("ssl.{name}.type")).map_or("", String::as_str);
    if !kind.eq_ignore_ascii_case("PEM") {
        bail!("ssl.{name}.type is to be PEM: Java's own key stores are not read here");
    }
    Ok(Some(location))
}

fn client_config(properties: &Properties) -> anyhow::Result<Arc<ClientConfig>> {
    if properties.get("ssl.endpoint.identification.algorithm").is_some_and(String::is_empty) {
        bail!(
            "ssl.endpoint.identification.algorithm cannot be empty: the server's name is always checked here"
        );
    }
    let Some(trusted) = pem_file(properties, "truststore")? else {
        bail!(
            "TLS needs ssl.truststore.location, the PEM file of the authority that signed the server's certificate"
        );
    };
    let mut roots = rustls::RootCertStore::empty();
    let unreadable = || format!("ssl.truststore.location={trusted} cannot be read as PEM certificates");
    for certificate in CertificateDer::pem_file_iter(trusted).with_context(unreadable)? {
        roots.add(certificate.with_context(unreadable)?).with_context(unreadable)?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let config = match pem_file(properties, "keystore")? {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let unreadable =
                || format!("ssl.keystore.location={own} is to hold a PEM key and its certificates");
            let chain: Result<Vec<_>, _> =
                CertificateDer::pem_file_iter(own).with_context(unreadable)?.collect();
            let key = PrivateKeyDer::from_pem_file(own).with_context(unreadable)?;
            builder.with_client_auth_cert(chain.with_context(unreadable)?, key).with_context(unreadable)?
        }
    };
    Ok(Arc::new(config))
}

fn credentials(properties: &Properties) -> anyhow::Result<Credentials> {
    let name = properties.get("sasl.mechanism").map_or("", String::as_str);
    let mechanism = match Mechanism::from_name(name) {
        Some(mechanism @ (Mechanism::Plain | Mechanism::Scram(_))) => mechanism,
        _ => bail!("sasl.mechanism={name}: it is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"),
    };
    let line = properties.get("sasl.jaas.config").map_or("", String::as_str);
    let option = |name: &str| {
        jaas::option(line, name).with_context(|| format!("sasl.jaas.config is to say {name}=\"…\""))
    };
    Ok(Credentials { mechanism, user: option("username")?, password: option("password")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Properties {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn credentials_are_read_as_java_writes_them() {
        let jaas = r#"org.apache.kafka.common.security.scram.ScramLoginModule required username="my username" password="a\"b";"#;
        let pairs = [
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanism", "SCRAM-SHA-256"),
            ("sasl.jaas.config", jaas),
        ];
        let security = Security::of(&of(&pairs)).unwrap();
        let credentials = security.credentials.unwrap();
        assert_eq!((credentials.user.as_str(), credentials.password.as_str()), ("my username", "a\"b"));
        assert_eq!(credentials.mechanism.name(), "SCRAM-SHA-256");
        assert!(!format!("{credentials:?}").contains("a\""));
        assert!(security.tls.is_none());
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = |pairs: &[(&str, &str)]| Security::of(&of(pairs)).unwrap_err().to_string();
        assert!(error(&[("security.protocol", "TLS")]).contains("security.protocol=TLS"));
        assert!(error(&[("security.protocol", "SSL")]).contains("ssl.truststore.location"));
        let jks = [("security.protocol", "SSL"), ("ssl.truststore.location", "x.jks")];
        assert!(error(&jks).contains("ssl.truststore.type is to be PEM"));
        let plain = [
            ("security.protocol", "SASL_SSL"),
            ("ssl.truststore.type", "PEM"),
            ("ssl.truststore.location", "/nowhere"),
        ];
        assert!(error(&plain).contains("/nowhere"));
        assert!(
            error(&[("security.protocol", "SASL_PLAINTEXT"), ("sasl.mechanism", "PLAIN")])
                .contains("username")
        );
    }
}
