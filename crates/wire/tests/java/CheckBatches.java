// Holds this crate's record batches against Kafka's own reader and writer: reads the batches that the ignored test
// `dump_batches_for_java` writes (one in hex a line), and writes the same records as Java's producer would, with each
// of its codecs, to the fixture that `tests/java_batches.rs` reads.
//
//     MAINSTEM_WIRE_DUMP=/tmp/batches cargo test -p mainstem-wire --test java_batches -- --ignored
//     java -cp kafka-clients-4.4.0.jar:slf4j-api.jar:zstd-jni.jar:lz4-java.jar:snappy-java.jar \
//         crates/wire/tests/java/CheckBatches.java /tmp/batches crates/wire/tests/fixtures/java-4.4.0-batches.txt

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.SimpleRecord;

public class CheckBatches {
    public static void main(String[] arguments) throws Exception {
        List<SimpleRecord> first = null;
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(line));
            List<SimpleRecord> records = new ArrayList<>();
            for (RecordBatch batch : MemoryRecords.readableRecords(bytes).batches()) {
                batch.ensureValid();
                for (Record record : batch) {
                    record.ensureValid();
                    records.add(new SimpleRecord(record));
                }
                System.out.println(batch.compressionType() + ": " + records.size() + " records");
            }
            if (first != null && !first.equals(records)) {
                throw new IllegalStateException("the codecs give different records");
            }
            first = records;
        }
        Compression[] codecs = {
            Compression.NONE, Compression.gzip().build(), Compression.snappy().build(), Compression.lz4().build(),
            Compression.lz4().level(17).build(), Compression.zstd().build(), Compression.zstd().level(22).build(),
        };
        StringBuilder out = new StringBuilder();
        for (Compression codec : codecs) {
            MemoryRecords records = MemoryRecords.withRecords(RecordBatch.MAGIC_VALUE_V2, 100L, codec,
                TimestampType.CREATE_TIME, 7L, (short) 2, 40, 3, true, first.toArray(new SimpleRecord[0]));
            ByteBuffer buffer = records.buffer();
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            if (codec != Compression.NONE) {
                out.append(HexFormat.of().formatHex(bytes)).append('\n');
            }
        }
        Files.writeString(Path.of(arguments[1]), out);
    }
}
