"""A share group as the tests drive it."""

from __future__ import annotations

from typing import Any

from tests.lua.consumer import Beat, ConsumerGroup
from tests.lua.group import NONE, plain


class ShareGroup(ConsumerGroup):
    """The group as members of a share group call it; `targets` has what the assignor gives them."""

    max_size = 200

    def consume(  # type: ignore[override]
        self,
        member: str,
        epoch: int,
        *names: str,
        subscribes: bool | None = None,
        rack: str = "",
        anyway: bool = False,
        client: str = "client",
        host: str = "/10.0.0.1",
    ) -> Beat:
        has_names = bool(names) if subscribes is None else subscribes
        code, who, *rest = map(
            plain,
            self.call(
                "share_heartbeat", self.id, self.locator, self.catalog_version, member, epoch, rack, int(has_names),
                round(self.session_s * 1000), client, host, self.max_size, int(anyway), *names,
            ),
        )  # fmt: skip
        if code != NONE:
            return Beat(code, who, why=rest[0])
        return (
            Beat(code, who, "ready", rest[1], rest[3] if rest[2] else None)
            if rest[0] == "ready"
            else Beat(code, who, rest[0])
        )

    def is_settled(self, member: str, epoch: int, instance: str = "") -> bool:
        args = self.catalog_version, member, epoch, instance, round(self.session_s * 1000), 1
        return bool(self.server.fcall("korvet_group_beat", len(self.keys), *self.keys, *args))

    def enter(self, member: str, *names: str, **options: Any) -> Beat:
        return self.beat(member, 0, *(names or ("foo", "bar")), **options)
