//! Keys for tests, and a rustls client against the server's end. Certificates are generated for each run, because they
//! expire.

use std::path::{Path, PathBuf};
use std::time::Duration;

use testing::certificates::{Authority, Identity};

use super::*;
use crate::principal_mapping::MappingRules;
use crate::settings::{ClientAuthentication, Pem, SslSettings, TlsVersion};

/// The configuration of a client, with or without a certificate.
pub fn client_config(authority: &Authority, identity: Option<&Identity>) -> rustls::ClientConfig {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.unwrap().with_root_certificates(authority.roots());
    match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = identity.der();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    }
}

/// The settings of a listener whose key store is a file.
pub fn ssl_settings(key_store: &Path, authority: Option<&Authority>) -> SslSettings {
    SslSettings {
        key: Pem::File(key_store.to_owned()),
        certificates: Pem::File(key_store.to_owned()),
        authorities: authority.map(|authority| Pem::Inline(authority.certificate.clone())),
        client_authentication: match authority {
            Some(_) => ClientAuthentication::Required,
            None => ClientAuthentication::None,
        },
        mapping_rules: MappingRules::parse("DEFAULT").unwrap(),
        versions: vec![TlsVersion::V1_2, TlsVersion::V1_3],
        reload_interval: Duration::from_millis(20),
    }
}

/// A key store in a directory that is removed with the test.
pub fn key_store(identity: &Identity) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("server.pem");
    std::fs::write(&path, identity.pem()).unwrap();
    (directory, path)
}

#[test]
fn a_key_store_that_cannot_be_used_says_what_is_wrong() {
    let authority = Authority::new("ca");
    let (one, other) = (authority.sign("one"), authority.sign("other"));
    let (_directory, path) = key_store(&one);
    let shown = format!("ssl.keystore.location = {}: ", path.display());
    let error_of = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let error = Keys::load("TEST", &ssl_settings(&path, None)).unwrap_err();
        error.strip_prefix(&shown).unwrap_or_else(|| panic!("{error}")).to_owned()
    };
    assert!(error_of("nothing").starts_with("there is no private key that can be read"));
    assert_eq!(error_of(&one.key), "there is no certificate; it must be PEM");
    assert!(error_of(&one.certificate).starts_with("there is no private key"));
    assert!(
        error_of(&format!("{}{}", one.key, other.certificate))
            .starts_with("the key and the certificate do not go together")
    );
    let encrypted = one.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    assert!(error_of(&encrypted).contains("openssl pkcs8 -topk8 -nocrypt"));
    std::fs::remove_file(&path).unwrap();
    assert!(Keys::load("TEST", &ssl_settings(&path, None)).unwrap_err().contains("No such file"));
    let mut settings = ssl_settings(&path, Some(&authority));
    settings.authorities = Some(Pem::Inline("nothing".into()));
    std::fs::write(&path, one.pem()).unwrap();
    let error = Keys::load("TEST", &settings).unwrap_err();
    assert_eq!(error, "ssl.truststore.certificates: there is no certificate; it must be PEM");
}

#[test]
fn new_files_are_taken_and_broken_ones_are_not() {
    let authority = Authority::new("ca");
    let (one, other) = (authority.sign("one"), authority.sign("other"));
    let (_directory, path) = key_store(&one);
    let keys = Keys::load("TEST", &ssl_settings(&path, None)).unwrap();
    let first = keys.config();
    assert_eq!(keys.reload(), Ok(false));
    std::fs::write(&path, format!("{}{}", one.key, other.certificate)).unwrap();
    assert!(keys.reload().is_err());
    std::fs::remove_file(&path).unwrap();
    assert!(keys.reload().is_err());
    assert!(std::sync::Arc::ptr_eq(&first, &keys.config()), "the old one stays in use");
    std::fs::write(&path, other.pem()).unwrap();
    assert_eq!(keys.reload(), Ok(true));
    assert!(!std::sync::Arc::ptr_eq(&first, &keys.config()));
    assert_eq!(keys.reload(), Ok(false));
}

