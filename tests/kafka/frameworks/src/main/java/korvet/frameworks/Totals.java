package korvet.frameworks;

import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.transaction.KafkaTransactionManager;

/**
 * Running totals by Spring Kafka: a listener, and a template that answers in the listener's transaction.
 *
 * <p>Arguments: bootstrap, topics of amounts and of totals.
 */
@Configuration
@EnableKafka
public class Totals {
    private final Map<String, Integer> sums = new HashMap<>();
    private final String bootstrap = System.getProperty("bootstrap");

    public static void main(String[] args) {
        System.setProperty("bootstrap", args[0]);
        System.setProperty("amounts", args[1]);
        System.setProperty("totals", args[2]);
        new AnnotationConfigApplicationContext(Totals.class).registerShutdownHook();
    }

    @Bean
    DefaultKafkaProducerFactory<String, String> producers() {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
        DefaultKafkaProducerFactory<String, String> factory =
                new DefaultKafkaProducerFactory<>(settings, new StringSerializer(), new StringSerializer());
        factory.setTransactionIdPrefix("spring-" + System.getProperty("amounts") + "-");
        return factory;
    }

    @Bean
    KafkaTemplate<String, String> template() {
        return new KafkaTemplate<>(producers());
    }

    @Bean
    ConcurrentKafkaListenerContainerFactory<String, String> kafkaListenerContainerFactory() {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "auto.offset.reset", "earliest");
        ConcurrentKafkaListenerContainerFactory<String, String> factory =
                new ConcurrentKafkaListenerContainerFactory<>();
        factory.setConsumerFactory(
                new DefaultKafkaConsumerFactory<>(settings, new StringDeserializer(), new StringDeserializer()));
        factory.getContainerProperties().setKafkaAwareTransactionManager(new KafkaTransactionManager<>(producers()));
        return factory;
    }

    @KafkaListener(topics = "#{systemProperties['amounts']}", groupId = "spring-#{systemProperties['amounts']}")
    void add(ConsumerRecord<String, String> amount) {
        int sum = sums.merge(amount.key(), Integer.valueOf(amount.value()), Integer::sum);
        template().send(System.getProperty("totals"), amount.key(), Integer.toString(sum));
    }
}
