"""The lake: the directories of a topic's Delta tables, and the proofs in their logs."""

from korvet.pipeline.lake.layout import ARCHIVED as ARCHIVED
from korvet.pipeline.lake.layout import RAW_COLUMNS as RAW_COLUMNS
from korvet.pipeline.lake.proofs import read_proven as read_proven
from korvet.pipeline.plan.layout import Lake as Lake
