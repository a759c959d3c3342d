"""A password of Redis in a file, which is read at each login."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from korvet.errors import StoreError

NO_PASSWORD: Final = "the password cannot be read: "
"""How the error begins."""
_MOST_BYTES: Final = 4096


def read_password_file(path: Path) -> str:
    """The password: the text of a file, without the end of its line.

    :raises StoreError: the file cannot be read, is no regular one, is empty, or has more than 4 KiB.
    """
    try:
        # A pipe would hold up the loop.
        if not stat.S_ISREG(path.stat().st_mode):
            raise StoreError(f"{NO_PASSWORD}{path} is no regular file")
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        password = text.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise StoreError(f"{NO_PASSWORD}{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StoreError(f"{NO_PASSWORD}{path} is not UTF-8") from None
    if not password or len(text) > _MOST_BYTES:
        raise StoreError(f"{NO_PASSWORD}{path} has no password of at most {_MOST_BYTES} bytes")
    return password


def others_may_read(path: Path) -> bool:
    """Whether the operating system lets every user of the machine read a file; false if there is none."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & stat.S_IROTH)
