// The Java worker of the compatibility suite: Apache Kafka's own client library, driven by
// one JSON request a line on standard input, answered by one JSON line on standard output.
//
// It knows no test case and judges nothing. What the operations are and what they answer is
// written down once, in suite/worker.py. Requests are served each on a thread of its own, so
// that a group can rebalance while a producer runs.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class Worker {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;
    private static final ObjectMapper MAPPER = new ObjectMapper();

    private final String bootstrap;
    private final Admin admin;
    private final Map<String, Member> members = new ConcurrentHashMap<>();

    private Worker(String bootstrap) {
        this.bootstrap = bootstrap;
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("client.id", "compat-java-admin");
        this.admin = Admin.create(settings);
    }

    public static void main(String[] arguments) throws Exception {
        Worker worker = new Worker(arguments[0]);
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = requests.readLine()) != null; ) {
            JsonNode request = MAPPER.readTree(line);
            Thread thread = new Thread(() -> {
                ObjectNode answer = worker.answer(request);
                synchronized (answers) {
                    answers.println(answer);
                    answers.flush();
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        // Standard input has ended: the suite is done with this worker.
        Runtime.getRuntime().halt(0);
    }

    private ObjectNode answer(JsonNode request) {
        ObjectNode answer = JSON.objectNode();
        answer.set("id", request.get("id"));
        try {
            answer.set("result", serve(request));
        } catch (Throwable thrown) {
            Throwable cause = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
            answer.put("error", cause.toString());
            answer.put("code", cause instanceof ApiException ? Errors.forException(cause).code() : -1);
        }
        return answer;
    }

    private JsonNode serve(JsonNode request) throws Exception {
        String operation = request.get("op").asText();
        switch (operation) {
            case "cluster": return cluster();
            case "create_topic": return createTopic(request);
            case "topics": return topics();
            case "describe_topic": return describeTopic(text(request, "topic"));
            case "create_partitions": return createPartitions(request);
            case "delete_topic": return deleteTopic(request);
            case "set_config": return setConfig(request);
            case "configs": return configs(text(request, "topic"));
            case "produce": return produce(request);
            case "read": return read(request);
            case "list_offsets": return listOffsets(request);
            case "commit": return commit(request);
            case "committed": return committed(text(request, "group"));
            case "delete_offsets": return deleteOffsets(request);
            case "groups": return groups();
            case "describe_group": return describeGroup(text(request, "group"));
            case "delete_group": return deleteGroup(request);
            case "join": return join(request);
            case "members": return memberStates();
            case "leave": return members.remove(text(request, "member")).leave();
            default: throw new IllegalArgumentException("no such operation: " + operation);
        }
    }

    // Topics and the cluster

    private JsonNode cluster() throws Exception {
        DescribeClusterResult cluster = admin.describeCluster();
        ObjectNode result = JSON.objectNode();
        result.put("cluster_id", cluster.clusterId().get());
        result.put("controller", cluster.controller().get().id());
        ArrayNode brokers = result.putArray("brokers");
        for (Node node : cluster.nodes().get()) {
            brokers.addObject().put("id", node.id()).put("address", node.host() + ":" + node.port());
        }
        return result;
    }

    private JsonNode createTopic(JsonNode request) throws Exception {
        Map<String, String> configs = new HashMap<>();
        request.path("configs").properties().forEach(e -> configs.put(e.getKey(), e.getValue().asText()));
        NewTopic topic = new NewTopic(text(request, "topic"), request.get("partitions").asInt(), (short) 1);
        admin.createTopics(List.of(topic.configs(configs))).all().get();
        return null;
    }

    private JsonNode topics() throws Exception {
        ArrayNode names = JSON.arrayNode();
        admin.listTopics().names().get().forEach(names::add);
        return names;
    }

    private JsonNode describeTopic(String topic) throws Exception {
        TopicDescription description = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        ArrayNode partitions = JSON.arrayNode();
        for (TopicPartitionInfo partition : description.partitions()) {
            ObjectNode one = partitions.addObject();
            one.put("partition", partition.partition()).put("leader", partition.leader().id());
            one.put("replicas", partition.replicas().size()).put("isr", partition.isr().size());
        }
        return partitions;
    }

    private JsonNode createPartitions(JsonNode request) throws Exception {
        NewPartitions total = NewPartitions.increaseTo(request.get("total").asInt());
        admin.createPartitions(Map.of(text(request, "topic"), total)).all().get();
        return null;
    }

    private JsonNode deleteTopic(JsonNode request) throws Exception {
        admin.deleteTopics(List.of(text(request, "topic"))).all().get();
        return null;
    }

    private JsonNode setConfig(JsonNode request) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        request.path("set").properties().forEach(e -> changes.add(new AlterConfigOp(
            new ConfigEntry(e.getKey(), e.getValue().asText()), AlterConfigOp.OpType.SET)));
        request.path("unset").forEach(name -> changes.add(new AlterConfigOp(
            new ConfigEntry(name.asText(), ""), AlterConfigOp.OpType.DELETE)));
        admin.incrementalAlterConfigs(Map.of(resource(text(request, "topic")), changes)).all().get();
        return null;
    }

    private JsonNode configs(String topic) throws Exception {
        Config config = admin.describeConfigs(List.of(resource(topic))).all().get().get(resource(topic));
        ObjectNode result = JSON.objectNode();
        for (ConfigEntry entry : config.entries()) {
            boolean own = entry.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG;
            result.putObject(entry.name()).put("value", entry.value()).put("own", own);
        }
        return result;
    }

    private static ConfigResource resource(String topic) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    // Records

    private JsonNode produce(JsonNode request) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("client.id", "compat-java-producer");
        settings.put("compression.type", request.path("codec").asText("none"));
        settings.put("acks", request.path("acks").asText("all"));
        settings.put("enable.idempotence", request.path("idempotent").asBoolean(false));
        settings.put("linger.ms", request.path("linger_ms").asInt(5));
        settings.put("max.request.size", 8 << 20);
        settings.put("delivery.timeout.ms", 30_000);
        settings.put("request.timeout.ms", 10_000);
        String topic = text(request, "topic");
        int pause = request.path("pause_ms").asInt(0);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                 new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode record : request.get("records")) {
                Integer partition = record.hasNonNull("partition") ? record.get("partition").asInt() : null;
                Long timestamp = record.hasNonNull("timestamp") ? record.get("timestamp").asLong() : null;
                List<Header> headers = new ArrayList<>();
                for (JsonNode header : record.path("headers")) {
                    headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
                }
                sent.add(producer.send(new ProducerRecord<>(
                    topic, partition, timestamp, bytes(record.get("key")), bytes(record.get("value")), headers)));
                if (pause > 0 && sent.size() % 20 == 0) {
                    Thread.sleep(pause);
                }
            }
            producer.flush();
            ArrayNode places = JSON.arrayNode();
            for (Future<RecordMetadata> one : sent) {
                RecordMetadata place = one.get();
                places.addArray().add(place.partition()).add(place.hasOffset() ? place.offset() : -1);
            }
            return places;
        }
    }

    private JsonNode read(JsonNode request) throws Exception {
        String topic = text(request, "topic");
        Map<TopicPartition, Long> ends = offsets(topic, request.get("ends"));
        ArrayNode passes = JSON.arrayNode();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of("auto.offset.reset", "earliest"))) {
            for (JsonNode pass : request.get("passes")) {
                Map<TopicPartition, Long> starts = offsets(topic, pass);
                if (!consumer.assignment().equals(starts.keySet())) {
                    consumer.assign(starts.keySet());
                }
                starts.forEach(consumer::seek);
                ArrayNode records = passes.addArray();
                while (starts.keySet().stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                        records.add(describe(record));
                    }
                }
            }
        }
        return passes;
    }

    private KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        settings.putIfAbsent("client.id", "compat-java-consumer");
        settings.putIfAbsent("group.protocol", "classic");
        settings.put("enable.auto.commit", false);
        settings.put("fetch.max.wait.ms", 250);
        settings.put("allow.auto.create.topics", false);
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static ObjectNode describe(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode result = JSON.objectNode();
        result.put("partition", record.partition()).put("offset", record.offset());
        result.put("timestamp", record.timestamp());
        result.set("key", base64(record.key()));
        result.set("value", base64(record.value()));
        ArrayNode headers = result.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(base64(header.value()));
        }
        return result;
    }

    private JsonNode listOffsets(JsonNode request) throws Exception {
        JsonNode at = request.get("at");
        OffsetSpec spec;
        switch (at.asText()) {
            case "earliest": spec = OffsetSpec.earliest(); break;
            case "latest": spec = OffsetSpec.latest(); break;
            case "max_timestamp": spec = OffsetSpec.maxTimestamp(); break;
            default: spec = OffsetSpec.forTimestamp(at.asLong());
        }
        Map<TopicPartition, OffsetSpec> wanted = new HashMap<>();
        request.get("partitions").forEach(p -> wanted.put(new TopicPartition(text(request, "topic"), p.asInt()), spec));
        ObjectNode result = JSON.objectNode();
        Map<TopicPartition, ListOffsetsResult.ListOffsetsResultInfo> found = admin.listOffsets(wanted).all().get();
        found.forEach((p, info) ->
            result.putArray(String.valueOf(p.partition())).add(info.offset()).add(info.timestamp()));
        return result;
    }

    // Groups

    private JsonNode commit(JsonNode request) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        request.get("offsets").properties().forEach(e -> offsets.put(
            new TopicPartition(text(request, "topic"), Integer.parseInt(e.getKey())),
            new OffsetAndMetadata(e.getValue().get(0).asLong(), e.getValue().get(1).asText())));
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(Map.of("group.id", text(request, "group")))) {
            consumer.commitSync(offsets);
        }
        return null;
    }

    private JsonNode committed(String group) throws Exception {
        ObjectNode result = JSON.objectNode();
        admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().forEach((p, o) -> {
            if (o != null) {
                result.putArray(String.valueOf(p.partition())).add(o.offset()).add(o.metadata());
            }
        });
        return result;
    }

    private JsonNode deleteOffsets(JsonNode request) throws Exception {
        Set<TopicPartition> partitions = new HashSet<>();
        request.get("partitions").forEach(p -> partitions.add(new TopicPartition(text(request, "topic"), p.asInt())));
        admin.deleteConsumerGroupOffsets(text(request, "group"), partitions).all().get();
        return null;
    }

    private JsonNode groups() throws Exception {
        ArrayNode names = JSON.arrayNode();
        for (GroupListing group : admin.listGroups().all().get()) {
            names.add(group.groupId());
        }
        return names;
    }

    private JsonNode describeGroup(String group) throws Exception {
        ConsumerGroupDescription description =
            admin.describeConsumerGroups(List.of(group)).describedGroups().get(group).get();
        ObjectNode result = JSON.objectNode();
        result.put("state", description.groupState().toString());
        result.put("assignor", description.partitionAssignor());
        ArrayNode all = result.putArray("members");
        for (MemberDescription member : description.members()) {
            ObjectNode one = all.addObject();
            one.put("client_id", member.clientId());
            one.put("instance_id", member.groupInstanceId().orElse(null));
            ArrayNode partitions = one.putArray("partitions");
            member.assignment().topicPartitions().stream().mapToInt(TopicPartition::partition).sorted()
                .forEach(partitions::add);
        }
        return result;
    }

    private JsonNode deleteGroup(JsonNode request) throws Exception {
        admin.deleteConsumerGroups(List.of(text(request, "group"))).all().get();
        return null;
    }

    private JsonNode join(JsonNode request) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("group.id", text(request, "group"));
        settings.put("client.id", text(request, "member"));
        settings.put("auto.offset.reset", "earliest");
        String assignor = text(request, "assignor");
        if (assignor.startsWith("remote ")) {
            settings.put("group.protocol", "consumer");
            settings.put("group.remote.assignor", assignor.substring("remote ".length()));
        } else {
            settings.put("session.timeout.ms", 10_000);
            settings.put("heartbeat.interval.ms", 300);
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer."
                + (assignor.equals("cooperative-sticky") ? "CooperativeStickyAssignor" : "RangeAssignor"));
        }
        if (request.hasNonNull("instance_id")) {
            settings.put("group.instance.id", text(request, "instance_id"));
        }
        Member member = new Member(consumer(settings), text(request, "topic"));
        members.put(text(request, "member"), member);
        member.start();
        return null;
    }

    private JsonNode memberStates() {
        ObjectNode result = JSON.objectNode();
        members.forEach((name, member) -> result.set(name, member.state()));
        return result;
    }

    /** One group member on a thread of its own. It commits after each poll and before it gives a partition up. */
    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final KafkaConsumer<byte[], byte[]> consumer;
        private final String topic;
        private final List<ObjectNode> records = new ArrayList<>();
        private final Set<Integer> assigned = new HashSet<>();
        private int rebalances;
        private String error;
        private volatile boolean leaving;

        Member(KafkaConsumer<byte[], byte[]> consumer, String topic) {
            this.consumer = consumer;
            this.topic = topic;
            setDaemon(true);
        }

        @Override public void run() {
            try {
                consumer.subscribe(List.of(topic), this);
                while (!leaving) {
                    ConsumerRecords<byte[], byte[]> polled = consumer.poll(Duration.ofMillis(200));
                    if (polled.isEmpty()) {
                        continue;
                    }
                    synchronized (this) {
                        polled.forEach(record -> records.add(describe(record)));
                    }
                    try {
                        consumer.commitSync();
                    } catch (RebalanceInProgressException later) {
                        // onPartitionsRevoked or the next round commits these.
                    }
                }
            } catch (Throwable thrown) {
                synchronized (this) {
                    error = thrown.toString();
                }
            }
            try {
                consumer.close();
            } catch (Throwable thrown) {
                synchronized (this) {
                    error = "close: " + thrown;
                }
            }
        }

        @Override public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            synchronized (this) {
                rebalances++;
                partitions.forEach(p -> assigned.add(p.partition()));
            }
        }

        @Override public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            Map<TopicPartition, OffsetAndMetadata> reached = new HashMap<>();
            for (TopicPartition partition : partitions) {
                try {
                    // One that is taken away before it was given its position never gets one.
                    reached.put(partition, new OffsetAndMetadata(consumer.position(partition, Duration.ZERO)));
                } catch (org.apache.kafka.common.errors.TimeoutException nothingRead) {
                    continue;
                }
            }
            consumer.commitSync(reached);
            synchronized (this) {
                partitions.forEach(p -> assigned.remove(p.partition()));
            }
        }

        @Override public void onPartitionsLost(Collection<TopicPartition> partitions) {
            synchronized (this) {
                error = "partitions lost: " + partitions;
            }
        }

        synchronized ObjectNode state() {
            ObjectNode result = JSON.objectNode();
            ArrayNode partitions = result.putArray("assigned");
            assigned.stream().sorted().forEach(partitions::add);
            return result.put("count", records.size()).put("rebalances", rebalances).put("error", error);
        }

        JsonNode leave() throws InterruptedException {
            leaving = true;
            join();
            ObjectNode result = state();
            synchronized (this) {
                result.putArray("records").addAll(records);
            }
            return result;
        }
    }

    // JSON

    private static String text(JsonNode request, String field) {
        return request.get(field).asText();
    }

    private static Map<TopicPartition, Long> offsets(String topic, JsonNode byPartition) {
        Map<TopicPartition, Long> result = new HashMap<>();
        byPartition.properties().forEach(e ->
            result.put(new TopicPartition(topic, Integer.parseInt(e.getKey())), e.getValue().asLong()));
        return result;
    }

    private static byte[] bytes(JsonNode base64) {
        return base64 == null || base64.isNull() ? null : Base64.getDecoder().decode(base64.asText());
    }

    private static JsonNode base64(byte[] bytes) {
        return bytes == null ? JSON.nullNode() : JSON.textNode(Base64.getEncoder().encodeToString(bytes));
    }
}
