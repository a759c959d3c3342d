"""Rewrites of the embedded server's append-only file, as soon as half of the file is of no use any more.

Valkey's own rule rewrites a file that doubled. A growing log has nothing to drop. Yet a child then copies all of it
while clients write, and each page that changes meanwhile is copied, too. It also keeps the file of deleted data until
new data doubled it. This rule compares the file with the data in memory instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import anyio
import structlog

log = structlog.get_logger()

Ask = Callable[[bytes, float], Awaitable[bytes]]
"""Asks an inline command, within seconds; the answer is empty if there is none."""

_LEAST_BYTES = 1 << 30
_LOOK_S = 10.0
_LONGEST_S = 3600.0
_ANSWER_S = 5.0


def is_due(info: Mapping[str, str], least_bytes: int = _LEAST_BYTES) -> bool:
    """Whether the file is larger than that, and than the data twice; not while a rewrite runs or waits.

    :param info: the sections "memory" and "persistence" of INFO; a missing field, as while it loads, means no.
    """
    if any(info.get(f"aof_rewrite_{state}") != "0" for state in ("in_progress", "scheduled")):
        return False
    try:
        file_bytes, data_bytes = int(info["aof_current_size"]), int(info["used_memory_dataset"])
    except (KeyError, ValueError):
        return False
    return file_bytes > max(least_bytes, 2 * data_bytes)


async def rewrite_when_due(ask: Ask, least_bytes: int = _LEAST_BYTES, look_s: float = _LOOK_S) -> None:
    """Look every few seconds until cancelled. After a rewrite that failed, twice as long, up to an hour."""
    pause_s = look_s
    while True:
        await anyio.sleep(pause_s)
        info = _fields(await ask(b"INFO memory persistence", _ANSWER_S))
        has_failed = info.get("aof_last_bgrewrite_status") == "err"
        if not has_failed:
            pause_s = look_s
        if not is_due(info, least_bytes):
            continue
        if has_failed:
            pause_s = min(2 * pause_s, _LONGEST_S)
            log.warning(
                "the embedded valkey could not rewrite its append-only file, which grows; see its log, and whether its "
                "disk and memory have room",
                bytes=info["aof_current_size"], again_in_s=round(pause_s, 2),
            )  # fmt: skip
        await ask(b"BGREWRITEAOF", _ANSWER_S)


def _fields(answer: bytes) -> dict[str, str]:
    lines = answer.decode(errors="replace").splitlines()
    return {name: value for name, separator, value in (line.partition(":") for line in lines) if separator}
