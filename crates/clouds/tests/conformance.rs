//! The rules that every bucket keeps: a directory, the simulated bucket, the store of a library over HTTP's seam, and,
//! if `MAINSTEM_BUCKET` names one, a real bucket.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use clouds::RemoteBucket;
use objects::sim::Faults;
use objects::{Bucket, BucketError, DirectoryBucket, Listed, ProbeError, Put, SimBucket, probe};

/// A bucket, with what keeps it alive.
struct Tried {
    name: &'static str,
    bucket: Arc<dyn Bucket>,
    _kept: Box<dyn std::any::Any>,
}

fn buckets() -> Vec<Tried> {
    let folder = tempfile::tempdir().unwrap();
    let directory = DirectoryBucket::open(folder.path().join("bucket")).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let memory = Arc::new(object_store::memory::InMemory::new());
    let remote = RemoteBucket::new(memory, "a/prefix".into(), runtime.handle().clone());
    let mut all = vec![
        Tried { name: "directory", bucket: Arc::new(directory), _kept: Box::new(folder) },
        Tried { name: "simulated", bucket: Arc::new(SimBucket::new(1)), _kept: Box::new(()) },
    ];
    if let Ok(address) = std::env::var("MAINSTEM_BUCKET") {
        let address = format!("{address}/conformance-{}", std::process::id());
        let bucket = clouds::open(&address, &BTreeMap::new(), runtime.handle().clone()).unwrap();
        all.push(Tried { name: "real", bucket, _kept: Box::new(()) });
    }
    all.push(Tried { name: "remote", bucket: Arc::new(remote), _kept: Box::new(runtime) });
    all
}

fn keys(listed: &[Listed]) -> Vec<&str> {
    listed.iter().map(|object| object.key.as_str()).collect()
}

#[test]
fn the_first_put_of_a_key_sets_its_content() {
    for Tried { name, bucket, .. } in &buckets() {
        let parts = [Bytes::from_static(b"first "), Bytes::from_static(b"object")];
        assert_eq!(bucket.put_if_absent("logs/a/1", &parts).unwrap(), Put::Stored, "{name}");
        let other = [Bytes::from_static(b"second")];
        assert_eq!(bucket.put_if_absent("logs/a/1", &other).unwrap(), Put::Exists, "{name}");
        assert_eq!(bucket.get("logs/a/1", 0..100).unwrap(), "first object", "{name}");
        assert_eq!(bucket.get("logs/a/1", 6..9).unwrap(), "obj", "{name}");
        assert_eq!(bucket.length("logs/a/1").unwrap(), 12, "{name}");
        bucket.delete("logs/a/1").unwrap();
        bucket.delete("logs/a/1").unwrap();
        assert!(matches!(bucket.get("logs/a/1", 0..1), Err(BucketError::NotFound(_))), "{name}");
        assert!(matches!(bucket.length("logs/a/1"), Err(BucketError::NotFound(_))), "{name}");
        assert_eq!(bucket.put_if_absent("logs/a/1", &other).unwrap(), Put::Stored, "{name}");
        bucket.delete("logs/a/1").unwrap();
    }
}

#[test]
fn a_list_is_in_the_order_of_keys_and_can_be_continued() {
    for Tried { name, bucket, .. } in &buckets() {
        for key in ["logs/b/2", "logs/a/1", "logs/b/10", "logs/bb/1", "meta/1"] {
            bucket.put_if_absent(key, &[Bytes::from_static(b"x")]).unwrap();
        }
        let all = bucket.list("logs/", "", 10).unwrap();
        assert_eq!(keys(&all), ["logs/a/1", "logs/b/10", "logs/b/2", "logs/bb/1"], "{name}");
        assert!(all.iter().all(|object| object.bytes == 1), "{name}");
        assert_eq!(keys(&bucket.list("logs/b/", "", 10).unwrap()), ["logs/b/10", "logs/b/2"], "{name}");
        assert_eq!(keys(&bucket.list("logs/", "logs/b/10", 1).unwrap()), ["logs/b/2"], "{name}");
        assert!(bucket.list("logs/c/", "", 10).unwrap().is_empty(), "{name}");
        for key in ["logs/b/2", "logs/a/1", "logs/b/10", "logs/bb/1", "meta/1"] {
            bucket.delete(key).unwrap();
        }
    }
}

#[test]
fn every_bucket_passes_the_probe_and_leaves_nothing_of_it() {
    for Tried { name, bucket, .. } in &buckets() {
        probe(&**bucket, "server-1", 0).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(bucket.list("probe/", "", 1).unwrap().is_empty(), "{name}");
    }
}

