"""The address of Redis: the parts of the user's URL.

- ``redis://[user[:password]@]host[:port][/db]``
- ``rediss://…``, the same over TLS; ``?ca=FILE``, ``?cert=FILE&key=FILE``, ``?verify=no``
- ``unix:///path/to/socket[?db=n]``, with ``unix://user:password@/path`` for a password
- ``redis+sentinel://host[:port][,host[:port]…]/service[/db]``, ``rediss+sentinel://…``: the primary that Sentinel
  names; ``?sentinel_user=…&sentinel_password=…`` if the sentinels need another login than Redis
- ``redis+cluster://host[:port][,host[:port]…]``, ``rediss+cluster://…``: a cluster, by any of its nodes
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from korvet.errors import ConfigError
from korvet.redis.password_file import read_password_file

Kind = Literal["single", "sentinel", "cluster"]
_SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "unix": ("single", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_OPTIONS = {"ca", "cert", "key", "verify", "db", "sentinel_user", "sentinel_password"}
_REDIS_PORT, _SENTINEL_PORT = 6379, 26379


class Address(NamedTuple):
    """One server: a host and a port, or the path of a unix socket (then ``port`` is 0)."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisUrl:
    """A parsed URL; ``str()`` hides the password. ``addresses`` are the server, the sentinels or some cluster nodes."""

    kind: Kind
    addresses: tuple[Address, ...]
    service: str = ""
    db: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    """Read at each login instead of ``password``, so that a new password applies at the next login."""
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    tls_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The settings of ``tls`` as redis-py's arguments, for redis-py takes no context; empty without TLS."""
    sentinel_user: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    shown: str = ""

    def __str__(self) -> str:
        return self.shown

    @property
    def login(self) -> tuple[str, ...]:
        """The arguments of AUTH; empty if the URL has no password.

        :raises StoreError: the file with the password cannot be read.
        """
        password = self.password if self.password_file is None else read_password_file(self.password_file)
        if password is None:
            return ()
        return (password,) if self.user is None else (self.user, password)

    def of_user(self, user: str, password_file: Path) -> RedisUrl:
        """This URL for another user, with the password in a file."""
        return replace(self, user=user, password=None, password_file=password_file, shown=f"{self.shown} as {user}")


def parse_redis_url(url: str) -> RedisUrl:
    """Parse a URL.

    :raises ConfigError: the URL has none of the forms above.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"Redis URL: {str(error).lower()}") from None
    if "://" not in url:
        raise ConfigError("Redis URL: it has no scheme; want, for example, redis://127.0.0.1:6379")
    if parts.scheme not in _SCHEMES:
        raise ConfigError(f"Redis URL {_shown(parts)!r}: the scheme is one of {', '.join(sorted(_SCHEMES))}")
    kind, secure = _SCHEMES[parts.scheme]
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise ConfigError(f"Redis URL: unknown option {sorted(unknown)[0]!r}; there are {', '.join(sorted(_OPTIONS))}")
    addresses, service, db = _place(parts, kind, hosts, options)
    return RedisUrl(
        kind=kind,
        addresses=addresses,
        service=service,
        db=db,
        user=unquote(user) or None,
        password=unquote(password) if ":" in login else None,
        tls=_tls(options) if secure else None,
        tls_options=_tls_options(options) if secure else {},
        sentinel_user=options.get("sentinel_user"),
        sentinel_password=options.get("sentinel_password"),
        shown=_shown(parts),
    )


def _place(parts: SplitResult, kind: Kind, hosts: str, options: dict[str, str]) -> tuple[tuple[Address, ...], str, int]:
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise ConfigError("Redis URL: unix:// needs the path of a socket, as in unix:///run/redis.sock")
        return (Address(unquote(parts.path), 0),), "", _database(options.get("db", "0"))
    path = [unquote(part) for part in parts.path.split("/") if part]
    default_port = _SENTINEL_PORT if kind == "sentinel" else _REDIS_PORT
    addresses = tuple(_address(host, default_port) for host in hosts.split(",")) if hosts else ()
    if kind == "single":
        addresses = addresses or (Address("127.0.0.1", _REDIS_PORT),)
        if len(addresses) > 1:
            raise ConfigError("Redis URL: several hosts need redis+sentinel:// or redis+cluster://")
    if not addresses:
        raise ConfigError(f"Redis URL: {parts.scheme}:// needs at least one host")
    service = ""
    if kind == "sentinel":
        if not path:
            raise ConfigError("Redis URL: redis+sentinel:// needs the name of the service, as in …/mymaster")
        service = path.pop(0)
    db = _database(path[0] if path else options.get("db", "0"))
    if kind == "cluster" and db:
        raise ConfigError("Redis URL: a cluster has database 0 only")
    return addresses, service, db


def _address(text: str, default_port: int) -> Address:
    try:
        parsed = urlsplit(f"//{text}")
        port = default_port if parsed.port is None else parsed.port
    except ValueError:
        raise ConfigError(f"Redis URL: {text!r} is no host and port") from None
    if not parsed.hostname:
        raise ConfigError(f"Redis URL: {text!r} has no host")
    return Address(parsed.hostname, port)


def _database(text: str) -> int:
    if not text.isdigit():
        raise ConfigError(f"Redis URL: database {text!r} is not a number")
    return int(text)


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"))
    except OSError as error:
        raise ConfigError(f"Redis URL: TLS files cannot be used: {error}") from None
    if options.get("verify", "yes") == "no":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _tls_options(options: dict[str, str]) -> dict[str, Any]:
    is_verified = options.get("verify", "yes") != "no"
    return {
        "ssl": True,
        "ssl_ca_certs": options.get("ca"),
        "ssl_certfile": options.get("cert"),
        "ssl_keyfile": options.get("key"),
        "ssl_cert_reqs": "required" if is_verified else "none",
        "ssl_check_hostname": is_verified,
    }


def _shown(parts: SplitResult) -> str:
    """The URL as a user may see it in a log: no password, no options."""
    login, at, hosts = parts.netloc.rpartition("@")
    user = login.partition(":")[0]
    return f"{parts.scheme}://{user + at if user else ''}{hosts}{parts.path}"
