package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ClassicGroupDescription;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberAssignment;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** The commands about groups. */
final class Groups {
    private static final long TIMEOUT_S = 30;

    private final Admin admin;

    Groups(Admin admin) {
        this.admin = admin;
    }

    JsonNode run(JsonNode command) throws Exception {
        switch (command.get("op").asText()) {
            case "set_offsets":
                return setOffsets(command);
            case "delete_offsets":
                return deleteOffsets(command);
            case "configure_group":
                return configure(command);
            case "group_configs":
                return configs(command);
            case "list_groups":
                return list(command);
            case "describe_group":
                return describe(command);
            case "describe_classic_group":
                return describeClassic(command);
            case "delete_group":
                await(admin.deleteConsumerGroups(List.of(group(command))).all());
                return null;
            default:
                throw new IllegalArgumentException(
                        "no such command: " + command.get("op").asText());
        }
    }

    private static <T> T await(KafkaFuture<T> answer)
            throws ExecutionException, InterruptedException, TimeoutException {
        return answer.get(TIMEOUT_S, TimeUnit.SECONDS);
    }

    private static String group(JsonNode command) {
        return command.get("group").asText();
    }

    private JsonNode setOffsets(JsonNode command) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        String topic = command.get("topic").asText();
        command.get("offsets")
                .properties()
                .forEach(entry -> offsets.put(
                        new TopicPartition(topic, Integer.parseInt(entry.getKey())),
                        new OffsetAndMetadata(entry.getValue().asLong())));
        await(admin.alterConsumerGroupOffsets(group(command), offsets).all());
        return null;
    }

    private JsonNode deleteOffsets(JsonNode command) throws Exception {
        Set<TopicPartition> partitions = new HashSet<>();
        String topic = command.get("topic").asText();
        command.get("partitions").forEach(number -> partitions.add(new TopicPartition(topic, number.asInt())));
        await(admin.deleteConsumerGroupOffsets(group(command), partitions).all());
        return null;
    }

    private JsonNode configure(JsonNode command) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        command.get("configs")
                .properties()
                .forEach(entry -> changes.add(new AlterConfigOp(
                        new ConfigEntry(entry.getKey(), entry.getValue().asText()), AlterConfigOp.OpType.SET)));
        await(admin.incrementalAlterConfigs(Map.of(resource(command), changes)).all());
        return null;
    }

    private JsonNode configs(JsonNode command) throws Exception {
        ConfigResource resource = resource(command);
        ObjectNode found = Main.JSON.createObjectNode();
        await(admin.describeConfigs(List.of(resource)).all())
                .get(resource)
                .entries()
                .forEach(entry -> found.put(entry.name(), entry.value()));
        return found;
    }

    private static ConfigResource resource(JsonNode command) {
        return new ConfigResource(ConfigResource.Type.GROUP, group(command));
    }

    private JsonNode list(JsonNode command) throws Exception {
        Set<GroupType> types = new HashSet<>();
        command.get("types").forEach(type -> types.add(GroupType.parse(type.asText())));
        Set<GroupState> states = new HashSet<>();
        command.get("states").forEach(state -> states.add(GroupState.parse(state.asText())));
        ListGroupsOptions options = new ListGroupsOptions().withTypes(types).inGroupStates(states);
        ObjectNode found = Main.JSON.createObjectNode();
        for (GroupListing group : await(admin.listGroups(options).all())) {
            found.putArray(group.groupId())
                    .add(text(group.type()))
                    .add(group.protocol())
                    .add(text(group.groupState()));
        }
        return found;
    }

    private JsonNode describe(JsonNode command) throws Exception {
        ConsumerGroupDescription group = await(
                        admin.describeConsumerGroups(List.of(group(command))).all())
                .get(group(command));
        ObjectNode found = Main.JSON.createObjectNode();
        found.put("state", group.groupState().toString()).put("type", group.type().toString());
        found.put("is_simple", group.isSimpleConsumerGroup()).put("assignor", group.partitionAssignor());
        found.put("epoch", group.groupEpoch().orElse(null));
        found.put("target_epoch", group.targetAssignmentEpoch().orElse(null));
        found.put("coordinator", address(group.coordinator()));
        found.set("members", members(group.members()));
        return found;
    }

    private JsonNode describeClassic(JsonNode command) throws Exception {
        ClassicGroupDescription group = await(
                        admin.describeClassicGroups(List.of(group(command))).all())
                .get(group(command));
        ObjectNode found = Main.JSON.createObjectNode();
        found.put("state", group.state().toString()).put("protocol", group.protocol());
        found.put("protocol_data", group.protocolData()).put("coordinator", address(group.coordinator()));
        found.set("members", members(group.members()));
        return found;
    }

    private static ArrayNode members(Collection<MemberDescription> members) {
        ArrayNode found = Main.JSON.createArrayNode();
        for (MemberDescription member : members) {
            ObjectNode one = found.addObject();
            one.put("id", member.consumerId()).put("client", member.clientId()).put("host", member.host());
            one.put("instance", member.groupInstanceId().orElse(null));
            one.put("epoch", member.memberEpoch().orElse(null));
            one.put("is_upgraded", member.upgraded().orElse(null));
            one.set("owned", partitions(member.assignment()));
            one.set("target", member.targetAssignment().map(Groups::partitions).orElse(null));
        }
        return found;
    }

    private static ArrayNode partitions(MemberAssignment assignment) {
        Set<Integer> numbers = new TreeSet<>();
        assignment.topicPartitions().forEach(partition -> numbers.add(partition.partition()));
        ArrayNode found = Main.JSON.createArrayNode();
        numbers.forEach(found::add);
        return found;
    }

    private static String address(Node node) {
        return node.host() + ":" + node.port();
    }

    private static String text(Optional<?> value) {
        return value.map(Object::toString).orElse(null);
    }
}
