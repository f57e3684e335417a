//! Metrics and traces to an OpenTelemetry collector, which a thread of the test is.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{metric, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tempfile::TempDir;
use testing::ports::free_address;
use testing::process::{LONG, Program};
use testing::server::{Server, small};

const MAINSTEM: Program = Program::new(env!("CARGO_BIN_EXE_mainstem"));

/// A request that reached the collector.
struct Posted {
    path: String,
    head: String,
    body: Vec<u8>,
}

/// A collector that answers every request with 200. Returns its address and the requests.
fn collector() -> (String, Receiver<Posted>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, posted) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let _ = take(&stream, &sender);
        }
    });
    (address, posted)
}

fn take(stream: &TcpStream, posted: &Sender<Posted>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let lower = head.to_lowercase();
    let length =
        lower.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let _ = posted.send(Posted { path, head: lower, body });
    let mut stream = stream;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
}

fn start(parent: &TempDir, variables: &[(&str, &str)]) -> Server {
    let mut command = small(MAINSTEM, parent.path());
    command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
    command.envs(variables.iter().copied());
    Server::start(MAINSTEM, command)
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.clone()?.value? {
        any_value::Value::StringValue(text) => Some(text),
        any_value::Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

#[test]
fn a_collector_gets_metrics_and_spans() {
    let (address, posted) = collector();
    let parent = TempDir::new().unwrap();
    let server = start(
        &parent,
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{address}")),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "200"),
            ("OTEL_BSP_SCHEDULE_DELAY", "100"),
            ("OTEL_SERVICE_NAME", "the-server"),
        ],
    );
    server.run("topic create orders --partitions 1", "");
    server.run("produce orders", "1\n2\n3\n");
    let (mut produced, mut messages) = (None::<Span>, 0.0);
    let until = Instant::now() + LONG;
    while (produced.is_none() || messages < 3.0) && Instant::now() < until {
        let Ok(got) = posted.recv_timeout(LONG) else { break };
        assert!(got.head.contains("authorization: bearer x\r\n"), "{}", got.head);
        assert!(got.head.contains("content-type: application/x-protobuf\r\n"), "{}", got.head);
        match got.path.as_str() {
            "/v1/traces" => {
                let sent = ExportTraceServiceRequest::decode(&*got.body).unwrap();
                let of_server = &sent.resource_spans[0];
                let resource = &of_server.resource.as_ref().unwrap().attributes;
                assert_eq!(text(resource, "service.name").as_deref(), Some("the-server"));
                let mut spans = of_server.scope_spans.iter().flat_map(|scope| &scope.spans);
                produced = spans.find(|span| span.name == "Produce").cloned().or(produced);
            }
            "/v1/metrics" => {
                let sent = ExportMetricsServiceRequest::decode(&*got.body).unwrap();
                let metrics = &sent.resource_metrics[0].scope_metrics[0].metrics;
                let name = "kafka_server_brokertopicmetrics_messagesin";
                let found = metrics.iter().find(|metric| metric.name == name);
                if let Some(metric::Data::Sum(sum)) = found.and_then(|metric| metric.data.as_ref()) {
                    for point in &sum.data_points {
                        if let Some(number_data_point::Value::AsDouble(value)) = point.value {
                            messages = value.max(messages);
                        }
                    }
                }
            }
            path => panic!("{path}"),
        }
    }
    assert_eq!(messages, 3.0);
    let span = produced.expect("a span of the request");
    assert_eq!(text(&span.attributes, "messaging.client.id").as_deref(), Some("mainstem-cli"));
    assert_eq!(text(&span.attributes, "enduser.id").as_deref(), Some("User:ANONYMOUS"));
    assert!(text(&span.attributes, "kafka.request.bytes").unwrap().parse::<u64>().unwrap() > 60);
    let took = span.end_time_unix_nano - span.start_time_unix_nano;
    assert!(took > 0 && Duration::from_nanos(took) < LONG, "{took}");
    server.stop();
}

/// Sampling is the library's, by its variables; and an end sends what is left.
#[test]
fn spans_are_sampled_and_the_last_ones_are_sent() {
    let (address, posted) = collector();
    let parent = TempDir::new().unwrap();
    let endpoint = format!("http://{address}/v1/traces");
    let one = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint.as_str());
    let server =
        start(&parent, &[one, ("OTEL_TRACES_SAMPLER", "always_off"), ("OTEL_BSP_SCHEDULE_DELAY", "50")]);
    server.run("topic list", "");
    server.stop();
    assert!(posted.try_recv().is_err());
    let server = start(&parent, &[one, ("OTEL_BSP_SCHEDULE_DELAY", "3600000")]);
    server.run("topic list", "");
    server.stop();
    assert_eq!(posted.recv_timeout(LONG).unwrap().path, "/v1/traces");
}

#[test]
fn a_collector_that_is_away_disturbs_nobody() {
    let nobody = free_address();
    let parent = TempDir::new().unwrap();
    let server = start(
        &parent,
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{nobody}")),
            ("OTEL_METRIC_EXPORT_INTERVAL", "50"),
            ("OTEL_BSP_SCHEDULE_DELAY", "50"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "8"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8"),
        ],
    );
    server.run("topic create t --partitions 1", "");
    for _ in 0..20 {
        server.run("produce t", "x\n");
    }
    assert_eq!(server.run("consume t --exit-at-end", "").lines().count(), 20);
    server.stop();
    let (code, _, errors) = {
        let mut command = small(MAINSTEM, parent.path());
        command
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317")
            .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        testing::process::outcome(&command.output().unwrap())
    };
    assert!(code == Some(2) && errors.contains("only http/protobuf is spoken"), "{errors}");
}
