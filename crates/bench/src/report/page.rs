//! The page: tables and charts as HTML with embedded style and images, so that it works without a network.
//!
//! All text from a result or from the command line goes through [`escape`].

use std::collections::BTreeMap;

use super::measure::{self, Measure};
use super::{Contender, Drawing, Workload, chart, distinct, escape, number};
use crate::result::{Environment, TestResult};

const STYLE: &str = include_str!("style.css");

/// The placeholder for a missing value.
const NOTHING: &str = "<span class=\"soft\">–</span>";

/// The whole page. `drawings` holds the charts of each workload.
pub fn html(
    title: &str,
    note: Option<&str>,
    workloads: &[Workload<'_>],
    drawings: &[Vec<Drawing>],
) -> String {
    let measures = measure::measures();
    let title = escape(title);
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    html += &format!("<p class=\"soft\">{}</p>\n", escape(&extent(workloads)));
    if let Some(note) = note {
        html += &format!("<p class=\"note\">{}</p>\n", escape(note));
    }
    html += &overview(workloads, &measures);
    html += &who_and_where(workloads);
    for (workload, drawings) in workloads.iter().zip(drawings) {
        html += &workload_section(workload, drawings, &measures);
    }
    html + "</main>\n</body>\n</html>\n"
}

fn extent(workloads: &[Workload<'_>]) -> String {
    let results = || workloads.iter().flat_map(Workload::results);
    let plural = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let mut words = vec![plural(workloads.len(), "workload"), plural(results().count(), "result")];
    let begins = || results().map(|result| result.bench.begin_time.as_str()).filter(|time| !time.is_empty());
    match (begins().min(), begins().max()) {
        (Some(first), Some(last)) if first != last => words.push(format!("begun {first} to {last}")),
        (Some(first), _) => words.push(format!("begun {first}")),
        _ => {}
    }
    words.join(" · ")
}

fn dot(contender: &Contender<'_>) -> String {
    format!("<span class=\"dot\" style=\"background:{}\"></span>&#8288;", chart::colour(contender.position))
}

fn named(contender: &Contender<'_>) -> String {
    dot(contender) + &escape(contender.name)
}

/// The median with the range of the rounds.
fn figure(measure: &Measure, contender: &Contender<'_>, with_spread: bool) -> String {
    let Some(spread) = measure.spread(&contender.rounds) else { return NOTHING.into() };
    let median = number::significant(spread.median);
    if spread.count < 2 || !with_spread {
        return median;
    }
    let (min, max) = (number::significant(spread.min), number::significant(spread.max));
    format!("{median}<small>{min}–{max}</small>")
}

/// The number of verified rounds. Empty for OMB's results, which do not contain this.
fn verified(contender: &Contender<'_>) -> String {
    let ours = || contender.rounds.iter().filter(|result| measure::is_ours(result));
    let (all, good) = (ours().count(), ours().filter(|result| result.bench.verified).count());
    match (all, good) {
        (0, _) => "<span class=\"badge unknown\">not known</span>".into(),
        (all, good) if all == good => "<span class=\"badge good\">yes</span>".into(),
        (1, _) => "<span class=\"badge bad\">no</span>".into(),
        (all, good) => format!("<span class=\"badge bad\">no: {good} of {all}</span>"),
    }
}

fn publish_errors(contender: &Contender<'_>) -> String {
    let errors: f64 = contender.rounds.iter().map(|result| measure::publish_errors(result)).sum();
    let class = if errors > 0.0 { "bad" } else { "" };
    format!("<span class=\"{class}\">{}</span>", number::tick(errors))
}

fn overview(workloads: &[Workload<'_>], measures: &[Measure]) -> String {
    let contenders = || workloads.iter().flat_map(|workload| &workload.contenders);
    let has_value = |measure: &&Measure| {
        measure.overview.is_some() && contenders().any(|one| measure.spread(&one.rounds).is_some())
    };
    let shown: Vec<&Measure> = measures.iter().filter(has_value).collect();
    let headings: String = shown
        .iter()
        .filter_map(|measure| measure.overview.as_ref())
        .map(|(_, heading)| format!("<th class=\"n\">{heading}</th>"))
        .collect();
    let groups = overview_groups(&shown);
    let mut rows = String::new();
    for workload in workloads {
        for (at, contender) in workload.contenders.iter().enumerate() {
            let (class, name) = match at {
                0 => ("first", format!("<a href=\"#{}\">{}</a>", workload.slug, escape(workload.name))),
                _ => ("", String::new()),
            };
            let figures = shown.iter().map(|measure| figure(measure, contender, false));
            let figures: String = figures.map(|figure| format!("<td class=\"n\">{figure}</td>")).collect();
            rows += &format!(
                "<tr class=\"{class}\"><td>{name}</td><td class=\"who\">{}</td><td class=\"n\">{}</td>{figures}\
                 <td>{}</td><td class=\"n\">{}</td></tr>\n",
                named(contender),
                contender.rounds.len(),
                verified(contender),
                publish_errors(contender)
            );
        }
    }
    format!(
        "<div class=\"card overview\"><h3>Overview: medians over rounds</h3>\n<table>\n<thead>\
         <tr><th colspan=\"3\"></th>{groups}<th colspan=\"2\"></th></tr>\n\
         <tr><th>workload</th><th>contender</th><th class=\"n\">rounds</th>{headings}<th>verified</th>\
         <th class=\"n\">errors</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

/// The headings above the headings. Each spans the consecutive values of its group.
fn overview_groups(shown: &[&Measure]) -> String {
    let groups: Vec<&str> =
        shown.iter().filter_map(|measure| measure.overview.as_ref()).map(|(group, _)| *group).collect();
    let cell = |same: &[&str]| format!("<th class=\"group\" colspan=\"{}\">{}</th>", same.len(), same[0]);
    groups.chunk_by(|one, next| one == next).map(cell).collect()
}

/// The promises of the contenders, and the machines.
fn who_and_where(workloads: &[Workload<'_>]) -> String {
    let mut contenders: Vec<&Contender<'_>> = workloads.iter().flat_map(|one| &one.contenders).collect();
    contenders.sort_by_key(|contender| contender.position);
    let mut promises = String::new();
    for (name, mark) in distinct(contenders.iter().map(|contender| (contender.name, named(contender)))) {
        let of_name = contenders.iter().filter(|contender| contender.name == name);
        let words =
            distinct(of_name.flat_map(|contender| &contender.rounds).map(|result| durability(result)));
        promises += &format!("<li>{mark}: <span class=\"soft\">{}</span></li>\n", escape(&words.join("; ")));
    }
    let results = workloads.iter().flat_map(Workload::results);
    let machines =
        distinct(results.filter(|result| measure::is_ours(result)).map(|one| &one.bench.environment));
    let machines: Vec<String> = machines.into_iter().map(machine).collect();
    let machines = if machines.is_empty() { vec!["not stated".into()] } else { machines };
    let machines: String = machines.iter().map(|words| format!("<li>{}</li>\n", escape(words))).collect();
    format!(
        "<div class=\"pair\"><div class=\"card\"><h3>What an acknowledgement promises</h3>\n\
         <ul class=\"plain\">{promises}</ul></div>\n\
         <div class=\"card\"><h3>Machine</h3>\n<ul class=\"plain\">{machines}</ul></div></div>\n\
         <p class=\"soft\">Latency is counted from the time at which a message was due to be sent. A figure is the \
         median over rounds, beside it the smallest and the largest of them. A ratio is the first contender's median divided \
         by another's; in parentheses the smallest and the largest ratio of two rounds of the same \
         number. It is green or red when at least two rounds agree that it is better or worse. 1 MB is a million \
         bytes, 1 KiB 1024 bytes.</p>\n"
    )
}

fn durability(result: &TestResult) -> &str {
    if result.bench.durability.is_empty() { "durability not stated" } else { &result.bench.durability }
}

fn machine(environment: &Environment) -> String {
    let cpus = Some(environment.cpus).filter(|cpus| *cpus > 0).map(|cpus| format!("{cpus} processors"));
    let memory = Some(environment.memory_bytes).filter(|bytes| *bytes > 0).map(gigabytes);
    let pinned = |who: &str, cpus: &str| (!cpus.is_empty()).then(|| format!("{who} on processors {cpus}"));
    let stated = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let parts = [
        cpus,
        stated(&environment.cpu_model),
        memory.map(|memory| format!("{memory} of memory")),
        stated(&environment.kernel),
        stated(&environment.filesystem),
        pinned("server", &environment.server_cpus),
        pinned("load", &environment.load_cpus),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "not stated".into() } else { parts.join(", ") }
}

fn gigabytes(bytes: u64) -> String {
    format!("{} GB", number::significant(bytes as f64 / 1e9))
}

fn workload_section(workload: &Workload<'_>, drawings: &[Drawing], measures: &[Measure]) -> String {
    let shapes = distinct(workload.results().map(shape)).join("; ");
    let mut html = format!(
        "<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"soft\">{}</p>\n",
        workload.slug,
        escape(workload.name),
        escape(&shapes)
    );
    html += &format!(
        "<div class=\"card\">\n{}<details><summary>Conditions: environment, versions, clients</summary>\n{}</details></div>\n",
        summary(workload, measures),
        conditions(workload)
    );
    html += "<div class=\"charts\">\n";
    for drawing in drawings {
        html += &format!(
            "<figure class=\"chart{}\" data-title=\"{}\" data-lines=\"{}\" data-colours=\"{}\">\n{}</figure>\n",
            if drawing.wide { " wide" } else { "" },
            escape(drawing.title),
            drawing.lines,
            drawing.colours.join(" "),
            drawing.svg
        );
    }
    html + "</div>\n</section>\n"
}

/// A description of the load.
fn shape(result: &TestResult) -> String {
    let plural = |count: u32, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let bench = &result.bench;
    let mut words = vec![
        format!("{} × {}", plural(result.topics, "topic"), plural(result.partitions, "partition")),
        plural(result.producers_per_topic, "producer") + " of a topic",
        plural(result.consumers_per_topic, "consumer") + " of a group and topic",
    ];
    if bench.groups > 0 {
        words.push(plural(bench.groups, "group"));
    }
    words.push(format!("messages of {} bytes", number::count(result.message_size)));
    if bench.producer_rate > 0.0 {
        let bytes = bench.producer_rate * result.message_size as f64 / 1e6;
        let rate = number::significant(bench.producer_rate);
        words.push(format!("{rate} msg/s asked for ({} MB/s)", number::significant(bytes)));
    }
    if bench.seconds > 0.0 {
        words.push(format!("{} s measured", number::significant(bench.seconds)));
    }
    words.join(", ")
}

fn summary(workload: &Workload<'_>, measures: &[Measure]) -> String {
    let contenders = &workload.contenders;
    let [base, others @ ..] = contenders.as_slice() else { return String::new() };
    let mut heads = String::new();
    for contender in contenders {
        let words = distinct(contender.rounds.iter().map(|result| durability(result))).join("; ");
        let named = named(contender);
        heads += &format!("<th class=\"n\">{named}<span class=\"durability\">{}</span></th>", escape(&words));
    }
    for other in others {
        heads += &format!("<th class=\"n\">{} ÷ {}</th>", escape(base.name), escape(other.name));
    }
    let columns = 2 + contenders.len() + others.len();
    let mut rows = String::new();
    let mut section = "";
    let has_value = |measure: &&Measure| contenders.iter().any(|one| measure.spread(&one.rounds).is_some());
    for measure in measures.iter().filter(has_value) {
        if section != measure.section {
            section = measure.section;
            rows += &format!("<tr class=\"section\"><th colspan=\"{columns}\">{section}</th></tr>\n");
        }
        rows += &format!("<tr><td>{}</td><td class=\"unit\">{}</td>", measure.name, measure.unit);
        for contender in contenders {
            rows += &format!("<td class=\"n\">{}</td>", figure(measure, contender, true));
        }
        for other in others {
            rows += &format!("<td class=\"n\">{}</td>", ratio(measure, base, other));
        }
        rows += "</tr>\n";
    }
    rows += &correctness(contenders, columns);
    format!(
        "<table class=\"summary\">\n<thead><tr><th></th><th></th>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n"
    )
}

/// The rows about errors, which have no ratios.
fn correctness(contenders: &[Contender<'_>], columns: usize) -> String {
    let row = |name: &str, of: fn(&Contender<'_>) -> String| {
        let cells = contenders.iter().map(|contender| format!("<td class=\"n\">{}</td>", of(contender)));
        let blank = "<td></td>".repeat(contenders.len().saturating_sub(1));
        format!("<tr><td>{name}</td><td></td>{}{blank}</tr>\n", cells.collect::<String>())
    };
    format!("<tr class=\"section\"><th colspan=\"{columns}\">Correctness</th></tr>\n")
        + &row("every acknowledged message received, once and in order", verified)
        + &row("publish errors, all rounds", publish_errors)
}

fn ratio(measure: &Measure, contender: &Contender<'_>, base: &Contender<'_>) -> String {
    let Some(ratio) = measure.ratio(&contender.rounds, &base.rounds) else { return NOTHING.into() };
    let class = match measure.verdict(&ratio) {
        Some(true) => "good",
        Some(false) => "bad",
        None => "",
    };
    let median = number::significant(ratio.median);
    if ratio.count < 2 {
        return format!("<span class=\"{class}\">{median}</span>");
    }
    let (min, max) = (number::significant(ratio.min), number::significant(ratio.max));
    format!("<span class=\"{class}\">{median}</span><small>({min}–{max})</small>")
}

/// A condition of a contender's results, with one value for each that differs.
type Condition = (String, Box<dyn Fn(&TestResult) -> String>);

/// The settings named in a result.
type SettingsOf = fn(&TestResult) -> &BTreeMap<String, String>;

fn conditions(workload: &Workload<'_>) -> String {
    let mut conditions: Vec<Condition> = Vec::new();
    let mut add = |name: &str, of: fn(&TestResult) -> String| conditions.push((name.into(), Box::new(of)));
    add("durability", |result| result.bench.durability.clone());
    add("driver", |result| result.driver.clone());
    add("engine of the clients", |result| result.bench.engine.clone());
    add("version of mainstem-bench", |result| result.bench.version.clone());
    add("begun", |result| result.bench.begin_time.clone());
    add("processors", |result| nonzero(u64::from(result.bench.environment.cpus), number::count));
    add("processor", |result| result.bench.environment.cpu_model.clone());
    add("memory", |result| nonzero(result.bench.environment.memory_bytes, gigabytes));
    add("kernel", |result| result.bench.environment.kernel.clone());
    add("file system of the server", |result| result.bench.environment.filesystem.clone());
    add("device", |result| {
        result.bench.device.as_ref().map(|device| device.name.clone()).unwrap_or_default()
    });
    add("processors of the server", |result| result.bench.environment.server_cpus.clone());
    add("processors of the load", |result| result.bench.environment.load_cpus.clone());
    let maps: [(&str, SettingsOf); 2] =
        [("server", |result| &result.bench.setup), ("client", |result| &result.bench.client)];
    for (whose, settings) in maps {
        for key in distinct(workload.results().flat_map(|result| settings(result).keys())) {
            let setting = key.clone();
            let of = move |result: &TestResult| settings(result).get(&setting).cloned().unwrap_or_default();
            conditions.push((format!("{whose}: {key}"), Box::new(of)));
        }
    }
    let heads: String = workload.contenders.iter().map(|one| format!("<th>{}</th>", named(one))).collect();
    let mut rows = String::new();
    for (name, of) in &conditions {
        let of_contender = |contender: &Contender<'_>| {
            let values = distinct(contender.rounds.iter().map(|result| of(result)));
            let values: Vec<String> =
                values.iter().filter(|value| !value.is_empty()).map(|one| escape(one)).collect();
            values.join("<br>")
        };
        let values: Vec<String> = workload.contenders.iter().map(of_contender).collect();
        if values.iter().all(String::is_empty) {
            continue;
        }
        let values: String = values.iter().map(|value| format!("<td>{}</td>", or_nothing(value))).collect();
        rows += &format!("<tr><td>{}</td>{values}</tr>\n", escape(name));
    }
    format!("<table>\n<thead><tr><th></th>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n")
}

fn nonzero(value: u64, words: impl Fn(u64) -> String) -> String {
    if value == 0 { String::new() } else { words(value) }
}

fn or_nothing(value: &str) -> &str {
    if value.is_empty() { NOTHING } else { value }
}

#[cfg(test)]
mod tests {
    use super::super::grouped;
    use super::*;

    fn result(contender: &str, round: u32, p99_millis: f64) -> TestResult {
        let mut result = TestResult { workload: "w".into(), message_size: 1000, ..TestResult::default() };
        result.publish_latency.aggregated.at[3] = p99_millis * 1000.0;
        result.bench.contender = contender.into();
        result.bench.round = round;
        result.bench.verified = true;
        result.bench.client.insert("acks".into(), format!("{round} <of \"{contender}\">"));
        result
    }

    #[test]
    fn medians_spreads_and_ratios_stand_in_the_table() {
        let results = [
            result("a", 1, 2.0),
            result("a", 2, 4.0),
            result("a", 3, 3.0),
            result("b", 1, 4.0),
            result("b", 2, 6.0),
            result("b", 3, 9.0),
        ];
        let table = summary(&grouped(&results)[0], &measure::measures());
        let row = table.lines().find(|line| line.starts_with("<tr><td>p99</td>")).unwrap();
        assert_eq!(
            row,
            "<tr><td>p99</td><td class=\"unit\">ms</td><td class=\"n\">3.00<small>2.00–4.00</small></td>\
             <td class=\"n\">6.00<small>4.00–9.00</small></td>\
             <td class=\"n\"><span class=\"good\">0.500</span><small>(0.333–0.667)</small></td></tr>"
        );
        assert!(table.contains("a ÷ b"));
        assert!(!table.contains("server CPU"), "nobody has it");
    }

    #[test]
    fn one_unverified_round_is_said() {
        let mut results = [result("a", 1, 1.0), result("a", 2, 1.0)];
        assert!(verified(&grouped(&results)[0].contenders[0]).contains(">yes<"));
        results[1].bench.verified = false;
        results[1].bench.publish_errors = 7;
        let workloads = grouped(&results);
        assert!(verified(&workloads[0].contenders[0]).contains("no: 1 of 2"));
        assert_eq!(publish_errors(&workloads[0].contenders[0]), "<span class=\"bad\">7</span>");
    }

    #[test]
    fn conditions_that_differ_between_rounds_are_all_named_and_escaped() {
        let mut results = [result("a", 1, 1.0), result("a", 2, 1.0)];
        results[1].bench.setup.insert("version".into(), "4.3.1".into());
        let table = conditions(&grouped(&results)[0]);
        assert!(table.contains("<td>server: version</td><td>4.3.1</td>"));
        assert!(table.contains(
            "<td>client: acks</td><td>1 &lt;of &quot;a&quot;&gt;<br>2 &lt;of &quot;a&quot;&gt;</td>"
        ));
    }
}
