package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The command `visit`: write values at a secured listener, in a transaction if there is an id, and read them as a member
 * of a group. With `seconds` it writes one value after another for that time instead, and reads them all.
 */
final class Visiting {
    private static final long WITHIN_MS = 60_000;

    private Visiting() {}

    static JsonNode visit(JsonNode command) throws Exception {
        try {
            return visited(command);
        } catch (KafkaException error) {
            // A client that cannot be made tells why only in its cause.
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            throw cause instanceof Exception ? (Exception) cause : error;
        }
    }

    private static JsonNode visited(JsonNode command) throws Exception {
        Properties common = common(command.get("connect"));
        String topic = command.get("topic").asText();
        try (KafkaConsumer<String, String> consumer = consumer(common, command);
                KafkaProducer<String, String> producer = producer(common, command)) {
            consumer.subscribe(List.of(topic));
            List<String> values = new ArrayList<>();
            command.get("values").forEach(value -> values.add(value.asText()));
            boolean isTransactional = command.hasNonNull("transactional_id");
            if (isTransactional) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            send(producer, topic, values);
            List<String> found = new ArrayList<>();
            if (isTransactional) {
                producer.commitTransaction();
            } else {
                values.addAll(load(producer, consumer, topic, command.path("seconds").asLong(), found));
            }
            return read(consumer, values.size(), found);
        }
    }

    private static void send(KafkaProducer<String, String> producer, String topic, List<String> values)
            throws Exception {
        List<Future<?>> sent = new ArrayList<>();
        for (String value : values) {
            sent.add(producer.send(new ProducerRecord<>(topic, value)));
        }
        for (Future<?> one : sent) {
            one.get(WITHIN_MS, TimeUnit.MILLISECONDS);
        }
    }

    private static List<String> load(
            KafkaProducer<String, String> producer,
            KafkaConsumer<String, String> consumer,
            String topic,
            long seconds,
            List<String> found)
            throws Exception {
        List<String> sent = new ArrayList<>();
        long ends = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (seconds > 0 && System.nanoTime() < ends) {
            sent.add("load-" + sent.size());
            send(producer, topic, sent.subList(sent.size() - 1, sent.size()));
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(20))) {
                found.add(record.value());
            }
        }
        return sent;
    }

    private static JsonNode read(KafkaConsumer<String, String> consumer, int count, List<String> found) {
        long ends = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(WITHIN_MS);
        while (found.size() < count && System.nanoTime() < ends) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) {
                found.add(record.value());
            }
        }
        consumer.commitSync();
        ArrayNode values = Main.JSON.createArrayNode();
        found.forEach(values::add);
        return values;
    }

    private static KafkaProducer<String, String> producer(Properties common, JsonNode command) {
        Properties settings = new Properties();
        settings.putAll(common);
        Settings.put(settings, "transactional.id", command.get("transactional_id"));
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(Properties common, JsonNode command) {
        Properties settings = new Properties();
        settings.putAll(common);
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        Settings.put(settings, "group.id", command.get("group"));
        Settings.put(settings, "group.protocol", command.get("group_protocol"));
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private static Properties common(JsonNode connect) {
        Properties settings = Settings.of(connect.get("bootstrap").asText());
        Settings.put(settings, "security.protocol", connect.get("protocol"));
        if (connect.hasNonNull("ca")) {
            settings.put("ssl.truststore.type", "PEM");
            settings.put("ssl.truststore.location", connect.get("ca").asText());
        }
        if (connect.hasNonNull("key_store")) {
            settings.put("ssl.keystore.type", "PEM");
            settings.put("ssl.keystore.location", connect.get("key_store").asText());
        }
        if (connect.hasNonNull("mechanism")) {
            logIn(settings, connect, connect.get("mechanism").asText());
        }
        return settings;
    }

    private static void logIn(Properties settings, JsonNode connect, String mechanism) {
        settings.put("sasl.mechanism", mechanism);
        String words = "";
        String module = "plain.PlainLoginModule";
        if (mechanism.equals("OAUTHBEARER")) {
            module = "oauthbearer.OAuthBearerLoginModule";
            String url = connect.get("token_url").asText();
            // The client reads tokens only of URLs that are allowed for the whole process.
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", url);
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.files", url.replace("file://", ""));
            settings.put("sasl.oauthbearer.token.endpoint.url", url);
            settings.put("sasl.login.callback.handler.class", OAuthBearerLoginCallbackHandler.class.getName());
        } else {
            module = mechanism.equals("PLAIN") ? module : "scram.ScramLoginModule";
            words = String.format(
                    " username=\"%s\" password=\"%s\"",
                    connect.get("user").asText(), connect.get("password").asText());
        }
        settings.put("sasl.jaas.config", "org.apache.kafka.common.security." + module + " required" + words + ";");
    }
}
