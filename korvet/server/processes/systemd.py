"""Notices to systemd, for a unit of ``Type=notify``: ready, alive, stopping. Elsewhere they go nowhere.

Source: sd_notify(3). A notice is a datagram to the unix socket that the variable NOTIFY_SOCKET names.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import anyio
import structlog

log = structlog.get_logger()


class Notices:
    """The connection to systemd.

    :param address: the socket; empty for none.
    :param beat_s: the time between two beats; None if systemd expects none.
    """

    def __init__(self, address: str, beat_s: float | None) -> None:
        self.address = address
        self.beat_s = beat_s
        self._is_ready = anyio.Event()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Notices:
        """The settings from systemd in the environment of the unit's main process."""
        address = environment.get("NOTIFY_SOCKET", "")
        watchdog_us = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # Two beats may be late or lost before systemd considers the process hung.
        beat_s = int(watchdog_us) / 3e6 if is_ours and watchdog_us.isdecimal() and int(watchdog_us) else None
        return cls(address if address.startswith(("/", "@")) else "", beat_s)

    def ready(self, status: str) -> None:
        """Report that clients are served; ``status`` is a line for ``systemctl status``."""
        self._send(f"READY=1\nSTATUS={status}")
        self._is_ready.set()

    async def follow(self, stop: anyio.Event) -> None:
        """Send beats until cancelled, and report the stop when ``stop`` is set."""
        async with anyio.create_task_group() as tasks:
            if self.beat_s is not None:
                tasks.start_soon(self._beat, self.beat_s)
            await stop.wait()
            self._send("STOPPING=1")

    async def _beat(self, beat_s: float) -> None:
        # The event loop sends the beats, so a hung loop sends none. Before the process is ready systemd waits for no
        # beats, and they would fill the socket's queue.
        await self._is_ready.wait()
        while True:
            self._send("WATCHDOG=1")
            await anyio.sleep(beat_s)

    def _send(self, notice: str) -> None:
        if not self.address:
            return
        # An at sign stands for the zero byte of an abstract socket.
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(notice.encode(), address)
        except OSError as error:
            log.warning("systemd was not told", notice=notice.partition("\n")[0], reason=error.strerror or str(error))
