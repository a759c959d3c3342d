package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;

/** The commands about topics; `Groups` has the commands about groups. */
final class Administration {
    private static final long TIMEOUT_S = 30;

    private final String bootstrap;
    private Admin admin;

    Administration(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    JsonNode run(JsonNode command) throws Exception {
        if (admin == null) {
            admin = Admin.create(Settings.of(bootstrap));
        }
        switch (command.get("op").asText()) {
            case "create_topic":
                return createTopic(command);
            case "delete_topic":
                admin.deleteTopics(List.of(command.get("topic").asText())).all().get(TIMEOUT_S, TimeUnit.SECONDS);
                return null;
            case "topics":
                return Main.JSON.valueToTree(admin.listTopics().names().get(TIMEOUT_S, TimeUnit.SECONDS));
            default:
                return new Groups(admin).run(command);
        }
    }

    private JsonNode createTopic(JsonNode command) throws Exception {
        NewTopic topic = new NewTopic(command.get("topic").asText(), command.get("partitions").asInt(), (short) 1);
        Map<String, String> configs = new HashMap<>();
        command.get("configs").properties().forEach(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
        admin.createTopics(List.of(topic.configs(configs))).all().get(TIMEOUT_S, TimeUnit.SECONDS);
        return null;
    }

    void close() {
        if (admin != null) {
            admin.close();
        }
    }
}
