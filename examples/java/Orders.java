import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Ten orders are produced in one transaction, and a group reads them. BROKER names another broker. */
public final class Orders {
  private static final String BROKER = System.getenv().getOrDefault("BROKER", "127.0.0.1:9092");
  private static final String TOPIC = "example-java";
  private static final int ORDERS = 10;

  public static void main(String[] arguments) throws Exception {
    create();
    produce();
    consume();
  }

  private static void create() throws Exception {
    try (var admin = Admin.create(Map.of("bootstrap.servers", BROKER))) {
      admin.createTopics(List.of(new NewTopic(TOPIC, Optional.of(3), Optional.empty()))).all().get();
    } catch (ExecutionException error) {
      if (!(error.getCause() instanceof TopicExistsException)) {
        throw error;
      }
    }
  }

  private static void produce() {
    Map<String, Object> settings = Map.of("bootstrap.servers", BROKER, "transactional.id", "example-java");
    var text = new StringSerializer();
    try (var producer = new KafkaProducer<>(settings, text, text)) {
      producer.initTransactions();
      producer.beginTransaction();
      for (int number = 0; number < ORDERS; number++) {
        producer.send(new ProducerRecord<>(TOPIC, "customer-" + number % 3, "order " + number));
      }
      producer.commitTransaction();
    }
  }

  private static void consume() {
    Map<String, Object> settings = Map.of(
        "bootstrap.servers", BROKER,
        "group.id", "example-java",
        "group.protocol", "consumer",
        "isolation.level", "read_committed",
        "auto.offset.reset", "earliest",
        "enable.auto.commit", false);
    var text = new StringDeserializer();
    try (var consumer = new KafkaConsumer<>(settings, text, text)) {
      consumer.subscribe(List.of(TOPIC));
      int read = 0;
      while (read < ORDERS) {
        read += consumer.poll(Duration.ofSeconds(1)).count();
      }
      consumer.commitSync();
      System.out.printf("read %d orders%n", read);
    }
  }
}
