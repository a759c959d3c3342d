"""Figures of a process tree, and the HTTP port at which Prometheus and orchestrators ask for them.

The objects that do the work count in plain numbers: `requests` for requests, and others where they are. A front-end
process reads all of these each second and writes them to its supervisor (`samples`). The supervisor adds them up,
reads topics and groups from Redis, and serves all (`exposition`, `web`). So a scrape costs no front-end anything.
"""
