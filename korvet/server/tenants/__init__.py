"""The namespaces that a process has open, and which of them a client gets; no connection, frame or process."""
