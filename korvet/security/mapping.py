"""Rules that derive a principal's name from a certificate's subject. Source: SslPrincipalMapper, KIP-371

RE2 matches the patterns in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from korvet.errors import ConfigError, KorvetError
from korvet.patterns import capturing

DEFAULT_RULES: Final = "DEFAULT"
_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)")
_PARSER: Final = re.compile(_RULE)
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)", re.DOTALL)
_CHANGES: Final[Mapping[str, Callable[[str], str]]] = {"L": str.lower, "U": str.upper, "": lambda name: name}


class NoRule(KorvetError):
    """No rule applies to a subject."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: Any
    replacement: str
    change: Callable[[str], str]

    def apply(self, name: str) -> str | None:
        if not self.pattern.fullmatch(name):
            return None
        return self.change(self.pattern.sub(self._expanded, name))

    def _expanded(self, match: Any) -> str:
        return _REFERENCE.sub(lambda reference: self._part(match, reference), self.replacement)

    def _part(self, match: Any, reference: re.Match[str]) -> str:
        """The character after a backslash, or a group. As in Java, `$12` with two groups is group 1 and the digit 2."""
        if reference[1] is not None:
            return reference[1]
        digits = reference[2]
        for size in range(len(digits), 0, -1):
            if int(digits[:size]) <= self.pattern.groups:
                return (match.group(int(digits[:size])) or "") + digits[size:]
        return reference[0]


class PrincipalRules:
    """The rules of a listener; the first that matches the whole subject applies.

    :raises ConfigError: the text holds an invalid rule.
    """

    def __init__(self, text: str = DEFAULT_RULES) -> None:
        self._rules = [rule for part in _SPLITTER.finditer(text.strip()) for rule in _parsed(part[1])]

    def name(self, subject: str) -> str:
        """The principal's name.

        :raises NoRule: no rule matches.
        """
        for rule in self._rules:
            found = subject if rule is None else rule.apply(subject)
            if found is not None:
                return found
        raise NoRule(f"no rule of principal-rules applies to the certificate's subject {subject!r}")


def _parsed(text: str) -> list[_Rule | None]:
    """The rules of a text, with None for DEFAULT."""
    match = _PARSER.match(text)
    if match is None or match.end() != len(text):
        raise ConfigError(f"principal-rules: {text!r} is no rule; want DEFAULT or RULE:PATTERN/REPLACEMENT/[LU]")
    if match[1]:
        return [None]
    if match[2] is None:
        return []
    change = _CHANGES[match[4]]
    try:
        return [_Rule(capturing(match[2]), match[3], change)]
    except ValueError as error:
        raise ConfigError(f"principal-rules: {match[2]!r} is no regular expression of RE2: {error}") from None
