"""A server whose proto-max-bulk-len is below a batch: its producer is refused, and nobody else's connection breaks."""

from __future__ import annotations

import pytest

from tests.api.data import produce, records
from tests.api.raw import ask, unique
from tests.support.broker import running_broker
from tests.support.redis import running_server
from tests.support.waiting import until

REFUSED = "a batch is larger than redis takes; such batches are refused"


@pytest.mark.parametrize(
    ("user", "limit"),
    [("", 1_500_000), ("korvet:secret@", 1_500_000), ("forbidden:secret@", 1 << 20)],
    ids=["without a user", "a user who may ask once it failed", "CONFIG is forbidden"],
)
def test_batch_that_redis_does_not_take_is_refused_and_breaks_no_connection_of_others(user: str, limit: int) -> None:
    with running_server("valkey") as server, server.client() as client:
        client.config_set("proto-max-bulk-len", 1_500_000)
        for name, config in (("korvet", "+config"), ("forbidden", "-config")):
            client.acl_setuser(name, enabled=True, passwords=["+secret"], keys=["*"], channels=["*"],
                               commands=["+@all", config])  # fmt: skip

        def append_connection() -> str:
            (one,) = (one["id"] for one in client.client_list() if one["name"].startswith("korvet-append"))
            return str(one)

        url = server.url.replace("unix://", f"unix://{user}")
        with running_broker(redis_url=url) as broker:
            topic, recorded = unique("t"), unique("r")
            for name, storage in ((topic, "batch"), (recorded, "record")):
                configs = {"max.message.bytes": "10000000", "korvet.storage": storage}
                asked = {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [],
                         "configs": [{"name": key, "value": value} for key, value in configs.items()]}  # fmt: skip
                made = ask(broker.port, "create_topics", 5, topics=[asked], timeout=10_000, validate_only=False)
                assert made["topics"][0]["error_code"] == "NONE"

            def put(size: int, partition: int = 0, name: str = topic) -> str:
                answer = produce(broker.port, name, records(1, size), partition=partition)
                return str(answer["error_code"])

            before = append_connection()
            codes = [put(2 << 20) for _ in range(4)]
            if not user:
                assert append_connection() == before
            else:
                # The server tells by breaking the connection once.
                assert codes.pop(0) in ("REQUEST_TIMED_OUT", "NOT_LEADER_OR_FOLLOWER"), codes
            assert {*codes} == {"MESSAGE_TOO_LARGE"}
            until(lambda: put(10) == "NONE")
            between = append_connection()
            for _ in range(3):
                assert put(2 << 20) == "MESSAGE_TOO_LARGE"
                assert put(2 << 20, name=recorded) == "MESSAGE_TOO_LARGE"
                assert put(1000 << 10, partition=1) == put(1000 << 10, name=recorded) == "NONE"
            assert append_connection() == between
            assert put(limit - 1000) == "NONE"
            # Before it could ask again, it took the least for the limit.
            assert broker.log.count(f"most={limit}") == 1 and broker.log.count(REFUSED) <= 2
