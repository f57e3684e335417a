"""A client program as a process, and the operations that the programs share.

A program gets the bootstrap address as its argument. It is asked as the workers of the compatibility suite are: one JSON
line a request, one JSON line an answer (tests/compat/suite/worker.py). Requests come one at a time. Keys, values and header
values are base64, or null. Every operation uses only what the client library offers to its users: a program has no requests of
its own making unless the library's users make them too.

    offers()                                {operations: [name], codecs: [name], lacks: [limit]}; limits are in cases.py
    cluster()                               {brokers: [{id, address}], cluster_id?, controller?}
    features()                              {name: [min, max]}, as the server supports them
    create_topic(topic, partitions, configs)
    topics()                                [name]
    delete_topic(topic)
    set_config(topic, name, value)          by the newest request that the client has
    replace_configs(topic, name, value)     by the request that sets all and resets what it does not name
    configs(topic)                          {name: value}
    produce(topic, records, codec, idempotent)    [[partition, offset]] per record, offset -1 where the client tells none
    transact(topic, records, transaction, commit, group?, offset?)    one transaction with these records, and this offset
                                            of partition 0 for the group; committed or aborted. As produce
    read(topic, ends: {p: offset}, committed)     [record] from the start of each partition up to its end
    consume(group, topic, count)            joins the group, reads so many records, commits them and leaves; [record]
    committed(group, topic)                 {p: offset}
    offset_at(topic, partition, at)         by a consumer; at: a time in ms, "earliest" or "latest"; -1 where there is none
    admin_offset_at(...)                    the same by an admin client
    delete_records(topic, partition, offset)      the low watermark, or null where the client tells none
    groups()                                [name]
    group_state(group)                      its state, as the client calls it
    delete_group(group)

Three names stand in `operations` without being operations: `idempotent` and `transact_offsets` for those arguments, and
`read_committed` for a reader that leaves out what was aborted.
"""

from suite.worker import Worker


class Program:
    """One client program, and names that no other run uses."""

    def __init__(self, name, command, log_path, token):
        self.name, self.token = name, token
        self.process = name, command, log_path
        self.worker = Worker(*self.process)

    def call(self, operation, **arguments):
        return self.worker.call(operation, **arguments)

    def stop(self):
        """Ends the process; the next call starts another."""
        self.worker.stop()
        self.worker = Worker(*self.process)

    def learn(self):
        """Asks what the client offers."""
        offers = self.call("offers")
        self.operations, self.codecs = set(offers["operations"]), set(offers["codecs"])
        self.lacks = set(offers.get("lacks", ()))

    def named(self, what):
        plain = "".join(c if c.isalnum() or c == "." else "-" for c in f"{self.name}-{what}")
        return f"matrix-{plain}-{self.token}"
