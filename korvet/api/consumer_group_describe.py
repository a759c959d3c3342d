"""ConsumerGroupDescribe (key 69), versions 0 and 1: groups of the consumer protocol (KIP-848).

- 1: the protocol that each member speaks

Source: KafkaApis.handleConsumerGroupDescribe, ConsumerGroup.asDescribedGroup
"""

from __future__ import annotations

from functools import partial

from korvet.api import Answer, api
from korvet.api.shared.context import Context, Frontend
from korvet.api.shared.group_descriptions import assigned_topics, check, described
from korvet.store.groups.consumer_types import ConsumerDescription
from korvet.store.groups.replies import CONSUMER
from korvet.wire import requests
from korvet.wire.writer import Fields


@api(69, 0, 1, needs=check)
async def handle(ctx: Context, request: requests.ConsumerGroupDescribeRequest) -> Answer:
    """Epochs and members of each group, with their assignments and targets."""
    return await described(ctx, request, CONSUMER, partial(_shown, ctx.frontend))


def _shown(frontend: Frontend, group: ConsumerDescription) -> tuple[str, list[Fields]]:
    members: list[Fields] = [
        {
            "instance_id": member.instance_id,
            "subscribed_topic_regex": member.regex,
            "target_assignment": assigned_topics(frontend.catalog, member.target),
            "member_type": 0 if member.is_classic else 1,
        }
        for member in group.members
    ]
    return frontend.groups.consumers.assignor_of(member.assignor for member in group.members), members
