package korvet.streams;

import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/**
 * Kafka's own example: counts the words of one topic into another, exactly once, until stdin ends.
 *
 * <p>Arguments: bootstrap, application id, state directory, topic of lines, topic of counts, then further settings as
 * name=value; all others keep Kafka Streams' defaults. It writes one JSON line to stdout for each change of its state.
 */
public final class WordCount {
    private WordCount() {}

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        for (String setting : Arrays.copyOfRange(args, 5, args.length)) {
            String[] parts = setting.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        KafkaStreams streams = new KafkaStreams(topology(args[3], args[4]), settings);
        streams.setStateListener(
                (now, before) -> emit(now == KafkaStreams.State.RUNNING ? "ready" : "state", now.name()));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            emit("trouble", error + " because of " + error.getCause());
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        while (System.in.read() >= 0) {}
        streams.close(Duration.ofSeconds(8));
    }

    private static Topology topology(String lines, String counts) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(lines)
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word)
                .count()
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(counts);
        return builder.build();
    }

    private static void emit(String event, String message) {
        synchronized (System.out) {
            String text = message.replace("\\", "\\\\").replace("\"", "'").replace("\n", " ");
            System.out.println("{\"event\":\"" + event + "\",\"message\":\"" + text + "\"}");
            System.out.flush();
        }
    }
}
