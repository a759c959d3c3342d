"""A visit to a namespace that nobody has open: its background work, once.

Nothing of it is urgent, because all deadlines are data. A visit keeps retention from waiting for the next client.
"""

from __future__ import annotations

from korvet.api.shared.context import Frontend
from korvet.store.background import transaction_sweep
from korvet.store.background.maintenance import compact_all, enforce_retention
from korvet.store.topics import finish_deletions


async def visit(frontend: Frontend) -> None:
    """Finish deletions and transactions, enforce retention, and compact.

    :raises KorvetError: Redis cannot be asked, or something cannot be read; the next visit tries again.
    """
    catalog, log = frontend.catalog, frontend.log
    await catalog.read()
    if not catalog.topics() and not catalog.deleting():
        return
    await finish_deletions(catalog, log)
    await enforce_retention(frontend.namespace, catalog, log)
    await transaction_sweep.sweep(frontend.transactions, await frontend.transactions.shards_in_use())
    await compact_all(frontend.namespace, catalog, log, {})
