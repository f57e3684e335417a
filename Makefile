# `make run` starts the server, `make test` runs every test; both bring what they need. `make help` lists the rest.
#
#   make run ARGS="--data-dir DIR --listen HOST:PORT"
#   make fuzz FUZZ_SECONDS=60

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

ARGS ?=
# Seconds for each fuzz target.
FUZZ_SECONDS ?= 10
# How much `make real-input` sends.
REAL_INPUT_SIZE ?= 1G
# Seeds of the storage tests in `make soak`.
SOAK_SEEDS ?= 20000

# Programs and tests are built as parts of the whole workspace: for one crate alone the features of what it depends on are others, and all
# that is built again.

# Where rustup puts cargo: a shell that was open before does not know it yet.
export PATH := $(PATH):$(HOME)/.cargo/bin
CACHE := $(or $(MAINSTEM_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/mainstem)
KAFKA_CLIENTS := $(CACHE)/java/clients/kafka-clients-4.4.0.jar
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# With the programs of packages, unless others are named.
PACKAGED = MAINSTEM_BIN=$${MAINSTEM_BIN:-$(abspath $(TARGET_DIR))/packaged/mainstem} \
	MAINSTEM_BENCH_BIN=$${MAINSTEM_BENCH_BIN:-$(abspath $(TARGET_DIR))/packaged/mainstem-bench}

# What `make test` does, in this order; on both sides of a | are steps that go at the same time (scripts/steps).
STEPS := toolchain setup build "check test-rust | compat clients kafka-tools" \
	"security real-input packages | compaction tiered transactions crash" "objects monitoring deploy | images differential" \
	failover power hostile bench-load fuzz

.PHONY: help run cluster build packaged profile image dist $(filter-out |,$(subst ",,$(STEPS))) test bench-quick bench bench-full soak clean

help: ## Lists these targets.
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1 \2/p' Makefile | awk '{ t = $$2; $$1 = $$2 = ""; sub(/^ +/, ""); printf "make %-12s %s\n", t, $$0 }'

run: toolchain ## Builds the server and runs it; its flags in ARGS="...".
	@cargo build --release --locked --workspace --bin mainstem
	@exec $(TARGET_DIR)/release/mainstem serve $(ARGS)

cluster: build ## Three brokers, etcd and MinIO on this machine, until Ctrl-C (docs/cluster.md).
	@tests/cluster/demo

build: ## Builds the programs for use, optimised.
	@scripts/toolchain all
	@cargo build --release --locked --workspace --bin mainstem --bin mainstem-bench

packaged: ## Builds the programs as packages and images contain them: ten minutes, for a fifth less CPU (docs/packages.md).
	@scripts/toolchain all
	@scripts/build-packaged mainstem mainstem-bench

profile: ## Makes packaging/mainstem.profdata anew, by which the programs of packages are optimised: half an hour.
	@scripts/toolchain all
	@scripts/profile

test: ## Everything that CI runs, set-up included; ends at the first step that fails.
	@MAKE="$(MAKE)" scripts/steps $(STEPS)

toolchain: ## Says what is missing to build, if anything is.
	@scripts/toolchain

setup: ## Brings what the tests need beyond Rust: clients, jars, Python, Go modules, MinIO (built once, five minutes).
	@scripts/setup-tests

check: $(KAFKA_CLIENTS) ## Format, lints, the rules of crates/tidy, freshness of generated code, licences.
	@cargo fmt --all -- --check
	@cargo clippy --locked --workspace --all-targets -- -D warnings
	@cargo test --locked -q -p mainstem-tidy
	@cargo run --locked -q -p mainstem-wire-gen -- --check $(KAFKA_CLIENTS) crates/wire/src/generated
	@if command -v cargo-deny >/dev/null; then cargo deny check; \
	else echo "cargo-deny is not installed: licences and advisories are not checked"; fi

$(KAFKA_CLIENTS):
	@scripts/setup-tests

test-rust: toolchain ## All Rust tests, with debug assertions.
	@TESTS_NEED_ETCD=1 cargo test --locked --workspace

compat: build ## Real clients: kcat, Java, confluent-kafka, franz-go, Kafka's console tools.
	@tests/compat/run

clients: build ## Client libraries of many ages, and the clients' own test suites, with lists of what is skipped and why.
	@tests/clients/run --short
	@cargo build -q --locked --workspace --example two_brokers
	@tests/clients/run --short --moving 200
	@tests/compat/client-suites

security: build ## TLS, log-ins and rights through real clients and raw sockets: what works, what is refused and how.
	@tests/compat/security

kafka-tools: build ## Kafka's own test tools, Streams, Connect and MirrorMaker, unmodified: contents compared.
	@tests/compat/kafka-tools

differential: build ## The same requests to this server and to Apache Kafka: the answers compared field by field.
	@tests/compat/differential

transactions: build ## Kills the server and clients in the middle of transactions; none may be lost, torn or doubled.
	@tests/transactions/run

compaction: build ## Compaction against Apache Kafka's: the same records into both, the same must be left.
	@tests/compat/compaction

tiered: build ## Tiered topics against Apache Kafka's: the same settings, offsets and records in both.
	@tests/compat/tiered

real-input: build ## A gibibyte through kcat and back, every line accounted for.
	@tests/compat/real-input --size $(REAL_INPUT_SIZE)

crash: build ## Kills the server while it works; nothing acknowledged may be lost.
	@tests/crash/run --rounds 20

objects: build ## Tiered topics in MinIO, behind a proxy with faults; both are killed, nothing acknowledged may be lost.
	@tests/objects/run

failover: build ## Three brokers on etcd and MinIO: brokers, etcd and the store fail under load; nothing acknowledged may be lost. Clients on them.
	@tests/cluster/run --rounds 25 --diskless none
	@tests/cluster/run --rounds 4 --diskless all --only "a broker is killed,a broker is cut off from etcd and the store,the store loses answers,a log is moved"
	@tests/cluster/scale --partitions 500 --kills 1
	@tests/transactions/run --cluster --crashes 4
	@tests/clients/run --cluster --short

power: build ## Cuts the power under load, as root; nothing acknowledged may be lost, and Kafka shows that losses are seen.
	@tests/power/run
	@tests/power/run --prove

hostile: build ## Hostile bytes and clients; the server must go on serving the others.
	@tests/hostile/run
	@tests/hostile/adversary --short
	@tests/hostile/network
	@tests/hostile/full-disk

image: packaged ## Images of the server for containers: mainstem:latest and mainstem:latest-kafka, with buildah (docs/containers.md).
	@packaging/image/build

images: build ## The images run by podman: clients, restarts, kills, memory, users, start scripts for Kafka's images, Testcontainers.
	@tests/image/run --short

deploy: build ## The Helm chart and the compose files: linted, rendered, and servers started with what they say.
	@tests/deploy/run --short

dist: packaged ## Packages: .deb, tarball, debug symbols, checksums, in target/dist (docs/packages.md).
	@packaging/dist

packages: build ## The packages: the same bytes each time; installed, upgraded, removed; what the unit allows.
	@tests/packages/run

monitoring: build ## A real Prometheus on a server under load: lints, every query of the dashboards, every alert rule.
	@tests/monitoring/run

fuzz: toolchain ## Fuzzes each decoder and recovery for FUZZ_SECONDS (10).
	@FUZZ_SECONDS=$(FUZZ_SECONDS) cargo test --locked --workspace fuzz

bench-quick: build ## Start, memory, recovery and group commit on this machine, each beside its limit.
	@scripts/bench-quick

bench: build ## The small experiments against this server and Apache Kafka, A B; BENCH="workloads/small/part1-*.yaml" for some.
	@scripts/bench

bench-full: packaged ## What this server aims at, measured beside Apache Kafka, each figure beside its aim: 3 hours; ARGS="--only cost,core" for some.
	@$(PACKAGED) scripts/bench-full $(ARGS)

bench-load: build ## Tests of mainstem-bench against real servers, this one and Apache Kafka, and of the aims of bench-full, each for seconds.
	@tests/bench/run --short
	@tests/bench/many --topics 1000 --groups 2000

soak: build ## Longer versions of what `make test` runs: hours.
	@$(MAKE) real-input REAL_INPUT_SIZE=16G
	@tests/clients/run
	@tests/compat/client-suites --only "franz-go etl" --records 500000
	@tests/transactions/run --crashes 200
	@tests/crash/run --rounds 500
	@tests/objects/run --selftest
	@tests/objects/run --long --rounds 50
	@scripts/repeat 4 tests/objects/run --part ledger --rounds 50
	@tests/objects/run --part ledger --rounds 50 --kinds tiered,local
	@tests/objects/run --part ledger --rounds 50 --kinds diskless,tiered
	@tests/power/run --rounds 300
	@tests/cluster/run --rounds 100
	@tests/cluster/run --rounds 50 --diskless none --only "a broker is destroyed with its disk"
	@tests/cluster/run --rounds 50 --diskless none --only "two brokers are killed"
	@tests/cluster/run --rounds 20 --kafka
	@scripts/bench-full --smoke --only cluster-rate,cluster-cost
	@tests/bench/run
	@tests/cluster/scale
	@tests/cluster/upgrade
	@tests/cluster/run --rounds 2 --outage 60 --only "etcd is away,the store is away"
	@tests/transactions/run --cluster --crashes 100
	@tests/clients/run --cluster
	@tests/compat/run --cluster
	@tests/compat/kafka-tools --cluster
	@tests/compat/client-suites --cluster
	@$(MAKE) packaged
	@$(PACKAGED) tests/image/run
	@$(PACKAGED) tests/image/start-times
	@tests/deploy/run
	@$(PACKAGED) tests/packages/run --long
	@$(PACKAGED) tests/crash/run --rounds 20
	@scripts/repeat 5 tests/hostile/run
	@tests/hostile/adversary
	@MAINSTEM_SEEDS=0..$(SOAK_SEEDS) cargo test --locked -p mainstem-storage
	@cargo test --locked -p mainstem-storage --lib -- --ignored tests::copies
	@MAINSTEM_SEEDS=0..4000 cargo test --locked -p mainstem-broker --test it -- _model::
	@MAINSTEM_SEEDS=0..$(SOAK_SEEDS) cargo test --locked -p mainstem-broker --lib cluster::tests
	@$(MAKE) fuzz FUZZ_SECONDS=900

clean: ## Removes what was built and what failed tests left; the cache of the set-up stays.
	@cargo clean
	@rm -rf .cache
