// The Java client on secured listeners: Apache Kafka's own client library, driven by one JSON request a line on
// standard input, answered by one JSON line on standard output.
//
// It judges nothing. What the operations are and what they answer is written down once, in suite/security/clients.py.
// Every operation makes a client of its own with the settings that the request gives.

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
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.SslAuthenticationException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.auth.SaslExtensionsCallback;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class Secure {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final String LOGIN = "org.apache.kafka.common.security.";
    // Where no code of Kafka's says what went wrong.
    private static final int OTHER = -1, TLS = -2, CLOSED = -3;
    private static final int PAUSE_MS = 20;

    private final Map<String, Stream> streams = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        Secure worker = new Secure();
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
            Throwable told = telling(thrown);
            answer.put("error", told.toString()).put("code", code(told));
        }
        return answer;
    }

    // The innermost exception that says what the matter is.
    private static Throwable telling(Throwable thrown) {
        Throwable told = thrown;
        for (Throwable at = thrown; at != null; at = at.getCause()) {
            if (code(at) != OTHER && (code(told) == OTHER || code(told) == CLOSED)) {
                told = at;
            }
        }
        return told;
    }

    private static int code(Throwable thrown) {
        if (thrown instanceof SslAuthenticationException) {
            return TLS;
        }
        if (thrown instanceof TimeoutException) {
            return CLOSED;
        }
        return thrown instanceof ApiException ? Errors.forException(thrown).code() : OTHER;
    }

    private JsonNode serve(JsonNode request) throws Exception {
        switch (text(request, "op")) {
            case "probe": return probe(request);
            case "produce": return produce(request);
            case "consume": return consume(request);
            case "topics": return topics(request);
            case "create_topic": return createTopic(request);
            case "stream": return stream(request);
            case "state": return streams.get(text(request, "name")).state();
            case "stop": return streams.remove(text(request, "name")).end();
            default: throw new IllegalArgumentException("no such operation: " + text(request, "op"));
        }
    }

    private static Properties settings(JsonNode request) {
        JsonNode connect = request.get("connect");
        String protocol = text(connect, "protocol");
        Properties settings = new Properties();
        settings.put("bootstrap.servers", text(connect, "bootstrap"));
        settings.put("security.protocol", protocol);
        settings.put("request.timeout.ms", Math.min(4, request.path("seconds").asInt(8)) * 1000);
        settings.put("reconnect.backoff.ms", 50);
        settings.put("reconnect.backoff.max.ms", 200);
        if (connect.has("authority")) {
            settings.put("ssl.truststore.type", "PEM");
            settings.put("ssl.truststore.location", text(connect, "authority"));
        }
        if (connect.has("certificate")) {
            settings.put("ssl.keystore.type", "PEM");
            settings.put("ssl.keystore.location", text(connect, "certificate"));
        }
        if (protocol.startsWith("SASL")) {
            String mechanism = text(connect, "mechanism");
            settings.put("sasl.mechanism", mechanism);
            settings.put("sasl.jaas.config", login(connect, mechanism));
            if (mechanism.equals("OAUTHBEARER")) {
                settings.put("sasl.login.callback.handler.class", TokenLogin.class.getName());
            }
        }
        return settings;
    }

    private static String login(JsonNode connect, String mechanism) {
        if (mechanism.equals("OAUTHBEARER")) {
            return LOGIN + "oauthbearer.OAuthBearerLoginModule required token=" + quoted(text(connect, "token")) + ";";
        }
        String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
        return LOGIN + module + " required username=" + quoted(text(connect, "user"))
            + " password=" + quoted(text(connect, "password")) + ";";
    }

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    // Hands the token of the JAAS line to the server as it is, whatever is wrong with it.
    public static final class TokenLogin implements AuthenticateCallbackHandler {
        private String token;

        @Override
        public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {
            token = (String) entries.get(0).getOptions().get("token");
        }

        @Override
        public void handle(Callback[] callbacks) {
            for (Callback callback : callbacks) {
                if (callback instanceof OAuthBearerTokenCallback) {
                    ((OAuthBearerTokenCallback) callback).token(new Token(token));
                } else if (!(callback instanceof SaslExtensionsCallback)) {
                    throw new IllegalArgumentException(callback.toString());
                }
            }
        }

        @Override
        public void close() { }
    }

    // Lasts an hour for the client, so that it is the server that finds it expired.
    private static final class Token implements OAuthBearerToken {
        private final String value;
        private final long begun = System.currentTimeMillis();

        private Token(String value) {
            this.value = value;
        }

        @Override
        public String value() {
            return value;
        }

        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public long lifetimeMs() {
            return begun + 3_600_000;
        }

        @Override
        public String principalName() {
            return "whoever the token names";
        }

        @Override
        public Long startTimeMs() {
            return begun;
        }
    }

    private static Admin admin(JsonNode request) {
        Properties settings = settings(request);
        settings.put("default.api.timeout.ms", request.path("seconds").asInt(8) * 1000);
        return Admin.create(settings);
    }

    private static JsonNode probe(JsonNode request) throws Exception {
        try (Admin admin = admin(request)) {
            admin.describeCluster().clusterId().get();
            return null;
        }
    }

    private static JsonNode topics(JsonNode request) throws Exception {
        try (Admin admin = admin(request)) {
            ArrayNode names = JSON.arrayNode();
            admin.listTopics().names().get().forEach(names::add);
            return names;
        }
    }

    private static JsonNode createTopic(JsonNode request) throws Exception {
        try (Admin admin = admin(request)) {
            admin.createTopics(List.of(new NewTopic(text(request, "topic"), 1, (short) 1))).all().get();
            return null;
        }
    }

    private static KafkaProducer<String, String> producer(JsonNode request) {
        Properties settings = settings(request);
        settings.put("max.block.ms", request.path("seconds").asInt(8) * 1000);
        settings.put("delivery.timeout.ms", 8_000);
        settings.put("linger.ms", 0);
        if (request.hasNonNull("transactional_id")) {
            settings.put("transactional.id", text(request, "transactional_id"));
        }
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static JsonNode produce(JsonNode request) throws Exception {
        boolean transactional = request.hasNonNull("transactional_id");
        try (KafkaProducer<String, String> producer = producer(request)) {
            if (transactional) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode value : request.get("values")) {
                sent.add(producer.send(new ProducerRecord<>(text(request, "topic"), value.asText())));
            }
            ArrayNode offsets = JSON.arrayNode();
            for (Future<RecordMetadata> one : sent) {
                offsets.add(one.get().offset());
            }
            if (transactional) {
                producer.commitTransaction();
            }
            return offsets;
        }
    }

    private static JsonNode consume(JsonNode request) {
        Properties settings = settings(request);
        settings.put("default.api.timeout.ms", request.path("seconds").asInt(8) * 1000);
        settings.put("auto.offset.reset", "earliest");
        settings.put("allow.auto.create.topics", false);
        settings.put("enable.auto.commit", false);
        settings.put("isolation.level", "read_committed");
        boolean group = request.hasNonNull("group");
        if (group) {
            settings.put("group.id", text(request, "group"));
        }
        String topic = text(request, "topic");
        ArrayNode values = JSON.arrayNode();
        try (KafkaConsumer<String, String> consumer =
                 new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            if (group) {
                consumer.subscribe(List.of(topic));
            } else {
                consumer.assign(List.of(new TopicPartition(topic, 0)));
            }
            while (values.size() < request.get("count").asInt()) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    values.add(record.value());
                }
            }
            if (group) {
                consumer.commitSync();
            }
        }
        return values;
    }

    private JsonNode stream(JsonNode request) {
        Stream stream = new Stream(producer(request), text(request, "topic"));
        streams.put(text(request, "name"), stream);
        stream.start();
        return null;
    }

    // A producer that goes on until it is told to stop.
    private static final class Stream extends Thread {
        private final KafkaProducer<String, String> producer;
        private final String topic;
        private final ArrayNode errors = JSON.arrayNode();
        private volatile boolean stopping;
        private int sent, acknowledged;

        private Stream(KafkaProducer<String, String> producer, String topic) {
            this.producer = producer;
            this.topic = topic;
            setDaemon(true);
        }

        @Override
        public void run() {
            try {
                while (!stopping) {
                    producer.send(new ProducerRecord<>(topic, Integer.toString(sent)), (place, error) -> note(error));
                    sent++;
                    Thread.sleep(PAUSE_MS);
                }
            } catch (Exception error) {
                note(error);
            }
        }

        private synchronized void note(Exception error) {
            if (error == null) {
                acknowledged++;
            } else {
                Throwable told = telling(error);
                errors.addArray().add(code(told)).add(told.toString());
            }
        }

        private synchronized JsonNode state() {
            ObjectNode state = JSON.objectNode();
            state.put("sent", sent).put("acknowledged", acknowledged).set("errors", errors.deepCopy());
            return state;
        }

        private JsonNode end() throws Exception {
            stopping = true;
            join();
            producer.flush();
            producer.close();
            return state();
        }
    }

    private static String text(JsonNode node, String name) {
        return node.get(name).asText();
    }
}
