"""Host names that contain a namespace: ``b{node}-{namespace}.kafka.example``.

One label holds both, because a wildcard certificate covers one label. A node is a number, so a name is unambiguous.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from korvet.errors import ConfigError

NAMESPACE: Final = "{namespace}"
NODE: Final = "{node}"
_LONGEST: Final = 253
_PARTS: Final = re.compile(r"(\{[^}]*\})")
_PLAIN: Final = re.compile(r"[a-z0-9.-]*")
_PATTERNS: Final = {NAMESPACE: r"(?P<namespace>[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)", NODE: r"(?P<node>[0-9]{1,9})"}


class HostName(NamedTuple):
    """The namespace and the node in a host name; ``node`` is None if its pattern has none."""

    namespace: str
    node: int | None


class HostPattern:
    """A pattern of host names.

    :raises ConfigError: the text is no such pattern.
    """

    def __init__(self, text: str) -> None:
        self.text = text.lower()
        parts = _PARTS.split(self.text)
        label = next((one for one in self.text.split(".") if NAMESPACE in one), "")
        wrong = [part for part in parts if part not in _PATTERNS and not _PLAIN.fullmatch(part)]
        if wrong:
            raise ConfigError(f"host name {text!r}: {wrong[0]!r} is not allowed; want letters, digits, '.' and '-'")
        if self.text.count(NAMESPACE) != 1 or self.text.count(NODE) > 1:
            raise ConfigError(f"host name {text!r}: want {NAMESPACE} once, and {NODE} at most once")
        if NODE in self.text and NODE not in label:
            raise ConfigError(f"host name {text!r}: want {NODE} and {NAMESPACE} between the same dots")
        if NODE + NAMESPACE in self.text or NAMESPACE + NODE in self.text:
            raise ConfigError(f"host name {text!r}: want a '-' between {NODE} and {NAMESPACE}")
        self.has_node = NODE in self.text
        self._matches = re.compile("".join(_PATTERNS.get(part) or re.escape(part) for part in parts)).fullmatch

    def read(self, host: str | None) -> HostName | None:
        """The namespace and the node in a host name, in upper or lower case; None if it does not match."""
        if host is None or len(host) > _LONGEST:
            return None
        found = self._matches(host.lower())
        if found is None:
            return None
        return HostName(found["namespace"], int(found["node"]) if self.has_node else None)

    def host(self, namespace: str, node: int) -> str:
        """The host name of a node of a namespace."""
        return self.text.replace(NAMESPACE, namespace).replace(NODE, str(node))
