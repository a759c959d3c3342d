"""Handlers over a list of replies, which takes the place of Redis: what they call, in which order, and when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

import hiredis

from korvet.api import registry
from korvet.api.shared.context import Context, Frontend, Listener
from korvet.api.shared.loop_turns import LoopTurns
from korvet.api.shared.nodes import FixedNodes, Node
from korvet.api.shared.telemetry import Peer
from korvet.redis.address import parse_redis_url
from korvet.redis.client import Purpose, Store
from korvet.redis.reply import Reply
from korvet.redis.wakeup import Wakeups
from korvet.server.conversation.requests import Request
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups.groups import Groups
from korvet.store.keys import Namespace
from korvet.store.library import this_library
from korvet.store.log.log import Log
from korvet.store.outages import Outages
from korvet.store.transactions.transactions import Transactions
from korvet.wire.schema import request_schema
from tests.oracle.messages import entity

TOPIC: Final = UUID(int=7)
CATALOG: Final = "korvet_catalog_read"


class PlayedLink:
    """A link that notes each call of a function, or other command, and gives it the next reply of the list."""

    def __init__(self, replies: list[tuple[str, Any]]) -> None:
        self.name, self.run_id, self.replid, self.history = "played", "r", "i", "r/i"
        self.is_up = self.is_connected = self.is_steady = True
        self.server: Mapping[str, str] = {}
        self.most_value_bytes = 1 << 30
        self.replies = replies
        self.called: list[list[str]] = []
        """The function or command and the arguments of each call, without keys."""
        self.waiting: list[tuple[Reply, Any]] = []

    def send(self, future: Reply, packed: bytes, attempts: int = 0) -> None:
        """Note a call. Its reply comes by `answer`."""
        reader = hiredis.Reader()
        reader.feed(packed)
        command, name, *rest = (one.decode(errors="replace") for one in reader.gets())
        function, reply = self.replies.pop(0)
        is_call = command.startswith("FCALL")
        assert (name if is_call else command) == function
        self.called.append([function, *(rest[1 + int(rest[0]) :] if is_call else rest)])
        self.waiting.append((future, reply))

    def answer(self) -> None:
        """Give the first call that waits its reply."""
        future, reply = self.waiting.pop(0)
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)


class Played:
    """One connection's requests at a front-end. Each call of a function must be the next one of ``replies``."""

    def __init__(self, *replies: tuple[str, Any]) -> None:
        self.link = PlayedLink([*replies])
        store = Store(parse_redis_url("redis://127.0.0.1:1"), this_library())
        store._links = cast(Any, [self.link] * len(Purpose))
        namespace, wakeups, outages = Namespace("played"), Wakeups(store), Outages(store)
        self.catalog = Catalog(namespace, store, wakeups)
        topic = {"id": TOPIC.hex, "partitions": 2}
        self.catalog._replace_topics([b"t", json.dumps(topic).encode()])
        log = Log(namespace, store, self.catalog, wakeups)
        self.groups = Groups(namespace, store, self.catalog, wakeups, outages, log)
        transactions = Transactions(namespace, store, self.catalog, log, self.groups)
        self.frontend = cast(
            Frontend,
            SimpleNamespace(
                store=store, catalog=self.catalog, log=log, groups=self.groups, turns=LoopTurns(), outages=outages,
                namespace=namespace, transactions=transactions, telemetry=SimpleNamespace(receiver=None),
            ),
        )  # fmt: skip

        self.listener = cast(Listener, SimpleNamespace(nodes=FixedNodes([Node(1, "127.0.0.1", 1)])))

    def request(self, key: int, version: int, **values: Any) -> Request:
        """A request that has begun."""
        request = Request(1, 0)
        request.api = registry()[key]
        request.context = Context(
            frontend=self.frontend, listener=self.listener, principal="User:a", client_host="h", client_id="c",
            api_key=key, version=version, peer=Peer(dates_batches=True),
        )  # fmt: skip
        request.request = entity(request_schema(key, version), values, "")
        request.begin(lambda _: None)
        return request
