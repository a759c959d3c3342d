"""Quotas over the wire: AlterClientQuotas and DescribeClientQuotas."""

from __future__ import annotations

from collections.abc import Mapping

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.errors import BrokerError, check
from korvet.cli.kafka.framing import request
from korvet.quotas.entity import Entity, entity_of


class KafkaQuotas:
    """The quotas of the namespace that a listener serves.

    :raises BrokerError: every method, if the broker refuses.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def alter(self, entity: Entity, quotas: Mapping[str, float | None]) -> None:
        """Set quotas of an entity; None removes one. All or none of them change."""
        entry = {
            "entity": [{"entity_type": kind, "entity_name": name or None} for kind, name in entity.parts],
            "ops": [{"key": key, "value": number or 0.0, "remove": number is None} for key, number in quotas.items()],
        }
        answer = self._client.ask_controller(request("alter_client_quotas", 1, entries=[entry]))
        for result in answer.entries:
            check(result.error_code, "quotas", result.error_message)

    def find(self) -> dict[Entity, dict[str, float]]:
        """All quotas by entity."""
        answer = self._client.ask(request("describe_client_quotas", 1, components=()))
        check(answer.error_code, "quotas", answer.error_message)
        found: dict[Entity, dict[str, float]] = {}
        for entry in answer.entries or ():
            entity = entity_of({part.entity_type: part.entity_name for part in entry.entity})
            if isinstance(entity, str):
                raise BrokerError(f"the broker has quotas of an entity that this korvet does not know: {entity}")
            found[entity] = {value.key: float(value.value) for value in entry.values}
        return found
