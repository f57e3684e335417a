// The Java program of the clients matrix, on kafka-clients 2.1 and every later release.
//
// It is compiled against the oldest release, as an application of that time was, and the same class file runs on
// each. What a later release added is called by reflection, and offered only where it exists. The operations are
// listed in matrix/program.py. The program judges nothing.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupListing;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class Program {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;
    private static final String ADMIN = "org.apache.kafka.clients.admin.";

    private final String bootstrap;
    private final AdminClient admin;

    private Program(String bootstrap) {
        this.bootstrap = bootstrap;
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        this.admin = AdminClient.create(settings);
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        Program program = new Program(arguments[0]);
        PrintStream answers = new PrintStream(System.out, true, "UTF-8");
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = requests.readLine()) != null; ) {
            answers.println(program.answer(mapper.readTree(line)));
        }
        Runtime.getRuntime().halt(0);
    }

    private ObjectNode answer(JsonNode request) {
        ObjectNode answer = JSON.objectNode();
        answer.set("id", request.get("id"));
        try {
            answer.set("result", serve(request));
        } catch (Throwable thrown) {
            Throwable cause = thrown;
            while (cause instanceof ExecutionException || cause instanceof InvocationTargetException) {
                cause = cause.getCause();
            }
            cause.printStackTrace();
            Throwable root = cause;
            while (root.getCause() != null) {
                root = root.getCause();
            }
            answer.put("error", root == cause ? cause.toString() : cause + ", caused by " + root).put("code", -1);
        }
        return answer;
    }

    private JsonNode serve(JsonNode request) throws Exception {
        switch (request.get("op").asText()) {
            case "offers": return offers();
            case "cluster": return cluster();
            case "features": return features();
            case "create_topic": return createTopic(request);
            case "topics": return names(admin.listTopics().names().get());
            case "delete_topic": return done(admin.deleteTopics(one(text(request, "topic"))).all());
            case "set_config": return setConfig(request);
            case "replace_configs": return replaceConfigs(request);
            case "configs": return configs(request);
            case "produce": return produce(request);
            case "transact": return transact(request);
            case "read": return read(request);
            case "consume": return consume(request);
            case "offset_at": return offsetAt(request);
            case "admin_offset_at": return adminOffsetAt(request);
            case "delete_records": return deleteRecords(request);
            case "committed": return committed(request);
            case "groups": return groups();
            case "group_state": return groupState(request);
            case "delete_group": return done(admin.deleteConsumerGroups(one(text(request, "group"))).all());
            default: throw new IllegalArgumentException("no such operation: " + request.get("op"));
        }
    }

    private JsonNode offers() throws Exception {
        ObjectNode offers = JSON.objectNode();
        offers.putArray("codecs").add("none").add("gzip").add("snappy").add("lz4").add("zstd");
        ArrayNode operations = offers.putArray("operations");
        for (String name : Arrays.asList("cluster", "create_topic", "topics", "delete_topic", "set_config", "configs",
            "produce", "idempotent", "transact", "transact_offsets", "read", "read_committed", "consume", "committed",
            "offset_at", "delete_records", "groups", "group_state", "delete_group")) {
            operations.add(name);
        }
        addIfThere(operations, "features", "describeFeatures");
        addIfThere(operations, "admin_offset_at", "listOffsets");
        addIfThere(operations, "replace_configs", "alterConfigs");
        // Which came with the request that a client tells it by (ApiVersions version 4).
        if (Arrays.compare(version(), new int[] {3, 9}) < 0) {
            offers.putArray("lacks").add("features from 0");
        }
        return offers;
    }

    private static int[] version() throws Exception {
        Properties about = new Properties();
        try (InputStream file = AdminClient.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            about.load(file);
        }
        return Arrays.stream(about.getProperty("version").split("[.]")).mapToInt(Integer::parseInt).toArray();
    }

    private static void addIfThere(ArrayNode operations, String operation, String method) {
        if (has(AdminClient.class, method)) {
            operations.add(operation);
        }
    }

    // The cluster and its topics

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

    /** {name: [min, max]} of what the server supports. */
    private JsonNode features() throws Exception {
        Object metadata = ((Future<?>) call(call(admin, "describeFeatures"), "featureMetadata")).get();
        ObjectNode result = JSON.objectNode();
        for (Map.Entry<?, ?> entry : ((Map<?, ?>) call(metadata, "supportedFeatures")).entrySet()) {
            ArrayNode range = result.putArray(entry.getKey().toString());
            range.add(((Number) call(entry.getValue(), "minVersion")).longValue());
            range.add(((Number) call(entry.getValue(), "maxVersion")).longValue());
        }
        return result;
    }

    private JsonNode createTopic(JsonNode request) throws Exception {
        Map<String, String> configs = new HashMap<>();
        request.path("configs").fields().forEachRemaining(e -> configs.put(e.getKey(), e.getValue().asText()));
        NewTopic topic = new NewTopic(text(request, "topic"), request.get("partitions").asInt(), (short) 1);
        return done(admin.createTopics(one(topic.configs(configs))).all());
    }

    private JsonNode setConfig(JsonNode request) throws Exception {
        if (!has(AdminClient.class, "incrementalAlterConfigs")) {
            return replaceConfigs(request);
        }
        ConfigEntry entry = new ConfigEntry(text(request, "name"), text(request, "value"));
        Class<?> kind = Class.forName(ADMIN + "AlterConfigOp$OpType");
        Object set = kind.getMethod("valueOf", String.class).invoke(null, "SET");
        Object change = Class.forName(ADMIN + "AlterConfigOp").getConstructor(ConfigEntry.class, kind)
            .newInstance(entry, set);
        Map<ConfigResource, ?> changes = Collections.singletonMap(resource(request), one(change));
        return done((Future<?>) call(call(admin, "incrementalAlterConfigs", changes), "all"));
    }

    /** The request of before 2.3, which sets all that it names and resets the rest. */
    private JsonNode replaceConfigs(JsonNode request) throws Exception {
        Config config = new Config(one(new ConfigEntry(text(request, "name"), text(request, "value"))));
        return done(admin.alterConfigs(Collections.singletonMap(resource(request), config)).all());
    }

    private JsonNode configs(JsonNode request) throws Exception {
        ConfigResource resource = resource(request);
        ObjectNode result = JSON.objectNode();
        for (ConfigEntry entry : admin.describeConfigs(one(resource)).all().get().get(resource).entries()) {
            result.put(entry.name(), entry.value());
        }
        return result;
    }

    private static ConfigResource resource(JsonNode request) {
        return new ConfigResource(ConfigResource.Type.TOPIC, text(request, "topic"));
    }

    // Records

    private KafkaProducer<byte[], byte[]> producer(JsonNode request) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("compression.type", request.path("codec").asText("none"));
        settings.put("acks", "all");
        settings.put("enable.idempotence", request.path("idempotent").asBoolean(false) || request.has("transaction"));
        // Without idempotence a batch that is sent again would come after the next one.
        settings.put("max.in.flight.requests.per.connection", 1);
        settings.put("linger.ms", 5);
        settings.put("buffer.memory", 4 << 20);
        if (request.has("transaction")) {
            settings.put("transactional.id", text(request, "transaction"));
        }
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private JsonNode produce(JsonNode request) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(request)) {
            return places(send(producer, request));
        }
    }

    private JsonNode transact(JsonNode request) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(request)) {
            producer.initTransactions();
            producer.beginTransaction();
            JsonNode places = places(send(producer, request));
            if (request.has("offset")) {
                TopicPartition partition = new TopicPartition(text(request, "topic"), 0);
                sendOffset(producer, text(request, "group"), Collections.singletonMap(
                    partition, new OffsetAndMetadata(request.get("offset").asLong())));
            }
            if (request.get("commit").asBoolean()) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
            return places;
        }
    }

    private void sendOffset(Object producer, String group, Map<TopicPartition, OffsetAndMetadata> offsets)
        throws Exception {
        if (!has(KafkaConsumer.class, "groupMetadata")) {
            producer.getClass().getMethod("sendOffsetsToTransaction", Map.class, String.class)
                .invoke(producer, offsets, group);
            return;
        }
        Class<?> metadata = Class.forName("org.apache.kafka.clients.consumer.ConsumerGroupMetadata");
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(group, false)) {
            producer.getClass().getMethod("sendOffsetsToTransaction", Map.class, metadata)
                .invoke(producer, offsets, call(consumer, "groupMetadata"));
        }
    }

    private static List<Future<RecordMetadata>> send(KafkaProducer<byte[], byte[]> producer, JsonNode request) {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : request.get("records")) {
            List<Header> headers = new ArrayList<>();
            for (JsonNode header : record.path("headers")) {
                headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
            }
            sent.add(producer.send(new ProducerRecord<>(text(request, "topic"), record.get("partition").asInt(),
                record.get("timestamp").asLong(), bytes(record.get("key")), bytes(record.get("value")), headers)));
        }
        producer.flush();
        return sent;
    }

    private static JsonNode places(List<Future<RecordMetadata>> sent) throws Exception {
        ArrayNode places = JSON.arrayNode();
        for (Future<RecordMetadata> one : sent) {
            places.addArray().add(one.get().partition()).add(one.get().offset());
        }
        return places;
    }

    private KafkaConsumer<byte[], byte[]> consumer(String group, boolean committed) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", committed ? "read_committed" : "read_uncommitted");
        settings.put("fetch.max.wait.ms", 250);
        settings.put("max.poll.records", 10);
        if (group != null) {
            settings.put("group.id", group);
            settings.put("session.timeout.ms", 6000);
        }
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private JsonNode read(JsonNode request) {
        Map<TopicPartition, Long> ends = new HashMap<>();
        request.get("ends").fields().forEachRemaining(e -> ends.put(
            new TopicPartition(text(request, "topic"), Integer.parseInt(e.getKey())), e.getValue().asLong()));
        ArrayNode records = JSON.arrayNode();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(null, request.path("committed").asBoolean())) {
            consumer.assign(ends.keySet());
            consumer.seekToBeginning(ends.keySet());
            while (ends.entrySet().stream().anyMatch(e -> consumer.position(e.getKey()) < e.getValue())) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(250))) {
                    records.add(describe(record));
                }
            }
        }
        return records;
    }

    private JsonNode consume(JsonNode request) {
        int wanted = request.get("count").asInt();
        ArrayNode records = JSON.arrayNode();
        Map<TopicPartition, OffsetAndMetadata> reached = new HashMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(text(request, "group"), false)) {
            consumer.subscribe(one(text(request, "topic")));
            while (records.size() < wanted) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(250))) {
                    if (records.size() < wanted) {
                        records.add(describe(record));
                        reached.put(new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                    }
                }
            }
            consumer.commitSync(reached);
        }
        return records;
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

    private JsonNode offsetAt(JsonNode request) {
        TopicPartition partition = partition(request);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(null, false)) {
            switch (text(request, "at")) {
                case "earliest": return number(consumer.beginningOffsets(one(partition)).get(partition));
                case "latest": return number(consumer.endOffsets(one(partition)).get(partition));
                default:
                    OffsetAndTimestamp found = consumer.offsetsForTimes(
                        Collections.singletonMap(partition, request.get("at").asLong())).get(partition);
                    return number(found == null ? -1 : found.offset());
            }
        }
    }

    private JsonNode adminOffsetAt(JsonNode request) throws Exception {
        Class<?> specs = Class.forName(ADMIN + "OffsetSpec");
        String at = text(request, "at");
        Object spec = at.equals("earliest") || at.equals("latest") ? specs.getMethod(at).invoke(null)
            : specs.getMethod("forTimestamp", long.class).invoke(null, request.get("at").asLong());
        Object listed = call(admin, "listOffsets", Collections.singletonMap(partition(request), spec));
        Map<?, ?> found = (Map<?, ?>) ((Future<?>) call(listed, "all")).get();
        return number((Long) call(found.get(partition(request)), "offset"));
    }

    private JsonNode deleteRecords(JsonNode request) throws Exception {
        TopicPartition partition = partition(request);
        RecordsToDelete before = RecordsToDelete.beforeOffset(request.get("offset").asLong());
        return number(admin.deleteRecords(Collections.singletonMap(partition, before)).lowWatermarks()
            .get(partition).get().lowWatermark());
    }

    private static TopicPartition partition(JsonNode request) {
        return new TopicPartition(text(request, "topic"), request.get("partition").asInt());
    }

    // Groups

    private JsonNode committed(JsonNode request) throws Exception {
        ObjectNode result = JSON.objectNode();
        admin.listConsumerGroupOffsets(text(request, "group")).partitionsToOffsetAndMetadata().get()
            .forEach((p, o) -> result.put(String.valueOf(p.partition()), o.offset()));
        return result;
    }

    private JsonNode groups() throws Exception {
        List<String> names = new ArrayList<>();
        for (ConsumerGroupListing group : admin.listConsumerGroups().all().get()) {
            names.add(group.groupId());
        }
        return names(names);
    }

    private JsonNode groupState(JsonNode request) throws Exception {
        String group = text(request, "group");
        Object found = admin.describeConsumerGroups(one(group)).describedGroups().get(group).get();
        return JSON.textNode(call(found, has(found.getClass(), "groupState") ? "groupState" : "state").toString());
    }

    // Reflection

    private static boolean has(Class<?> type, String method) {
        return Arrays.stream(type.getMethods()).anyMatch(m -> m.getName().equals(method));
    }

    /** Calls a public method by its name and number of arguments. */
    private static Object call(Object target, String name, Object... arguments) throws Exception {
        for (Method method : target.getClass().getMethods()) {
            if (method.getName().equals(name) && method.getParameterCount() == arguments.length) {
                method.setAccessible(true);
                return method.invoke(target, arguments);
            }
        }
        throw new NoSuchMethodException(target.getClass() + "." + name);
    }

    // JSON

    private static <T> Set<T> one(T only) {
        return Collections.singleton(only);
    }

    private static JsonNode done(Future<?> future) throws Exception {
        future.get();
        return JSON.nullNode();
    }

    private static JsonNode number(long number) {
        return JSON.numberNode(number);
    }

    private static JsonNode names(Iterable<String> names) {
        ArrayNode result = JSON.arrayNode();
        names.forEach(result::add);
        return result;
    }

    private static String text(JsonNode request, String field) {
        return request.get(field).asText();
    }

    private static byte[] bytes(JsonNode base64) {
        return base64 == null || base64.isNull() ? null : Base64.getDecoder().decode(base64.asText());
    }

    private static JsonNode base64(byte[] bytes) {
        return bytes == null ? JSON.nullNode() : JSON.textNode(Base64.getEncoder().encodeToString(bytes));
    }
}
