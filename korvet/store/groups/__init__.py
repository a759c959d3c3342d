"""Consumer groups of both protocols: typed calls of the group functions, the index and the Redis mirror."""
