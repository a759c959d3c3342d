"""The words that flags and the config file both allow. Each command imports them, and no schema."""

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
CONSOLES = ("off", "read-only", "changes")
