import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.IOException;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Kafka's own assignors, as a tool for `Tools`. Reads a file of groups, an array of {"assignor": name, "partitions": {topic: count}, "members": {id:
 * {"instance": id or null, "topics": [topic], "current": {topic: [partition]}}}}, and prints the target of each, {id:
 * {topic: [partition]}}. Topics are numbers.
 */
public final class Assignors {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** A group as Kafka's assignors see it; members are in the order of their ids. */
    private static final class Group implements SubscribedTopicDescriber {
        private final JsonNode partitions;
        private final Map<String, MemberSubscriptionAndAssignmentImpl> members = new TreeMap<>();
        private final Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        private final Set<Set<Uuid>> subscriptions = new HashSet<>();

        Group(JsonNode group) {
            partitions = group.get("partitions");
            group.get("members").properties().forEach(member -> add(member.getKey(), member.getValue()));
        }

        private void add(String id, JsonNode member) {
            Set<Uuid> topics = new HashSet<>();
            member.get("topics").forEach(topic -> topics.add(uuid(topic.asText())));
            subscriptions.add(topics);
            Map<Uuid, Set<Integer>> current = new HashMap<>();
            member.get("current").properties().forEach(held -> {
                Set<Integer> numbers = new HashSet<>();
                held.getValue().forEach(number -> numbers.add(number.asInt()));
                current.put(uuid(held.getKey()), numbers);
                Map<Integer, String> byPartition = owners.computeIfAbsent(uuid(held.getKey()), none -> new HashMap<>());
                numbers.forEach(number -> byPartition.put(number, id));
            });
            Optional<String> instance = Optional.ofNullable(member.get("instance").textValue());
            Assignment assignment = new Assignment(Collections.unmodifiableMap(current));
            members.put(id, new MemberSubscriptionAndAssignmentImpl(Optional.empty(), instance, topics, assignment));
        }

        GroupSpec spec() {
            boolean same = subscriptions.size() == 1;
            SubscriptionType type = same ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
            return new GroupSpecImpl(members, type, owners);
        }

        @Override
        public int numPartitions(Uuid topic) {
            return partitions.path(number(topic)).asInt(-1);
        }

        @Override
        public Set<String> racksForPartition(Uuid topic, int partition) {
            return Set.of();
        }
    }

    private static Uuid uuid(String topic) {
        return new Uuid(0, 1000 + Long.parseLong(topic));
    }

    private static String number(Uuid topic) {
        return Long.toString(topic.getLeastSignificantBits() - 1000);
    }

    private static ObjectNode target(JsonNode asked) {
        Group group = new Group(asked);
        boolean isRange = asked.get("assignor").asText().equals("range");
        Map<String, MemberAssignment> targets =
            (isRange ? new RangeAssignor() : new UniformAssignor()).assign(group.spec(), group).members();
        ObjectNode found = JSON.createObjectNode();
        targets.forEach((id, held) -> {
            ObjectNode topics = found.putObject(id);
            held.partitions().forEach((topic, partitions) -> {
                ArrayNode numbers = topics.putArray(number(topic));
                new TreeSet<>(partitions).forEach(numbers::add);
            });
        });
        return found;
    }

    public static void main(String[] args) throws IOException {
        ArrayNode targets = JSON.createArrayNode();
        JSON.readTree(new File(args[0])).forEach(group -> targets.add(target(group)));
        System.out.println(targets);
    }
}
