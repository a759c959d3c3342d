"""The sources of pages beside the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from starlette.exceptions import HTTPException

from korvet.cli.console.lists import ListsOfVisitor

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources that the console may read.

    :ivar redis_url: the URL of the cluster's Redis; None without one.
    :ivar namespace: the namespace of the topics there.
    :ivar lake_report: a report of the lake.
    :ivar metrics: the URLs of front-ends' HTTP ports.
    :ivar lists: the lists of the visitor.
    """

    redis_url: str | None = None
    namespace: str = "default"
    lake_report: Path | None = None
    metrics: tuple[str, ...] = ()
    lists: ListsOfVisitor | None = None

    def listed(self, kind: str, ask: Callable[[], Sequence[T]], rows: Callable[[T], int] = lambda _: 1) -> Sequence[T]:
        """A list of the cluster: perhaps the one that the visitor's last page was cut from."""
        return ask() if self.lists is None else self.lists.get(kind, ask, rows)

    @property
    def public(self) -> Sources:
        """The sources that show a visitor no more than the cluster's rules allow."""
        return Sources(metrics=self.metrics)

    @property
    def redis(self) -> str:
        """The URL.

        :raises HTTPException: 404, if there is none.
        """
        if self.redis_url is None:
            raise HTTPException(404, "start the console with --redis URL for what is in Redis")
        return self.redis_url
