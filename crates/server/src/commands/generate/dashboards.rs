//! Dashboards for Grafana: what each panel asks Prometheus for.

use serde_json::{Value, json};

/// A graph.
pub struct Panel {
    pub title: &'static str,
    /// A unit of Grafana.
    unit: &'static str,
    /// What is drawn, and how a line is called.
    pub queries: &'static [(&'static str, &'static str)],
}

/// A page of graphs.
pub struct Dashboard {
    pub name: &'static str,
    title: &'static str,
    pub panels: &'static [Panel],
}

const fn panel(
    title: &'static str,
    unit: &'static str,
    queries: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel { title, unit, queries }
}

/// All dashboards.
pub const DASHBOARDS: &[Dashboard] = &[
    Dashboard {
        name: "server",
        title: "Mainstem: server",
        panels: &[
            panel(
                "Requests",
                "reqps",
                &[(
                    r#"sum by (request) (rate(kafka_network_requestmetrics_requests_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "{{request}}",
                )],
            ),
            panel(
                "Time of a produce request",
                "s",
                &[
                    (
                        r#"histogram_quantile(0.5, sum by (le) (rate(kafka_network_requestmetrics_totaltime_seconds_bucket{instance=~"$instance",request="Produce"}[$__rate_interval])))"#,
                        "p50",
                    ),
                    (
                        r#"histogram_quantile(0.99, sum by (le) (rate(kafka_network_requestmetrics_totaltime_seconds_bucket{instance=~"$instance",request="Produce"}[$__rate_interval])))"#,
                        "p99",
                    ),
                ],
            ),
            panel(
                "Bytes of records",
                "Bps",
                &[
                    (
                        r#"sum(rate(kafka_server_brokertopicmetrics_bytesin_total{instance=~"$instance",topic=""}[$__rate_interval]))"#,
                        "in",
                    ),
                    (
                        r#"sum(rate(kafka_server_brokertopicmetrics_bytesout_total{instance=~"$instance",topic=""}[$__rate_interval]))"#,
                        "out",
                    ),
                ],
            ),
            panel(
                "Errors told to clients",
                "reqps",
                &[(
                    r#"sum by (request, error) (rate(kafka_network_requestmetrics_errors_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "{{request}} {{error}}",
                )],
            ),
            panel(
                "Connections",
                "short",
                &[
                    (r#"sum(mainstem_connections_open{instance=~"$instance"})"#, "open"),
                    (r#"sum(mainstem_connections_unauthenticated{instance=~"$instance"})"#, "not logged in"),
                ],
            ),
            panel(
                "Connections refused and log-ins",
                "cps",
                &[
                    (
                        r#"sum by (reason) (rate(mainstem_connections_rejected_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "refused: {{reason}}",
                    ),
                    (
                        r#"sum by (outcome) (rate(mainstem_authentications_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "log-in: {{outcome}}",
                    ),
                ],
            ),
            panel(
                "Processor time",
                "percentunit",
                &[(
                    r#"rate(process_cpu_seconds_total{instance=~"$instance"}[$__rate_interval])"#,
                    "{{instance}}",
                )],
            ),
            panel(
                "Memory",
                "bytes",
                &[
                    (r#"process_resident_memory_bytes{instance=~"$instance"}"#, "{{instance}}"),
                    (r#"sum(mainstem_request_bytes_held{instance=~"$instance"})"#, "held by requests"),
                ],
            ),
            panel(
                "File descriptors, part of the limit",
                "percentunit",
                &[(
                    r#"process_open_fds{instance=~"$instance"} / process_max_fds{instance=~"$instance"}"#,
                    "{{instance}}",
                )],
            ),
            panel(
                "Replicas",
                "short",
                &[
                    (
                        r#"sum(kafka_server_replicamanager_underreplicatedpartitions{instance=~"$instance"})"#,
                        "under-replicated",
                    ),
                    (
                        r#"sum(kafka_server_replicamanager_underminisrpartitioncount{instance=~"$instance"})"#,
                        "below min.insync",
                    ),
                    (
                        r#"sum(kafka_server_replicamanager_offlinereplicacount{instance=~"$instance"})"#,
                        "offline",
                    ),
                ],
            ),
        ],
    },
    Dashboard {
        name: "topics",
        title: "Mainstem: topics",
        panels: &[
            panel(
                "Records in",
                "wps",
                &[(
                    r#"topk(20, sum by (topic) (rate(kafka_server_brokertopicmetrics_messagesin_total{instance=~"$instance",topic!=""}[$__rate_interval])))"#,
                    "{{topic}}",
                )],
            ),
            panel(
                "Bytes in",
                "Bps",
                &[(
                    r#"topk(20, sum by (topic) (rate(kafka_server_brokertopicmetrics_bytesin_total{instance=~"$instance",topic!=""}[$__rate_interval])))"#,
                    "{{topic}}",
                )],
            ),
            panel(
                "Bytes out",
                "Bps",
                &[(
                    r#"topk(20, sum by (topic) (rate(kafka_server_brokertopicmetrics_bytesout_total{instance=~"$instance",topic!=""}[$__rate_interval])))"#,
                    "{{topic}}",
                )],
            ),
            panel(
                "Size",
                "bytes",
                &[(r#"topk(20, sum by (topic) (kafka_log_log_size{instance=~"$instance"}))"#, "{{topic}}")],
            ),
            panel(
                "Records kept",
                "short",
                &[(
                    r#"topk(20, sum by (topic) (kafka_log_log_logendoffset{instance=~"$instance"} - kafka_log_log_logstartoffset{instance=~"$instance"}))"#,
                    "{{topic}}",
                )],
            ),
            panel(
                "Produce requests refused",
                "reqps",
                &[(
                    r#"topk(20, sum by (topic) (rate(kafka_server_brokertopicmetrics_failedproducerequests_total{instance=~"$instance",topic!=""}[$__rate_interval])))"#,
                    "{{topic}}",
                )],
            ),
        ],
    },
    Dashboard {
        name: "groups",
        title: "Mainstem: consumer groups",
        panels: &[
            panel(
                "Lag in records",
                "short",
                &[(
                    r#"topk(20, sum by (consumergroup, topic) (kafka_consumergroup_lag{instance=~"$instance"}))"#,
                    "{{consumergroup}} {{topic}}",
                )],
            ),
            panel(
                "Lag in seconds",
                "s",
                &[(
                    r#"topk(20, max by (consumergroup, topic) (kafka_consumergroup_lag_seconds{instance=~"$instance"}))"#,
                    "{{consumergroup}} {{topic}}",
                )],
            ),
            panel(
                "Records committed",
                "wps",
                &[(
                    r#"topk(20, sum by (consumergroup) (rate(kafka_consumergroup_current_offset{instance=~"$instance"}[$__rate_interval])))"#,
                    "{{consumergroup}}",
                )],
            ),
            panel(
                "Members",
                "short",
                &[(
                    r#"topk(20, sum by (consumergroup) (kafka_consumergroup_members{instance=~"$instance"}))"#,
                    "{{consumergroup}}",
                )],
            ),
            panel(
                "Groups by state",
                "short",
                &[(
                    r#"sum by (state) (kafka_coordinator_group_groupcount{instance=~"$instance"})"#,
                    "{{state}}",
                )],
            ),
        ],
    },
    Dashboard {
        name: "disk",
        title: "Mainstem: disk and object store",
        panels: &[
            panel(
                "Time of a group commit",
                "s",
                &[
                    (
                        r#"histogram_quantile(0.5, sum by (le) (rate(kafka_log_logflushstats_logflush_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                        "p50",
                    ),
                    (
                        r#"histogram_quantile(0.99, sum by (le) (rate(kafka_log_logflushstats_logflush_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                        "p99",
                    ),
                ],
            ),
            panel(
                "Bytes written by group commits",
                "Bps",
                &[(
                    r#"sum(rate(mainstem_log_commit_bytes_sum{instance=~"$instance"}[$__rate_interval]))"#,
                    "written",
                )],
            ),
            panel(
                "Entries of a group commit",
                "short",
                &[(
                    r#"sum(rate(mainstem_log_commit_entries_sum{instance=~"$instance"}[$__rate_interval])) / sum(rate(mainstem_log_commit_entries_count{instance=~"$instance"}[$__rate_interval]))"#,
                    "entries",
                )],
            ),
            panel(
                "Segments",
                "short",
                &[(r#"mainstem_log_segments{instance=~"$instance"}"#, "{{instance}} {{dir}}")],
            ),
            panel(
                "Reads",
                "reqps",
                &[
                    (
                        r#"sum(rate(mainstem_log_tail_cache_hits_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "from the tail",
                    ),
                    (
                        r#"sum(rate(mainstem_log_read_cache_hits_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "from regions read back",
                    ),
                    (
                        r#"sum(rate(mainstem_log_read_cache_misses_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "from the disk",
                    ),
                ],
            ),
            panel(
                "The cleaner",
                "Bps",
                &[
                    (
                        r#"sum(rate(mainstem_log_cleaner_read_bytes_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "read",
                    ),
                    (
                        r#"sum(rate(mainstem_log_cleaner_written_bytes_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "written",
                    ),
                ],
            ),
            panel(
                "Logs that take no records",
                "short",
                &[
                    (r#"sum(mainstem_log_stopped{instance=~"$instance"})"#, "stopped"),
                    (r#"sum(mainstem_log_full{instance=~"$instance"})"#, "full"),
                    (
                        r#"sum(kafka_log_logmanager_offlinelogdirectorycount{instance=~"$instance"})"#,
                        "offline",
                    ),
                ],
            ),
            panel(
                "Requests to the object store",
                "reqps",
                &[(
                    r#"sum by (kind) (rate(mainstem_object_store_requests_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "{{kind}}",
                )],
            ),
            panel(
                "Bytes that wait for the object store",
                "bytes",
                &[(r#"sum(mainstem_log_unstored_bytes{instance=~"$instance"})"#, "waiting")],
            ),
        ],
    },
    Dashboard {
        name: "cluster",
        title: "Mainstem: cluster",
        panels: &[
            panel(
                "Brokers",
                "short",
                &[
                    (
                        r#"max(kafka_controller_kafkacontroller_activebrokercount{instance=~"$instance"})"#,
                        "take part",
                    ),
                    (r#"sum(mainstem_cluster_lease_held{instance=~"$instance"})"#, "have a lease"),
                    (r#"sum(mainstem_cluster_drained{instance=~"$instance"})"#, "drained"),
                ],
            ),
            panel(
                "Logs by owner",
                "short",
                &[(r#"mainstem_cluster_logs_owned{instance=~"$instance"}"#, "{{instance}}")],
            ),
            panel(
                "Partitions that lack replicas",
                "short",
                &[
                    (
                        r#"sum(kafka_server_replicamanager_underreplicatedpartitions{instance=~"$instance"})"#,
                        "fewer in sync than they have",
                    ),
                    (
                        r#"sum(kafka_server_replicamanager_atminisrpartitioncount{instance=~"$instance"})"#,
                        "at min.insync.replicas",
                    ),
                    (
                        r#"sum(kafka_server_replicamanager_underminisrpartitioncount{instance=~"$instance"})"#,
                        "below min.insync.replicas",
                    ),
                ],
            ),
            panel(
                "Changes of copy sets",
                "ops",
                &[
                    (
                        r#"sum by (instance) (rate(kafka_server_replicamanager_isrshrinks_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "{{instance}} smaller",
                    ),
                    (
                        r#"sum by (instance) (rate(kafka_server_replicamanager_isrexpands_total{instance=~"$instance"}[$__rate_interval]))"#,
                        "{{instance}} larger",
                    ),
                ],
            ),
            panel(
                "Time of a group commit of copies",
                "s",
                &[
                    (
                        r#"histogram_quantile(0.5, sum by (instance, le) (rate(mainstem_cluster_copies_logflush_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                        "{{instance}} p50",
                    ),
                    (
                        r#"histogram_quantile(0.99, sum by (instance, le) (rate(mainstem_cluster_copies_logflush_seconds_bucket{instance=~"$instance"}[$__rate_interval])))"#,
                        "{{instance}} p99",
                    ),
                ],
            ),
            panel(
                "Logs without a leader, and brokers that give theirs away",
                "short",
                &[
                    (r#"sum(mainstem_cluster_logs_closed{instance=~"$instance"})"#, "logs without a leader"),
                    (r#"sum(mainstem_cluster_leaving{instance=~"$instance"})"#, "brokers that leave"),
                    (
                        r#"sum(mainstem_cluster_store_away{instance=~"$instance"})"#,
                        "brokers without the store",
                    ),
                ],
            ),
            panel(
                "Logs that a broker can take over at once",
                "short",
                &[(r#"mainstem_cluster_stands_by{instance=~"$instance"}"#, "{{instance}}")],
            ),
            panel(
                "Bytes of records from copies, for consumers of a rack",
                "Bps",
                &[(
                    r#"sum by (instance) (rate(mainstem_copies_fetched_bytes_total{instance=~"$instance"}[$__rate_interval]))"#,
                    "{{instance}}",
                )],
            ),
        ],
    },
];

/// Columns of Grafana's grid, and the place of one panel in it.
const COLUMNS: usize = 24;
const PANEL_WIDTH: usize = 12;
const PANEL_HEIGHT: usize = 8;

impl Dashboard {
    /// The dashboard as Grafana imports it. The source of data and the servers are chosen on the page.
    pub fn to_json(&self) -> Value {
        let source = json!({"type": "prometheus", "uid": "${datasource}"});
        let panels: Vec<Value> = self
            .panels
            .iter()
            .enumerate()
            .map(|(at, panel)| {
                let per_row = COLUMNS / PANEL_WIDTH;
                let targets: Vec<Value> = ('A'..)
                    .zip(panel.queries)
                    .map(|(id, (expression, legend))| {
                        json!({"refId": id, "datasource": source, "expr": expression, "legendFormat": legend})
                    })
                    .collect();
                json!({
                    "id": at + 1,
                    "type": "timeseries",
                    "title": panel.title,
                    "datasource": source,
                    "gridPos": {
                        "x": at % per_row * PANEL_WIDTH, "y": at / per_row * PANEL_HEIGHT, "w": PANEL_WIDTH, "h": PANEL_HEIGHT,
                    },
                    "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                    "targets": targets,
                })
            })
            .collect();
        json!({
            "uid": format!("mainstem-{}", self.name),
            "title": self.title,
            "tags": ["mainstem"],
            "schemaVersion": 39,
            "editable": true,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance", "label": "Server", "type": "query", "datasource": source,
                    "query": "label_values(mainstem_build_info, instance)", "refresh": 2,
                    "includeAll": true, "multi": true, "current": {"text": "All", "value": "$__all"},
                },
            ]},
            "panels": panels,
        })
    }
}