#[test]
fn a_store_without_conditional_writes_fails_the_probe() {
    let bucket = SimBucket::new(1);
    bucket.set_overwrites(true);
    assert!(matches!(probe(&bucket, "server-1", 0), Err(ProbeError::Races { won: 8, .. })));
}

#[test]
fn a_store_with_a_bad_day_passes_the_probe() {
    let bucket = SimBucket::new(1);
    bucket.set_faults(Faults { late: 0, conflict: 0, ..Faults::MANY });
    probe(&bucket, "server-1", 0).unwrap();
}

/// Whatever the store does to its requests, the content of a key is that of one put, and stays.
#[test]
fn the_simulated_bucket_lies_about_outcomes_and_never_about_contents() {
    let (mut lost, mut late) = (0, 0);
    for seed in 0..200 {
        let bucket = SimBucket::new(seed);
        bucket.set_faults(Faults::MANY);
        // One request for this key, which may land behind those for the other.
        let once = bucket.put_if_absent("once", &[Bytes::from_static(b"once")]);
        let landed = bucket.content("once").is_some();
        let (mut told, mut kept) = (None, None);
        for attempt in 0..40u8 {
            let put = bucket.put_if_absent("often", &[Bytes::copy_from_slice(&[attempt])]);
            let now = bucket.content("often");
            if let Ok(Put::Stored) = put {
                assert!(told.replace(attempt).is_none(), "two puts of one key succeeded");
                assert_eq!(now.as_deref(), Some(&[attempt][..]));
            }
            lost += usize::from(put.is_err() && kept.is_none() && now.as_deref() == Some(&[attempt][..]));
            if kept.is_some() {
                assert_eq!(now, kept, "the content of a key changed");
            }
            kept = now.or(kept);
        }
        bucket.settle();
        assert_eq!(bucket.content("often"), kept, "seed {seed}");
        assert!(landed || once.is_err(), "a put that succeeded is not there");
        late += usize::from(!landed && bucket.content("once").is_some());
    }
    assert!(late > 5 && lost > 5, "the faults do not strike: {late} late, {lost} lost");
}

#[test]
fn names_and_settings_of_buckets_are_checked() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let open = |address: &str, options: &[(&str, &str)]| {
        let options = options.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        clouds::open(address, &options, runtime.handle().clone())
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert!(open("ftp://bucket", &[]).unwrap_err().contains("s3://NAME/PREFIX"));
    assert!(open("s3://", &[]).unwrap_err().contains("is no bucket"));
    assert!(open("s3://name", &[("no_such_setting", "1")]).unwrap_err().contains("no_such_setting"));
    let region = ("aws_region", "eu-central-1");
    open("s3://name/some/prefix", &[region]).unwrap();
}

/// A store that answers every request alike.
fn answering(status: &'static str, code: &str) -> std::net::SocketAddr {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let body = format!("<Error><Code>{code}</Code></Error>");
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let lines = BufReader::new(connection.try_clone().unwrap()).lines();
            lines.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty())).for_each(drop);
            let length = body.len();
            write!(
                connection,
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    address
}

/// Every kind of request tells a store that refuses from one that is away.
#[test]
fn a_refusal_is_not_an_absence() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let cases = [
        ("403 Forbidden", "SignatureDoesNotMatch", true),
        ("404 Not Found", "NoSuchBucket", true),
        ("429 Too Many Requests", "SlowDown", false),
        ("503 Service Unavailable", "SlowDown", false),
        ("500 Internal Server Error", "InternalError", false),
    ];
    for (status, code, refused) in cases {
        let endpoint = format!("http://{}", answering(status, code));
        let options = [
            ("aws_endpoint", &*endpoint),
            ("aws_allow_http", "true"),
            ("aws_region", "us-east-1"),
            ("aws_access_key_id", "user"),
            ("aws_secret_access_key", "password"),
        ];
        let options = options.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let bucket = clouds::open("s3://name", &options, runtime.handle().clone()).unwrap();
        let mut errors = vec![
            bucket.put_if_absent("logs/1", &[Bytes::from_static(b"x")]).unwrap_err(),
            bucket.list("logs/", "", 1).unwrap_err(),
            bucket.list("logs/", "logs/1", 1).unwrap_err(),
        ];
        // A request for an object that is missing has no better answer than 404, and deleting it succeeds.
        if !status.starts_with("404") {
            errors.push(bucket.get("logs/1", 0..1).unwrap_err());
            errors.push(bucket.delete("logs/1").unwrap_err());
        }
        for error in errors {
            assert_eq!(matches!(error, BucketError::Refused(_)), refused, "{status}: {error}");
            assert_eq!(matches!(error, BucketError::Unclear(_)), !refused, "{status}: {error}");
        }
    }
}
