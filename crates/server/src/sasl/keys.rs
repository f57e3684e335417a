//! The keys that tokens are signed with: where they come from, and when they are fetched anew.
//!
//! One task for each place fetches: every so often (a file: when it has changed), soon again after a failure, and at once
//! for a token whose key is not known, though rarely, since anybody can name such a key. What was fetched last holds until
//! something better comes.

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

/// Documents with keys have some thousand bytes.
pub const DOCUMENT_BYTES_MAX: usize = 1024 * 1024;
/// How often a file is looked at.
const FILE_LOOK: Duration = Duration::from_secs(5);
/// Keys are not fetched more often than that because a token names an unknown one.
const UNKNOWN_KEY_INTERVAL: Duration = Duration::from_secs(30);
/// A log-in waits so long for keys to come.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Where the keys are.
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

    /// Without what may be secret in a URL.
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

    /// What changes with a file.
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

/// When a file was written, and how long it is.
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

/// The keys from one place, and what tokens must say beside being signed by one.
#[derive(Debug)]
pub struct Keys {
    place: Place,
    expected: Expected,
    refresh: Duration,
    /// After the first failure and after many.
    backoff: (Duration, Duration),
    current: RwLock<Option<Arc<KeySet>>>,
    /// Wakes the task that fetches.
    wanted: Notify,
    /// When somebody last wanted an unknown key, and whether that is still being seen to.
    last_wanted: Mutex<Option<Instant>>,
    busy: AtomicBool,
    /// Changes whenever the task has tried.
    tried: watch::Sender<u64>,
}

impl Keys {
    /// Loads the keys, and goes on to from time to time. A file that cannot be read is a mistake in the settings; a server
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

    /// Goes on until the runtime ends.
    async fn keep_fresh(self: Arc<Keys>, mut seen: Option<Seen>, mut failures: u32) {
        loop {
            self.wait(seen, failures).await;
            // Before it is read: what is written meanwhile is seen the next time.
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

    /// Waits until the keys have to be fetched.
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

    /// Checks a token. One whose key is not known waits for the keys to be fetched, if it is time for that.
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

    /// Has the keys fetched, unless that was done a short time ago. Says whether they are about to come.
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
