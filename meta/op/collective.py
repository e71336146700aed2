"""Collectives: operators that exchange tensors with the other ranks of a mesh.

``over`` is the name of an axis of the mesh (`meta.distributed.Mesh`) and ``size`` the number of
ranks along it, which the functions of `meta.distributed` ask the mesh for. Both are attributes, and
the rank is not: one program serves all ranks. Every rank along the axis makes the same call, with
tensors of the same type. Gradients are of the sum of the losses of all ranks.

Along an axis of one rank nothing is exchanged, and no mesh is needed.
"""

from __future__ import annotations

from collections.abc import Iterable

from meta.base.dtype import COMPLEX, is_float
from meta.ir.types import UnknownDim
from meta.op.core import CallValues, DeviceName, InOut, Ints, Tensor, TensorType, View, op
from meta.op.core.axes import Args, Axes, along, labels_of, last
from meta.op.core.check import normalize_axis, require
from meta.op.shapes import view_of_first
from meta.runtime.mesh import REDUCTIONS

NO_SUMS = COMPLEX | {"bool"}


def _checked(size: int) -> None:
    require(size >= 1, "there is no rank", expected="size >= 1", found=f"size={size}")


def _reduced(x: TensorType, size: int, reduction: str) -> None:
    _checked(size)
    known = reduction in REDUCTIONS
    require(known, "there is no such reduction", expected=", ".join(REDUCTIONS), found=reduction)
    require(x.dtype not in NO_SUMS, f"{x.dtype} is not reduced", found=str(x))
    fits = reduction != "mean" or is_float(x.dtype)
    require(fits, "the mean of integers is none", expected="a floating point x", found=str(x))


def _times(x: TensorType, size: int, axis: int) -> TensorType:
    at = normalize_axis(axis, x.ndim)
    extent = x.shape[at]
    if not isinstance(extent, UnknownDim):
        extent = extent * size
    return x.with_shape((*x.shape[:at], extent, *x.shape[at + 1 :]))


