"""Asks a broker's HTTP port as Prometheus and orchestrators do."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping

from prometheus_client.parser import text_string_to_metric_families

WITHIN_S = 60.0

Figures = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by their name and labels."""


def ask(port: int, path: str, method: str = "GET", accept: str = "") -> tuple[int, str]:
    """The status and the body of an answer."""
    status, body, _ = ask_with_type(port, path, method, accept)
    return status, body


def ask_with_type(port: int, path: str, method: str = "GET", accept: str = "") -> tuple[int, str, str]:
    """The status, the body, and the content type of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
    try:
        connection.request(method, path, headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers["content-type"] or ""
    finally:
        connection.close()


def scrape(port: int) -> Figures:
    """All figures of a broker."""
    status, text = ask(port, "/metrics")
    assert status == 200, text
    families = text_string_to_metric_families(text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def total(figures: Figures, name: str, **labels: str) -> float:
    """The sum of all values of a name that have some labels."""
    return sum(
        value for (found, own), value in figures.items() if found == name and labels.items() <= dict(own).items()
    )


def scrape_until(port: int, condition: Callable[[Figures], bool], what: str) -> Figures:
    """Scrape until a condition holds.

    :raises AssertionError: it does not within a minute.
    """
    deadline = time.monotonic() + WITHIN_S
    while True:
        figures = scrape(port)
        if condition(figures):
            return figures
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
