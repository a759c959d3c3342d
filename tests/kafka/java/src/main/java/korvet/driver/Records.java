package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

/** Records between JSON and the client. */
final class Records {
    private Records() {}

    static ProducerRecord<byte[], byte[]> fromJson(String topic, JsonNode record) {
        List<Header> headers = new ArrayList<>();
        for (JsonNode header : record.get("headers")) {
            headers.add(new RecordHeader(header.get(0).asText(), decode(header.get(1))));
        }
        JsonNode partition = record.get("partition");
        JsonNode timestamp = record.get("timestamp");
        return new ProducerRecord<>(
                topic,
                partition.isNull() ? null : partition.asInt(),
                timestamp.isNull() ? null : timestamp.asLong(),
                decode(record.get("key")),
                decode(record.get("value")),
                headers);
    }

    static ObjectNode toJson(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode json = Main.JSON.createObjectNode();
        json.put("key", encode(record.key()));
        json.put("value", encode(record.value()));
        ArrayNode headers = json.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(encode(header.value()));
        }
        json.put("timestamp", record.timestamp());
        json.put("partition", record.partition());
        json.put("offset", record.offset());
        return json;
    }

    private static byte[] decode(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    private static String encode(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
