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
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The commands `join`, `commit`, `pause`, `resume`, `seek`, `leave` and `committed`. */
final class Membership {
    private static final int REFRESH_MS = 1000;

    private final String bootstrap;
    private final Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
    private KafkaConsumer<byte[], byte[]> member;
    private String topic;
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
        Settings.put(settings, "group.protocol", options.get("protocol"));
        Settings.put(settings, "group.instance.id", options.get("instance_id"));
        JsonNode most = options.get("max_records");
        recordsLeft = most.isNull() ? Long.MAX_VALUE : most.asLong();
        String protocol = options.get("protocol").asText();
        if (options.get("cooperative").asBoolean() && protocol.equals("classic")) {
            settings.put("partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
        }
        JsonNode pattern = options.get("pattern");
        if (!pattern.isNull()) {
            settings.put("metadata.max.age.ms", REFRESH_MS);
        }
        member = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        topic = command.get("topic").asText();
        subscribe(pattern, protocol);
        return null;
    }

    /** In the consumer protocol the broker finds the topics that fit a pattern, in the classic one the client. */
    private void subscribe(JsonNode pattern, String protocol) {
        if (pattern.isNull()) {
            member.subscribe(List.of(topic));
        } else if (protocol.equals("consumer")) {
            member.subscribe(new SubscriptionPattern(pattern.asText()));
        } else {
            member.subscribe(Pattern.compile(pattern.asText()));
        }
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

    JsonNode pause(JsonNode command) {
        member.pause(partitions(command));
        return null;
    }

    JsonNode resume(JsonNode command) {
        member.resume(partitions(command));
        return null;
    }

    private Set<TopicPartition> partitions(JsonNode command) {
        Set<TopicPartition> found = new HashSet<>();
        command.get("partitions").forEach(partition -> found.add(new TopicPartition(topic, partition.asInt())));
        return found;
    }

    JsonNode seek(JsonNode command) {
        TopicPartition partition =
                new TopicPartition(topic, command.get("partition").asInt());
        JsonNode position = command.get("position");
        if (position.isNumber()) {
            positions.put(partition, new OffsetAndMetadata(position.asLong()));
            member.seek(partition, position.asLong());
        } else if (position.asText().equals("beginning")) {
            member.seekToBeginning(Set.of(partition));
        } else {
            member.seekToEnd(Set.of(partition));
        }
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
