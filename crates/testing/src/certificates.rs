//! Keys and certificates, made on the spot because stored ones expire. The keys are ECDSA on P-256, like most keys today.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, IsCa, Issuer, KeyPair, SanType};
pub use rcgen::{DnType, DnValue};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate, as PEM.
    pub certificate: String,
}

/// A key and a certificate, as PEM.
#[derive(Debug)]
pub struct Identity {
    /// The private key.
    pub key: String,
    /// The certificate of its public half.
    pub certificate: String,
}

impl Identity {
    /// Both in one text, as key stores have them.
    pub fn pem(&self) -> String {
        format!("{}{}", self.key, self.certificate)
    }

    /// Both as rustls has them.
    pub fn der(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain: Result<_, _> = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes());
        (chain.expect("it was made here"), key.expect("it was made here"))
    }
}

impl Authority {
    /// A new authority with a new key.
    pub fn new(name: &str) -> Authority {
        let mut parameters = parameters(&[]);
        parameters.distinguished_name = subject(&[(DnType::CommonName, name.into())]);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = key();
        let certificate = parameters.self_signed(&key).expect("a key can sign for itself").pem();
        Authority { issuer: Issuer::new(parameters, key), certificate }
    }

    /// A new key and a certificate with the subject `CN=name,O=Test`, for clients and for a server on `localhost` or
    /// `127.0.0.1`, the address in Metadata.
    pub fn sign(&self, name: &str) -> Identity {
        let mut parameters = parameters(&["localhost"]);
        parameters.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        parameters.distinguished_name =
            subject(&[(DnType::OrganizationName, "Test".into()), (DnType::CommonName, name.into())]);
        let key = key();
        let certificate = parameters.signed_by(&key, &self.issuer).expect("an authority can sign").pem();
        Identity { key: key.serialize_pem(), certificate }
    }

    /// A root store with this authority alone.
    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        let own = CertificateDer::from_pem_slice(self.certificate.as_bytes()).expect("it was made here");
        roots.add(own).expect("it is one of an authority");
        roots
    }
}

/// A certificate signed by its own key, with these attributes in its subject.
pub fn self_signed(attributes: &[(DnType, DnValue)]) -> CertificateDer<'static> {
    let mut parameters = parameters(&[]);
    parameters.distinguished_name = subject(attributes);
    parameters.self_signed(&key()).expect("a key can sign for itself").into()
}

fn parameters(names: &[&str]) -> CertificateParams {
    CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).expect("names of DNS")
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key can be made")
}

fn subject(attributes: &[(DnType, DnValue)]) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    attributes.iter().for_each(|(kind, value)| subject.push(kind.clone(), value.clone()));
    subject
}

/// The PEM files of a new authority and of a server.
#[derive(Debug)]
pub struct Files {
    /// The certificate of the authority.
    pub authority: PathBuf,
    /// The key store of the server. Only the owner can read the file.
    pub store: PathBuf,
}

impl Files {
    /// Makes the files. `name` is part of their names.
    pub fn make(directory: &Path, name: &str) -> Files {
        let authority = Authority::new(name);
        let files = Files {
            authority: directory.join(format!("{name}-authority.pem")),
            store: directory.join(format!("{name}-server.pem")),
        };
        fs::write(&files.authority, &authority.certificate).expect("the directory can be written to");
        let mut options = fs::OpenOptions::new();
        let mut store = options.write(true).create(true).truncate(true).mode(0o600).open(&files.store);
        let store = store.as_mut().expect("the directory can be written to");
        store.write_all(authority.sign(name).pem().as_bytes()).expect("the disk has room");
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_store_has_a_key_and_a_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::make(directory.path(), "one");
        PrivateKeyDer::from_pem_file(&files.store).unwrap();
        let own = CertificateDer::from_pem_file(&files.store).unwrap();
        assert_ne!(own, CertificateDer::from_pem_file(&files.authority).unwrap());
        let (chain, _) = Authority::new("ca").sign("x").der();
        assert_eq!(chain.len(), 1);
        assert_eq!(Authority::new("ca").roots().len(), 1);
    }
}
