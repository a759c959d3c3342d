"""Times for records that a topic's default retention, a week, keeps during a test."""

from datetime import UTC, datetime, time, timedelta

_DATE = datetime.now(UTC).date() - timedelta(days=2)
DAY = _DATE.isoformat()
"""A recent day."""
MIDNIGHT_MS = int(datetime.combine(_DATE, time(), UTC).timestamp() * 1000)
"""Its first millisecond, in UTC."""
HOUR_MS = 3_600_000
