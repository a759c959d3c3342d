"""A dashboard as Grafana imports it: rows of panels, two or three beside each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_COLUMNS: Final = 24
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class Panel:
    """A panel: queries with their legends. ``unit`` is one of Grafana's. A stat shows the last values as numbers."""

    def __init__(
        self, title: str, *queries: tuple[str, str], unit: str = "short", text: str = "", is_stat: bool = False
    ) -> None:
        self.title = title
        self.queries = queries
        self.unit = unit
        self.text = text
        self.is_stat = is_stat


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A dashboard; ``variables`` are the queries of its variables, by name."""

    name: str
    title: str
    rows: Sequence[Sequence[Panel]]
    variables: Mapping[str, str]

    def json(self) -> str:
        """The file's text."""
        panels: list[dict[str, Any]] = []
        for row, line in enumerate(self.rows):
            width = _COLUMNS // len(line)
            for column, panel in enumerate(line):
                place = {"x": column * width, "y": row * _HEIGHT, "w": width, "h": _HEIGHT}
                panels.append(_panel(len(panels) + 1, panel, place))
        dashboard = {
            "uid": f"korvet-{self.name}",
            "title": self.title,
            "tags": ["korvet"],
            "schemaVersion": 39,
            "editable": True,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": [_data_source(), *(_variable(*one) for one in self.variables.items())]},
            "panels": panels,
        }
        return json.dumps(dashboard, indent=2) + "\n"


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panel(number: int, panel: Panel, place: Mapping[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
        for at, (expression, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }
