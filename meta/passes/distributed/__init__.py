"""Programs of many ranks: parts of arrays, which exchanges become one, and when each runs.

A pass sees one program for all ranks, in which no rank is named. So what it does, it does alike on
all of them, and the order of collectives stays the same everywhere.
"""

from meta.passes.distributed.bucket_collectives import bucket_collectives
from meta.passes.distributed.gather_rows import gather_rows, narrow_gathers
from meta.passes.distributed.schedule_collectives import schedule_collectives

__all__ = [
    "bucket_collectives",
    "gather_rows",
    "narrow_gathers",
    "schedule_collectives",
]