#[tokio::test]
async fn other_settings_are_loaded_at_once_and_a_pipe_is_not_read() {
    let authority = Authority::new("ca");
    let [(_one, first), (directory, second)] = ["one", "other"].map(|name| key_store(&authority.sign(name)));
    // Only a change is noticed in time.
    let seldom =
        |path: &Path| SslSettings { reload_interval: Duration::from_secs(3600), ..ssl_settings(path, None) };
    let keys = std::sync::Arc::new(Keys::load("TEST", &seldom(&first)).unwrap());
    let before = keys.config();
    let watching = tokio::spawn(keys.clone().watch());
    keys.change(seldom(&second));
    let until = std::time::Instant::now() + testing::process::LONG;
    while std::sync::Arc::ptr_eq(&before, &keys.config()) {
        assert!(std::time::Instant::now() < until, "the other settings are not loaded");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    watching.abort();
    let pipe = directory.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [&pipe, Path::new("/dev/zero"), directory.path()] {
        let error = Keys::check(&seldom(path)).unwrap_err();
        assert!(error.ends_with("it is not a file"), "{error}");
    }
}

#[test]
fn pem_on_one_line_is_read_and_no_error_shows_a_key() {
    let authority = Authority::new("ca");
    let identity = authority.sign("one");
    let inline = |key: &str, chain: &str| SslSettings {
        key: Pem::Inline(key.to_owned()),
        certificates: Pem::Inline(chain.to_owned()),
        ..ssl_settings(Path::new("none"), Some(&authority))
    };
    let one_line = |text: &str| text.replace(['\r', '\n'], " ");
    assert_eq!(Keys::check(&inline(&one_line(&identity.key), &one_line(&identity.certificate))), Ok(()));
    let body = identity.key.lines().nth(1).unwrap();
    let decimal = format!("{:?}", &body.as_bytes()[..8]);
    let decimal = decimal.trim_matches(['[', ']']);
    for broken in [
        identity.key.replace('\n', "\\n"),
        identity.key.replace("-----END", "-----ENDE"),
        identity.key.replace("PRIVATE KEY-----\n", "PRIVATE KEY----\n"),
        identity.key.replacen(body, &format!("{body}!"), 1),
    ] {
        let error = Keys::check(&inline(&broken, &identity.certificate)).unwrap_err();
        assert!(!error.contains(&body[..8]) && !error.contains(decimal), "{error}");
    }
}

/// The first message of a client in both versions, and the message with its certificate.
#[test]
fn fuzz_handshakes() {
    let authority = Authority::new("ca");
    let (_directory, path) = key_store(&authority.sign("server"));
    let keys = Keys::load("TEST", &ssl_settings(&path, Some(&authority))).unwrap();
    let hello = |versions: &[&'static rustls::SupportedProtocolVersion]| {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let config =
            rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let config = config.with_root_certificates(authority.roots()).with_no_client_auth();
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let mut client = rustls::ClientConnection::new(config.into(), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    };
    let hellos = [hello(&[&rustls::version::TLS12]), hello(&[&rustls::version::TLS13])];
    testing::fuzz::run(2, &hellos, |data| fuzz_handshake(&keys, data));
}

/// Records of a real session. The first bytes of the input choose what is changed in them.
#[test]
fn fuzz_sessions() {
    let authority = Authority::new("ca");
    let (_directory, path) = key_store(&authority.sign("server"));
    let keys = Keys::load("TEST", &ssl_settings(&path, None)).unwrap();
    let config = std::sync::Arc::new(client_config(&authority, None));
    let target = |data: &[u8]| {
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let mut client = rustls::ClientConnection::new(config.clone(), name).unwrap();
        let mut server = ServerConnection::new(keys.config()).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            take(&mut server, &bytes).unwrap();
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut &bytes[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        let mut records = Vec::new();
        for size in [10, 3000, 17_000] {
            std::io::Write::write_all(&mut client.writer(), &vec![7; size]).unwrap();
            client.write_tls(&mut records).unwrap();
        }
        for change in data.chunks_exact(3) {
            let at = usize::from(u16::from_be_bytes([change[0], change[1]])) % records.len();
            records[at] ^= change[2];
        }
        let mut into = Vec::new();
        let sent = records.len();
        let _ = stream::read_records(server, records, &mut into);
        assert!(
            into.len() <= sent && into.iter().all(|byte| *byte == 7),
            "nothing is read that was not sent"
        );
    };
    testing::fuzz::run(2, &[vec![], vec![0, 3, 1], vec![0, 200, 8, 1, 1, 1]], target);
}
