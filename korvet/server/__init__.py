"""The front-end's processes, sockets and connections, and the embedded server."""
