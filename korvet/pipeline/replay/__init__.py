"""Lake to topic: the rows of a raw table become records again, each exactly once.

A partition of the table is a task of Spark, and a task is a transactional producer. Each of its transactions holds
records and, in the group of the replay, the offset in the source just past them. So a replay that was killed anywhere
goes on after the last committed transaction. There is no other state to lose.

This module needs no Spark: `korvet.cli.replay`, which copies the segments of a tier, has the same configuration.
"""

from korvet.pipeline.replay.config import ReplayConfig as ReplayConfig
from korvet.pipeline.replay.config import ReplayProgress as ReplayProgress
from korvet.pipeline.replay.config import ReplayResult as ReplayResult
