//! Metrics and traces for an OpenTelemetry collector, over OTLP/HTTP with protobuf. The variables `OTEL_*` of OpenTelemetry's
//! specification say where to and how often; without an endpoint nothing is sent.
//!
//! ```text
//! registry of /metrics -> text -> MetricsData -> POST /v1/metrics      every OTEL_METRIC_EXPORT_INTERVAL
//! answered requests -> spans -> queue (bounded) -> POST /v1/traces     OTEL_BSP_*, OTEL_TRACES_SAMPLER
//! ```

mod metrics;
mod traces;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow, bail};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Request, Response, Uri};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use prost::Message;

use crate::admin::Admin;
use crate::http;

const SERVICE: &str = "mainstem";
/// Where a collector listens, by OpenTelemetry's specification.
const PROTOBUF: &str = "http/protobuf";
/// A collector answers with a short message.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// What the variables say.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settings {
    metrics: Option<Target>,
    /// Whether spans are sent. The library reads where to.
    traces: bool,
    interval: Duration,
    resource: BTreeMap<String, String>,
}

/// Where one kind of data goes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    url: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    timeout: Duration,
}

impl Settings {
    /// Reads the variables. An empty one counts as none, by OpenTelemetry's specification.
    ///
    /// # Errors
    /// A value that is wrong, or asks for a protocol that this server does not speak.
    pub fn load(variables: impl Iterator<Item = (String, String)>) -> anyhow::Result<Settings> {
        let set: BTreeMap<String, String> = variables
            .filter(|(name, value)| name.starts_with("OTEL_") && !value.trim().is_empty())
            .map(|(name, value)| (name, value.trim().to_owned()))
            .collect();
        let value = |name: &str| set.get(name).map(String::as_str);
        let off = |kind: &str| value(&format!("OTEL_{kind}_EXPORTER")) == Some("none");
        if value("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(Settings::default());
        }
        let metrics = if off("METRICS") { None } else { target(&set, "METRICS", "v1/metrics")? };
        let traces = if off("TRACES") { None } else { target(&set, "TRACES", "v1/traces")? };
        let mut resource = pairs(value("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default())
            .with_context(|| "OTEL_RESOURCE_ATTRIBUTES")?
            .into_iter()
            .collect::<BTreeMap<String, String>>();
        resource.entry("service.name".into()).or_insert(SERVICE.into());
        if let Some(name) = value("OTEL_SERVICE_NAME") {
            resource.insert("service.name".into(), name.to_owned());
        }
        resource.entry("service.version".into()).or_insert(env!("CARGO_PKG_VERSION").into());
        let interval = millis(&set, "OTEL_METRIC_EXPORT_INTERVAL", 60_000)?;
        Ok(Settings { metrics, traces: traces.is_some(), interval, resource })
    }
}

/// The target of one kind of data; `None` if no variable names one.
fn target(set: &BTreeMap<String, String>, kind: &str, path: &str) -> anyhow::Result<Option<Target>> {
    let of_kind = |name: &str| format!("OTEL_EXPORTER_OTLP_{kind}_{name}");
    let of_all = |name: &str| format!("OTEL_EXPORTER_OTLP_{name}");
    let either = |name: &str| {
        let names = [of_kind(name), of_all(name)];
        names.into_iter().find_map(|name| set.get(&name).map(|value| (name, value.as_str())))
    };
    // The endpoint of one kind is taken as it is, that of all of them gets a path.
    let (name, url) = match (set.get(&of_kind("ENDPOINT")), set.get(&of_all("ENDPOINT"))) {
        (Some(url), _) => (of_kind("ENDPOINT"), url.clone()),
        (None, Some(base)) => (of_all("ENDPOINT"), format!("{}/{path}", base.trim_end_matches('/'))),
        (None, None) => return Ok(None),
    };
    let url: Uri = url.parse().with_context(|| format!("{name}: {url} is no URL"))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none() {
        bail!("{name}: it must be http://HOST:PORT or https://HOST:PORT");
    }
    if let Some((name, protocol)) = either("PROTOCOL").filter(|(_, protocol)| *protocol != PROTOBUF) {
        bail!("{name} = {protocol}: only {PROTOBUF} is spoken, at port 4318 of most collectors");
    }
    let mut headers = Vec::new();
    if let Some((name, text)) = either("HEADERS") {
        for (key, value) in pairs(text).with_context(|| name.clone())? {
            let key = key.parse::<HeaderName>().with_context(|| format!("{name}: {key} is no header"))?;
            // A value may be a secret.
            let mut value =
                HeaderValue::from_str(&value).with_context(|| format!("{name}: the value of {key}"))?;
            value.set_sensitive(true);
            headers.push((key, value));
        }
    }
    let timeout = match either("TIMEOUT") {
        Some((name, _)) => millis(set, &name, 0)?,
        None => Duration::from_secs(10),
    };
    Ok(Some(Target { url, headers, timeout }))
}

fn millis(set: &BTreeMap<String, String>, name: &str, default: u64) -> anyhow::Result<Duration> {
    let Some(text) = set.get(name) else { return Ok(Duration::from_millis(default)) };
    let millis = text.parse().ok().filter(|millis| *millis > 0);
    Ok(Duration::from_millis(millis.with_context(|| format!("{name} = {text}: it must be milliseconds"))?))
}

/// `key=value,key=value`, with octets as `%XX` (W3C Baggage, without properties).
fn pairs(text: &str) -> anyhow::Result<Vec<(String, String)>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (key, value) = part.split_once('=').context("it must be key=value,key=value")?;
            Ok((key.trim().to_owned(), unescaped(value.trim())?))
        })
        .collect()
}

