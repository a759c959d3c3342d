"""The contract of the Lua library: every function's keys, arguments, reply and flags, in one table.

The front-end takes from it how a function is called (`Function.read_only`: by FCALL_RO). A test holds the table
against the headers in ``lua/`` and against FUNCTION LIST, so that none of them can change alone.

A key or argument name that ends in ``?`` may be left out, one that ends in ``...`` may be given any number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from korvet.store.contract.catalog import CATALOG_FUNCTIONS, FRONTEND_FUNCTIONS, LIBRARY_FUNCTIONS
from korvet.store.contract.function import Function
from korvet.store.contract.groups import GROUP_FUNCTIONS, READER_FUNCTIONS
from korvet.store.contract.log import LOG_FUNCTIONS
from korvet.store.contract.transactions import TRANSACTION_FUNCTIONS

LIBRARY = "korvet"

RESEND = -2
"""Code of a reply: the temporary key of a placed batch is gone; send the batch again."""
GONE = -3
"""Code of a reply: the partition's topic id is absent or another; read the catalog again."""
UNINDEXED = -4
"""Code of a reply: there is no such group; put it in the index, and call again with an id for it."""
RETRY = -5
"""Code of a reply: the group has further Redis groups by now; destroy these too, and call again."""
LATE = -6
"""Code of a reply: the call waited while Redis stood still; call again, unless who asked is gone by now."""
VERIFY = -7
"""Code of a reply: no open transaction of this producer and epoch here; ask its coordinator, send with the ordinal."""
FRESH_ID = -8
"""Code of a reply: the transactional id needs a producer id that was never used; call again with one."""


def _by_name(functions: Iterable[Function]) -> Mapping[str, Function]:
    return MappingProxyType({function.name: function for function in functions})


FUNCTIONS: Mapping[str, Function] = _by_name(
    (
        *LIBRARY_FUNCTIONS,
        *CATALOG_FUNCTIONS,
        *FRONTEND_FUNCTIONS,
        *LOG_FUNCTIONS,
        *TRANSACTION_FUNCTIONS,
        *GROUP_FUNCTIONS,
        *READER_FUNCTIONS,
    )
)
"""Every function of the library by its name."""
