"""Floor 6: programs on many devices, by collectives that are operators (`meta.op.collective`).

Written by `python -m tools.stubs`.
"""

from meta.distributed.collectives import all_gather as all_gather
from meta.distributed.collectives import all_reduce as all_reduce
from meta.distributed.collectives import all_to_all as all_to_all
from meta.distributed.collectives import axis_index as axis_index
from meta.distributed.collectives import broadcast as broadcast
from meta.distributed.collectives import copy_to as copy_to
from meta.distributed.collectives import gather as gather
from meta.distributed.collectives import gather_from as gather_from
from meta.distributed.collectives import rank as rank
from meta.distributed.collectives import reduce as reduce
from meta.distributed.collectives import reduce_from as reduce_from
from meta.distributed.collectives import reduce_scatter as reduce_scatter
from meta.distributed.collectives import scatter as scatter
from meta.distributed.collectives import scatter_to as scatter_to
from meta.distributed.collectives import send_recv as send_recv
from meta.distributed.collectives import size as size
from meta.distributed.collectives import unshard as unshard
from meta.distributed.launch import end as end
from meta.distributed.launch import init as init
from meta.distributed.measure_links import measure_links as measure_links
from meta.distributed.process_mesh import Mesh as Mesh
from meta.distributed.simulated_mesh import planned as planned
from meta.distributed.simulated_mesh import simulate as simulate
from meta.distributed.tensor_parallel import explain_tensor_parallel as explain_tensor_parallel
from meta.distributed.tensor_parallel import tensor_parallel as tensor_parallel
from meta.distributed.tensor_parallel import tensor_parallel_plan as tensor_parallel_plan

