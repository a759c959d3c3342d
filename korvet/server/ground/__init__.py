"""What all rooms of the server stand on: settings, log, sockets, traces, the machine; nothing of clients or tenants."""
