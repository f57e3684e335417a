//! The metrics of `/metrics` as OpenTelemetry's data model has them: counters are monotonic sums, infos are gauges of 1.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::{SERVICE, attribute};

/// All metrics of `text`, which is OpenMetrics (version 1.0), in one request.
pub fn request(
    text: &str,
    resource: &BTreeMap<String, String>,
    started: SystemTime,
    now: SystemTime,
) -> ExportMetricsServiceRequest {
    let times = (nanos(started), nanos(now));
    let scope = InstrumentationScope { name: SERVICE.into(), ..InstrumentationScope::default() };
    let attributes = resource.iter().map(|(key, value)| attribute(key, value)).collect();
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope),
                metrics: families(text).into_iter().filter_map(|family| family.to_metric(times)).collect(),
                ..ScopeMetrics::default()
            }],
            ..ResourceMetrics::default()
        }],
    }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Labels, in order.
type Labels = Vec<(String, String)>;

/// The samples of one metric.
#[derive(Debug, Default)]
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    help: &'a str,
    unit: &'a str,
    /// What stands behind the name (`_total`, `_bucket`), labels, and value.
    samples: Vec<(&'a str, Labels, f64)>,
}

fn families(text: &str) -> Vec<Family<'_>> {
    let mut families: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some(meta) = line.strip_prefix("# ") {
            let mut words = meta.splitn(3, ' ');
            let (Some(word), Some(name)) = (words.next(), words.next()) else { continue };
            let rest = words.next().unwrap_or_default();
            if families.last().is_none_or(|family| family.name != name) {
                families.push(Family { name, ..Family::default() });
            }
            let Some(family) = families.last_mut() else { continue };
            match word {
                "HELP" => family.help = rest,
                "TYPE" => family.kind = rest,
                "UNIT" => family.unit = rest,
                _ => {}
            }
        } else if let Some(family) = families.last_mut() {
            family.samples.extend(sample(family.name, line));
        }
    }
    families
}

/// A sample of the family `name`: `NAME_END{LABEL="VALUE",...} VALUE`.
fn sample<'a>(name: &str, line: &'a str) -> Option<(&'a str, Labels, f64)> {
    let rest = line.strip_prefix(name)?;
    let at = rest.find(['{', ' '])?;
    let (end, rest) = rest.split_at(at);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Labels::new(), rest),
    };
    Some((end, labels, rest.trim_start().split(' ').next()?.parse().ok()?))
}

/// The labels up to the closing brace, and what stands behind it.
fn labels(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Labels::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((labels, behind));
        }
        let (key, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = quoted.char_indices();
        let end = loop {
            match letters.next()? {
                (at, '"') => break at,
                (_, '\\') => match letters.next()?.1 {
                    'n' => value.push('\n'),
                    letter => value.push(letter),
                },
                (_, letter) => value.push(letter),
            }
        };
        labels.push((key.to_owned(), value));
        rest = &quoted[end + 1..];
    }
}

fn attributes(labels: &[(String, String)]) -> Vec<KeyValue> {
    labels.iter().map(|(key, value)| attribute(key, value)).collect()
}

