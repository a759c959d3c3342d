"""The repair of the embedded server's append-only files: they are cut where the first damage begins.

Valkey starts with a file whose end is missing, but not with one whose bytes are wrong. Valkey's own tool does the same,
but no package that korvet needs contains it, and it does not report what is lost. The base file is a snapshot that
cannot be cut. The later files hold commands in Redis's protocol; a transaction is kept as a whole or not at all. A
command's values have no checksum, so a wrong byte in them is not noticed here, as it is not by Valkey.

Source: redis-check-aof.c, aof.c
"""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from korvet.errors import KorvetError
from korvet.server.processes.append_only_file import DIRECTORY

_MANIFEST = "appendonly.aof.manifest"
_START_S = 10.0
_SLOWEST_BYTES_PER_S = 10 << 20
"""The slowest disk from which a snapshot is checked."""
_LONGEST_LINE = 64
_MOST_ARGUMENTS = 1 << 20
_APPENDED = re.compile(rb"\r\nXADD\r\n\$\d+\r\n(korvet:\{[^{}\r]+\}:log)\r\n\$\d+\r\n(\d+)-\d+\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A partition that loses records: the offset up to which it keeps them, if known, and its former end."""

    log: str
    kept: int | None
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """The first damage: the bytes of its file that can be kept, and the later files, which cannot."""

    file: Path
    kept_bytes: int
    later: Sequence[Path]
    lost: Sequence[Lost]

    @property
    def lost_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.file, *self.later)) - self.kept_bytes


def find_damage(data_dir: Path, binary: Path) -> Damage | None:
    """The first damage in a data directory that no server uses; None if there is none.

    :param binary: Valkey's server.
    :raises KorvetError: the files are missing, or the damage is in a file that cannot be cut.
    """
    base, files = _files(data_dir / DIRECTORY)
    if base is not None:
        _check_base(base, binary)
    known = _commands(binary)
    ends: dict[bytes, int] = {}
    for number, path in enumerate(files):
        with _mapped(path) as data:
            kept_bytes = _good_bytes(data, known, ends)
            if kept_bytes == len(data):
                continue
        later = files[number + 1 :]
        return Damage(file=path, kept_bytes=kept_bytes, later=later, lost=_lost(path, kept_bytes, later, ends))
    return None


