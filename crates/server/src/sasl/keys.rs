//! The keys that sign tokens, and the task that fetches them.
//!
//! One task per location fetches the keys: at regular intervals (for a file: when it has changed), soon after a
//! failure, and at once for a token with an unknown key. The last case is rate-limited, because any client can name an
//! unknown key. The last fetched keys stay valid until new ones arrive.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use sasl::jwks::KeySet;
use sasl::jwt::{self, Expected, Token, TokenError};
use tokio::sync::{Notify, watch};

use super::fetch;
use crate::settings::OauthSettings;

/// Bound in bytes of a document with keys. Real ones have some thousand.
pub const DOCUMENT_BYTES_MAX: usize = 1024 * 1024;
/// Interval at which a file is checked for changes.
const FILE_LOOK: Duration = Duration::from_secs(5);
/// Minimum time between two fetches because of an unknown key.
const UNKNOWN_KEY_INTERVAL: Duration = Duration::from_secs(30);
/// Time that a log-in waits for new keys.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The location of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    File(PathBuf),
    Url(hyper::Uri),
}

impl Place {
    fn parse(url: &str) -> anyhow::Result<Place> {
        const NAME: &str = "sasl.oauthbearer.jwks.endpoint.url";
        if let Some(path) = url.strip_prefix("file://") {
            if !path.starts_with('/') {
                bail!("{NAME} = {url}: a file is given as file:///path");
            }
            return Ok(Place::File(path.into()));
        }
        let parsed: hyper::Uri =
            url.parse().with_context(|| format!("{NAME}: OAUTHBEARER needs the place of the keys"))?;
        match parsed.scheme_str() {
            Some("http" | "https") if parsed.host().is_some() => Ok(Place::Url(parsed)),
            _ => bail!("{NAME} = {url}: it begins with file://, https:// or http://"),
        }
    }

    /// The location without the parts of a URL that may be secret.
    fn shown(&self) -> String {
        match self {
            Place::File(path) => path.display().to_string(),
            Place::Url(url) => format!(
                "{}://{}{}",
                url.scheme_str().unwrap_or_default(),
                url.host().unwrap_or_default(),
                url.path()
            ),
        }
    }

    async fn load(&self) -> anyhow::Result<KeySet> {
        let document = match self {
            Place::File(path) => {
                let path = path.clone();
                tokio::task::spawn_blocking(move || read(&path))
                    .await
                    .context("reading it ended in a bug")??
            }
            Place::Url(url) => fetch::get(url, DOCUMENT_BYTES_MAX).await?,
        };
        Ok(KeySet::parse(&document)?)
    }

    /// The state of a file that changes when the file is written.
    async fn seen(&self) -> Option<Seen> {
        let Place::File(path) = self else { return None };
        let path = path.clone();
        let look = tokio::task::spawn_blocking(move || {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        });
        look.await.ok()?
    }
}

/// The modification time and the length of a file.
type Seen = (SystemTime, u64);

fn read(path: &std::path::Path) -> anyhow::Result<Vec<u8>> {
    use std::io::Read;
    let mut document = Vec::new();
    std::fs::File::open(path)?.take(DOCUMENT_BYTES_MAX as u64 + 1).read_to_end(&mut document)?;
    if document.len() > DOCUMENT_BYTES_MAX {
        bail!("it is larger than {DOCUMENT_BYTES_MAX} bytes");
    }
    Ok(document)
}

/// The keys from one location, and the claims that tokens must carry besides the signature.
#[derive(Debug)]
pub struct Keys {
    place: Place,
    expected: Expected,
    refresh: Duration,
    /// The wait after the first failure, and the longest wait.
    backoff: (Duration, Duration),
    current: RwLock<Option<Arc<KeySet>>>,
    /// Wakes the fetching task.
    wanted: Notify,
    /// The last request for an unknown key, and whether its fetch is still in progress.
    last_wanted: Mutex<Option<Instant>>,
    busy: AtomicBool,
    /// Changes after every attempt of the task.
    tried: watch::Sender<u64>,
}

