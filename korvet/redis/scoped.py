"""A store for the keys of one namespace. It refuses others, so a mistake is an error and never a leak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from korvet.redis.client import Argument, Purpose, Store
from korvet.redis.link import Link

_KEYLESS: Final = frozenset({"TIME", "INFO"})
_OF_MANY_KEYS: Final = frozenset({"EXISTS", "DEL", "UNLINK", "MGET"})
_WITH_SUBCOMMAND: Final = frozenset({"XINFO", "XGROUP"})


class ScopedStore(Store):
    """A view of a store that only adds the check of keys; connections, callbacks and all else are shared.

    A call with a foreign key fails with StoreError, and nothing is sent.

    :param prefix: the prefix of the namespace's keys (`korvet.store.keys.Namespace.prefix`).
    """

    __slots__ = ("_own_callbacks", "_prefix", "_whole")

    def __init__(self, store: Store, prefix: str) -> None:
        self.__dict__ = store.__dict__
        self._whole = store
        self._prefix = prefix
        self._own_callbacks: list[Callable[[], None]] = []

    @property
    def whole(self) -> Store:
        return self._whole

    def close(self) -> None:
        """Remove the callbacks that were registered through this view."""
        for callback in self._own_callbacks:
            self._history_callbacks.remove(callback)
        self._own_callbacks.clear()

    def on_history_change(self, callback: Callable[[], None]) -> None:
        self._own_callbacks.append(callback)
        super().on_history_change(callback)

    # ------------------------------------------------------------------ commands

    def _is_inside(self, key: str, command: Sequence[Argument]) -> bool:
        if not key.startswith(self._prefix):
            return False
        name = command[0]
        if name in _KEYLESS:
            return True
        if name in _OF_MANY_KEYS:
            return all(str(one).startswith(self._prefix) for one in command[1:])
        return command[2 if name in _WITH_SUBCOMMAND else 1] == key

    def link(self, purpose: Purpose, key: str) -> Link | None:
        self._check(key)
        return super().link(purpose, key)

    def coordination(self, key: str) -> Link | None:
        self._check(key)
        return super().coordination(key)

    def confirmation(self, key: str) -> Link | None:
        self._check(key)
        return super().confirmation(key)

    def _check(self, key: str) -> None:
        if not key.startswith(self._prefix):
            raise self._outside("a link", (key,))
