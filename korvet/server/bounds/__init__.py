"""The bounds of one process on its connections and what they hold; no request, login or namespace."""
