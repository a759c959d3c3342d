"""The identity of a client: how listeners protect connections, which principal they have, and what it may do."""