impl Family<'_> {
    /// `None` for a family without samples.
    fn to_metric(&self, (start_time_unix_nano, time_unix_nano): (u64, u64)) -> Option<Metric> {
        if self.samples.is_empty() {
            return None;
        }
        let numbers = |ends: &[&str]| -> Vec<NumberDataPoint> {
            let meant = self.samples.iter().filter(|(end, ..)| ends.contains(end));
            meant
                .map(|(_, labels, value)| NumberDataPoint {
                    attributes: attributes(labels),
                    start_time_unix_nano: if self.kind == "counter" { start_time_unix_nano } else { 0 },
                    time_unix_nano,
                    value: Some(number_data_point::Value::AsDouble(*value)),
                    ..NumberDataPoint::default()
                })
                .collect()
        };
        let cumulative = AggregationTemporality::Cumulative.into();
        let data = match self.kind {
            "counter" => metric::Data::Sum(Sum {
                data_points: numbers(&["_total"]),
                aggregation_temporality: cumulative,
                is_monotonic: true,
            }),
            "histogram" => metric::Data::Histogram(Histogram {
                data_points: self.histograms(start_time_unix_nano, time_unix_nano),
                aggregation_temporality: cumulative,
            }),
            _ => metric::Data::Gauge(Gauge { data_points: numbers(&["", "_info"]) }),
        };
        Some(Metric {
            name: self.name.to_owned(),
            description: self.help.to_owned(),
            unit: if self.unit == "seconds" { "s" } else { self.unit }.to_owned(),
            data: Some(data),
            ..Metric::default()
        })
    }

    fn histograms(&self, start_time_unix_nano: u64, time_unix_nano: u64) -> Vec<HistogramDataPoint> {
        let mut points: BTreeMap<Labels, HistogramDataPoint> = BTreeMap::new();
        for (end, labels, value) in &self.samples {
            let (bounds, labels): (Labels, Labels) = labels.iter().cloned().partition(|(key, _)| key == "le");
            let point = points.entry(labels).or_insert_with_key(|labels| HistogramDataPoint {
                attributes: attributes(labels),
                start_time_unix_nano,
                time_unix_nano,
                ..HistogramDataPoint::default()
            });
            match (*end, bounds.first()) {
                ("_sum", _) => point.sum = Some(*value),
                ("_count", _) => point.count = count(*value),
                ("_bucket", Some((_, bound))) => {
                    // There they are cumulative, here they are not.
                    let below: u64 = point.bucket_counts.iter().sum();
                    point.bucket_counts.push(count(*value).saturating_sub(below));
                    // The last one has no bound.
                    point.explicit_bounds.extend(bound.parse().ok().filter(|bound: &f64| bound.is_finite()));
                }
                _ => {}
            }
        }
        points.into_values().collect()
    }
}

/// Counts are exact up to 2^53.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count is a whole number from 0 on"
)]
fn count(value: f64) -> u64 {
    value.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family as Counters;
    use prometheus_client::metrics::gauge::Gauge as Level;
    use prometheus_client::metrics::histogram::Histogram as Times;
    use prometheus_client::registry::{Registry, Unit};

    use super::*;

    #[test]
    fn every_kind_of_metric_keeps_its_labels_and_values() {
        let mut registry = Registry::default();
        let counters: Counters<Vec<(String, String)>, Counter> = Counters::default();
        counters.get_or_create(&vec![("topic".into(), "a \"b\"\\{c}, d".into())]).inc_by(7);
        registry.register("bytes", "Bytes in", counters);
        let level: Level = Level::default();
        level.set(-3);
        registry.register("level", "A level", level);
        let times = Times::new([0.5, 1.0]);
        for time in [0.1, 0.7, 0.8, 5.0] {
            times.observe(time);
        }
        registry.register_with_unit("took", "Time", Unit::Seconds, times);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();

        let resource = BTreeMap::from([("service.name".to_owned(), "s".to_owned())]);
        let (started, now) = (UNIX_EPOCH, UNIX_EPOCH + std::time::Duration::from_secs(1));
        let sent = request(&text, &resource, started, now);
        let of_resource = &sent.resource_metrics[0];
        assert_eq!(of_resource.resource.as_ref().unwrap().attributes, [attribute("service.name", "s")]);
        let [bytes, level, took] = &of_resource.scope_metrics[0].metrics[..] else { panic!("{sent:?}") };
        let Some(metric::Data::Sum(sum)) = &bytes.data else { panic!("{bytes:?}") };
        assert_eq!(sum.data_points[0].attributes, [attribute("topic", "a \"b\"\\{c}, d")]);
        assert_eq!(sum.data_points[0].value, Some(number_data_point::Value::AsDouble(7.0)));
        assert!(sum.is_monotonic && bytes.name == "bytes" && bytes.description == "Bytes in.");
        let Some(metric::Data::Gauge(gauge)) = &level.data else { panic!("{level:?}") };
        assert_eq!(gauge.data_points[0].value, Some(number_data_point::Value::AsDouble(-3.0)));
        let Some(metric::Data::Histogram(histogram)) = &took.data else { panic!("{took:?}") };
        let point = &histogram.data_points[0];
        assert_eq!((&point.explicit_bounds[..], &point.bucket_counts[..]), (&[0.5, 1.0][..], &[1, 2, 1][..]));
        assert_eq!((point.count, point.sum, took.unit.as_str()), (4, Some(6.6), "s"));
        assert_eq!(point.time_unix_nano, 1_000_000_000);
    }
}
