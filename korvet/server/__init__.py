"""Processes, sockets, connections, and the embedded server."""
