"""Host names that tell a namespace: what fits a pattern, and which patterns can be read in one way alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.errors import ConfigError
from korvet.server.ground.host_pattern import HostName, HostPattern

WITH_NODE = HostPattern("b{node}-{namespace}.kafka.example")
names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True)


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("b1-acme.kafka.example", HostName("acme", 1)),
        ("B12-ACME.Kafka.Example", HostName("acme", 12)),
        ("b0-b1-acme.kafka.example", HostName("b1-acme", 0)),
        ("acme.kafka.example", None),
        ("b-acme.kafka.example", None),
        ("b1-.kafka.example", None),
        ("b1-acme-.kafka.example", None),
        ("b1-a.b.kafka.example", None),
        ("b1-acme.kafka.example.evil", None),
        ("b1-acme.kafkaxexample", None),
        ("b1-acme.kafka.example.", None),
        ("b1-acme.kafka.example\n", None),
        ("b1-a}.kafka.example", None),
        ("b1-a:b.kafka.example", None),
        ("b1-%7b.kafka.example", None),
        ("b1-*.kafka.example", None),
        ("b1-" + "a" * 300 + ".kafka.example", None),
        ("b1-äcme.kafka.example", None),
        ("", None),
        (None, None),
    ],
)
def test_host_name_means_a_namespace_and_a_node_or_nothing(host: str | None, found: HostName | None) -> None:
    assert WITH_NODE.read(host) == found


@pytest.mark.parametrize("pattern", ["b{node}-{namespace}.x", "{namespace}-{node}.x", "{namespace}.x", "x-{namespace}"])
@given(namespace=names, node=st.integers(0, 999_999_999))
def test_host_name_of_a_namespace_means_that_namespace(pattern: str, namespace: str, node: int) -> None:
    made = HostPattern(pattern)
    assert made.read(made.host(namespace, node)) == HostName(namespace, node if made.has_node else None)


@pytest.mark.parametrize(
    "pattern",
    ["kafka.example", "{namespace}{node}.x", "{node}{namespace}.x", "{namespace}.{namespace}", "{node}.{namespace}.x",
     "{node}-{node}-{namespace}", "{namespace}-{client}.x", "{namespace}_x", "{namespace", "{namespace}:x"],
)  # fmt: skip
def test_pattern_that_could_be_misread_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="host name"):
        HostPattern(pattern)
