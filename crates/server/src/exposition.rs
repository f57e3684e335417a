//! The text formats in which metrics are shown: OpenMetrics 1.0, which the library writes, and Prometheus's own older one
//! (`text/plain; version=0.0.4`), which is made from it.
//!
//! The older one differs in how it names families: the type of a counter stands at its `_total`, that of an info at its `_info`. It
//! knows neither units nor an end mark.

use std::fmt::{self, Write};

use hyper::header::{ACCEPT, HeaderMap};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

const OPEN_METRICS: &str = "application/openmetrics-text";

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Prometheus,
}

impl Format {
    /// The format for a request with these headers: OpenMetrics for those that name it (RFC 9110, section 12.5.1).
    pub fn asked_for(headers: &HeaderMap) -> Format {
        let mut accepted = headers
            .get_all(ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|of| of.split(','));
        if accepted.any(takes_open_metrics) { Format::OpenMetrics } else { Format::Prometheus }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// All metrics of `registry`, as they are now.
    pub fn write(self, registry: &Registry) -> Result<String, fmt::Error> {
        let mut open_metrics = String::new();
        encode(&mut open_metrics, registry)?;
        match self {
            Format::OpenMetrics => Ok(open_metrics),
            Format::Prometheus => to_prometheus(&open_metrics),
        }
    }
}

/// Whether a part of an `Accept` header asks for OpenMetrics, of any version: a quality of 0 refuses it.
fn takes_open_metrics(part: &str) -> bool {
    let mut words = part.split(';').map(str::trim);
    words.next().is_some_and(|kind| kind.eq_ignore_ascii_case(OPEN_METRICS))
        && !words.any(|word| word.strip_prefix("q=").is_some_and(|quality| quality.parse() == Ok(0.0)))
}

/// The same metrics in Prometheus's format.
fn to_prometheus(open_metrics: &str) -> Result<String, fmt::Error> {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(of) = line.strip_prefix("# HELP ") {
            // The name may get another end, which the type decides, and that is in the next line.
            help = of.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|of| of.split_once(' ')) {
            let (end, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                "stateset" => ("", "gauge"),
                "unknown" => ("", "untyped"),
                _ => ("", kind),
            };
            if let Some((_, help)) = help.take() {
                writeln!(text, "# HELP {name}{end} {help}")?;
            }
            writeln!(text, "# TYPE {name}{end} {kind}")?;
        } else if !line.starts_with('#') {
            writeln!(text, "{line}")?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::metrics::info::Info;
    use prometheus_client::registry::Unit;

    use super::*;

    #[test]
    fn the_older_format_is_for_those_who_do_not_ask_for_the_newer() {
        // What Prometheus 2.42 sends, curl, and a client that refuses OpenMetrics.
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let refuses = "text/plain, application/openmetrics-text;q=0.0";
        for (accept, format) in [
            (Some(prometheus), Format::OpenMetrics),
            (Some("Application/OpenMetrics-Text"), Format::OpenMetrics),
            (Some("*/*"), Format::Prometheus),
            (Some(refuses), Format::Prometheus),
            (None, Format::Prometheus),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, accept.parse().unwrap());
            }
            assert_eq!(Format::asked_for(&headers), format, "{accept:?}");
        }
    }

    #[test]
    fn both_formats_show_the_same_metrics() {
        let mut registry = Registry::default();
        let counter: Counter = Counter::default();
        counter.inc_by(3);
        registry.register("requests", "Requests", counter);
        let family: Family<[(String, String); 1], Gauge> = Family::default();
        family.get_or_create(&[("topic".into(), "a \"b\"\n".into())]).set(-1);
        registry.register_with_unit("size", "Its size", Unit::Bytes, family);
        let histogram = Histogram::new([0.5]);
        histogram.observe(0.25);
        registry.register("wait_seconds", "Waits", histogram);
        registry.register("build", "The build", Info::new([("version", "1.2.3")]));
        let samples = "requests_total 3\n\
                       # size\n\
                       size_bytes{topic=\"a \\\"b\\\"\\n\"} -1\n\
                       # wait\n\
                       wait_seconds_sum 0.25\n\
                       wait_seconds_count 1\n\
                       wait_seconds_bucket{le=\"0.5\"} 1\n\
                       wait_seconds_bucket{le=\"+Inf\"} 1\n\
                       # build\n\
                       build_info{version=\"1.2.3\"} 1\n";
        let older = samples
            .replacen(
                "requests",
                "# HELP requests_total Requests.\n# TYPE requests_total counter\nrequests",
                1,
            )
            .replace("# size\n", "# HELP size_bytes Its size.\n# TYPE size_bytes gauge\n")
            .replace("# wait\n", "# HELP wait_seconds Waits.\n# TYPE wait_seconds histogram\n")
            .replace("# build\n", "# HELP build_info The build.\n# TYPE build_info gauge\n");
        assert_eq!(Format::Prometheus.write(&registry).unwrap(), older);
        let newer = Format::OpenMetrics.write(&registry).unwrap();
        let without_comments = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(without_comments(&newer), without_comments(&older));
        assert!(newer.contains("# TYPE requests counter\n") && newer.ends_with("# EOF\n"));
    }
}
