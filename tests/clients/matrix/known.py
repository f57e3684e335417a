"""What is known of clients: what they cannot do with Apache Kafka 4.3.1 either, and which are not in the matrix."""

# {(client, case): why}. With Kafka these have to fail.
KNOWN = {
    ("sarama 1.38.1", "group"): "it commits offsets by version 1 of OffsetCommit, which Kafka has not taken since 4.0",
    ("@platformatic/kafka 1.35.0", "transactions"):
        "it asks for a producer id as if it had id 0, so the second producer of a transactional id is fenced",
}

# {client: why}
NOT_HERE = {
    "@confluentinc/kafka-javascript": "its package has no binary in it and fetches one from elsewhere when it is installed",
    "rdkafka": "it is librdkafka, as confluent-kafka; its own tests run in `tests/compat/client-suites`",
}
