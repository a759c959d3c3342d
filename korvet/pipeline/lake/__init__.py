"""The lake: where a topic's Delta tables lie, and what their logs prove."""

from korvet.pipeline.lake.layout import RAW_COLUMNS as RAW_COLUMNS
from korvet.pipeline.lake.layout import Lake as Lake
from korvet.pipeline.lake.proofs import Proven as Proven
from korvet.pipeline.lake.proofs import read_proven as read_proven
