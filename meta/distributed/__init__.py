"""Floor 6: programs on many devices, by collectives that are operators (`meta.op.collective`).

`init` makes this process one of many, started by ``torchrun``, with a `Mesh` of named axes.
`simulate` runs all ranks of a mesh in one process on the CPU, with the same programs. In both,
`rank` and `size` say where one is, and the functions of this package call the collectives with the
number of ranks of the mesh.
"""

from typing import Any

from meta.base.did_you_mean import unknown_attribute
from meta.distributed.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    axis_index,
    broadcast,
    copy_to,
    gather,
    gather_from,
    rank,
    reduce,
    reduce_from,
    reduce_scatter,
    scatter,
    scatter_to,
    send_recv,
    size,
    unshard,
)
from meta.distributed.launch import end, init
from meta.distributed.measure_links import measure_links
from meta.distributed.process_mesh import Mesh
from meta.distributed.simulated_mesh import planned, simulate
from meta.distributed.tensor_parallel import (
    explain_tensor_parallel,
    tensor_parallel,
    tensor_parallel_plan,
)

__all__ = [
    "Mesh",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "axis_index",
    "broadcast",
    "copy_to",
    "end",
    "explain_tensor_parallel",
    "gather",
    "gather_from",
    "init",
    "measure_links",
    "planned",
    "rank",
    "reduce",
    "reduce_from",
    "reduce_scatter",
    "scatter",
    "scatter_to",
    "send_recv",
    "simulate",
    "size",
    "tensor_parallel",
    "tensor_parallel_plan",
    "unshard",
]


def __getattr__(name: str) -> Any:
    raise unknown_attribute("meta.distributed", name, __all__)
