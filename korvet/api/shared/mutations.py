"""The quota of controller mutations (KIP-599): partitions that a request makes or deletes.

From a version on, clients know THROTTLING_QUOTA_EXCEEDED: once the quota is used up, topics are refused. Older requests
are served as a whole. In both cases the connection is throttled.

Source: ControllerMutationQuotaManager, StrictControllerMutationQuota, PermissiveControllerMutationQuota
"""

from __future__ import annotations

from math import ceil
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.api.shared.context import Context

_MOST_MS: Final = 2**31 - 1
EXCEEDED: Final = (ErrorCode.throttling_quota_exceeded, "The throttling quota has been exceeded.")


class Mutations:
    """The mutations of one request.

    :param strict_since: the first version whose topics may be refused.
    """

    def __init__(self, ctx: Context, strict_since: int) -> None:
        self._meters = ctx.frontend.quotas.meters
        self._limits = () if self._meters is None else self._meters.meter(ctx.principal, ctx.client_id).mutation
        self._is_strict = ctx.version >= strict_since
        self._wait_s = 0.0

    def take(self, partitions: int) -> bool:
        """Count the partitions of one topic; false if the topic is refused. Any number fits while the quota is not
        used up."""
        if self._meters is None or not self._limits:
            return True
        wait_s = self._meters.wait_s(self._limits)
        if wait_s and self._is_strict:
            self._wait_s = max(self._wait_s, wait_s)
            return False
        self._meters.consume(self._limits, partitions)
        if not self._is_strict:
            self._wait_s = max(self._wait_s, self._meters.wait_s(self._limits))
        return True

    @property
    def throttle_ms(self) -> int:
        """The throttle time of the answer; the connection is not read for so long. The field is an int32."""
        return ceil(min(self._wait_s * 1000, _MOST_MS))
