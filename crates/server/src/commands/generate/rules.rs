//! Alert rules for Prometheus.

use std::fmt::Write;

/// One alert.
pub struct Rule {
    pub name: &'static str,
    pub expression: &'static str,
    /// How long it has to be so, in Prometheus's spelling.
    lasting: &'static str,
    severity: &'static str,
    summary: &'static str,
    /// What to do.
    action: &'static str,
}

const CRITICAL: &str = "critical";
const WARNING: &str = "warning";

/// All of them.
pub const RULES: &[Rule] = &[
    Rule {
        name: "MainstemLogStopped",
        expression: "mainstem_log_stopped == 1",
        lasting: "0m",
        severity: CRITICAL,
        summary: "The log in {{ $labels.dir }} of {{ $labels.instance }} takes no more records",
        action: "The disk failed a write or a sync. Look at the disk, then restart the server. In the directory copies are those of other brokers' logs, which go on without it.",
    },
    Rule {
        name: "MainstemLogFull",
        expression: "mainstem_log_full == 1",
        lasting: "1m",
        severity: CRITICAL,
        summary: "The disk of {{ $labels.dir }} of {{ $labels.instance }} is full",
        action: "Give it space, or shorten the retention of a topic. Nothing acknowledged is lost.",
    },
    Rule {
        name: "MainstemLogDirectoryOffline",
        expression: "kafka_log_logmanager_logdirectoryoffline == 1",
        lasting: "1m",
        severity: CRITICAL,
        summary: "The log directory {{ $labels.logdirectory }} of {{ $labels.instance }} cannot be used",
        action: "The server's log says why. Bring the directory back and restart the server.",
    },
    Rule {
        name: "MainstemUnderMinIsr",
        expression: "kafka_server_replicamanager_underminisrpartitioncount > 0",
        lasting: "1m",
        severity: CRITICAL,
        summary: "{{ $value }} partitions of {{ $labels.instance }} refuse acks=all",
        action: "Fewer replicas are in sync than min.insync.replicas. Bring the missing brokers back.",
    },
    Rule {
        name: "MainstemUnderReplicated",
        expression: "kafka_server_replicamanager_underreplicatedpartitions > 0",
        lasting: "5m",
        severity: WARNING,
        summary: "{{ $value }} partitions of {{ $labels.instance }} lack replicas in sync",
        action: "A broker is down, or its disk is too slow.",
    },
    Rule {
        name: "MainstemNoController",
        expression: "sum(kafka_controller_kafkacontroller_activecontrollercount) != 1",
        lasting: "5m",
        severity: CRITICAL,
        summary: "{{ $value }} brokers are the controller",
        action: "Look at etcd and at the brokers' connections to it. Where Prometheus has several clusters, sum by a label of theirs.",
    },
    Rule {
        name: "MainstemLeaseLost",
        expression: "mainstem_cluster_lease_held == 0",
        lasting: "1m",
        severity: CRITICAL,
        summary: "{{ $labels.instance }} could not renew its lease",
        action: "Look at etcd and at the broker's connection to it.",
    },
    Rule {
        name: "MainstemStoreAway",
        expression: "mainstem_cluster_store_away == 1",
        lasting: "1m",
        severity: WARNING,
        summary: "The object store does not answer {{ $labels.instance }}",
        action: "The broker gives its logs away until the store answers again.",
    },
    Rule {
        name: "MainstemBrokerGone",
        expression: "kafka_controller_kafkacontroller_activebrokercount < max_over_time(kafka_controller_kafkacontroller_activebrokercount[1h])",
        lasting: "1m",
        severity: WARNING,
        summary: "{{ $labels.instance }} knows of {{ $value }} brokers, and within the last hour of more",
        action: "`mainstem cluster status` says which one is missing: it has ended, stands still, or does not reach etcd.",
    },
    Rule {
        name: "MainstemGivesLogsAway",
        expression: "mainstem_cluster_leaving == 1",
        lasting: "5m",
        severity: WARNING,
        summary: "{{ $labels.instance }} gives its logs away",
        action: "It ends, or the disk or the object store takes none of its records: its log says which.",
    },
    Rule {
        name: "MainstemReplicasComeAndGo",
        expression: "sum by (instance) (increase(kafka_server_replicamanager_isrshrinks_total[15m])) > 5",
        lasting: "0m",
        severity: WARNING,
        summary: "Brokers with copies of logs of {{ $labels.instance }} lag time and again",
        action: "The log of {{ $labels.instance }} names their disks. Look at the network between the brokers, and at those disks.",
    },
    Rule {
        name: "MainstemCopiesUnproven",
        // Also where the first scrape after a restart has it, when there is nothing before that it could have risen from.
        expression: "(mainstem_cluster_copies_unproven_total > 0 unless mainstem_cluster_copies_unproven_total offset 1h) or increase(mainstem_cluster_copies_unproven_total[1h]) > 0",
        lasting: "0m",
        severity: WARNING,
        summary: "{{ $labels.instance }} opened a log with copies of which nothing says that they are whole",
        action: "Brokers with copies had started anew, and others were away: what a disk lost though it had synced it is lost. Compare with what producers have sent, and look at the disks after a power cut.",
    },
    Rule {
        name: "MainstemLogsClosed",
        expression: "mainstem_cluster_logs_closed > 0",
        lasting: "5m",
        severity: CRITICAL,
        summary: "{{ $value }} logs of {{ $labels.instance }} are not open: their partitions have no leader",
        action: "The broker's log says what they wait for.",
    },
    Rule {
        name: "MainstemSlowSyncs",
        expression: "histogram_quantile(0.99, sum by (instance, le) (rate(kafka_log_logflushstats_logflush_seconds_bucket[5m]))) > 0.2",
        lasting: "10m",
        severity: WARNING,
        summary: "One of a hundred group commits of {{ $labels.instance }} takes {{ $value | humanizeDuration }}",
        action: "The disk is at its limit, or failing. `mainstem bench-store` measures it.",
    },
    Rule {
        name: "MainstemSlowCopies",
        expression: "histogram_quantile(0.99, sum by (instance, le) (rate(mainstem_cluster_copies_logflush_seconds_bucket[5m]))) > 0.2",
        lasting: "10m",
        severity: WARNING,
        summary: "{{ $labels.instance }} takes {{ $value | humanizeDuration }} to sync one of a hundred copies of other brokers' logs",
        action: "Producers elsewhere wait for its disk, or have one copy less. `mainstem bench-store` measures it.",
    },
    Rule {
        name: "MainstemProduceFails",
        expression: "sum by (instance) (rate(kafka_server_brokertopicmetrics_failedproducerequests_total{topic=\"\"}[5m])) > 0.1",
        lasting: "5m",
        severity: WARNING,
        summary: "{{ $labels.instance }} refuses records of producers",
        action: "kafka_network_requestmetrics_errors_total says with which errors.",
    },
    Rule {
        name: "MainstemConsumerLag",
        expression: "max by (instance, consumergroup, topic) (kafka_consumergroup_lag_seconds) > 300",
        lasting: "10m",
        severity: WARNING,
        summary: "The group {{ $labels.consumergroup }} is {{ $value | humanizeDuration }} behind in {{ $labels.topic }}",
        action: "Its consumers are too slow, or gone.",
    },
    Rule {
        name: "MainstemFewDescriptors",
        expression: "process_open_fds{job=~\".*mainstem.*\"} / process_max_fds{job=~\".*mainstem.*\"} > 0.8",
        lasting: "5m",
        severity: WARNING,
        summary: "{{ $labels.instance }} has {{ $value | humanizePercentage }} of its file descriptors open",
        action: "Raise the limit of open files, or find the clients with so many connections.",
    },
    Rule {
        name: "MainstemLogInsFail",
        expression: "sum by (instance) (rate(mainstem_authentications_total{outcome=\"failure\"}[5m])) > 1",
        lasting: "5m",
        severity: WARNING,
        summary: "Clients fail to log in at {{ $labels.instance }}",
        action: "The server's log names their addresses.",
    },
    Rule {
        name: "MainstemOldSnapshot",
        expression: "time() - (mainstem_metadata_snapshot_time_seconds > 0) > 900 and on (instance) \
                     rate(mainstem_object_store_requests_failed_total[10m]) > 0",
        lasting: "5m",
        severity: WARNING,
        summary: "The newest metadata snapshot of {{ $labels.instance }} is {{ $value | humanizeDuration }} old",
        action: "The object store refuses it. The server's log says why.",
    },
    Rule {
        name: "MainstemSeriesDropped",
        expression: "mainstem_metrics_series_dropped > 0",
        lasting: "15m",
        severity: WARNING,
        summary: "{{ $labels.instance }} leaves {{ $value }} series out of its metrics",
        action: "Raise metrics.series.max.",
    },
];

/// The rules as a file of Prometheus.
pub fn to_yaml() -> String {
    let mut text = String::from("groups:\n  - name: mainstem\n    rules:\n");
    for Rule { name, expression, lasting, severity, summary, action } in RULES {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let lines = [
            format!("      - alert: {name}"),
            format!("        expr: {}", quoted(expression)),
            format!("        for: {lasting}"),
            format!("        labels: {{severity: {severity}}}"),
            "        annotations:".to_owned(),
            format!("          summary: {}", quoted(summary)),
            format!("          description: {}", quoted(action)),
        ];
        lines.iter().for_each(|line| writeln!(text, "{line}").expect("a text takes all"));
    }
    text
}
