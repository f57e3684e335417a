//! A certificate for servers that are compared over TLS. It is made for one comparison, for this machine's own
//! addresses.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rcgen::{CertificateParams, KeyPair, SanType};

/// The PEM files of a server that uses TLS.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The private key and the certificate.
    pub keystore: PathBuf,
    /// The certificate alone, which is its own authority.
    pub truststore: PathBuf,
}

impl Certificate {
    /// Makes a certificate (ECDSA on P-256, as most certificates today) for servers at `addresses`, and writes it to
    /// `directory`.
    pub fn make(directory: &Path, addresses: &[Ipv4Addr]) -> anyhow::Result<Certificate> {
        let failed = "a certificate cannot be made";
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).context(failed)?;
        params
            .subject_alt_names
            .extend(addresses.iter().map(|address| SanType::IpAddress((*address).into())));
        let key = KeyPair::generate().context(failed)?;
        let certificate = params.self_signed(&key).context(failed)?.pem();
        let files = Certificate {
            keystore: std::path::absolute(directory.join("server.pem"))?,
            truststore: std::path::absolute(directory.join("authority.pem"))?,
        };
        fs::write(&files.keystore, key.serialize_pem() + &certificate).context(failed)?;
        fs::write(&files.truststore, certificate).context(failed)?;
        Ok(files)
    }

    /// The server's settings, by Kafka's names.
    pub fn server_settings(&self) -> Vec<(String, String)> {
        stores("keystore", &self.keystore).into_iter().chain(stores("truststore", &self.truststore)).collect()
    }

    /// The client's settings.
    pub fn client_properties(&self) -> Vec<(String, String)> {
        let protocol = ("security.protocol".to_owned(), "SSL".to_owned());
        [protocol].into_iter().chain(stores("truststore", &self.truststore)).collect()
    }
}

fn stores(name: &str, file: &Path) -> [(String, String); 2] {
    let setting = |what: &str| format!("ssl.{name}.{what}");
    [(setting("type"), "PEM".to_owned()), (setting("location"), file.display().to_string())]
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    use super::*;

    #[test]
    fn a_keystore_has_a_key_and_the_certificate_that_is_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let made = Certificate::make(directory.path(), &[Ipv4Addr::LOCALHOST]).unwrap();
        PrivateKeyDer::from_pem_file(&made.keystore).unwrap();
        let own = CertificateDer::from_pem_file(&made.keystore).unwrap();
        assert_eq!(own, CertificateDer::from_pem_file(&made.truststore).unwrap());
        assert_eq!(made.client_properties()[0].1, "SSL");
        assert_eq!(made.server_settings().len(), 4);
    }
}
