//! A span for each answered request. OpenTelemetry's library samples, gathers and sends them, by its variables.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use broker::{AnsweredRequest, RequestObserver};
use hyper::body::Bytes;
use hyper::{Request, Response};
use opentelemetry::KeyValue;
use opentelemetry::trace::{Span, SpanKind, Tracer, TracerProvider};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::runtime::Handle;

use super::{ANSWER_BYTES_MAX, SERVICE};
use crate::http;

/// How long the end waits for the last spans.
const END: Duration = Duration::from_secs(3);

/// The exporter of spans.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Starts the library, whose thread sends by this runtime.
    pub fn start(resource: &BTreeMap<String, String>) -> anyhow::Result<Traces> {
        let client = Client(Handle::current());
        let exporter = SpanExporter::builder().with_http().with_http_client(client).build();
        let exporter = exporter.context("OTEL_EXPORTER_OTLP_*")?;
        let attributes = resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
        let resource = Resource::builder_empty().with_attributes(attributes).build();
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        Ok(Traces { provider })
    }

    pub fn observer(&self) -> Arc<dyn RequestObserver> {
        Arc::new(Observer(self.provider.tracer(SERVICE)))
    }

    /// Sends what is left. Blocks for a bounded time.
    pub fn end(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(END) {
            tracing::debug!(%error, "the last spans did not reach the collector");
        }
    }
}

/// Sends the library's requests.
#[derive(Debug)]
struct Client(Handle);

type Sent = Result<Response<Bytes>, HttpError>;

impl HttpClient for Client {
    fn send_bytes<'a: 'b, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Sent> + Send + 'b>>
    where
        Self: 'b,
    {
        // The library calls from a thread of its own, which has no runtime.
        let sent = self.0.spawn(http::send(request, ANSWER_BYTES_MAX));
        Box::pin(async move { Ok(sent.await?.map_err(|error| format!("{error:#}"))?) })
    }
}

#[derive(Debug)]
struct Observer(SdkTracer);

impl RequestObserver for Observer {
    fn answered(&self, request: &AnsweredRequest<'_>) {
        let now = SystemTime::now();
        let begun = now.checked_sub(request.took).unwrap_or(now);
        // By OpenTelemetry's conventions for messaging and for servers, as far as they have names.
        let bytes = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        let attributes = [
            KeyValue::new("messaging.system", "kafka"),
            KeyValue::new("messaging.client.id", request.client_id.to_owned()),
            KeyValue::new("client.address", request.origin.peer.ip().to_string()),
            KeyValue::new("client.port", i64::from(request.origin.peer.port())),
            KeyValue::new("enduser.id", request.origin.principal.to_string()),
            KeyValue::new("kafka.listener", request.origin.listener.name.clone()),
            KeyValue::new("kafka.api.version", i64::from(request.version)),
            KeyValue::new("kafka.request.bytes", bytes(request.bytes_in)),
            KeyValue::new("kafka.response.bytes", bytes(request.bytes_out)),
        ];
        let builder = self.0.span_builder(request.api).with_kind(SpanKind::Server).with_start_time(begun);
        let mut span = builder.with_attributes(attributes).start(&self.0);
        span.end_with_timestamp(now);
    }
}
