"""Calls of a group's functions. The function's contract lists the group's keys that it gets, and says whether it may
make the group, which must be in the index first. `korvet.store.calls` has the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeVar

from korvet.name_cache import NameCache
from korvet.redis.client import Named, Store
from korvet.store.calls import Calls, OnRetry, StateRoom
from korvet.store.contract import FUNCTIONS
from korvet.store.groups.index import GroupIndex
from korvet.store.keys import GroupKeys, Namespace
from korvet.store.outages import Outages

_KEYS_KEPT: Final = 10_000
_T = TypeVar("_T")


def _chooser(keys: Sequence[str]) -> Callable[[GroupKeys], Sequence[str]]:
    """A function that selects a contract's keys from a group's keys."""
    first, *others = (GroupKeys._fields.index(key.removesuffix("?")) for key in keys if not key.endswith("..."))
    return itemgetter(first, *others) if others else lambda of: (of[first],)


_KEYS: Final = {
    name: _chooser(function.keys)
    for name, function in FUNCTIONS.items()
    if function.keys and function.keys[0] in GroupKeys._fields
}
_REQUIRED_KEYS: Final = {name: _chooser([key for key in FUNCTIONS[name].keys if key[-1] != "?"]) for name in _KEYS}
_MAY_MAKE: Final = frozenset(name for name in _KEYS if "UNINDEXED" in FUNCTIONS[name].codes)


def keys_of(function: str, keys: GroupKeys, *, has_optional_keys: bool = True) -> Sequence[str]:
    """The keys of a group that a function gets.

    :param has_optional_keys: true to include the keys that its contract calls optional.
    """
    return (_KEYS if has_optional_keys else _REQUIRED_KEYS)[function](keys)


def _judged(store: Store, namespace: Namespace, group_id: str) -> GroupKeys:
    keys = namespace.group(group_id)
    store.judge(keys)
    return keys


class GroupCalls:
    """The functions of one namespace's groups, and their index."""

    def __init__(
        self,
        namespace: Namespace,
        store: Store,
        outages: Outages,
        most_groups: Callable[[], int],
        room: StateRoom | None = None,
    ) -> None:
        # A group's keys are checked when they are made, and not again at each call.
        self._calls = Calls(store.whole, outages, room or StateRoom())
        self.index = GroupIndex(namespace, store, most_groups)
        self.keys = NameCache(partial(_judged, store, namespace), _KEYS_KEPT).__getitem__

    def call(
        self,
        function: str,
        group_id: str,
        /,
        *,
        is_awaited: bool = False,
        has_optional_keys: bool = True,
        on_retry: OnRetry | None = None,
        **named: Named,
    ) -> Coroutine[Any, Any, Any]:
        """Call one of a group's functions; see `Calls.call`.

        :param has_optional_keys: true to include the keys that the contract calls optional.
        :raises TooMany: the call would make a group beyond the bound.
        """
        keys = (_KEYS if has_optional_keys else _REQUIRED_KEYS)[function](self.keys(group_id))
        index = None
        if function in _MAY_MAKE:
            index = self.index
            # They are empty until the group is in the index.
            named["id"] = named["locator"] = ""
        return self._calls.call(
            function, keys, named, is_awaited=is_awaited, index=index, group_id=group_id, on_retry=on_retry
        )


def chunks(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """The items in their order, in chunks of at most ``size``."""
    return (items[at : at + size] for at in range(0, len(items), size))
