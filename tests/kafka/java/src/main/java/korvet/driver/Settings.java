package korvet.driver;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Properties;

/** Client settings: the bootstrap address and the scenario's options; all others keep the client's defaults. */
final class Settings {
    private Settings() {}

    static Properties of(String bootstrap) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }

    /** Sets `name` from the option if it is given. */
    static void put(Properties settings, String name, JsonNode option) {
        if (option != null && !option.isNull()) {
            settings.put(name, option.asText());
        }
    }
}
