// Checks this crate's encoding against Kafka's own classes: reads lines of `name version hex` that the ignored test
// `dump_for_java` writes, lets the Java client decode each message and encode it again, and compares the bytes.
//
//     MAINSTEM_WIRE_DUMP=/tmp/dump cargo test -p mainstem-wire dump_for_java -- --ignored
//     java -cp kafka-clients-4.4.0.jar:slf4j-api-1.7.36.jar crates/wire/tests/java/CheckMessages.java /tmp/dump

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

public class CheckMessages {
    public static void main(String[] arguments) throws Exception {
        int checked = 0;
        int failed = 0;
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] parts = line.split(" ", -1);
            short version = Short.parseShort(parts[1]);
            byte[] bytes = HexFormat.of().parseHex(parts[2]);
            try {
                Message message = instance(parts[0]);
                ByteBuffer input = ByteBuffer.wrap(bytes);
                message.read(new ByteBufferAccessor(input), version);
                if (input.hasRemaining()) {
                    throw new IllegalStateException(input.remaining() + " bytes are left");
                }
                ByteBuffer output = MessageUtil.toByteBufferAccessor(message, version).buffer();
                byte[] again = new byte[output.remaining()];
                output.get(again);
                if (!Arrays.equals(bytes, again)) {
                    throw new IllegalStateException("Java encodes " + HexFormat.of().formatHex(again));
                }
                checked++;
            } catch (Exception error) {
                failed++;
                System.out.println(parts[0] + " v" + version + ": " + error + "\n  " + parts[2]);
            }
        }
        System.out.println(checked + " messages agree, " + failed + " do not");
        System.exit(failed == 0 && checked > 0 ? 0 : 1);
    }

    private static Message instance(String name) throws Exception {
        String prefix = "org.apache.kafka.common.message.";
        Class<?> type;
        try {
            type = Class.forName(prefix + name + "Data");
        } catch (ClassNotFoundException error) {
            type = Class.forName(prefix + name);
        }
        return (Message) type.getDeclaredConstructor().newInstance();
    }
}
