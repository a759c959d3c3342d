"""The open namespaces of a process, and the choice of one for a client; no connection, frame or process."""
