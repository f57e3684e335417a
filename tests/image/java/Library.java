// The Java worker of tests/image: the modules for Kafka of Testcontainers, unchanged, with an image of ours in the place of theirs.
//
//   Library apache|confluent|old|old-kraft|neighbour IMAGE RECORDS
//
// It starts a container, sends RECORDS records, reads them back and prints a line for each that it read, below a line with the seconds
// of the start. It judges nothing: libraries.py compares.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.testcontainers.containers.Container;
import org.testcontainers.containers.GenericContainer;
import org.testcontainers.containers.Network;
import org.testcontainers.kafka.ConfluentKafkaContainer;
import org.testcontainers.kafka.KafkaContainer;
import org.testcontainers.utility.DockerImageName;

public final class Library {
    private static final String TOPIC = "records";
    private static final Duration READ_LIMIT = Duration.ofSeconds(30);

    private Library() {}

    public static void main(String[] arguments) throws Exception {
        String kind = arguments[0];
        int records = Integer.parseInt(arguments[2]);
        DockerImageName image = DockerImageName.parse(arguments[1]);
        switch (kind) {
            case "apache" -> {
                KafkaContainer kafka = new KafkaContainer(image.asCompatibleSubstituteFor("apache/kafka"));
                run(kafka, kafka::getBootstrapServers, records);
            }
            case "confluent" -> {
                var kafka = new ConfluentKafkaContainer(image.asCompatibleSubstituteFor("confluentinc/cp-kafka"));
                run(kafka, kafka::getBootstrapServers, records);
            }
            case "old", "old-kraft" -> old(image, records, kind.equals("old-kraft"));
            case "neighbour" -> neighbour(image, records);
            default -> throw new IllegalArgumentException(kind);
        }
    }

    @SuppressWarnings("deprecation") // Most tests that people have were written for this class.
    private static void old(DockerImageName image, int records, boolean kraft) throws Exception {
        var name = image.asCompatibleSubstituteFor("confluentinc/cp-kafka");
        var kafka = new org.testcontainers.containers.KafkaContainer(name);
        if (kraft) {
            kafka.withKraft();
        }
        run(kafka, kafka::getBootstrapServers, records);
    }

    /** Records from outside, read by another container of the same network through a listener with a name. */
    private static void neighbour(DockerImageName image, int records) throws Exception {
        try (Network network = Network.newNetwork();
                KafkaContainer kafka = new KafkaContainer(image.asCompatibleSubstituteFor("apache/kafka"))
                        .withNetwork(network)
                        .withListener("kafka:19092");
                GenericContainer<?> reader = new GenericContainer<>(image).withNetwork(network).withCommand("sleep", "600")) {
            start(kafka);
            reader.start();
            send(kafka.getBootstrapServers(), records);
            Container.ExecResult read = reader.execInContainer(
                    "mainstem", "consume", TOPIC, "--bootstrap", "kafka:19092", "--exit-at-end");
            if (read.getExitCode() != 0) {
                throw new IllegalStateException(read.getStderr());
            }
            System.out.print(read.getStdout());
        }
    }

    private static void run(GenericContainer<?> container, Supplier<String> bootstrap, int records) throws Exception {
        try (container) {
            start(container);
            send(bootstrap.get(), records);
            read(bootstrap.get(), records);
        }
    }

    private static void start(GenericContainer<?> container) {
        long begin = System.nanoTime();
        container.start();
        System.out.printf("started %.1f%n", (System.nanoTime() - begin) / 1e9);
    }

    private static void send(String bootstrap, int records) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "acks", "all");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < records; number++) {
                producer.send(new ProducerRecord<>(TOPIC, "key " + number, "record " + number));
            }
            producer.flush();
        }
    }

    private static void read(String bootstrap, int records) {
        Map<String, Object> settings =
                Map.of("bootstrap.servers", bootstrap, "group.id", "readers", "auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(TOPIC));
            long deadline = System.nanoTime() + READ_LIMIT.toNanos();
            int found = 0;
            while (found < records && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println(record.value());
                    found++;
                }
            }
            consumer.commitSync();
        }
    }
}
