"""A client under test as a process: requests go in and answers come out, one JSON line each.

Three programs speak this: java/Worker.java, confluent/worker.py and franz/main.go. Each offers the
operations below, so that a case is written once, in cases.py, and runs on every client. A request
is {"id", "op", ...arguments}; its answer {"id", "result"} or {"id", "error", "code"} with Kafka's
error code where the server gave one. Requests run concurrently. Keys, values and header values are
base64, or null.

    cluster()                                     {cluster_id, controller, brokers: [{id, address}]}
    create_topic(topic, partitions, configs?)
    topics()                                      [name]
    describe_topic(topic)                         [{partition, leader, replicas, isr}], by partition
    create_partitions(topic, total)
    delete_topic(topic)
    set_config(topic, set: {name: value}, unset: [name])     incremental
    configs(topic)                                {name: {value, own}}; own: set on the topic itself
    produce(topic, records, codec, acks, idempotent, linger_ms, pause_ms)
                                                  [[partition, offset]] per record, offset -1 unknown;
                                                  pause_ms after every 20 records
    read(topic, ends: {p: offset}, passes: [{p: offset}])    [[record]] per pass; the first assigns,
                                                  the later ones seek in the same consumer
    list_offsets(topic, partitions, at)           {p: [offset, timestamp]}; at: a time in ms,
                                                  earliest, latest or max_timestamp
    commit(group, topic, offsets: {p: [offset, metadata]})
    committed(group)                              {p: [offset, metadata]}
    delete_offsets(group, topic, partitions)      java and franz
    groups()                                      [name]
    describe_group(group)                         {state, assignor, members: [{client_id, instance_id,
                                                  partitions}]}
    delete_group(group)
    join(member, group, topic, assignor, instance_id?)       starts a member that reads and commits; "remote
                                                  uniform" is an assignor of the server's (KIP-848)
    members()                                     {member: {assigned, count, rebalances, error}}
    leave(member)                                 closes it: its state, and its records
"""

import itertools
import json
import queue
import subprocess
import threading


class RequestFailed(Exception):
    """The client reported an error. `code` is Kafka's, or negative where the client made it up."""

    def __init__(self, client, operation, message, code):
        super().__init__(f"{client} {operation}: {message} (code {code})")
        self.code = code


class Pending:
    """An answer that may not have come yet."""

    def __init__(self, client, operation):
        self.client, self.operation = client, operation
        self.answers = queue.Queue(1)

    def result(self):
        """Waits for the answer. How long is the running case's time limit."""
        answer = self.answers.get()
        if "error" in answer:
            raise RequestFailed(self.client, self.operation, answer["error"], answer["code"])
        return answer.get("result")


class Worker:
    def __init__(self, client, command, log_path):
        self.client, self.command, self.log_path = client, command, log_path
        self.process = None

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        self.ids = itertools.count()
        self.pending = {}
        self.lock = threading.Lock()
        threading.Thread(target=self._receive, args=(self.process,), daemon=True).start()

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def send(self, operation, **arguments):
        """Asks without waiting."""
        if self.process is None:
            self.start()
        pending = Pending(self.client, operation)
        with self.lock:
            identity = next(self.ids)
            self.pending[identity] = pending
        request = {"id": identity, "op": operation, **arguments}
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self._end()
        return pending

    def call(self, operation, **arguments):
        return self.send(operation, **arguments).result()

    def _receive(self, process):
        for line in process.stdout:
            answer = json.loads(line)
            with self.lock:
                pending = self.pending.pop(answer["id"])
            pending.answers.put(answer)
        self._end()

    def _end(self):
        with self.lock:
            left, self.pending = self.pending, {}
        for pending in left.values():
            pending.answers.put({"error": f"the worker ended, see {self.log_path}", "code": -1})
