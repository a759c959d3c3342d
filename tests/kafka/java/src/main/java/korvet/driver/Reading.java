package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The commands `open`, `read` and `close`: partitions assigned by hand, no group. */
final class Reading {
    private final String bootstrap;
    private KafkaConsumer<byte[], byte[]> reader;

    Reading(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    JsonNode open(JsonNode command) {
        Properties settings = Settings.of(bootstrap);
        reader = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        String topic = command.get("topic").asText();
        JsonNode start = command.get("start");
        List<TopicPartition> partitions = new ArrayList<>();
        if (start.has("offsets")) {
            start.get("offsets").fieldNames()
                    .forEachRemaining(name -> partitions.add(new TopicPartition(topic, Integer.parseInt(name))));
        } else {
            for (PartitionInfo info : reader.partitionsFor(topic)) {
                partitions.add(new TopicPartition(topic, info.partition()));
            }
        }
        reader.assign(partitions);
        seek(partitions, start);
        partitions.forEach(reader::position);
        return null;
    }

    private void seek(List<TopicPartition> partitions, JsonNode start) {
        if (start.has("offsets")) {
            JsonNode offsets = start.get("offsets");
            partitions.forEach(p -> reader.seek(p, offsets.get(Integer.toString(p.partition())).asLong()));
        } else if (start.has("timestamp")) {
            seekTime(partitions, start.get("timestamp").asLong());
        } else if (start.asText().equals("earliest")) {
            reader.seekToBeginning(partitions);
        } else {
            reader.seekToEnd(partitions);
        }
    }

    private void seekTime(List<TopicPartition> partitions, long timestampMs) {
        Map<TopicPartition, Long> wanted = new HashMap<>();
        partitions.forEach(partition -> wanted.put(partition, timestampMs));
        for (Map.Entry<TopicPartition, OffsetAndTimestamp> found : reader.offsetsForTimes(wanted).entrySet()) {
            if (found.getValue() == null) {
                reader.seekToEnd(List.of(found.getKey()));
            } else {
                reader.seek(found.getKey(), found.getValue().offset());
            }
        }
    }

    JsonNode read(JsonNode command) {
        int count = command.get("count").asInt();
        long deadline = System.nanoTime() + command.get("timeout_ms").asLong() * 1_000_000;
        ArrayNode records = Main.JSON.createArrayNode();
        while (records.size() < count && System.nanoTime() < deadline) {
            for (ConsumerRecord<byte[], byte[]> record : reader.poll(Duration.ofMillis(100))) {
                records.add(Records.toJson(record));
            }
        }
        return records;
    }

    JsonNode close() {
        reader.close();
        reader = null;
        return null;
    }
}
