"""The aims of three brokers beside three of Apache Kafka. All brokers and the load share the processors of the machine."""

from __future__ import annotations

from .figures import (Figure, Result, Unmeasured, after_kill, between_per_batch_byte, between_per_byte, cpu_per_gigabyte, doubts,
                      growth, median_held, messages_held_per_second, messages_moved_per_second, number, ratios)
from .runs import KAFKA_3, OURS_3, PART1_4, PART1_50, SMOKE_RATE, SMOKE_SECONDS, Runs, driver, server_config

# Records for copies gather, at both: what is small comes in as many requests then.
GATHERING = server_config("replica.fetch.min.bytes=1048576", "replica.fetch.wait.max.ms=50")
# A broker is killed after this share of a run.
KILLED_AT = 1 / 3
# Of a run in which one is: Kafka's clients take up to 15 s to go on, and ten seconds later all is as before.
KILL_SECONDS = 60


def rate(runs: Runs) -> list[Figure]:
    ours, kafka = runs.held("cluster-rate", "aims/highest-rate.yaml", (OURS_3, KAFKA_3), runs.options.rounds)
    rates = [median_held(of) for of in (ours, kafka)]
    runs.highest.update(zip((OURS_3, KAFKA_3), rates))
    reached = " and ".join(megabytes(ours[0], rate) for rate in rates) + " MB/s"
    return [Figure("highest rate held, ours / Kafka", ratios(ours, kafka, messages_held_per_second), at_least=3,
                   remark="; ".join(filter(None, (reached, doubts([*ours, *kafka])))))]


def cost(runs: Runs) -> list[Figure]:
    ours, kafka = runs.versus("cluster-cost", PART1_4, half(runs), (OURS_3, KAFKA_3))
    full = runs.versus("cluster-cost-full-batches", PART1_4, half(runs), (OURS_3, KAFKA_3), ("--driver", driver("batches-of-128k")))
    gathered = runs.versus("cluster-cost-gathered", PART1_4, half(runs), (OURS_3, KAFKA_3), GATHERING)
    held = "; ".join(filter(None, (f"at {megabytes(ours[0])} MB/s", doubts([*ours, *kafka]))))
    return [Figure("CPU of all processes per GB, ours / Kafka", ratios(ours, kafka, cpu_per_gigabyte), at_most=1 / 3, remark=held),
            Figure("CPU of all processes per GB in full batches, ours / Kafka", ratios(*full, cpu_per_gigabyte), at_most=1 / 3,
                   remark=doubts([*full[0], *full[1]])),
            Figure("CPU of all processes per GB where records for copies gather, ours / Kafka", ratios(*gathered, cpu_per_gigabyte),
                   at_most=1 / 3, remark=doubts([*gathered[0], *gathered[1]])),
            Figure("end-to-end p99, ours / Kafka", ratios(ours, kafka, lambda one: one["aggregatedEndToEndLatency99pct"]),
                   at_most=1 / 3, remark=held)]


def producers(runs: Runs) -> list[Figure]:
    few: list[Result] = []
    many: list[Result] = []
    for turn in runs.rounds:
        for workload, found in ((PART1_4, few), (PART1_50, many)):
            found += ours(runs, f"cluster-producers/{workload[6:].partition('.')[0]}-round-{turn}", workload, half(runs))
    held = doubts([*few, *many])
    return [Figure("CPU per GB, 50 + 50 clients / 4 + 4", ratios(many, few, cpu_per_gigabyte), at_most=2, remark=held),
            Figure("bytes between brokers for a byte of the values published, 50 + 50 clients", [between_per_byte(one) for one in many],
                   at_most=2.1, remark=f"{number(between_per_byte(few[0]))} with 4 + 4"),
            Figure("bytes between brokers for a byte of their batches", [between_per_batch_byte(one) for one in many],
                   at_most=2.1, remark=f"{number(between_per_batch_byte(few[0]))} with 4 + 4")]


def streams(runs: Runs) -> list[Figure]:
    one: list[Result] = []
    many: list[Result] = []
    for turn in runs.rounds:
        for count, found in ((1, one), (2000, many)):
            found += ours(runs, f"cluster-streams/{count}-round-{turn}", f"small/streams-{count}.yaml", {"producerRates": [200]})
    return [Figure("CPU per GB, 2000 streams / 1", ratios(many, one, cpu_per_gigabyte), at_most=1.15, remark=doubts(one + many))]


def tls(runs: Runs) -> list[Figure]:
    plain, secured = runs.versus("cluster-tls", PART1_4, half(runs), (OURS_3, f"{OURS_3}-tls"))
    return [Figure("CPU per GB, TLS between brokers / plain", ratios(secured, plain, cpu_per_gigabyte), at_most=1.5,
                   remark=doubts([*plain, *secured]))]


def kill(runs: Runs) -> list[Figure]:
    seconds = SMOKE_SECONDS if runs.options.smoke else KILL_SECONDS
    changes = {**half(runs), "testDurationSeconds": seconds}
    ours, kafka = runs.versus("cluster-kill", PART1_4, changes, (OURS_3, KAFKA_3),
                              ("--kill-after", str(round(KILLED_AT * seconds, 1)), "--engine", "librdkafka"))
    longest = [[one["aggregatedPublishLatencyMax"] / 1e3 for one in of] for of in (ours, kafka)]
    remark = f"{number(max(longest[0]))} and {number(max(longest[1]))} s"
    figures = [Figure("longest time until an answer when a broker is killed, ours / Kafka",
                      [mine / theirs for mine, theirs in zip(*longest)], at_most=1, remark=remark)]
    if not runs.options.smoke:
        figures.append(Figure("publish p99 from ten seconds after the kill / before", [growth(after_kill(one)) for one in ours],
                              at_most=1.1, remark=doubts(ours)))
    return figures


def ours(runs: Runs, name: str, workload: str, changes: dict[str, object]) -> list[Result]:
    return runs.ours(name, workload, changes, contender=OURS_3)


def half(runs: Runs) -> dict[str, object]:
    """Half of the highest rate that Kafka holds. A smoke test does not look for it."""
    return {"producerRate": SMOKE_RATE if runs.options.smoke else int(runs.highest_of(KAFKA_3) / 2)}


def megabytes(result: Result, rate: float | None = None) -> str:
    """Megabytes a second of messages of this run's size, at this rate or its own."""
    messages = messages_moved_per_second(result) if rate is None else rate
    if messages <= 0:
        raise Unmeasured("nothing was moved")
    return number(messages * result["messageSize"] / 1e6)
