"""The tier of a test's Redis."""

from __future__ import annotations

from pathlib import Path

import anyio

from korvet.tier.objects import Directory
from tests.support.redis import Server


def take_over(redis: Server, tier: Path) -> None:
    """Make this run of a Redis the owner of the tier, as by `--take-over`: it waits for no former one."""
    with redis.client() as client:
        run_id = str(client.info("server")["run_id"])

    async def claim() -> None:
        objects = Directory(tier)
        owner = await objects.owner("default")
        assert owner is not None
        await objects.claim("default", owner.cluster_id, run_id, owner)

    anyio.run(claim)
