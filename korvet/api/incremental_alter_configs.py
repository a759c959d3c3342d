"""IncrementalAlterConfigs (44), versions 0 and 1: set, delete, append to and subtract from single configs (KIP-339).

Source: ConfigurationControlManager.incrementalAlterConfigResource.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import IntEnum

from kio.schema.errors import ErrorCode

from korvet.api import api
from korvet.api.shared.config_resources import Known, Outcome, alter, config_needs, refused_change
from korvet.api.shared.context import Context
from korvet.configs.types import Kind
from korvet.security import acl
from korvet.store.catalog.settings import ConfigChange
from korvet.wire import requests
from korvet.wire.writer import Fields


class Operation(IntEnum):
    """The change to a config (org.apache.kafka.clients.admin.AlterConfigOp.OpType)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS = frozenset(Operation)


@api(44, 0, 1, needs=config_needs(acl.Operation.ALTER_CONFIGS, "responses", refused_change))
async def handle(ctx: Context, request: requests.IncrementalAlterConfigsRequest) -> Fields:
    return await alter(ctx, request, _change)


def _change(
    resource: requests.AlterConfigsResource, current: Mapping[str, str], known: Known
) -> ConfigChange | Outcome:
    new: dict[str, str] = {}
    dropped: list[str] = []
    for config in resource.configs:
        if config.config_operation not in _OPERATIONS:
            return ErrorCode.invalid_request, f"Unknown operations type {config.config_operation}"
        operation = Operation(config.config_operation)
        if operation is Operation.DELETE:
            dropped.append(config.name)
        elif operation is Operation.SET:
            new[config.name] = config.value or ""
        else:
            definition = known.get(config.name)
            if definition is None or definition.kind is not Kind.LIST:
                return ErrorCode.invalid_config, (
                    f"Can't {operation.name} to key {config.name} because its type is not LIST."
                )
            now = _parts(current.get(config.name, definition.default or ""))
            new[config.name] = ",".join(_edited(now, _parts(config.value or ""), operation))
    return ConfigChange(set=new, delete=dropped)


def _parts(text: str) -> list[str]:
    """The elements as they were typed: Kafka's controller edits them, and ` delete` is not `delete` there."""
    return [part for part in text.split(",") if part]


def _edited(elements: list[str], named: list[str], operation: Operation) -> list[str]:
    if operation is Operation.APPEND:
        return [*elements, *(element for element in dict.fromkeys(named) if element not in elements)]
    left = Counter(named)
    # As by Java's List.remove, each name removes its first element alone.
    return [element for element in elements if not _took(left, element)]


def _took(left: Counter[str], element: str) -> bool:
    left[element] -= 1
    return left[element] >= 0
