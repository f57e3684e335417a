//! The server's key and certificates, and the authorities of its clients, loaded from PEM and reloaded when the files
//! or the settings change.
//!
//! A new configuration applies to new connections. Open connections continue. The new configuration also drops the
//! sessions that could be resumed: a client whose authority is no longer trusted must not return by an old session.
//!
//! A file that cannot be used changes nothing and is logged.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::OFlags;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::{RootCertStore, SupportedProtocolVersion};
use tokio::sync::Notify;

use super::subject::Holder;
use crate::settings::{ClientAuthentication, Pem, SslSettings, TlsVersion};

/// Bound in bytes of a file. Keys and certificates are small, so a larger file is a mistake.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Interval of warnings about a certificate that is about to expire.
const WARNING_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// The texts that a configuration was built from.
#[derive(Clone, PartialEq, Eq)]
struct Texts {
    key: Vec<u8>,
    certificates: Vec<u8>,
    authorities: Option<Vec<u8>>,
}

/// The state that a listener uses for new connections.
struct InUse {
    config: Arc<ServerConfig>,
    holder: Holder,
    texts: Texts,
}

/// The keys of one listener.
pub struct Keys {
    listener: String,
    settings: RwLock<SslSettings>,
    /// New settings wait to be loaded.
    changed: Notify,
    in_use: RwLock<InUse>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl Keys {
    /// Loads the keys for the first time. The error names the setting.
    pub fn load(listener: &str, settings: &SslSettings) -> Result<Keys, String> {
        let texts = read(settings)?;
        let (config, holder) = configure(settings, &texts)?;
        tracing::info!(listener, subject = %holder.subject, not_after = %holder.not_after_text, "the certificate in use");
        let in_use = RwLock::new(InUse { config: Arc::new(config), holder, texts });
        let (settings, changed) = (RwLock::new(settings.clone()), Notify::new());
        Ok(Keys { listener: listener.to_owned(), settings, changed, in_use })
    }

    /// What is wrong with such settings. Reads the files.
    pub fn check(settings: &SslSettings) -> Result<(), String> {
        configure(settings, &read(settings)?).map(drop)
    }

    /// Takes other settings. [`Keys::watch`] loads their files at once.
    pub fn change(&self, settings: SslSettings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
        self.changed.notify_one();
    }

    fn settings(&self) -> SslSettings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The configuration for new connections.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.in_use.read().unwrap_or_else(PoisonError::into_inner).config.clone()
    }

    /// Reloads changed files. Returns whether a new configuration is in use.
    pub fn reload(&self) -> Result<bool, String> {
        let settings = self.settings();
        let texts = read(&settings)?;
        if texts == self.in_use.read().unwrap_or_else(PoisonError::into_inner).texts {
            return Ok(false);
        }
        let (config, holder) = configure(&settings, &texts)?;
        let (listener, subject) = (&self.listener, &holder.subject);
        tracing::info!(listener, %subject, not_after = %holder.not_after_text, "a new certificate is in use");
        *self.in_use.write().unwrap_or_else(PoisonError::into_inner) =
            InUse { config: Arc::new(config), holder, texts };
        Ok(true)
    }

    fn warn_of_end(&self) {
        let warning =
            self.in_use.read().unwrap_or_else(PoisonError::into_inner).holder.warning(SystemTime::now());
        if let Some(warning) = warning {
            tracing::warn!(listener = %self.listener, "{warning}");
        }
    }

    /// Reloads changed files at an interval, and after a change of the settings, until the future is dropped.
    pub async fn watch(self: Arc<Keys>) {
        let mut complained = None;
        let mut warned: Option<Instant> = None;
        loop {
            if warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
                self.warn_of_end();
                warned = Some(Instant::now());
            }
            let interval = self.settings().reload_interval;
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                () = self.changed.notified() => {}
            }
            let keys = self.clone();
            let reloaded = tokio::task::spawn_blocking(move || keys.reload()).await;
            match reloaded.unwrap_or_else(|error| Err(error.to_string())) {
                Ok(true) => (complained, warned) = (None, None),
                Ok(false) => complained = None,
                // Each reason is logged once, so that a broken file does not fill the log.
                Err(error) if complained.as_ref() == Some(&error) => {}
                Err(error) => {
                    tracing::error!(listener = %self.listener, %error, "new keys cannot be used; the old ones stay in use");
                    complained = Some(error);
                }
            }
        }
    }
}

