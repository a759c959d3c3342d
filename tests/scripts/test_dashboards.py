"""Grafana's own classes know the dashboards."""

from __future__ import annotations

import json

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from scripts.generated.dashboards.boards import DASHBOARDS


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafanas_own_classes_know_every_field(name: str) -> None:
    register_default_plugins()
    told = json.loads(DASHBOARDS[name].json())
    read = json.loads(json.dumps(Dashboard.from_json(told), cls=JSONEncoder))
    assert lost(told, read, name) == []


def lost(told: object, read: object, place: str) -> list[str]:
    """The places in a JSON value that another one lacks, or has otherwise."""
    if isinstance(told, dict) and isinstance(read, dict):
        return [at for key in told for at in lost(told[key], read.get(key), f"{place}.{key}")]
    if isinstance(told, list) and isinstance(read, list) and len(told) == len(read):
        return [at for number, (one, other) in enumerate(zip(told, read, strict=True))
                for at in lost(one, other, f"{place}[{number}]")]  # fmt: skip
    return [] if told == read else [place]


def test_lost_fields_are_found() -> None:
    assert lost({"a": [{"b": 1}], "c": 2}, {"a": [{}], "c": 2}, "x") == ["x.a[0].b"]