def cut(damage: Damage) -> Path:
    """Cut the damage off, and return the file with the cut bytes. It may be repeated after a crash.

    :raises OSError: the disk is full, or a file cannot be written.
    """
    rest = damage.file.parent.parent / f"cut-{time.strftime('%Y%m%d-%H%M%S')}-{damage.file.name}"
    with open(os.open(rest, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as saved:
        for path in (damage.file, *damage.later):
            with open(path, "rb") as file:
                file.seek(damage.kept_bytes if path is damage.file else 0)
                while part := file.read(1 << 20):
                    saved.write(part)
        saved.flush()
        os.fsync(saved.fileno())
    # From the end, so that a crash leaves no gap.
    for path in reversed(damage.later):
        _truncate(path, 0)
    _truncate(damage.file, damage.kept_bytes)
    return rest


def _truncate(path: Path, size_bytes: int) -> None:
    with open(path, "r+b") as file:
        file.truncate(size_bytes)


# ---------------------------------------------------------------------- the files


def _files(directory: Path) -> tuple[Path | None, list[Path]]:
    """The snapshot, and the files of commands in their order, as the manifest names them."""
    try:
        lines = (directory / _MANIFEST).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KorvetError(f"{directory / _MANIFEST} cannot be read: {error}") from None
    base, files = None, []
    for line in filter(None, lines):
        words = line.split()
        named = dict(zip(words[::2], words[1::2], strict=False))
        name, kind = named.get("file", ""), named.get("type", "")
        if "/" in name or kind not in ("b", "h", "i") or not (directory / name).is_file():
            raise KorvetError(f"{directory / _MANIFEST} names no file of this directory in its line {line!r}")
        if kind == "b" and name.endswith(".rdb"):
            base = directory / name
        elif kind != "h":
            files.append(directory / name)
    return base, files


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    with open(path, "rb") as file:
        if path.stat().st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _check_base(base: Path, binary: Path) -> None:
    # Called by another name, Valkey's server is one of its checking tools.
    command, within_s = ["valkey-check-rdb", str(base)], _START_S + base.stat().st_size / _SLOWEST_BYTES_PER_S
    try:
        checked = subprocess.run(command, executable=binary, capture_output=True, check=False, timeout=within_s)
    except subprocess.TimeoutExpired:
        raise KorvetError(
            f"the check of {base} took longer than {within_s:.0f} s; see whether the disk is healthy, and try again"
        ) from None
    if checked.returncode != 0:
        raise KorvetError(
            f"{base} is damaged. It is a snapshot and cannot be cut: restore a backup of the data directory"
        )


def _commands(binary: Path) -> frozenset[bytes]:
    """The commands that the server knows. It does not start with a file that holds another command."""
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        socket = Path(name) / "s"
        arguments = ["--port", "0", "--unixsocket", str(socket), "--dir", name, "--save", "", "--logfile", "log"]
        with subprocess.Popen([binary, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                deadline = time.monotonic() + _START_S
                while not socket.exists() and server.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.01)
                with redis.Redis(unix_socket_path=str(socket), socket_timeout=_START_S) as client:
                    names: list[bytes] = client.execute_command("COMMAND LIST")
            except redis.RedisError as error:
                raise KorvetError(f"{binary} does not start: {error}") from None
            finally:
                server.kill()
    return frozenset(name.upper() for name in names)


# ---------------------------------------------------------------------- their commands


def _good_bytes(data: mmap.mmap | bytes, known: frozenset[bytes], ends: dict[bytes, int]) -> int:
    """The bytes up to the end of the last good command. Stores the ends of logs in ``ends``.

    If a word follows a command, that command is damaged: it had more words.
    """
    at = good = before = 0
    is_open = False
    noted: dict[bytes, int] = {}
    """The ends of logs since ``before``."""
    try:
        while at < len(data):
            if data[at : at + 1] == b"#":
                _, at = _line(data, at, b"#")
            elif data[at : at + 1] == b"$":
                return before
            else:
                words, at = _command(data, at)
                name = words[0].upper()
                if name not in known:
                    break
                if not is_open:
                    before = good
                    ends |= noted
                    noted.clear()
                if name == b"XADD" and len(words) > 2 and words[1].endswith(b":log"):
                    noted[words[1]] = int(words[2].partition(b"-")[0])
                is_open = name == b"MULTI" or (is_open and name != b"EXEC")
            if not is_open:
                good = at
    except ValueError:
        pass
    if not is_open:
        ends |= noted
    return good


def _line(data: mmap.mmap | bytes, at: int, kind: bytes) -> tuple[bytes, int]:
    """The text of a line that begins with a character, and the index after it.

    :raises ValueError: there is no such line.
    """
    end = data.find(b"\r\n", at, at + _LONGEST_LINE)
    if end < 0 or data[at : at + 1] != kind:
        raise ValueError(f"no line at {at}")
    return data[at + 1 : end], end + 2


def _command(data: mmap.mmap | bytes, at: int) -> tuple[list[bytes], int]:
    """The first three words of a command, and the index after it.

    :raises ValueError: it is not whole.
    """
    text, at = _line(data, at, b"*")
    words: list[bytes] = []
    if not 0 < (count := int(text)) <= _MOST_ARGUMENTS:
        raise ValueError(f"{count} words")
    for _ in range(count):
        text, at = _line(data, at, b"$")
        end = at + int(text)
        if end < at or data[end : end + 2] != b"\r\n":
            raise ValueError(f"a word of {text!r} bytes")
        if len(words) < 3:
            words.append(data[at:end])
        at = end + 2
    return words, at


def _lost(path: Path, kept_bytes: int, later: Sequence[Path], ends: dict[bytes, int]) -> list[Lost]:
    """The partitions with records in the cut bytes, as far as their appends can still be read."""
    found: dict[bytes, int] = {}
    for one in (path, *later):
        with _mapped(one) as data:
            for match in _APPENDED.finditer(data, kept_bytes if one is path else 0):
                log, end = match[1], int(match[2])
                found[log] = max(end, found.get(log, 0))
    return [Lost(log=log.decode(errors="replace"), kept=ends.get(log), end=end) for log, end in sorted(found.items())]
