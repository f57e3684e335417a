//! Tests of the sources of token keys.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::sasl::jwt::TokenError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::keys::Keys;
use super::*;

/// An HTTP server that serves documents by path, and counts requests.
struct Web {
    address: String,
    documents: Arc<Mutex<HashMap<String, String>>>,
    asked: Arc<AtomicUsize>,
}

impl Web {
    async fn start() -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (documents, asked) =
            (Arc::<Mutex<HashMap<String, String>>>::default(), Arc::<AtomicUsize>::default());
        let (held, counter) = (documents.clone(), asked.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&request[..length]).into_owned();
                let path = text.split(' ').nth(1).unwrap_or("").to_owned();
                counter.fetch_add(1, Ordering::SeqCst);
                let document = held.lock().unwrap().get(&path).cloned();
                let answer = match document {
                    Some(body) => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()),
                    None => "HTTP/1.1 302 Found\r\nLocation: /keys\r\nContent-Length: 0\r\n\r\n".into(),
                };
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Web { address, documents, asked }
    }

    fn put(&self, path: &str, document: String) {
        self.documents.lock().unwrap().insert(path.into(), document);
    }

    fn settings(&self, path: &str) -> OauthSettings {
        OauthSettings { jwks_url: format!("http://{}{path}", self.address), ..settings(&[]).oauth }
    }
}

fn token(provider: &Provider, kid: &str) -> String {
    let now = now_ms() / 1000;
    let claims = json!({"sub": "carol", "iat": now, "exp": now + 60});
    provider.sign(&json!({"alg": "ES256", "kid": kid}), &claims)
}

async fn until(mut is: impl AsyncFnMut() -> bool) {
    let all = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, all).await.expect("it becomes true");
}

#[tokio::test]
async fn new_keys_are_fetched_when_a_token_names_one_but_not_for_every_such_token() {
    let (web, old, new) = (Web::start().await, Provider::new(false), Provider::new(true));
    web.put("/keys", old.document("old"));
    let keys = Keys::start(&web.settings("/keys")).await.unwrap();
    assert_eq!(keys.verify(&token(&old, "old"), now_ms()).await.unwrap().subject, "carol");
    assert_eq!(web.asked.load(Ordering::SeqCst), 1);
    web.put("/keys", old.document("new"));
    keys.verify(&token(&old, "new"), now_ms()).await.unwrap();
    assert_eq!(web.asked.load(Ordering::SeqCst), 2);
    for number in 0..50 {
        let unknown = keys.verify(&token(&new, &number.to_string()), now_ms()).await;
        assert_eq!(unknown, Err(TokenError::UnknownKey(Some(number.to_string()))));
    }
    assert_eq!(web.asked.load(Ordering::SeqCst), 2, "once in a while only");
}

#[tokio::test]
async fn many_that_wait_for_a_new_key_all_get_it() {
    let (web, provider) = (Web::start().await, Provider::new(false));
    web.put("/keys", provider.document("old"));
    let keys = Keys::start(&web.settings("/keys")).await.unwrap();
    web.put("/keys", provider.document("new"));
    let token = token(&provider, "new");
    let asking = (0..10).map(|_| {
        let (keys, token) = (keys.clone(), token.clone());
        tokio::spawn(async move { keys.verify(&token, now_ms()).await.is_ok() })
    });
    for asked in asking.collect::<Vec<_>>() {
        assert!(asked.await.unwrap());
    }
    assert_eq!(web.asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn keys_come_back_with_their_server_and_old_ones_hold_until_then() {
    let (web, provider) = (Web::start().await, Provider::new(false));
    let keys = Keys::start(&web.settings("/later")).await.unwrap();
    assert_eq!(keys.verify(&token(&provider, "one"), now_ms()).await, Err(TokenError::UnknownKey(None)));
    web.put("/later", provider.document("one"));
    until(async || keys.verify(&token(&provider, "one"), now_ms()).await.is_ok()).await;
    let mut settings = web.settings("/later");
    settings.jwks_refresh = Duration::from_millis(30);
    let keys = Keys::start(&settings).await.unwrap();
    web.put("/later", "no keys".into());
    let before = web.asked.load(Ordering::SeqCst);
    until(async || web.asked.load(Ordering::SeqCst) > before + 3).await;
    keys.verify(&token(&provider, "one"), now_ms()).await.unwrap();
    web.put("/later", provider.document("two"));
    until(async || keys.verify(&token(&provider, "two"), now_ms()).await.is_ok()).await;
    assert!(keys.verify(&token(&provider, "one"), now_ms()).await.is_err());
}

#[tokio::test]
async fn what_cannot_be_fetched_says_why() {
    let web = Web::start().await;
    let fetched = async |path: &str, bytes_max| {
        let url = format!("http://{}{path}", web.address).parse().unwrap();
        super::super::fetch::get(&url, bytes_max).await.map_err(|error| format!("{error:#}"))
    };
    web.put("/a?b=c", "x".repeat(100));
    assert_eq!(fetched("/a?b=c", 100).await.unwrap().len(), 100);
    assert!(fetched("/a?b=c", 99).await.unwrap_err().contains("cannot be read to its end"));
    assert!(fetched("/none", 100).await.unwrap_err().contains("302 Found; name the place that it points to"));
    let nobody = "http://127.0.0.1:1/".parse().unwrap();
    assert!(super::super::fetch::get(&nobody, 100).await.is_err());
    let plain = format!("https://{}/", web.address).parse().unwrap();
    let error = format!("{:#}", super::super::fetch::get(&plain, 100).await.unwrap_err());
    assert!(error.starts_with("TLS failed"), "{error}");
}

#[tokio::test]
async fn a_file_must_be_there_and_is_read_again_when_it_changes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys.json");
    let of = |url: String| OauthSettings { jwks_url: url, ..settings(&[]).oauth };
    let url = format!("file://{}", file.display());
    let refused = async |url: &str| format!("{:#}", Keys::start(&of(url.into())).await.unwrap_err());
    assert!(refused(&url).await.contains("No such file"));
    std::fs::write(&file, "{}").unwrap();
    assert!(refused(&url).await.contains("not a JSON Web Key Set"));
    for wrong in ["", "file://keys.json", "ftp://127.0.0.1/", "keys.json", "/keys.json"] {
        assert!(refused(wrong).await.contains("jwks.endpoint.url"), "{wrong}");
    }
    let provider = Provider::new(false);
    std::fs::write(&file, provider.document("one")).unwrap();
    let keys = Keys::start(&of(url)).await.unwrap();
    keys.verify(&token(&provider, "one"), now_ms()).await.unwrap();
    std::fs::write(&file, provider.document("longer")).unwrap();
    until(async || keys.verify(&token(&provider, "one"), now_ms()).await.is_err()).await;
    keys.verify(&token(&provider, "longer"), now_ms()).await.unwrap();
}
