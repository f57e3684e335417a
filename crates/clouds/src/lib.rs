//! Buckets of S3, Google Cloud Storage and Azure, and of everything that speaks as they do.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
};
// Named for its feature alone: it gives the library's requests TLS.
use reqwest as _;
use tokio::runtime::Handle;

use objects::{Bucket, BucketError, DirectoryBucket, Listed, Put};

/// Characters of a store's message that are shown.
const MESSAGE_CHARS: usize = 1000;
/// Time for one request. Its outcome is unclear afterwards.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Settings of the client that precede those of the environment. They are set one by one: as a whole they would take the
/// place of what the environment says, such as that a store needs no TLS.
const CLIENT: [(&str, &str); 2] = [("timeout", "30s"), ("connect_timeout", "5s")];
/// Variables that say how an object is protected on its way to S3.
const UNSIGNED_VARIABLE: &str = "AWS_UNSIGNED_PAYLOAD";
const CHECKSUM_VARIABLE: &str = "AWS_CHECKSUM_ALGORITHM";

/// A bucket that is reached over HTTP.
#[derive(Debug)]
pub struct RemoteBucket {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    runtime: Handle,
}

/// Why a bucket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenBucketError {
    /// The address cannot be understood.
    #[error("{0:?} is no bucket: it is s3://NAME/PREFIX, gs://NAME/PREFIX, az://NAME/PREFIX or a directory")]
    Address(String),
    /// A setting is wrong, or one is missing.
    #[error("the bucket {0} cannot be used: {1}")]
    Settings(String, String),
}

/// Opens the bucket at `address`: `s3://NAME/PREFIX`, `gs://NAME/PREFIX`, `az://NAME/PREFIX`, or the path of a
/// directory. Credentials, region and endpoint come from the variables that the tools of each cloud read
/// (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, …), from instance roles, or from `options`, which have the same names in
/// lower case and precede. Requests run on `runtime`.
pub fn open(
    address: &str,
    options: &BTreeMap<String, String>,
    runtime: Handle,
) -> Result<Arc<dyn Bucket>, OpenBucketError> {
    let unknown = || OpenBucketError::Address(address.to_owned());
    let wrong = |error: String| OpenBucketError::Settings(address.to_owned(), error);
    let Some((scheme, rest)) = address.split_once("://") else {
        let directory = DirectoryBucket::open(address).map_err(|error| wrong(error.to_string()))?;
        return Ok(Arc::new(directory));
    };
    // The library's client asks the process for its TLS. Whoever installed one before is right, too.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if name.is_empty() {
        return Err(unknown());
    }
    let prefix = Path::parse(prefix).map_err(|error| wrong(error.to_string()))?;
    // One attempt only. The callers repeat it, since they know what must not happen twice.
    let retry =
        RetryConfig { max_retries: 0, retry_timeout: REQUEST_TIMEOUT, backoff: BackoffConfig::default() };
    macro_rules! built {
        ($builder:expr) => {{
            let mut builder = $builder.with_retry(retry);
            let own = options.iter().map(|(key, value)| (&**key, &**value));
            for (key, value) in CLIENT.into_iter().chain(own) {
                let key = key.parse().map_err(|error: Error| wrong(error.to_string()))?;
                builder = builder.with_config(key, value);
            }
            Arc::new(builder.build().map_err(|error| wrong(error.to_string()))?) as Arc<dyn ObjectStore>
        }};
    }
    let store = match scheme {
        "s3" => built!(s3().with_bucket_name(name)),
        "gs" => built!(GoogleCloudStorageBuilder::from_env().with_bucket_name(name)),
        "az" => built!(MicrosoftAzureBuilder::from_env().with_container_name(name)),
        _ => return Err(unknown()),
    };
    Ok(Arc::new(RemoteBucket::new(store, prefix, runtime)))
}

/// Settings of S3 from the environment. By default the signature does not cover the body. The store checks the body against
/// a CRC-64, and the signature covers the header with it. SHA-256 took a third of all that is done for an object.
fn s3() -> AmazonS3Builder {
    let builder = AmazonS3Builder::from_env();
    if [UNSIGNED_VARIABLE, CHECKSUM_VARIABLE].iter().any(|name| std::env::var_os(name).is_some()) {
        return builder;
    }
    builder.with_unsigned_payload(true).with_checksum_algorithm(Checksum::CRC64NVME)
}

