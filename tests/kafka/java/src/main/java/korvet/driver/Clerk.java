package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A clerk of scripts/chaosrun/bank: clerk.py and producing.py describe its work, and books.py its records. */
public final class Clerk {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int BEGIN_ANEW = 3;
    private static final double ABORTED = 0.15;

    private final JsonNode job;
    private final String name;
    private final FileOutputStream journal;
    private final Random chance;
    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;
    private int number;

    private Clerk(JsonNode job, FileOutputStream journal) {
        this.job = job;
        this.journal = journal;
        name = job.get("names").get(0).asText();
        chance = new Random(job.get("incarnation").asLong());
        producer = new KafkaProducer<>(producing(), new StringSerializer(), new StringSerializer());
        consumer = new KafkaConsumer<>(consuming(), new StringDeserializer(), new StringDeserializer());
    }

    public static void main(String[] args) throws Exception {
        JsonNode job = JSON.readTree(args[0]);
        AtomicBoolean stopped = new AtomicBoolean();
        Thread watch = new Thread(() -> awaitEnd(stopped));
        watch.setDaemon(true);
        watch.start();
        try (FileOutputStream journal = new FileOutputStream(job.get("journal").asText(), true)) {
            new Clerk(job, journal).run(stopped);
        } catch (KafkaException | IllegalStateException error) {
            // The client throws the latter if batches behind the one that ended the producer fail for another reason.
            error.printStackTrace();
            Runtime.getRuntime().halt(BEGIN_ANEW);
        }
    }

    private static void awaitEnd(AtomicBoolean stopped) {
        try {
            while (System.in.read() >= 0) {
                // stdin carries no commands; only its end counts.
            }
        } catch (IOException error) {
            error.printStackTrace();
        }
        stopped.set(true);
    }

    private Properties producing() {
        Properties settings = Settings.of(job.get("bootstrap").asText());
        settings.put("client.id", name);
        settings.put("transactional.id", name);
        Settings.put(settings, "transaction.timeout.ms", job.get("timeout_ms"));
        return settings;
    }

    private Properties consuming() {
        Properties settings = Settings.of(job.get("bootstrap").asText());
        settings.put("client.id", name);
        settings.put("group.id", job.get("group").asText());
        if (job.get("is_static").asBoolean()) {
            settings.put("group.instance.id", name);
        }
        settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        settings.put("session.timeout.ms", job.get("session_timeout_ms").asText());
        settings.put("heartbeat.interval.ms", job.get("session_timeout_ms").asInt() / 8);
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "earliest");
        settings.put("max.poll.records", 20);
        return settings;
    }

    /** Carries out orders until told to stop, then leaves; throws if it cannot go on. */
    private void run(AtomicBoolean stopped) throws IOException {
        producer.initTransactions();
        consumer.subscribe(List.of("orders"));
        while (!stopped.get()) {
            ConsumerRecords<String, String> batch = consumer.poll(Duration.ofMillis(200));
            if (!batch.isEmpty() && !carryOut(batch)) {
                goBack();
            }
        }
        consumer.close();
        producer.close();
    }

    /** Reads on at the committed offset of each partition, because records read since may be lost. */
    private void goBack() {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (Map.Entry<TopicPartition, OffsetAndMetadata> position : committed.entrySet()) {
            consumer.seek(position.getKey(), position.getValue() == null ? 0 : position.getValue().offset());
        }
    }

    /** Whether the transaction was committed; otherwise it was aborted. */
    private boolean carryOut(ConsumerRecords<String, String> batch) throws IOException {
        String transaction = name + "/" + job.get("incarnation").asInt() + "/" + ++number;
        boolean commits = chance.nextDouble() >= ABORTED;
        producer.beginTransaction();
        try {
            write(transaction, batch);
            producer.sendOffsetsToTransaction(positions(batch), consumer.groupMetadata());
            if (commits) {
                producer.commitTransaction();
            } else {
                abort();
            }
        } catch (KafkaException error) {
            error.printStackTrace();
            // Throws if the producer cannot go on; then the transaction's end is unknown.
            producer.abortTransaction();
            commits = false;
        }
        ObjectNode event = JSON.createObjectNode().put("event", "transacted").put("client", name);
        event.put("at_us", ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now()));
        event.put("transaction", transaction).put("is_commit", commits);
        journal.write((event + "\n").getBytes(StandardCharsets.UTF_8));
        return commits;
    }

    private void abort() {
        if (chance.nextBoolean()) {
            producer.flush();
        }
        producer.abortTransaction();
    }

    private void write(String transaction, ConsumerRecords<String, String> batch) throws IOException {
        List<ObjectNode> entries = new ArrayList<>();
        for (ConsumerRecord<String, String> record : batch) {
            JsonNode order = JSON.readTree(record.value());
            int amount = order.get("amount").asInt();
            entries.add(half(order, order.get("debtor").asInt(), -amount));
            entries.add(half(order, order.get("creditor").asInt(), amount));
        }
        for (int at = 0; at < entries.size(); at++) {
            ObjectNode entry = entries.get(at).put("transaction", transaction);
            entry.put("number", at).put("count", entries.size());
            int account = entry.get("account").asInt();
            int partition = account % job.get("partitions").asInt();
            producer.send(new ProducerRecord<>("ledger", partition, String.valueOf(account), entry.toString()));
        }
    }

    private static ObjectNode half(JsonNode order, int account, int amount) {
        ObjectNode entry = JSON.createObjectNode().put("transfer", order.get("transfer").asText());
        return entry.put("account", account).put("amount", amount);
    }

    private static Map<TopicPartition, OffsetAndMetadata> positions(ConsumerRecords<String, String> batch) {
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        for (TopicPartition partition : batch.partitions()) {
            List<ConsumerRecord<String, String>> records = batch.records(partition);
            positions.put(partition, new OffsetAndMetadata(records.get(records.size() - 1).offset() + 1));
        }
        return positions;
    }
}
