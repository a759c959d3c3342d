package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Members of a group for scripts/chaosrun: jobs.py describes the job, and journal.py the journal's lines. */
public final class Chaos {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Logger CLIENTS = Logger.getLogger("org.apache.kafka.clients");

    private Chaos() {}

    public static void main(String[] args) throws Exception {
        JsonNode job = JSON.readTree(args[0]);
        AtomicBoolean stopped = new AtomicBoolean();
        try (FileOutputStream journal = new FileOutputStream(job.get("journal").asText(), true)) {
            CLIENTS.addHandler(new Log(journal));
            List<Thread> members = new ArrayList<>();
            for (JsonNode name : job.get("names")) {
                Thread thread = new Thread(() -> {
                    if (job.get("protocol").asText().equals("share")) {
                        new Sharing(job, name.asText(), journal).run(stopped);
                    } else {
                        new Member(job, name.asText(), journal).run(stopped);
                    }
                });
                thread.start();
                members.add(thread);
            }
            while (System.in.read() >= 0) {
                // stdin carries no commands; only its end counts.
            }
            stopped.set(true);
            for (Thread member : members) {
                member.join();
            }
        }
    }

    static ObjectNode event(String kind, String client) {
        long micros = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
        return JSON.createObjectNode().put("event", kind).put("at_us", micros).put("client", client);
    }

