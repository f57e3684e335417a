"""librdkafka on secured listeners, through confluent-kafka: driven by one JSON request a line on standard input,
answered by one JSON line on standard output.

It judges nothing. What the operations are and what they answer is written down once, in suite/security/clients.py.
Every operation makes a client of its own with the settings that the request gives.
"""

import json
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

# Where no code of Kafka's says what went wrong.
OTHER, TLS, CLOSED = -1, -2, -3
SASL_AUTHENTICATION_FAILED, UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE = 58, 33, 34
CODES = {KafkaError._SSL: TLS, KafkaError._TRANSPORT: CLOSED, KafkaError._ALL_BROKERS_DOWN: CLOSED,
         KafkaError._TIMED_OUT: CLOSED, KafkaError._MSG_TIMED_OUT: CLOSED,
         KafkaError._AUTHENTICATION: SASL_AUTHENTICATION_FAILED}
PAUSE_SECONDS = 0.02
streams = {}


class Refused(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code

    @classmethod
    def of(cls, error):
        text, code = error.str(), CODES.get(error.code(), error.code())
        # The codes of its own hide what the server said, or in which part of the handshake the connection was lost.
        if "Unsupported SASL mechanism" in text:
            code = UNSUPPORTED_SASL_MECHANISM
        elif "not valid in current SASL state" in text:
            code = ILLEGAL_SASL_STATE
        elif "connecting to a PLAINTEXT broker" in text:
            code = CLOSED
        elif "SSL handshake" in text or "SSL routines" in text:
            code = TLS
        return cls(code if code >= 0 or code in (TLS, CLOSED) else OTHER, text)

    def tells(self):
        return self.code not in (OTHER, CLOSED)


class Errors:
    """What a client reports besides the results of calls; the first that tells something counts."""

    def __init__(self):
        self.noted, self.come = [], threading.Event()

    def __call__(self, error):
        refused = Refused.of(error)
        self.noted.append(refused)
        if refused.tells():
            self.come.set()

    def best(self, error=None):
        noted = self.noted + ([Refused.of(error)] if error else [])
        return next((one for one in noted if one.tells()), noted[0] if noted else None)


def settings(connect, errors, **more):
    protocol = connect["protocol"]
    found = {"bootstrap.servers": connect["bootstrap"], "security.protocol": protocol, "error_cb": errors,
             "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200, "socket.timeout.ms": 5000, **more}
    if "authority" in connect:
        found["ssl.ca.location"] = connect["authority"]
    if "certificate" in connect:
        found["ssl.certificate.location"] = found["ssl.key.location"] = connect["certificate"]
    if protocol.startswith("SASL"):
        found["sasl.mechanism"] = connect["mechanism"]
        if connect["mechanism"] == "OAUTHBEARER":
            # Lasts an hour for the client, so that it is the server that finds it expired.
            found["oauth_cb"] = lambda _: (connect["token"], time.time() + 3600)
        else:
            found["sasl.username"], found["sasl.password"] = connect["user"], connect["password"]
    return found


def asked(connect, seconds, ask):
    """What `ask` of an admin client returns; or what the client says meanwhile."""
    errors = Errors()
    admin = AdminClient(settings(connect, errors))
    outcome = []

    def run():
        try:
            outcome.append((ask(admin, seconds), None))
        except KafkaException as error:
            outcome.append((None, error.args[0]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive() and not errors.come.is_set():
        admin.poll(0.02)
    if errors.come.is_set():
        raise errors.best()
    result, error = outcome[0]
    admin.poll(0)
    if error is not None:
        raise errors.best(error) if error.code() in CODES else Refused.of(error)
    return result


def probe(connect, seconds=8):
    asked(connect, seconds, lambda admin, seconds: admin.list_topics("none-of-these", timeout=seconds) and None)


def topics(connect, seconds=8):
    return asked(connect, seconds, lambda admin, seconds: list(admin.list_topics(timeout=seconds).topics))


def create_topic(connect, topic, seconds=8):
    def create(admin, seconds):
        (future,) = admin.create_topics([NewTopic(topic, 1, 1)], request_timeout=seconds).values()
        future.result(seconds)
    return asked(connect, seconds, create)


def produce(connect, topic, values, transactional_id=None, seconds=8):
    errors, offsets, failed = Errors(), {}, []
    more = {"transactional.id": transactional_id} if transactional_id else {}
    producer = Producer(settings(connect, errors, **{"linger.ms": 0, "delivery.timeout.ms": 8000, **more}))

    def delivered(at):
        def report(error, message):
            if error:
                failed.append(error)
            else:
                offsets[at] = message.offset()
        return report

    try:
        if transactional_id:
            producer.init_transactions(seconds)
            producer.begin_transaction()
        for at, value in enumerate(values):
            producer.produce(topic, value.encode(), on_delivery=delivered(at))
        deadline = time.monotonic() + seconds
        while len(producer) and not errors.come.is_set() and time.monotonic() < deadline:
            producer.poll(0.05)
        if failed or errors.come.is_set() or len(producer):
            raise Refused.of(failed[0]) if failed and Refused.of(failed[0]).tells() else errors.best() or \
                Refused(CLOSED, "nothing was delivered in time")
        if transactional_id:
            producer.commit_transaction(seconds)
    except KafkaException as error:
        raise (Refused.of(error.args[0]) if error.args[0].code() > 0 else errors.best(error.args[0])) from None
    return [offsets[at] for at in range(len(values))]


def consume(connect, topic, count, group=None, seconds=8):
    errors = Errors()
    consumer = Consumer(settings(connect, errors, **{
        "group.id": group or "none-of-these", "auto.offset.reset": "earliest", "enable.auto.commit": False,
        "fetch.wait.max.ms": 100, "isolation.level": "read_committed"}))
    if group:
        consumer.subscribe([topic])
    else:
        consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    try:
        while len(values) < count:
            message = consumer.poll(0.1)
            if errors.come.is_set():
                raise errors.best()
            if message is not None and message.error():
                raise Refused.of(message.error())
            if message is not None:
                values.append(message.value().decode())
        if group:
            consumer.commit(asynchronous=False)
    except KafkaException as error:
        raise Refused.of(error.args[0]) from None
    finally:
        consumer.close()
    return values


class Stream(threading.Thread):
    """A producer that goes on until it is told to stop."""

    def __init__(self, connect, topic):
        super().__init__(daemon=True)
        self.topic, self.stopping = topic, False
        self.sent, self.acknowledged, self.errors = 0, 0, []
        self.producer = Producer(settings(connect, self.noted, **{"linger.ms": 0, "delivery.timeout.ms": 8000}))

    def noted(self, error):
        refused = Refused.of(error)
        self.errors.append([refused.code, str(refused)])

    def delivered(self, error, _):
        if error:
            self.noted(error)
        else:
            self.acknowledged += 1

    def run(self):
        while not self.stopping:
            self.sent += 1
            try:
                self.producer.produce(self.topic, str(self.sent).encode(), on_delivery=self.delivered)
            except KafkaException as error:
                # It knows by then that it may not.
                self.noted(error.args[0])
            self.producer.poll(PAUSE_SECONDS)
            time.sleep(PAUSE_SECONDS)
        self.producer.flush(8)

    def state(self):
        return {"sent": self.sent, "acknowledged": self.acknowledged, "errors": list(self.errors)}


def stream(connect, topic, name):
    streams[name] = Stream(connect, topic)
    streams[name].start()


def state(name):
    return streams[name].state()


def stop(name):
    stopped = streams.pop(name)
    stopped.stopping = True
    stopped.join()
    return stopped.state()


OPERATIONS = {one.__name__: one for one in (probe, topics, create_topic, produce, consume, stream, state, stop)}
output = threading.Lock()


def serve(request):
    identity, operation = request.pop("id"), request.pop("op")
    try:
        answer = {"id": identity, "result": OPERATIONS[operation](**request)}
    except Refused as refused:
        answer = {"id": identity, "error": str(refused), "code": refused.code}
    except Exception as error:
        answer = {"id": identity, "error": repr(error), "code": OTHER}
    with output:
        print(json.dumps(answer), flush=True)


for line in sys.stdin:
    threading.Thread(target=serve, args=(json.loads(line),), daemon=True).start()
