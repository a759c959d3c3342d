"""The tables of a lake, and their directories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TABLES: Final = ("raw", "typed", "dead_letters", "latest")
LAKE_TABLES: Final = "korvet.lake.tables"
"""The setting of a topic with the tables that it asks for."""


@dataclass(frozen=True, slots=True)
class Lake:
    """A directory of any file system that Spark knows, with a directory for each topic."""

    location: str

    def raw(self, topic: str) -> str:
        """The table of all records, unchanged."""
        return self.table(topic, "raw")

    def typed(self, topic: str) -> str:
        """The table of the values that fit the topic's schema, as columns."""
        return self.table(topic, "typed")

    def dead_letters(self, topic: str) -> str:
        """The table of the records that do not fit it, with the reason."""
        return self.table(topic, "dead_letters")

    def latest(self, topic: str) -> str:
        """The table of each key's newest record."""
        return self.table(topic, "latest")

    def table(self, topic: str, name: str) -> str:
        """One of a topic's `TABLES`."""
        return f"{self.location.rstrip('/')}/{topic}/{name}"
