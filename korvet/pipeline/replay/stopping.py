"""How the driver tells its tasks to stop: by a number that a group of its own has committed, and that only grows.

A task asks for it now and then, as it asks for positions; Spark has no way to tell a running task anything but to kill
it, which would leave a transaction open.
"""

from __future__ import annotations

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.replay.positions import GROUP_PREFIX


def stops(broker: Broker, name: str) -> int:
    """How often the replay was told to stop.

    :raises PipelineError:
    """
    return max((place.offset for place in broker.committed(_group(name)).values()), default=0)


def stop(broker: Broker, name: str, topic: str) -> bool:
    """Tell all tasks of the replay to end after their transactions; whether the broker took it."""
    try:
        broker.commit(_group(name), {(topic, 0): Position(offset=stops(broker, name) + 1, leader_epoch=None)})
    except PipelineError:
        return False
    return True


def _group(name: str) -> str:
    return f"{GROUP_PREFIX}{name}.stop"