impl RemoteBucket {
    /// The part of `store` below `prefix`.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path, runtime: Handle) -> RemoteBucket {
        RemoteBucket { store, prefix, runtime }
    }

    fn path(&self, key: &str) -> Path {
        self.prefix.parts().chain(Path::from(key).parts()).collect()
    }

    /// The key of an object below the prefix.
    fn key(&self, path: &Path) -> Option<String> {
        let parts: Vec<_> = path.prefix_match(&self.prefix)?.collect();
        Some(Path::from_iter(parts).to_string())
    }
}

fn failure(key: &str, error: Error) -> BucketError {
    match error {
        Error::NotFound { .. } => BucketError::NotFound(key.to_owned()),
        Error::PermissionDenied { .. }
        | Error::Unauthenticated { .. }
        | Error::NotImplemented { .. }
        | Error::NotSupported { .. }
        | Error::InvalidPath { .. } => BucketError::Refused(said(key, &error)),
        _ => BucketError::Unclear(said(key, &error)),
    }
}

/// Whether the store refuses a list: its bucket is missing, or a right. The library has no variant for these errors, and
/// the type that has their HTTP status is private: the text tells it.
fn is_refused_list(error: &Error) -> bool {
    let text = error.to_string();
    let status = text.split_once("status code: ").and_then(|(_, rest)| rest.get(..3)?.parse::<u16>().ok());
    // 408 and 429 ask for patience, and so does a 400 that says "RequestTimeout".
    let waits = |status: u16| matches!(status, 408 | 429) || text.contains("RequestTimeout");
    status.is_some_and(|status| (400..500).contains(&status) && !waits(status))
}

/// What a store said of a key, in one line. A store's message may be a page.
fn said(key: &str, message: &dyn std::fmt::Display) -> String {
    let message = message.to_string();
    let words: Vec<&str> = message.split_whitespace().collect();
    let mut line = format!("{key}: {}", words.join(" "));
    if let Some((end, _)) = line.char_indices().nth(MESSAGE_CHARS) {
        line.truncate(end);
        line.push('…');
    }
    line
}

impl Bucket for RemoteBucket {
    fn put_if_absent(&self, key: &str, body: &[Bytes]) -> Result<Put, BucketError> {
        let payload: PutPayload = body.iter().cloned().collect();
        let options = PutOptions::from(PutMode::Create);
        match self.runtime.block_on(self.store.put_opts(&self.path(key), payload, options)) {
            Ok(_) => Ok(Put::Stored),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(Put::Exists),
            // The bucket itself is missing.
            Err(Error::NotFound { source, .. }) => Err(BucketError::Refused(said(key, &source))),
            Err(error) => Err(failure(key, error)),
        }
    }

    fn get(&self, key: &str, range: Range<u64>) -> Result<Bytes, BucketError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let read = self.runtime.block_on(self.store.get_range(&self.path(key), range));
        read.map_err(|error| failure(key, error))
    }

    fn length(&self, key: &str) -> Result<u64, BucketError> {
        let head = self.runtime.block_on(self.store.head(&self.path(key)));
        head.map(|meta| meta.size).map_err(|error| failure(key, error))
    }

    fn list(&self, prefix: &str, after: &str, most: usize) -> Result<Vec<Listed>, BucketError> {
        use tokio_stream::StreamExt;
        let folder = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        let (folder, after_path) = (self.path(folder), self.path(after));
        let listed = self.runtime.block_on(async {
            let mut objects = match after.is_empty() {
                true => self.store.list(Some(&folder)),
                false => self.store.list_with_offset(Some(&folder), &after_path),
            };
            let mut listed = Vec::new();
            while listed.len() < most
                && let Some(object) = objects.next().await
            {
                let object = object?;
                let Some(key) = self.key(&object.location).filter(|key| key.starts_with(prefix)) else {
                    continue;
                };
                let stored_ms = object.last_modified.timestamp_millis();
                listed.push(Listed { key, bytes: object.size, stored_ms });
            }
            Ok(listed)
        });
        let mut listed: Vec<Listed> = listed.map_err(|error| match is_refused_list(&error) {
            true => BucketError::Refused(said(prefix, &error)),
            false => failure(prefix, error),
        })?;
        listed.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(listed)
    }

    fn delete(&self, key: &str) -> Result<(), BucketError> {
        match self.runtime.block_on(self.store.delete(&self.path(key))) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failure(key, error)),
        }
    }
}