def _shard_type(x: TensorType, size: int, axis: int) -> TensorType:
    at = normalize_axis(axis, x.ndim)
    extent = x.shape[at]
    fits = isinstance(extent, int) and extent % size == 0
    expected = f"a known multiple of {size}"
    require(fits, f"axis {axis} is not divided by {size} ranks", expected=expected, found=str(x))
    assert isinstance(extent, int)
    return x.with_shape((*x.shape[:at], extent // size, *x.shape[at + 1 :]))


def _rank(rank: int, size: int, name: str) -> None:
    expected = f"0 <= {name} < {size}"
    require(0 <= rank < size, f"{name} is no rank", expected=expected, found=f"{name}={rank}")


def _shard(x: TensorType, size: int) -> TensorType:
    """Return the type of one of so many equal flat parts of a tensor."""
    _checked(size)
    fits = x.is_static and x.size % size == 0
    expected = f"a known multiple of {size} elements"
    require(fits, f"a tensor is not divided by {size} ranks", expected=expected, found=str(x))
    return x.with_shape((x.size // size,))


def _require_tensors(x: tuple[TensorType, ...]) -> None:
    require(len(x) > 0, "there are no tensors", expected="at least one")
    for t in x:
        require(t.dtype == x[0].dtype, "x has several dtypes", expected=str(x[0]), found=str(t))


@op(axes=last(x=0), collective="all_reduce")
def all_reduce(x: Tensor, over: str, size: int, reduction: str = "sum") -> Tensor:
    """The sum over the ranks of their ``x``, elementwise; on every rank.

    x: any shape, numeric. reduction: "sum", "mean", "max", "min" or "product". Result: x's type; in
    half precision the sum is one of half precision. Gradient of "sum": the sum of the gradients.

    Raises TypeInferError for another reduction, for bool and complex tensors, and for the mean of
    integers. Raises DistributedError when it runs, if the mesh has no axis of this name and size.
    """
    _reduced(x, size, reduction)
    return x


@op(collective="all_reduce")
def multi_tensor_all_reduce(
    x: tuple[InOut, ...], over: str, size: int, reduction: str = "sum", align: int = 1
) -> tuple[()]:
    """`all_reduce` of several tensors by one exchange, in place: a bucket of gradients.

    x: n >= 1 tensors of one dtype, which `all_reduce` takes, and of any shapes. Those that lie one
    behind the other, each at the next multiple of ``align`` bytes, are one to it: what is between
    them is nobody's, and changes. So `meta.passes.plan_memory` places them; with an align of 1 they
    may lie anywhere. Returns x, the arrays that were given. Raises TypeInferError for tensors of
    several dtypes, and as `all_reduce`.
    """
    require(align >= 1, "align counts bytes", expected="align >= 1", found=f"align={align}")
    _require_tensors(x)
    for t in x:
        _reduced(t, size, reduction)
    return ()


@op(like=multi_tensor_all_reduce, collective="all_reduce")
def multi_tensor_all_reduce_start() -> None:
    """The beginning of `multi_tensor_all_reduce`, behind which other work goes on. Nobody reads or
    writes x before `collective_wait`. The pass `schedule_collectives` makes it.
    """


@op(collective="wait")
def collective_wait(
    x: tuple[InOut, ...], over: str, size: int, given: tuple[Tensor, ...] = ()
) -> tuple[()]:
    """The end of a collective that was started: from here on its result ``x`` is there. On CUDA the
    device waits, and the host goes on. The pass `schedule_collectives` makes it.

    x: what the start returned, or was given to write to. over, size: as in the start. given: what
    else it was given, which is read until now. TypeInferError for no tensors.
    """
    _checked(size)
    require(len(x) > 0, "there are no tensors", expected="at least one")
    return ()


@op(axes=along("x"), collective="gather", float8=True)
def all_gather(x: Tensor, over: str, size: int, axis: int = 0) -> Tensor:
    """The ``x`` of all ranks, one after the other along ``axis``; on every rank.

    x: at least one axis. Result: ``size`` times as long along ``axis``. Gradient:
    `reduce_scatter`. Raises TypeInferError for an axis out of range; DistributedError as
    `all_reduce`.
    """
    _checked(size)
    return _times(x, size, axis)


@op(like=all_gather, collective="gather", float8=True)
def all_gather_start() -> None:
    """The beginning of `all_gather`; see `multi_tensor_all_reduce_start`."""


@op(axes=along("x"), collective="scatter")
def reduce_scatter(
    x: Tensor, over: str, size: int, reduction: str = "sum", axis: int = 0
) -> Tensor:
    """This rank's part, along ``axis``, of what `all_reduce` returns.

    x: its extent along ``axis`` is a multiple of ``size``, or TypeInferError is raised; so it is as
    in `all_reduce`. Gradient of "sum": `all_gather`.
    """
    _reduced(x, size, reduction)
    return _shard_type(x, size, axis)


@op(collective="gather", float8=True)
def multi_tensor_all_gather(x: tuple[Tensor, ...], over: str, size: int) -> tuple[Tensor, ...]:
    """`all_gather` along the first axis of several tensors, by one exchange on NCCL.

    x: n >= 1 tensors of one dtype, each with an axis. Raises TypeInferError for others. The pass
    `bucket_collectives` makes it.
    """
    _checked(size)
    _require_tensors(x)
    return tuple(_times(t, size, 0) for t in x)


@op(like=multi_tensor_all_gather, collective="gather", float8=True)
def multi_tensor_all_gather_start() -> None:
    """The beginning of `multi_tensor_all_gather`; see `multi_tensor_all_reduce_start`."""


@op(collective="gather", float8=True)
def multi_tensor_all_gather_in_place(x: tuple[InOut, ...], over: str, size: int) -> tuple[()]:
    """Gather, where they lie, the parts of several tensors of which each rank has its own.

    What a rank has in its part of an ``x`` (`own_shard`), all ranks have there behind it. By one
    exchange on NCCL; nothing is copied, and no memory is taken.

    x: n >= 1 tensors of one dtype and of any shapes, with a number of elements that ``size``
    divides, or TypeInferError is raised. Returns x, the arrays that were given. DistributedError as
    `all_reduce`.
    """
    _require_tensors(x)
    for t in x:
        _shard(t, size)
    return ()


@op(like=multi_tensor_all_gather_in_place, collective="gather", float8=True)
def multi_tensor_all_gather_in_place_start() -> None:
    """The beginning of `multi_tensor_all_gather_in_place`; see `multi_tensor_all_reduce_start`."""


@op(collective="scatter")
def multi_tensor_reduce_scatter(
    x: tuple[Tensor, ...], over: str, size: int, reduction: str = "sum"
) -> tuple[Tensor, ...]:
    """`reduce_scatter` along the first axis of several tensors, by one exchange on NCCL.

    x: n >= 1 tensors of one dtype. Raises TypeInferError for others, and as `reduce_scatter`. The
    pass `bucket_collectives` makes it.
    """
    _require_tensors(x)
    for t in x:
        _reduced(t, size, reduction)
    return tuple(_shard_type(t, size, 0) for t in x)


@op(like=multi_tensor_reduce_scatter, collective="scatter")
def multi_tensor_reduce_scatter_start() -> None:
    """The beginning of `multi_tensor_reduce_scatter`; see `multi_tensor_all_reduce_start`."""


@op(like=reduce_scatter, collective="scatter")
def reduce_scatter_start() -> None:
    """The beginning of `reduce_scatter`; see `multi_tensor_all_reduce_start`."""


def _exchange_axes(args: Args) -> Iterable[Axes]:
    numbers = "split_axis", "concat_axis"
    ndim = args["x"].ndim
    labels = labels_of(ndim, [normalize_axis(args[n], ndim) for n in numbers])
    return (Axes({"x": labels}, (labels,), ("x",), numbers),)


@op(axes=_exchange_axes, collective="all_to_all", float8=True)
def all_to_all(
    x: Tensor, over: str, size: int, split_axis: int = 0, concat_axis: int = 0
) -> Tensor:
    """Cut ``x`` along ``split_axis``, give part i to rank i, and join what the ranks give along
    ``concat_axis``, in their order.

    Result: ``size`` times as long along ``concat_axis``, and a part of it along ``split_axis``.
    Gradient: the same with both axes exchanged. Raises TypeInferError as `reduce_scatter`.
    """
    _checked(size)
    return _times(_shard_type(x, size, split_axis), size, concat_axis)


@op(axes=last(x=0), collective="broadcast", float8=True)
def broadcast_from(x: Tensor, over: str, size: int, root: int = 0) -> Tensor:
    """The ``x`` of the rank ``root``, on every rank. Gradient: `reduce_to`.

    TypeInferError for a root that is no rank.
    """
    _checked(size)
    _rank(root, size, "root")
    return x


@op(axes=last(x=0), collective="all_reduce")
def reduce_to(x: Tensor, over: str, size: int, reduction: str = "sum", root: int = 0) -> Tensor:
    """`all_reduce` on the rank ``root``, and zeros on the others. Gradient: `broadcast_from`."""
    _reduced(x, size, reduction)
    _rank(root, size, "root")
    return x


@op(axes=along("x"), collective="gather", float8=True)
def gather_to(x: Tensor, over: str, size: int, axis: int = 0, root: int = 0) -> Tensor:
    """`all_gather` on the rank ``root``, and zeros on the others. Gradient: `scatter_from`."""
    _checked(size)
    _rank(root, size, "root")
    return _times(x, size, axis)


@op(axes=along("x"), collective="broadcast", float8=True)
def scatter_from(x: Tensor, over: str, size: int, axis: int = 0, root: int = 0) -> Tensor:
    """This rank's part, along ``axis``, of the ``x`` of the rank ``root``. Gradient: `gather_to`.

    x: its extent along ``axis`` is a multiple of ``size``, on all ranks; only that of root is read.
    """
    _checked(size)
    _rank(root, size, "root")
    return _shard_type(x, size, axis)


@op(axes=last(x=0), collective="send", float8=True)
def send_recv(x: Tensor, over: str, size: int, sources: Ints, targets: Ints) -> Tensor:
    """On rank targets[i] the ``x`` of rank sources[i], and zeros on ranks that are no target.

    sources, targets: as many ranks; no rank is twice a target or twice a source. Gradient: the same
    with both exchanged. TypeInferError where they are not such.
    """
    _checked(size)
    for name, ranks in (("sources", sources), ("targets", targets)):
        ranks = (ranks,) if isinstance(ranks, int) else ranks
        for rank in ranks:
            _rank(rank, size, name)
        once = len(set(ranks)) == len(ranks)
        require(once, f"a rank is twice in {name}", expected="different ranks", found=str(ranks))
    count = [1 if isinstance(r, int) else len(r) for r in (sources, targets)]
    what = f"{count[0]} sources and {count[1]} targets"
    require(count[0] == count[1], what, expected="a target for each source")
    return x


@op(axes=last(x=0), float8=True)
def copy_to(x: Tensor, over: str, size: int) -> Tensor:
    """``x`` itself, of which every rank computes something else: the gradient is their sum,
    `all_reduce`. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, the function f.
    """
    _checked(size)
    return x


copy_to.declare(view_of_first)


@op(axes=last(x=0), collective="all_reduce")
def reduce_from(x: Tensor, over: str, size: int) -> Tensor:
    """The sum over the ranks of their ``x``, from which all ranks compute the same: the gradient is
    that of the result. Megatron's function g; see `copy_to`.
    """
    _reduced(x, size, "sum")
    return x


@op(axes=along("x"), collective="gather", float8=True)
def gather_from(x: Tensor, over: str, size: int, axis: int = 0) -> Tensor:
    """`all_gather` from which all ranks compute the same: the gradient is this rank's part of that
    of the result, `scatter_to`, where that of `all_gather` is summed over the ranks.
    """
    _checked(size)
    return _times(x, size, axis)


@op(axes=along("x"), collective="nothing", float8=True)
def scatter_to(x: Tensor, over: str, size: int, axis: int = 0) -> Tensor:
    """This rank's part, along ``axis``, of an ``x`` that all ranks have. Gradient: `gather_from`.

    x: its extent along ``axis`` is a multiple of ``size``, or TypeInferError is raised. Nothing is
    exchanged.
    """
    _checked(size)
    return _shard_type(x, size, axis)


@op(collective="nothing")
def axis_index(over: str, size: int, device: DeviceName = "cpu") -> Tensor:
    """This rank's place along an axis of the mesh, as an int64 tensor without axes."""
    _checked(size)
    return TensorType((), "int64")


@op(collective="nothing", float8=True)
def own_shard(x: Tensor, over: str, size: int) -> Tensor:
    """This rank's part of ``x``, one of ``size`` equal parts of its elements in a row. A view.

    What is written to the part is written to ``x``.

    x: compact, of any shape; ``size`` divides the number of its elements, or TypeInferError is
    raised. Result: one axis. Raises ArgumentError for an array that is not compact, and
    DistributedError as `all_reduce`. See `multi_tensor_all_gather_in_place`.
    """
    return _shard(x, size)


@own_shard.declare
def _own_shard(call: CallValues) -> None:
    call.out = View(0, call.out, (call.args.over, call.args.size))
