"""AlterConfigs (33), versions 0 to 2: replace all that is set for a resource. What the request leaves out is dropped.

Deprecated in Kafka for that reason; kept because older tools use it.

Source: kafka.server.ConfigAdminManager.preprocess, ConfigurationControlManager.legacyAlterConfigs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from korvet.api import api
from korvet.api.config_resources import Known, alter
from korvet.api.context import Context
from korvet.store.catalog import ConfigChange
from korvet.wire.codec import Fields


@api(33, 0, 2)
async def handle(ctx: Context, request: Any) -> Fields:
    return await alter(ctx, request, _replacement)


def _replacement(resource: Any, _current: Mapping[str, str], _known: Known) -> ConfigChange:
    return ConfigChange(set={config.name: config.value for config in resource.configs}, replace=True)
