"""One connection from its first frame to its last answer; no accepting, and no listening socket."""
