//! `mainstem generate`: dashboards and alert rules for the metrics of the server, which `docs/monitoring` has as files; manual pages
//! and completions.

mod dashboards;
mod rules;

use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;

use self::dashboards::DASHBOARDS;
use super::{Misuse, complete, print};
use crate::arguments::{Arguments, Generated};

/// Prints what is asked for, or writes its files into a directory.
pub fn generate(what: &Generated) -> anyhow::Result<()> {
    match what {
        Generated::PrometheusRules => print(&rules::to_yaml()),
        Generated::Grafana { name: Some(name), .. } => {
            let found = DASHBOARDS.iter().find(|of| of.name == name);
            let names = || DASHBOARDS.iter().map(|of| of.name).collect::<Vec<_>>().join(", ");
            let wrong = || Misuse(format!("there is no dashboard {name}; there are {}", names()));
            print(&pretty(found.ok_or_else(wrong)?))
        }
        Generated::Grafana { into, .. } => write(into),
        Generated::Man { into } => {
            std::fs::create_dir_all(into).with_context(|| format!("{} cannot be made", into.display()))?;
            clap_mangen::generate_to(Arguments::command(), into)
                .with_context(|| format!("{} cannot be written to", into.display()))
        }
        Generated::Completions { shell } => {
            let mut text = Vec::new();
            complete::register(*shell, &mut text)?;
            print(&String::from_utf8(text)?)
        }
    }
}

fn write(into: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(into).with_context(|| format!("{} cannot be made", into.display()))?;
    for dashboard in DASHBOARDS {
        let path = into.join(format!("{}.json", dashboard.name));
        std::fs::write(&path, pretty(dashboard))
            .with_context(|| format!("{} cannot be written", path.display()))?;
        print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}

fn pretty(dashboard: &dashboards::Dashboard) -> String {
    format!("{:#}\n", dashboard.to_json())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;

    fn docs() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
    }

    /// `MAINSTEM_WRITE_DOCS=1 cargo test -p mainstem-server generate` rewrites the files.
    #[test]
    fn the_files_in_the_documents_are_what_is_generated() {
        let directory = docs().join("monitoring");
        let rules = ("prometheus-rules.yaml".to_owned(), rules::to_yaml());
        let dashboards = DASHBOARDS.iter().map(|of| (format!("grafana-{}.json", of.name), pretty(of)));
        for (name, text) in dashboards.chain([rules]) {
            let path = directory.join(name);
            if std::env::var_os("MAINSTEM_WRITE_DOCS").is_some() {
                std::fs::create_dir_all(&directory).unwrap();
                std::fs::write(&path, &text).unwrap();
            }
            assert_eq!(
                std::fs::read_to_string(&path).unwrap_or_default(),
                text,
                "{} is out of date",
                path.display()
            );
        }
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let directory = tempfile::tempdir().unwrap();
        generate(&Generated::Man { into: directory.path().join("man1") }).unwrap();
        let page = |name: &str| std::fs::read_to_string(directory.path().join("man1").join(name)).unwrap();
        assert!(page("mainstem.1").contains("mainstem\\-topic(1)"));
        assert!(page("mainstem-group-reset.1").contains("\\-\\-dry\\-run"));
    }

    /// What is asked for is what the server shows: each name is in the table of docs/metrics.md, but for the end that its type gives it.
    #[test]
    fn every_metric_that_is_asked_for_is_shown() {
        let page = std::fs::read_to_string(docs().join("metrics.md")).unwrap();
        let shown: BTreeSet<&str> =
            page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        let panels = DASHBOARDS
            .iter()
            .flat_map(|of| of.panels)
            .flat_map(|panel| panel.queries)
            .map(|(expression, _)| *expression);
        let mut count = 0;
        for expression in panels.chain(rules::RULES.iter().map(|rule| rule.expression)) {
            let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for name in words.filter(|word| {
                ["kafka_", "mainstem_", "process_"].iter().any(|start| word.starts_with(start))
            }) {
                let ends = ["", "_total", "_bucket", "_sum", "_count", "_info"];
                let known =
                    ends.iter().any(|end| name.strip_suffix(end).is_some_and(|name| shown.contains(name)));
                assert!(known, "{name} in {expression}");
                count += 1;
            }
        }
        assert!(count > 50, "{count}");
    }
}
