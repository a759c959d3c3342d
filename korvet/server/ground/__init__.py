"""What all packages of the server use: settings, log, sockets, traces, the machine; nothing of clients or tenants."""
