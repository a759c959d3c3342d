package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileOutputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A share consumer of scripts/chaosrun/queue, driven by one thread: members.py describes its work. */
final class Sharing {
    private final JsonNode job;
    private final String name;
    private final FileOutputStream journal;
    private final KafkaShareConsumer<String, String> consumer;

    Sharing(JsonNode job, String name, FileOutputStream journal) {
        this.job = job;
        this.name = name;
        this.journal = journal;
        Properties settings = Settings.of(job.get("bootstrap").asText());
        settings.put("client.id", name);
        settings.put("group.id", job.get("group").asText());
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("share.acquire.mode", "record_limit");
        settings.put("max.poll.records", job.get("records_at_once").asText());
        consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    /** Takes and settles records until told to stop, then leaves the group. */
    void run(AtomicBoolean stopped) {
        try {
            List<String> topics = new ArrayList<>();
            job.get("topics").forEach(topic -> topics.add(topic.asText()));
            consumer.subscribe(topics);
            while (!stopped.get()) {
                List<ConsumerRecord<String, String>> records = new ArrayList<>();
                consumer.poll(Duration.ofMillis(200)).forEach(records::add);
                if (!records.isEmpty()) {
                    settle(records);
                }
            }
            consumer.close();
        } catch (KafkaException | IllegalStateException error) {
            Chaos.write(journal, event("troubled").put("text", error.toString()).put("fatal", true));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private void settle(List<ConsumerRecord<String, String>> records) throws InterruptedException {
        Map<ConsumerRecord<String, String>, AcknowledgeType> kinds = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            int deliveries = record.deliveryCount().orElseThrow();
            ObjectNode taken = event("taken").put("group", job.get("group").asText());
            taken.put("offset", record.offset()).put("value", record.value()).put("deliveries", deliveries);
            taken.putArray("partition").add(record.topic()).add(record.partition());
            Chaos.write(journal, taken);
            Thread.sleep(job.get("work_ms").asLong());
            kinds.put(record, kind(record.value(), deliveries));
            consumer.acknowledge(record, kinds.get(record));
        }
        Map<String, String> errors = new HashMap<>();
        String failed = "no answer";
        try {
            for (Map.Entry<TopicIdPartition, Optional<KafkaException>> one :
                    consumer.commitSync().entrySet()) {
                String error = one.getValue().map(Throwable::toString).orElse("");
                errors.put(one.getKey().topicPartition().toString(), error);
            }
        } catch (KafkaException error) {
            failed = error.toString();
        }
        for (ConsumerRecord<String, String> record : records) {
            ObjectNode settled = event("settled").put("group", job.get("group").asText());
            settled.put("value", record.value());
            settled.put("kind", kinds.get(record).toString().toLowerCase(Locale.ROOT));
            settled.put("error", errors.getOrDefault(record.topic() + "-" + record.partition(), failed));
            Chaos.write(journal, settled);
        }
    }

    private static AcknowledgeType kind(String value, int deliveries) {
        int number = Integer.parseInt(value.substring(value.lastIndexOf(':') + 1)) % 40;
        if (number == 1) {
            return AcknowledgeType.REJECT;
        }
        boolean isReleased = number == 2 || (number == 3 && deliveries == 1);
        return isReleased ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
    }

    private ObjectNode event(String kind) {
        return Chaos.event(kind, name);
    }
}
