"""The collectives, for the mesh at hand: `meta.op.collective` with the size of its axes filled in;
and `unshard`: arrays from the parts that ranks hold.

``over`` is the name of an axis of the mesh, in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

from meta import op
from meta.base.errors import ArgumentError
from meta.base.signature_check import check_signature
from meta.runtime.mesh import axis_group, axis_size
from meta.runtime.ndarray import ndarray
from meta.runtime.placement import Placement, gather_shards


@check_signature
def size(over: str) -> int:
    """Return the number of ranks along an axis of the mesh; DistributedError if there is none.

    >>> meta.distributed.simulate({"dp": 2}).run(lambda: meta.distributed.size("dp"))
    [2, 2]
    """
    return axis_size(over)


@check_signature
def rank(over: str) -> int:
    """Return this rank's place along an axis of the mesh, from 0 on.

    A program that is traced with it serves this rank alone; `axis_index` is what programs read.

    >>> mesh = meta.distributed.simulate({"dp": 2})
    >>> mesh.run(lambda: (meta.distributed.rank("dp"), meta.distributed.size("dp")))
    [(0, 2), (1, 2)]
    """
    return axis_group(over).rank


@check_signature
def axis_index(over: str, device: str = "cpu") -> Any:
    """This rank's place along an axis, as an array: int64, without axes.

    over: an axis of the mesh. Unlike `rank`, it is read when the program runs. DistributedError if
    the mesh has no such axis.

    >>> mesh = meta.distributed.simulate({"dp": 2})
    >>> mesh.run(lambda: (meta.distributed.axis_index("dp") * 10).item())
    [0, 10]
    """
    return op.axis_index(over, size(over), device)


@check_signature
def all_reduce(x: Any, over: str, reduction: str = "sum") -> Any:
    """`meta.op.all_reduce`: the sum over the ranks, or another reduction, on every rank.

    >>> mesh = meta.distributed.simulate({"dp": 2})
    >>> mesh.run(lambda: meta.distributed.all_reduce(meta.ones(2), "dp").tolist())
    [[2.0, 2.0], [2.0, 2.0]]
    """
    return op.all_reduce(x, over, size(over), reduction)


@check_signature
def all_gather(x: Any, over: str, axis: int = 0) -> Any:
    """`meta.op.all_gather`: what all ranks have, one after the other along an axis of x.

    >>> mesh = meta.distributed.simulate({"dp": 2})
    >>> mesh.run(lambda: meta.distributed.all_gather(meta.ones(2), "dp").shape)
    [(4,), (4,)]
    """
    return op.all_gather(x, over, size(over), axis)


@check_signature
def reduce_scatter(x: Any, over: str, reduction: str = "sum", axis: int = 0) -> Any:
    """`meta.op.reduce_scatter`: this rank's part of the sum over the ranks.

    >>> mesh = meta.distributed.simulate({"dp": 2})
    >>> mesh.run(lambda: meta.distributed.reduce_scatter(meta.ones(4), "dp").tolist())
    [[2.0, 2.0], [2.0, 2.0]]
    """
    return op.reduce_scatter(x, over, size(over), reduction, axis)


@check_signature
def all_to_all(x: Any, over: str, split_axis: int = 0, concat_axis: int = 0) -> Any:
    """`meta.op.all_to_all`: part i of x goes to rank i.

    >>> mesh = meta.distributed.simulate({"dp": 2})
    >>> mesh.run(lambda: meta.distributed.all_to_all(meta.ones((4, 3)), "dp").shape)
    [(4, 3), (4, 3)]
    """
    return op.all_to_all(x, over, size(over), split_axis, concat_axis)


@check_signature
def broadcast(x: Any, over: str, root: int = 0) -> Any:
    """`meta.op.broadcast_from`: the x of one rank, on every rank.

    >>> mesh = meta.distributed.simulate({"dp": 2})
    >>> mesh.run(lambda: meta.distributed.broadcast(meta.ones(2), "dp").tolist())
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return op.broadcast_from(x, over, size(over), root)


@check_signature
def reduce(x: Any, over: str, reduction: str = "sum", root: int = 0) -> Any:
    """`meta.op.reduce_to`: the sum over the ranks on one rank, zeros on the others.

    x: one shape on all ranks. reduction: as of `all_reduce`. root: a rank along ``over``.
    DistributedError if the mesh has no such axis, TypeInferError for a root that is not there.

    >>> mesh = meta.distributed.simulate({"dp": 2})
    >>> mesh.run(lambda: meta.distributed.reduce(meta.ones(2), "dp", root=1).tolist())
    [[0.0, 0.0], [2.0, 2.0]]
    """
    return op.reduce_to(x, over, size(over), reduction, root)


@check_signature
def gather(x: Any, over: str, axis: int = 0, root: int = 0) -> Any:
    """`meta.op.gather_to`: what all ranks have on one rank, zeros on the others.

    x: of any dtype, one shape on all ranks. Returns it with n times the extent along ``axis``, of n
    ranks. root: a rank along ``over``. DistributedError if the mesh has no such axis,
    TypeInferError for an axis or a root that is not there.

    >>> def gathered():
    ...     x = meta.ones(1) * float(meta.distributed.rank("dp"))
    ...     return meta.distributed.gather(x, "dp", root=1).tolist()
    >>> meta.distributed.simulate({"dp": 2}).run(gathered)
    [[0.0, 0.0], [0.0, 1.0]]
    """
    return op.gather_to(x, over, size(over), axis, root)


