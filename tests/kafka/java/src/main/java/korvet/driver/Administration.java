package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** The commands about topics and the offsets of groups. */
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
            case "set_offsets":
                return setOffsets(command);
            case "configure_group":
                return configureGroup(command);
            default:
                throw new IllegalArgumentException("no such command: " + command.get("op").asText());
        }
    }

    private JsonNode createTopic(JsonNode command) throws Exception {
        NewTopic topic = new NewTopic(command.get("topic").asText(), command.get("partitions").asInt(), (short) 1);
        Map<String, String> configs = new HashMap<>();
        command.get("configs").properties().forEach(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
        admin.createTopics(List.of(topic.configs(configs))).all().get(TIMEOUT_S, TimeUnit.SECONDS);
        return null;
    }

    private JsonNode setOffsets(JsonNode command) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        String topic = command.get("topic").asText();
        command.get("offsets").properties().forEach(entry -> offsets.put(
                new TopicPartition(topic, Integer.parseInt(entry.getKey())),
                new OffsetAndMetadata(entry.getValue().asLong())));
        String group = command.get("group").asText();
        admin.alterConsumerGroupOffsets(group, offsets).all().get(TIMEOUT_S, TimeUnit.SECONDS);
        return null;
    }

    private JsonNode configureGroup(JsonNode command) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        command.get("configs").properties().forEach(entry -> changes.add(new AlterConfigOp(
                new ConfigEntry(entry.getKey(), entry.getValue().asText()), AlterConfigOp.OpType.SET)));
        ConfigResource group =
                new ConfigResource(ConfigResource.Type.GROUP, command.get("group").asText());
        admin.incrementalAlterConfigs(Map.of(group, changes)).all().get(TIMEOUT_S, TimeUnit.SECONDS);
        return null;
    }

    void close() {
        if (admin != null) {
            admin.close();
        }
    }
}