fn read(settings: &SslSettings) -> Result<Texts, String> {
    let text = |name: &str, pem: &Pem| match pem {
        Pem::Inline(text) => Ok(text.clone().into_bytes()),
        Pem::File(path) => read_file(path).map_err(|error| format!("{name} = {}: {error}", path.display())),
    };
    let key = text("ssl.keystore.location", &settings.key)?;
    let certificates = if settings.certificates == settings.key {
        key.clone()
    } else {
        text("ssl.keystore.location", &settings.certificates)?
    };
    Ok(Texts {
        key,
        certificates,
        authorities: match &settings.authorities {
            Some(pem) => Some(text("ssl.truststore.location", pem)?),
            None => None,
        },
    })
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe could keep the reader for ever, and an opener without this flag.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!(
            "it has more than {FILE_BYTES_MAX} bytes, too many for a key store"
        )));
    }
    Ok(bytes)
}

fn configure(settings: &SslSettings, texts: &Texts) -> Result<(ServerConfig, Holder), String> {
    let at = |pem: &Pem, file: &'static str, inline: &'static str| match pem {
        Pem::File(path) => format!("{file} = {}", path.display()),
        Pem::Inline(_) => inline.to_owned(),
    };
    let of_key = at(&settings.key, "ssl.keystore.location", "ssl.keystore.key");
    let of_chain = at(&settings.certificates, "ssl.keystore.location", "ssl.keystore.certificate.chain");
    let key = private_key(&texts.key).map_err(|problem| format!("{of_key}: {problem}"))?;
    let chain = certificates(&texts.certificates).map_err(|problem| format!("{of_chain}: {problem}"))?;
    let holder = Holder::of(&chain[0]).map_err(|problem| format!("{of_chain}: {problem}"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions: Vec<&SupportedProtocolVersion> =
        [(TlsVersion::V1_3, &rustls::version::TLS13), (TlsVersion::V1_2, &rustls::version::TLS12)]
            .into_iter()
            .filter_map(|(version, supported)| settings.versions.contains(&version).then_some(supported))
            .collect();
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: rustls::Error| format!("{what}: {error}")
    };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(failed("ssl.enabled.protocols"))?;
    let builder = match (&settings.authorities, &texts.authorities) {
        (Some(pem), Some(text)) => {
            let of_authorities = at(pem, "ssl.truststore.location", "ssl.truststore.certificates");
            let mut roots = RootCertStore::empty();
            let found = certificates(text).map_err(|problem| format!("{of_authorities}: {problem}"))?;
            for certificate in found {
                roots.add(certificate).map_err(failed(&of_authorities))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match settings.client_authentication {
                ClientAuthentication::Required => verifier,
                ClientAuthentication::Requested | ClientAuthentication::None => {
                    verifier.allow_unauthenticated()
                }
            };
            let verifier = verifier.build().map_err(|error| format!("{of_authorities}: {error}"))?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(failed(&format!("{of_key}: the key and the certificate do not go together")))?;
    config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(failed("session tickets"))?;
    Ok((config, holder))
}

/// PEM with its lines. As in Kafka, blanks may stand in place of the ends of lines, as in the values of a properties file.
fn with_lines(text: &[u8]) -> Vec<u8> {
    const MARK: &str = "-----";
    let Ok(text) = std::str::from_utf8(text) else { return text.to_vec() };
    let mut lines = String::with_capacity(text.len());
    // Labels, such as BEGIN CERTIFICATE, are the parts between two marks.
    for (at, part) in text.split(MARK).enumerate() {
        if at % 2 == 1 {
            lines.extend([MARK, part, MARK, "\n"]);
        } else {
            part.split_whitespace().for_each(|word| lines.extend([word, "\n"]));
        }
    }
    lines.into_bytes()
}

/// What is wrong with PEM. The error's own text would show parts of it, which may be a private key.
fn problem_of(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no END line",
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line is not complete",
        pem::Error::Base64Decode(_) => "a section is not base64",
        pem::Error::NoItemsFound => "there is no section of this kind",
        _ => "it is not PEM",
    }
}

fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(&with_lines(text)).map_err(|error| {
        let error = problem_of(&error);
        let encrypted = String::from_utf8_lossy(text).contains("ENCRYPTED");
        if encrypted {
            "the private key is encrypted, which is not read; `openssl pkcs8 -topk8 -nocrypt -in KEY.pem -out PLAIN.pem` \
             makes one that is"
                .to_owned()
        } else {
            format!("there is no private key that can be read ({error}); it must be PEM: PKCS#8, PKCS#1 or SEC1")
        }
    })
}

/// Parses the certificates. There must be at least one.
fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&with_lines(text)).collect();
    match found {
        Ok(found) if found.is_empty() => Err("there is no certificate; it must be PEM".into()),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("a certificate cannot be read: {}", problem_of(&error))),
    }
}
