package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.kafka.common.protocol.Errors;

/** Driver of the Java client: the commands of tests/kafka/drivers/__init__.py over JSON lines. */
public final class Main {
    static final ObjectMapper JSON = new ObjectMapper();
    private static final String END = "";

    private final LinkedBlockingQueue<String> lines = new LinkedBlockingQueue<>();
    private final Producing producing;
    private final Transacting transacting;
    private final Reading reading;
    private final Membership membership;
    private final Administration administration;

    private Main(String bootstrap) {
        producing = new Producing(bootstrap);
        transacting = new Transacting(bootstrap);
        reading = new Reading(bootstrap);
        membership = new Membership(bootstrap);
        administration = new Administration(bootstrap);
    }

    public static void main(String[] args) throws Exception {
        new Main(args[0]).serve();
    }

    /** A consumer belongs to one thread, so this thread both runs the commands and polls for the group member. */
    private void serve() throws Exception {
        Thread input = new Thread(this::readLines, "stdin");
        input.setDaemon(true);
        input.start();
        emit(JSON.createObjectNode().put("event", "ready"));
        while (true) {
            if (membership.isMember() && lines.isEmpty()) {
                poll();
                continue;
            }
            String line = lines.take();
            if (line.equals(END)) {
                membership.leave();
                administration.close();
                return;
            }
            answer(JSON.readTree(line));
        }
    }

    private void readLines() {
        try (BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8), 1 << 16)) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                lines.add(line);
            }
        } catch (IOException error) {
            emitTrouble(error);
        }
        lines.add(END);
    }

    private void poll() {
        try {
            membership.poll();
        } catch (RuntimeException error) {
            emitTrouble(error);
        }
    }

    private void answer(JsonNode command) {
        ObjectNode answer = JSON.createObjectNode().put("id", command.get("id").asInt());
        try {
            answer.set("result", run(command));
        } catch (Exception error) {
            Throwable cause = causeOf(error);
            answer.putObject("error").put("code", codeOf(cause)).put("message", cause.toString());
        }
        emit(answer);
    }

    private JsonNode run(JsonNode command) throws Exception {
        switch (command.get("op").asText()) {
            case "produce":
                return producing.produce(command);
            case "begin":
                return transacting.begin(command);
            case "transact":
                return transacting.transact(command);
            case "end":
                return transacting.end();
            case "read_committed":
                return transacting.read(command);
            case "open":
                return reading.open(command);
            case "read":
                return reading.read(command);
            case "close":
                return reading.close();
            case "committed":
                return membership.committed(command);
            case "join":
                return membership.join(command);
            case "commit":
                return membership.commit();
            case "pause":
                return membership.pause(command);
            case "resume":
                return membership.resume(command);
            case "seek":
                return membership.seek(command);
            case "leave":
                return membership.leave();
            case "visit":
                return Visiting.visit(command);
            default:
                return administration.run(command);
        }
    }

    static void emit(ObjectNode message) {
        synchronized (System.out) {
            System.out.println(message);
            System.out.flush();
        }
    }

    private static void emitTrouble(Exception error) {
        emit(JSON.createObjectNode().put("event", "trouble").put("message", error.toString()));
    }

    static Throwable causeOf(Throwable error) {
        boolean wrapped = error instanceof ExecutionException || error instanceof CompletionException;
        return wrapped && error.getCause() != null ? error.getCause() : error;
    }

    /** Kafka's error code, or -1 if the error is the client's own. */
    static int codeOf(Throwable error) {
        return Errors.forException(error).code();
    }
}
