"""Share groups on the wire: sessions, acknowledgements, and the delivery of what a member acquired. No Redis."""
