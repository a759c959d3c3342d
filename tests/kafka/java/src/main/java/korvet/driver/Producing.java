package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The command `produce`. */
final class Producing {
    private static final long TIMEOUT_S = 30;

    private final String bootstrap;

    Producing(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    JsonNode produce(JsonNode command) throws InterruptedException, TimeoutException {
        JsonNode options = command.get("options");
        boolean oneByOne = options.get("one_by_one").asBoolean();
        String topic = command.get("topic").asText();
        ArrayNode outcomes = Main.JSON.createArrayNode();
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings(options), bytes, bytes)) {
            for (JsonNode record : command.get("records")) {
                Future<RecordMetadata> future = producer.send(Records.fromJson(topic, record));
                if (oneByOne) {
                    outcomes.add(outcome(future));
                } else {
                    futures.add(future);
                }
            }
            for (Future<RecordMetadata> future : futures) {
                outcomes.add(outcome(future));
            }
        }
        return outcomes;
    }

    private Properties settings(JsonNode options) {
        Properties settings = Settings.of(bootstrap);
        Settings.put(settings, "compression.type", options.get("compression"));
        Settings.put(settings, "acks", options.get("acks"));
        Settings.put(settings, "enable.idempotence", options.get("idempotent"));
        Settings.put(settings, "batch.size", options.get("batch_bytes"));
        Settings.put(settings, "max.request.size", options.get("request_bytes"));
        return settings;
    }

    private static ObjectNode outcome(Future<RecordMetadata> future) throws InterruptedException, TimeoutException {
        ObjectNode outcome = Main.JSON.createObjectNode();
        try {
            RecordMetadata sent = future.get(TIMEOUT_S, TimeUnit.SECONDS);
            outcome.put("partition", sent.partition());
            if (sent.hasOffset()) {
                outcome.put("offset", sent.offset());
            }
        } catch (ExecutionException error) {
            outcome.put("error", Main.codeOf(error.getCause())).put("message", error.getCause().toString());
        }
        return outcome;
    }
}
