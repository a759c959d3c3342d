"""AlterConfigs (33), versions 0 to 2: replace all configs of a resource. It drops configs that the request leaves out.

Kafka deprecates it for that reason; korvet serves it because older tools use it.

Source: kafka.server.ConfigAdminManager.preprocess, ConfigurationControlManager.legacyAlterConfigs.
"""

from __future__ import annotations

from collections.abc import Mapping

from korvet.api import api
from korvet.api.shared.config_resources import Known, alter, config_needs, refused_change
from korvet.api.shared.context import Context
from korvet.security.acl import Operation
from korvet.store.catalog.settings import ConfigChange
from korvet.wire import requests
from korvet.wire.writer import Fields


@api(33, 0, 2, needs=config_needs(Operation.ALTER_CONFIGS, "responses", refused_change))
async def handle(ctx: Context, request: requests.AlterConfigsRequest) -> Fields:
    return await alter(ctx, request, _replacement)


def _replacement(resource: requests.AlterConfigsResource, _current: Mapping[str, str], _known: Known) -> ConfigChange:
    return ConfigChange(set={config.name: config.value or "" for config in resource.configs}, replace=True)