fn unescaped(text: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits =
            [rest.next(), rest.next()].map(|digit| digit.and_then(|digit| char::from(digit).to_digit(16)));
        let [Some(high), Some(low)] = digits else { bail!("a % needs two digits") };
        bytes.push(u8::try_from(high * 16 + low)?);
    }
    String::from_utf8(bytes).map_err(|_| anyhow!("it is no UTF-8"))
}

/// What is being sent, until it is dropped.
#[derive(Debug)]
pub struct Exports {
    traces: Option<traces::Traces>,
}

impl Exports {
    /// The observer of answered requests, if spans are sent.
    pub fn observer(&self) -> Option<Arc<dyn broker::RequestObserver>> {
        self.traces.as_ref().map(traces::Traces::observer)
    }

    /// Sends what is left, in bounded time.
    pub fn end(self) {
        if let Some(traces) = self.traces {
            traces.end();
        }
    }
}

/// Starts to send, on the runtime of the caller.
pub fn start(settings: Settings, admin: &Arc<Admin>) -> anyhow::Result<Exports> {
    let traces = if settings.traces { Some(traces::Traces::start(&settings.resource)?) } else { None };
    if let Some(target) = settings.metrics {
        let (admin, interval) = (admin.clone(), settings.interval);
        tokio::spawn(send_metrics(target, interval, settings.resource, admin));
    }
    Ok(Exports { traces })
}

async fn send_metrics(
    target: Target,
    interval: Duration,
    resource: BTreeMap<String, String>,
    admin: Arc<Admin>,
) {
    let started = SystemTime::now();
    let mut failing = false;
    loop {
        tokio::time::sleep(interval).await;
        let Ok(text) = admin.metrics_text() else { continue };
        let request = metrics::request(&text, &resource, started, SystemTime::now());
        let sent = post(&target, request.encode_to_vec()).await;
        let failed = sent.is_err();
        match sent {
            Ok(()) if failing => tracing::info!("metrics go to the collector again"),
            Ok(()) => {}
            // Once for each time that it begins to fail.
            Err(error) if !failing => {
                tracing::warn!(url = %target.url, error = format!("{error:#}"), "metrics did not reach the collector");
            }
            Err(_) => {}
        }
        failing = failed;
    }
}

async fn post(target: &Target, body: Vec<u8>) -> anyhow::Result<()> {
    let mut request =
        Request::post(&target.url).header(CONTENT_TYPE, "application/x-protobuf").body(Bytes::from(body))?;
    request.headers_mut().extend(target.headers.iter().cloned());
    let sent = tokio::time::timeout(target.timeout, http::send(request, ANSWER_BYTES_MAX)).await;
    let answer: Response<Bytes> =
        sent.map_err(|_| anyhow!("there was no answer in {} ms", target.timeout.as_millis()))??;
    if !answer.status().is_success() {
        bail!("it answers {}", answer.status());
    }
    Ok(())
}

/// A text attribute.
fn attribute(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::load(variables).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn nothing_is_sent_without_an_endpoint() {
        let off =
            [("OTEL_SERVICE_NAME", "x"), ("MAINSTEM_LISTEN", "y"), ("OTEL_EXPORTER_OTLP_ENDPOINT", " ")];
        let settings = load(&off).unwrap();
        assert!(settings.metrics.is_none() && !settings.traces);
        let disabled = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"), ("OTEL_SDK_DISABLED", "TRUE")];
        assert_eq!(load(&disabled).unwrap(), Settings::default());
    }

    #[test]
    fn one_endpoint_is_for_both_and_has_paths() {
        let settings = load(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4318/base/"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20abc, x-a = b"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.name=a"),
            ("OTEL_SERVICE_NAME", "b"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1000"),
        ])
        .unwrap();
        let target = settings.metrics.unwrap();
        assert_eq!(target.url, "https://c:4318/base/v1/metrics");
        assert_eq!(target.headers[0].1.to_str().unwrap(), "Basic abc");
        assert_eq!(target.headers[1], (HeaderName::from_static("x-a"), HeaderValue::from_static("b")));
        assert_eq!(
            (target.timeout.as_millis(), settings.interval.as_secs(), settings.traces),
            (500, 1, true)
        );
        assert_eq!(settings.resource["service.name"], "b");
        assert_eq!(settings.resource["deployment.environment"], "test");
    }

    #[test]
    fn one_kind_can_go_elsewhere_or_nowhere() {
        let settings = load(&[
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c:9/exactly/here"),
            ("OTEL_TRACES_EXPORTER", "none"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://d:4318"),
        ])
        .unwrap();
        assert_eq!(settings.metrics.unwrap().url, "http://c:9/exactly/here");
        assert!(!settings.traces);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let at = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        for (wrong, problem) in [
            ([("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318"), ("X", "")], "OTEL_EXPORTER_OTLP_ENDPOINT: "),
            (
                [at, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
                "OTEL_EXPORTER_OTLP_PROTOCOL = grpc: only http/protobuf",
            ),
            (
                [at, ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")],
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL = http/json",
            ),
            ([at, ("OTEL_EXPORTER_OTLP_HEADERS", "a")], "OTEL_EXPORTER_OTLP_HEADERS: it must be key=value"),
            (
                [at, ("OTEL_EXPORTER_OTLP_HEADERS", "a=%4")],
                "OTEL_EXPORTER_OTLP_HEADERS: a % needs two digits",
            ),
            (
                [at, ("OTEL_METRIC_EXPORT_INTERVAL", "0")],
                "OTEL_METRIC_EXPORT_INTERVAL = 0: it must be milliseconds",
            ),
            ([at, ("OTEL_RESOURCE_ATTRIBUTES", "x")], "OTEL_RESOURCE_ATTRIBUTES: it must be key=value"),
        ] {
            let error = load(&wrong).unwrap_err();
            assert!(error.starts_with(problem), "{error}");
        }
    }
}