    static void write(FileOutputStream journal, ObjectNode event) {
        try {
            synchronized (journal) {
                journal.write((event + "\n").getBytes(StandardCharsets.UTF_8));
            }
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    /**
     * Notes that a client forgets its topics (KIP-899), and that it joins again because they changed. While a client
     * reaches no broker it may forget them many times a second, and the first of each second is enough.
     */
    private static final class Log extends Handler {
        private static final Pattern TOLD = Pattern.compile(
                "\\[Consumer clientId=([^,]+), .*?\\] ((Rebootstrapping ).*|.*: cached metadata has changed .*)",
                Pattern.DOTALL);

        private final FileOutputStream journal;
        private final Map<String, Long> forgotAt = new ConcurrentHashMap<>();

        Log(FileOutputStream journal) {
            this.journal = journal;
        }

        @Override
        public void publish(LogRecord record) {
            Matcher told = TOLD.matcher(record.getMessage());
            if (!told.matches()) {
                return;
            }
            String client = told.group(1);
            if (told.group(3) != null) {
                long second = TimeUnit.NANOSECONDS.toSeconds(System.nanoTime());
                if (Long.valueOf(second).equals(forgotAt.put(client, second))) {
                    return;
                }
            }
            write(journal, event("logged", client).put("text", told.group(2)));
        }

        @Override
        public void flush() {}

        @Override
        public void close() {}
    }

    /** One consumer of the group, driven by one thread. */
    private static final class Member implements ConsumerRebalanceListener {
        private static final long COMMIT_EVERY_NS = 500_000_000;

        private final JsonNode job;
        private final String name;
        private final FileOutputStream journal;
        private final Map<TopicPartition, OffsetAndMetadata> uncommitted = new HashMap<>();
        private final KafkaConsumer<String, String> consumer;
        private String memberId = "";
        private int generation = -1;
        private long committedAt = System.nanoTime();
        private boolean isCommitting;

        Member(JsonNode job, String name, FileOutputStream journal) {
            this.job = job;
            this.name = name;
            this.journal = journal;
            this.consumer = new KafkaConsumer<>(settings(), new StringDeserializer(), new StringDeserializer());
        }

        private Properties settings() {
            Properties settings = Settings.of(job.get("bootstrap").asText());
            settings.put("client.id", name);
            settings.put("group.id", job.get("group").asText());
            if (job.get("is_static").asBoolean()) {
                settings.put("group.instance.id", name);
            }
            settings.put("enable.auto.commit", false);
            settings.put("auto.offset.reset", "earliest");
            String strategy = job.get("strategy").asText();
            if (job.get("protocol").asText().equals("consumer")) {
                settings.put("group.protocol", "consumer");
                settings.put("group.remote.assignor", strategy);
            } else {
                boolean cooperative = strategy.equals("cooperative-sticky");
                int session = job.get("session_timeout_ms").asInt();
                settings.put(
                        "partition.assignment.strategy",
                        (cooperative ? CooperativeStickyAssignor.class : RangeAssignor.class).getName());
                settings.put("session.timeout.ms", session);
                settings.put("heartbeat.interval.ms", session / 12);
            }
            return settings;
        }

        /** Consumes until told to stop, then leaves the group. */
        void run(AtomicBoolean stopped) {
            try {
                List<String> topics = new ArrayList<>();
                job.get("topics").forEach(topic -> topics.add(topic.asText()));
                consumer.subscribe(topics, this);
                while (!stopped.get()) {
                    consumer.poll(Duration.ofMillis(100)).forEach(this::take);
                    if (!isCommitting && !uncommitted.isEmpty() && System.nanoTime() - committedAt > COMMIT_EVERY_NS) {
                        commitLater();
                    }
                }
                consumer.close();
            } catch (KafkaException error) {
                trouble(error, true);
            }
        }

        private void take(ConsumerRecord<String, String> record) {
            TopicPartition partition = new TopicPartition(record.topic(), record.partition());
            uncommitted.put(partition, new OffsetAndMetadata(record.offset() + 1));
            ObjectNode event = event("consumed");
            event.put("group", job.get("group").asText());
            event.put("member_id", memberId).put("generation", generation).put("offset", record.offset());
            event.put("value", record.value());
            event.set("partition", toJson(partition));
            write(event);
        }

        private void commitLater() {
            committedAt = System.nanoTime();
            // One commit after another: two that wait for the coordinator may be sent in either order.
            isCommitting = true;
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>(uncommitted);
            uncommitted.clear();
            consumer.commitAsync(offsets, (committed, error) -> {
                isCommitting = false;
                if (error == null) {
                    committed(committed);
                } else {
                    trouble(error, false);
                }
            });
        }

        private void committed(Map<TopicPartition, OffsetAndMetadata> offsets) {
            ObjectNode event = event("committed").put("group", job.get("group").asText());
            ArrayNode list = event.putArray("offsets");
            offsets.forEach((partition, position) ->
                    list.addArray().add(toJson(partition)).add(position.offset()));
            write(event);
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> added) {
            memberId = consumer.groupMetadata().memberId();
            generation = consumer.groupMetadata().generationId();
            ObjectNode event = event("assigned").put("group", job.get("group").asText());
            event.put("member_id", memberId).put("generation", generation);
            event.set("added", toJson(added));
            event.set("owned", toJson(consumer.assignment()));
            write(event);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            Map<TopicPartition, OffsetAndMetadata> last = new HashMap<>(uncommitted);
            last.keySet().retainAll(Set.copyOf(partitions));
            if (!last.isEmpty()) {
                try {
                    consumer.commitSync(last);
                    committed(last);
                } catch (KafkaException error) {
                    trouble(error, false);
                }
            }
            gaveUp(partitions, false);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            gaveUp(partitions, true);
        }

        private void gaveUp(Collection<TopicPartition> partitions, boolean lost) {
            uncommitted.keySet().removeAll(Set.copyOf(partitions));
            ObjectNode event = event("revoked").put("group", job.get("group").asText()).put("lost", lost);
            event.set("partitions", toJson(partitions));
            write(event);
        }

        private void trouble(Exception error, boolean fatal) {
            write(event("troubled").put("text", error.toString()).put("fatal", fatal));
        }

        private ObjectNode event(String kind) {
            return Chaos.event(kind, name);
        }

        private void write(ObjectNode event) {
            Chaos.write(journal, event);
        }

        private static ArrayNode toJson(TopicPartition partition) {
            return JSON.createArrayNode().add(partition.topic()).add(partition.partition());
        }

        private static ArrayNode toJson(Collection<TopicPartition> partitions) {
            ArrayNode list = JSON.createArrayNode();
            partitions.forEach(partition -> list.add(toJson(partition)));
            return list;
        }
    }
}
