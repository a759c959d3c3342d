import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools one after the other in this process, as tests/kafka/process.py's Driver asks:
 * the answer to {"id", "tool": a class with a main method, "arguments"} has its printed text and its exit code.
 */
public final class Tools {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final PrintStream answers = System.out;
    private final ByteArrayOutputStream printed = new ByteArrayOutputStream();

    private Integer exitCode;
    private String untilExit;

    /** Thrown instead of ending the process. Tools may catch it, so the text that they print then is not their own. */
    private static final class Exited extends RuntimeException {
        Exited() {
            super(null, null, false, false);
        }
    }

    public static void main(String[] arguments) throws Exception {
        new Tools().serve();
    }

    private void serve() throws Exception {
        // All tools share one stream, because their libraries keep the stream that they find when they are loaded.
        PrintStream captured = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(captured);
        System.setErr(captured);
        Exit.Procedure exit = (code, message) -> {
            if (exitCode == null) {
                exitCode = code;
                untilExit = text();
            }
            throw new Exited();
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        answer(JSON.createObjectNode().put("event", "ready"));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode command = JSON.readTree(line);
            ObjectNode message = JSON.createObjectNode().put("id", command.get("id").asInt());
            run(command, message.putObject("result"));
            answer(message);
        }
    }

    private void run(JsonNode command, ObjectNode result) throws Exception {
        String[] arguments = JSON.convertValue(command.get("arguments"), String[].class);
        exitCode = null;
        try {
            Class.forName(command.get("tool").asText())
                    .getMethod("main", String[].class)
                    .invoke(null, (Object) arguments);
        } catch (InvocationTargetException failed) {
            if (exitCode == null) {
                failed.getCause().printStackTrace();
                exitCode = 1;
                untilExit = text();
            }
        }
        result.put("exit", exitCode == null ? 0 : exitCode).put("output", exitCode == null ? text() : untilExit);
        printed.reset();
    }

    private String text() {
        System.out.flush();
        return printed.toString(StandardCharsets.UTF_8);
    }

    private void answer(ObjectNode message) {
        answers.println(message);
        answers.flush();
    }
}