@check_signature
def scatter(x: Any, over: str, axis: int = 0, root: int = 0) -> Any:
    """`meta.op.scatter_from`: this rank's part of what one rank has.

    x: one shape on all ranks; of rank ``root`` the numbers count. Its extent along ``axis`` is a
    multiple of the ranks, else TypeInferError. DistributedError if the mesh has no such axis.

    >>> mesh = meta.distributed.simulate({"dp": 2})
    >>> mesh.run(lambda: meta.distributed.scatter(meta.array([1, 2, 3, 4]), "dp").tolist())
    [[1, 2], [3, 4]]
    """
    return op.scatter_from(x, over, size(over), axis, root)


@check_signature
def send_recv(x: Any, over: str, sources: Any, targets: Any) -> Any:
    """`meta.op.send_recv`: x from rank to rank, zeros on ranks that are no target.

    x: one shape and dtype on all ranks. sources, targets: ranks along ``over``, in pairs; no rank
    is twice in one of them. DistributedError if the mesh has no such axis, TypeInferError for ranks
    that are not there.

    >>> def shifted():
    ...     x = meta.ones(1) * (meta.distributed.rank("pp") + 1.0)
    ...     return meta.distributed.send_recv(x, "pp", sources=(0, 1), targets=(1, 2)).tolist()
    >>> meta.distributed.simulate({"pp": 3}).run(shifted)
    [[0.0], [1.0], [2.0]]
    """
    return op.send_recv(x, over, size(over), sources, targets)


@check_signature
def copy_to(x: Any, over: str) -> Any:
    """`meta.op.copy_to`: x, whose gradient is summed over the ranks.

    It is what a column of a tensor parallel layer does with its input. x: any shape, the same on
    all ranks. DistributedError if the mesh has no such axis.

    >>> def gradient():
    ...     x = meta.model.parameter(meta.ones(2))
    ...     meta.distributed.copy_to(x, "tp").sum().backward()
    ...     return x.grad.tolist()
    >>> meta.distributed.simulate({"tp": 2}).run(gradient)
    [[2.0, 2.0], [2.0, 2.0]]
    """
    return op.copy_to(x, over, size(over))


@check_signature
def reduce_from(x: Any, over: str) -> Any:
    """`meta.op.reduce_from`: the sum over the ranks, whose gradient is the same on all of them.

    It is what a row of a tensor parallel layer does with its result. x: one shape on all ranks.
    DistributedError if the mesh has no such axis.

    >>> mesh = meta.distributed.simulate({"tp": 2})
    >>> mesh.run(lambda: meta.distributed.reduce_from(meta.ones(2), "tp").tolist())
    [[2.0, 2.0], [2.0, 2.0]]
    """
    return op.reduce_from(x, over, size(over))


@check_signature
def gather_from(x: Any, over: str, axis: int = 0) -> Any:
    """`meta.op.gather_from`: what all ranks have, whose gradient is the same on all of them.

    x: of any dtype, one shape on all ranks. Returns it with n times the extent along ``axis``, of n
    ranks. DistributedError if the mesh has no such axis.

    >>> mesh = meta.distributed.simulate({"tp": 2})
    >>> mesh.run(lambda: meta.distributed.gather_from(meta.ones((3, 2)), "tp", axis=1).shape)
    [(3, 4), (3, 4)]
    """
    return op.gather_from(x, over, size(over), axis)


@check_signature
def scatter_to(x: Any, over: str, axis: int = 0) -> Any:
    """`meta.op.scatter_to`: this rank's part of an x that all ranks have.

    x: its extent along ``axis`` is a multiple of the ranks, else TypeInferError; the gradient is
    gathered. DistributedError if the mesh has no such axis.

    >>> mesh = meta.distributed.simulate({"tp": 2})
    >>> mesh.run(lambda: meta.distributed.scatter_to(meta.array([1, 2, 3, 4]), "tp").tolist())
    [[1, 2], [3, 4]]
    """
    return op.scatter_to(x, over, size(over), axis)


@overload
def unshard(x: ndarray) -> ndarray: ...
@overload
def unshard(x: Mapping[str, ndarray]) -> dict[str, ndarray]: ...


@check_signature
def unshard(x: ndarray | Mapping[str, ndarray]) -> ndarray | dict[str, ndarray]:
    """Return an array of which this rank holds a part (`ndarray.placement`), gathered from all
    ranks; of arrays by name, such as ``model.state_dict()``, all of them.

    All ranks call it at the same time, for the same arrays in the same order. An array that is
    whole is returned as it is, and one under several names is gathered once. What is gathered is a
    copy. ArgumentError for anything else.

    >>> import meta
    >>> x = meta.ones((2, 3))
    >>> meta.distributed.unshard(x) is x
    True
    """
    if isinstance(x, ndarray):
        return _unshard(x)
    if not isinstance(x, Mapping) or not all(isinstance(a, ndarray) for a in x.values()):
        raise ArgumentError(
            "these have no parts",
            expected="an array, or arrays by name",
            found=type(x).__name__,
            hint="unshard(model.state_dict()) for a model",
        )
    gathered: dict[int, ndarray] = {}
    for array in x.values():
        if id(array) not in gathered:
            gathered[id(array)] = _unshard(array)
    return {name: gathered[id(array)] for name, array in x.items()}


def _unshard(x: ndarray) -> ndarray:
    if not x.placement.splits:
        return x
    tensor = gather_shards(x.tensor.detach(), x.placement, Placement(x.placement.shape))
    return ndarray(tensor, name=x.name)
