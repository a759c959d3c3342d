package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.NullNode;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The commands `begin`, `transact`, `end` and `read_committed`. */
final class Transacting {
    private final String bootstrap;
    private KafkaProducer<String, String> producer;

    Transacting(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    JsonNode begin(JsonNode command) {
        Properties settings = Settings.of(bootstrap);
        Settings.put(settings, "transactional.id", command.get("transactional_id"));
        Settings.put(settings, "transaction.timeout.ms", command.get("timeout_ms"));
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        return NullNode.instance;
    }

    JsonNode transact(JsonNode command) {
        String topic = command.get("topic").asText();
        JsonNode values = command.get("values");
        JsonNode keys = command.get("keys");
        producer.beginTransaction();
        for (int at = 0; at < values.size(); at++) {
            String key = keys == null ? null : keys.get(at).asText();
            producer.send(new ProducerRecord<>(topic, 0, key, values.get(at).asText()));
        }
        if (!command.get("group").isNull()) {
            OffsetAndMetadata offset = new OffsetAndMetadata(command.get("offset").asLong());
            ConsumerGroupMetadata group = new ConsumerGroupMetadata(command.get("group").asText());
            producer.sendOffsetsToTransaction(Map.of(new TopicPartition(topic, 0), offset), group);
        }
        if (command.get("outcome").asText().equals("commit")) {
            producer.commitTransaction();
        } else {
            producer.flush();
            if (command.get("outcome").asText().equals("abort")) {
                producer.abortTransaction();
            }
        }
        return NullNode.instance;
    }

    JsonNode end() {
        producer.close(Duration.ZERO);
        producer = null;
        return NullNode.instance;
    }

    JsonNode read(JsonNode command) {
        Properties settings = Settings.of(bootstrap);
        settings.put("isolation.level", "read_committed");
        TopicPartition partition = new TopicPartition(command.get("topic").asText(), 0);
        long deadline = System.nanoTime() + command.get("timeout_ms").asLong() * 1_000_000;
        ArrayNode values = Main.JSON.createArrayNode();
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            while (values.size() < command.get("count").asInt() && System.nanoTime() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    values.add(record.value());
                }
            }
        }
        return values;
    }
}
