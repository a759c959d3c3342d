"""The config file of ``korvet serve``: TOML, checked by a JSON Schema; errors say what, where and what is allowed."""
