"""Floor 4: what a program will cost, told before it runs: operations, memory and time.

Beside the passes, whose plans it reads. An analysis takes a module and returns a report that prints
as a table and has ``records()`` of plain values.
"""

from meta.analysis.kernels import CostReport, FlopsReport, cost, flops
from meta.analysis.memory import MemoryReport, memory
from meta.analysis.scaling import ScalingReport, scaling

__all__ = [
    "CostReport",
    "FlopsReport",
    "MemoryReport",
    "ScalingReport",
    "cost",
    "flops",
    "memory",
    "scaling",
]
