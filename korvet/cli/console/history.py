"""The lag of the last hour, which the HTTP ports of front-ends keep (`korvet.metrics.lags`).

A port shows all groups to everybody. So the console asks it only for a group that the visitor sees, and takes the
topics with offsets that the visitor sees.
"""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from korvet.unknown import total

_WITHIN_S: Final = 2.0
_MOST_BYTES: Final = 4 << 20
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_MOST: Final = 2**63
"""Beyond each time and lag."""
UNASKED: Final = "From now on, while this page is open: start the console with --metrics URL for the last hour."
UNKNOWN: Final = "From now on, while this page is open: no front-end has the last hour of this group."
KNOWN: Final = "The last hour, minute by minute, and from now on each five seconds."


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Times in seconds since 1970, as many lags, None for one that is not known, and a sentence about them."""

    times: Sequence[float] = ()
    lags: Sequence[int | None] = ()
    note: str = UNKNOWN


def lag_history(urls: Sequence[str], facts: Mapping[str, str], group: str, topics: Collection[str]) -> History:
    """The lag of a group in some topics, from the front-end with the newest one.

    :param urls: of the HTTP ports.
    :param facts: the broker's facts about the group: its locator names the namespace.
    """
    if not urls:
        return History(note=UNASKED)
    namespace = facts.get("locator", "").partition("/")[0]
    found = [answered for url in urls if (answered := _fetched(url, namespace, group))] if namespace else []
    if not found:
        return History()
    times, series = max(found, key=lambda answered: answered[0][-1])
    sums = _sums([numbers for topic, numbers in series.items() if topic in topics])
    return History(times=times, lags=sums, note=KNOWN) if sums else History()


def _fetched(url: str, namespace: str, group: str) -> tuple[list[float], Mapping[str, list[int | None]]] | None:
    """The times, and the lags by topic, from a port; None if it has none."""
    query = urlencode({"namespace": namespace, "group": group})
    try:
        with _DIRECT.open(f"{url.rstrip('/')}/lags?{query}", timeout=_WITHIN_S) as answer:
            answered: Any = json.loads(answer.read(_MOST_BYTES))
        times, topics = answered["times"], answered["topics"]
        is_valid = (
            times
            and topics
            and all(_is_number(one) for one in times)
            and all(len(numbers) == len(times) for numbers in topics.values())
            and all(one is None or _is_number(one) for numbers in topics.values() for one in numbers)
        )
        return (times, topics) if is_valid else None
    except (OSError, http.client.HTTPException, ValueError, TypeError, LookupError, AttributeError):
        # It is away, or no such port; the page does without.
        return None


def _is_number(one: Any) -> bool:
    """True if JSON can hold it, unlike NaN."""
    return isinstance(one, int | float) and 0 <= one < _MOST


def _sums(series: Sequence[Sequence[int | None]]) -> list[int | None]:
    """The sum of each moment. A topic adds nothing before its first lag, as the group did not read it then."""
    firsts = [next((at for at, lag in enumerate(numbers) if lag is not None), len(numbers)) for numbers in series]
    begin = min(firsts, default=0)
    return [
        None if at < begin else total(lag for lag, first in zip(lags, firsts, strict=True) if at >= first)
        for at, lags in enumerate(zip(*series, strict=True))
    ]
