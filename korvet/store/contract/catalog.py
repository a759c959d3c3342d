"""The library itself, the catalog and the front-ends in it."""

from __future__ import annotations

from korvet.store.contract.function import Function

CATALOG_KEYS = ("meta", "topics", "configs")

LIBRARY_FUNCTIONS = (
    Function(
        name="korvet_version",
        description="the version of this library",
        keys=(),
        args=(),
        reply="the version string",
        read_only=True,
        allow_oom=True,
        allow_stale=True,
    ),
)

CATALOG_FUNCTIONS = (
    Function(
        name="korvet_catalog_read",
        description="everything in the catalog, or only its version where that is the known one",
        keys=CATALOG_KEYS,
        args=("known_version",),
        reply="{0, version, cluster_id or '', [name, topic JSON, ...], [config, value, ...]}; "
        "empty arrays when known_version is the version",
        read_only=True,
        allow_oom=True,
    ),
    Function(
        name="korvet_catalog_init",
        description="give the catalog its cluster id, once",
        keys=CATALOG_KEYS,
        args=("cluster_id",),
        reply="{0, cluster_id}",
    ),
    Function(
        name="korvet_catalog_configure",
        description="change cluster-wide dynamic settings",
        keys=CATALOG_KEYS,
        args=("change",),
        reply="{0}",
        allow_oom=True,
    ),
    Function(
        name="korvet_producer_id",
        description="hand out a producer id that was never handed out, even where history went back",
        keys=CATALOG_KEYS,
        args=(),
        reply="{0, producer_id}; the greater of the last one + 1 and the microseconds since 1970",
        allow_oom=True,
    ),
    Function(
        name="korvet_topic_create",
        description="add a topic to the catalog",
        keys=CATALOG_KEYS,
        args=("name", "id", "partitions", "configs"),
        reply="{code, topic JSON}; with TOPIC_ALREADY_EXISTS that of the existing topic, with INVALID_PARTITIONS ''",
    ),
    Function(
        name="korvet_topic_grow",
        description="give a topic more partitions",
        keys=CATALOG_KEYS,
        args=("name", "id", "partitions"),
        reply="{code, topic JSON}; '' when there is no such topic",
    ),
    Function(
        name="korvet_topic_configure",
        description="change what is set for a topic",
        keys=CATALOG_KEYS,
        args=("name", "id", "change"),
        reply="{code, topic JSON}; '' when there is no such topic",
        allow_oom=True,
    ),
    Function(
        name="korvet_topic_delete",
        description="mark a topic as being deleted, or forget one that is marked",
        keys=CATALOG_KEYS,
        args=("name", "id", "step"),
        reply="{code}; both steps may be repeated: begin of a marked topic and finish of a forgotten one are no errors",
        allow_oom=True,
    ),
)

FRONTEND_FUNCTIONS = (
    Function(
        name="korvet_frontend_renew",
        description="renew the lease of an address, and tell of all that live",
        keys=("frontends",),
        args=("address", "lease"),
        reply="{0, node_id or -1, outages, [node_id, address, ...] of those that live, by node id}; outages: a text "
        "`from-to ...` of the last times, in ms, that nobody renewed for long, one that ends now included",
        allow_oom=True,
    ),
    Function(
        name="korvet_frontend_leave",
        description="end the lease of an address, which keeps its node id",
        keys=("frontends",),
        args=("address",),
        reply="{0}",
        allow_oom=True,
    ),
)
