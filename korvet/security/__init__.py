"""Who a client is: how listeners protect connections, and which principal a connection has."""
