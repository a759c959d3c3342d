"""Brokers over the wire: their settings."""

from __future__ import annotations

from kio.schema.describe_configs.v4 import DescribeConfigsRequest, DescribeConfigsResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsResource
from kio.static.primitive import i8

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.errors import check
from korvet.cli.kafka.topics import CONFIG_SOURCES, Setting
from korvet.errors import KorvetError

_BROKER = i8(4)


def broker_settings(client: Client, node: int) -> list[Setting]:
    """Every setting of a broker, by name, as it tells itself. Secret ones have no value.

    :raises KorvetError: if there is no such broker.
    :raises BrokerError: with CLUSTER_AUTHORIZATION_FAILED, …
    """
    if node not in client.brokers():
        raise KorvetError(f"no broker {node}")
    resource = DescribeConfigsResource(resource_type=_BROKER, resource_name=str(node), configuration_keys=None)
    request = DescribeConfigsRequest(resources=(resource,), include_synonyms=False)
    (found,) = client.ask(request, DescribeConfigsResponse, node).results
    check(found.error_code, f"broker {node}", found.error_message)
    return [
        Setting(name=item.name, value=item.value, source=CONFIG_SOURCES.get(item.config_source, "unknown"))
        for item in sorted(found.configs, key=lambda item: item.name)
    ]
