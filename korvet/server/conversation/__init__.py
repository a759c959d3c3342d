"""One connection from its first frame to its last answer; not how it came in, and no listening socket."""
