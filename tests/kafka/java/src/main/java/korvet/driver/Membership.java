package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The commands `join`, `commit`, `leave` and `committed`. */
final class Membership {
    private final String bootstrap;
    private final Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
    private KafkaConsumer<byte[], byte[]> member;
    private Set<Integer> owned = Set.of();
    private long recordsLeft;

    Membership(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    boolean isMember() {
        return member != null;
    }

    JsonNode join(JsonNode command) {
        JsonNode options = command.get("options");
        Properties settings = group(command.get("group"));
        Settings.put(settings, "auto.offset.reset", options.get("reset"));
        Settings.put(settings, "session.timeout.ms", options.get("session_timeout_ms"));
        Settings.put(settings, "enable.auto.commit", options.get("auto_commit"));
        JsonNode most = options.get("max_records");
        recordsLeft = most.isNull() ? Long.MAX_VALUE : most.asLong();
        member = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        member.subscribe(List.of(command.get("topic").asText()));
        return null;
    }

    private Properties group(JsonNode name) {
        Properties settings = Settings.of(bootstrap);
        settings.put("group.id", name.asText());
        return settings;
    }

    void poll() {
        Iterable<ConsumerRecord<byte[], byte[]>> polled = member.poll(Duration.ofMillis(100));
        Set<Integer> now = new TreeSet<>();
        member.assignment().forEach(partition -> now.add(partition.partition()));
        if (!now.equals(owned)) {
            owned = now;
            ObjectNode event = Main.JSON.createObjectNode().put("event", "assignment");
            ArrayNode partitions = event.putArray("partitions");
            now.forEach(partitions::add);
            Main.emit(event);
        }
        polled.forEach(this::report);
    }

    private void report(ConsumerRecord<byte[], byte[]> record) {
        if (recordsLeft == 0) {
            return;
        }
        recordsLeft--;
        TopicPartition partition = new TopicPartition(record.topic(), record.partition());
        positions.put(partition, new OffsetAndMetadata(record.offset() + 1));
        ObjectNode event = Main.JSON.createObjectNode().put("event", "record");
        event.set("record", Records.toJson(record));
        Main.emit(event);
    }

    JsonNode commit() {
        member.commitSync(positions);
        return null;
    }

    JsonNode leave() {
        if (member != null) {
            member.close();
            member = null;
        }
        return null;
    }

    JsonNode committed(JsonNode command) {
        String topic = command.get("topic").asText();
        ObjectNode offsets = Main.JSON.createObjectNode();
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> asking = new KafkaConsumer<>(group(command.get("group")), bytes, bytes)) {
            Set<TopicPartition> partitions = new HashSet<>();
            for (PartitionInfo info : asking.partitionsFor(topic)) {
                partitions.add(new TopicPartition(topic, info.partition()));
            }
            asking.committed(partitions).forEach((partition, found) -> {
                if (found != null) {
                    offsets.put(Integer.toString(partition.partition()), found.offset());
                }
            });
        }
        return offsets;
    }
}
