"""What pages show beside the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The URL of the cluster's Redis, None for nothing; the namespace of its topics there; and a report of its lake."""

    redis_url: str | None = None
    namespace: str = "default"
    lake_report: Path | None = None

    @property
    def redis(self) -> str:
        """The URL.

        :raises HTTPException: 404, if there is none.
        """
        if self.redis_url is None:
            raise HTTPException(404, "start the console with --redis URL for what is in Redis")
        return self.redis_url