impl Keys {
    /// Loads the keys and starts the task that refreshes them. An unreadable file is an error in the settings. A server
    /// that cannot be reached may come back.
    pub async fn start(settings: &OauthSettings) -> anyhow::Result<Arc<Keys>> {
        let place = Place::parse(&settings.jwks_url)?;
        let expected = Expected {
            audiences: settings.audiences.clone(),
            issuer: settings.issuer.clone(),
            subject_claim: settings.subject_claim.clone(),
            scope_claim: settings.scope_claim.clone(),
            clock_skew: settings.clock_skew,
        };
        let keys = Arc::new(Keys {
            place,
            expected,
            refresh: settings.jwks_refresh,
            backoff: (settings.jwks_retry_backoff, settings.jwks_retry_backoff_max),
            current: RwLock::new(None),
            wanted: Notify::new(),
            last_wanted: Mutex::new(None),
            busy: AtomicBool::new(false),
            tried: watch::Sender::new(0),
        });
        let seen = keys.place.seen().await;
        let loaded = keys.load().await;
        match (&loaded, &keys.place) {
            (Err(error), Place::File(_)) => bail!("the keys of tokens, {}: {error:#}", keys.place.shown()),
            (Err(error), Place::Url(_)) => keys.complain(error),
            (Ok(()), _) => {}
        }
        tokio::spawn(keys.clone().keep_fresh(seen, u32::from(loaded.is_err())));
        Ok(keys)
    }

    /// Refreshes the keys until the runtime ends.
    async fn keep_fresh(self: Arc<Keys>, mut seen: Option<Seen>, mut failures: u32) {
        loop {
            self.wait(seen, failures).await;
            // The state is read before the file, so that a write in between is seen the next time.
            seen = self.place.seen().await;
            match self.load().await {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures = failures.saturating_add(1);
                    self.complain(&error);
                }
            }
            self.busy.store(false, Ordering::Release);
            self.tried.send_modify(|times| *times += 1);
        }
    }

    /// Waits until the keys must be fetched.
    async fn wait(&self, seen: Option<Seen>, failures: u32) {
        let (least, most) = self.backoff;
        let pause = match failures {
            0 => self.refresh,
            failures => least.saturating_mul(1 << (failures - 1).min(16)).min(most),
        };
        let begun = Instant::now();
        loop {
            let left = pause.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return;
            }
            let is_file = matches!(self.place, Place::File(_));
            tokio::select! {
                () = self.wanted.notified() => return,
                () = tokio::time::sleep(if is_file { left.min(FILE_LOOK) } else { left }) => {
                    if is_file && self.place.seen().await != seen {
                        return;
                    }
                }
            }
        }
    }

    async fn load(&self) -> anyhow::Result<()> {
        let keys = Arc::new(self.place.load().await?);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref() != Some(&keys) {
            tracing::info!(place = self.place.shown(), keys = keys.len(), "the keys of tokens were loaded");
            *current = Some(keys);
        }
        Ok(())
    }

    fn complain(&self, error: &anyhow::Error) {
        let place = self.place.shown();
        tracing::warn!(
            place,
            error = format!("{error:#}"),
            "the keys of tokens could not be loaded; tried again soon"
        );
    }

    /// Checks a token. If its key is unknown, waits for a fetch, if one is allowed.
    pub async fn verify(&self, token: &str, now_ms: i64) -> Result<Token, TokenError> {
        let checked = self.check(token, now_ms);
        if !matches!(checked, Err(TokenError::UnknownKey(_))) {
            return checked;
        }
        let mut tried = self.tried.subscribe();
        if self.want() && tokio::time::timeout(WAIT_MAX, tried.changed()).await.is_ok() {
            return self.check(token, now_ms);
        }
        checked
    }

    fn check(&self, token: &str, now_ms: i64) -> Result<Token, TokenError> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let keys = current.ok_or(TokenError::UnknownKey(None))?;
        jwt::verify(token, &keys, &self.expected, now_ms)
    }

    /// Requests a fetch, unless one happened a short time ago. Returns whether keys are on their way.
    fn want(&self) -> bool {
        let mut last = self.last_wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() >= UNKNOWN_KEY_INTERVAL) {
            *last = Some(Instant::now());
            self.busy.store(true, Ordering::Release);
            self.wanted.notify_one();
        }
        self.busy.load(Ordering::Acquire)
    }
}
