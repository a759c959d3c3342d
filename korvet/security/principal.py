"""A principal: the identity that authentication gives a connection. Source: KafkaPrincipal"""

from __future__ import annotations

from typing import Final, NamedTuple


class Principal(NamedTuple):
    """The identity of a client; ``type`` is ``User``."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """The principal that a text such as ``User:alice`` names.

        :raises ValueError: the text lacks a type or a name.
        """
        type_, _, name = text.partition(":")
        if not type_ or not name:
            raise ValueError(f"{text!r} is no principal; want TYPE:NAME, for example User:alice")
        return cls(type_, name)


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
