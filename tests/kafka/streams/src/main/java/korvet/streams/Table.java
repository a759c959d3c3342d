package korvet.streams;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;

/**
 * A table of a topic that is its own changelog, by source-topic optimisation, until stdin ends.
 *
 * <p>Arguments: bootstrap, application id, state directory, topic. While it runs it writes a JSON line now and then: the
 * records restored so far, the number of keys, and the sum of the CRC-32 of all "key value".
 */
public final class Table {
    private static final String STORE = "table";

    private Table() {}

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        settings.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        StreamsBuilder builder = new StreamsBuilder();
        builder.table(args[3], Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(STORE));
        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        AtomicLong restored = new AtomicLong();
        streams.setGlobalStateRestoreListener(counting(restored));
        streams.start();
        Thread telling = new Thread(() -> tellUntilStopped(streams, restored));
        telling.setDaemon(true);
        telling.start();
        while (System.in.read() >= 0) {}
        streams.close(Duration.ofSeconds(8));
    }

    private static void tellUntilStopped(KafkaStreams streams, AtomicLong restored) {
        while (true) {
            try {
                if (streams.state() == KafkaStreams.State.RUNNING) {
                    tell(streams, restored.get());
                }
                Thread.sleep(200);
            } catch (InvalidStateStoreException moved) {
                // The store has just been closed.
            } catch (InterruptedException stopped) {
                return;
            }
        }
    }

    private static StateRestoreListener counting(AtomicLong restored) {
        return new StateRestoreListener() {
            @Override
            public void onRestoreStart(TopicPartition partition, String store, long start, long end) {}

            @Override
            public void onBatchRestored(TopicPartition partition, String store, long end, long records) {}

            @Override
            public void onRestoreEnd(TopicPartition partition, String store, long records) {
                restored.addAndGet(records);
            }
        };
    }

    private static void tell(KafkaStreams streams, long restored) {
        long keys = 0;
        long sum = 0;
        var store = streams.store(
                StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.<String, String>keyValueStore()));
        try (KeyValueIterator<String, String> all = store.all()) {
            while (all.hasNext()) {
                var one = all.next();
                CRC32 checksum = new CRC32();
                checksum.update((one.key + " " + one.value).getBytes(StandardCharsets.UTF_8));
                keys++;
                sum += checksum.getValue();
            }
        }
        System.out.printf("{\"event\":\"table\",\"restored\":%d,\"keys\":%d,\"sum\":%d}%n", restored, keys, sum);
        System.out.flush();
    }
}
