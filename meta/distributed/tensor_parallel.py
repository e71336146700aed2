"""`tensor_parallel`: a model of whose arrays each rank has a part, by a plan of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from meta import op
from meta.base.errors import ArgumentError, DistributedError, UnknownName
from meta.base.registry import nearest
from meta.base.signature_check import check_signature
from meta.distributed.collectives import rank
from meta.model.layers.basic import Embedding
from meta.model.model import Model
from meta.model.sharded_trace import record_exchanges
from meta.passes.distributed.sharding import InsertedCollective
from meta.runtime.array_key import key_of
from meta.runtime.mesh import axis_group, axis_size, current_mesh
from meta.runtime.ndarray import ndarray
from meta.runtime.placement import Joined, Placement, Split, joined_of, lengths
from meta.runtime.random import default

COLUMN, ROW, VOCABULARY, REPLICATED = "column", "row", "vocabulary", "whole"
STYLES = (COLUMN, ROW, VOCABULARY, REPLICATED)
_TORCH_STYLES = {"ColwiseParallel": COLUMN, "RowwiseParallel": ROW}
"""By the name of a class of torch, the style that is meant."""
_AXES_OF_STYLE = {COLUMN: 0, ROW: 1}
"""Which of `Model.feature_axes` is cut: that of output, or of input features."""


@check_signature
def tensor_parallel(model: Model, plan: Mapping[str, Any] | None = None, over: str = "tp") -> Model:
    """Keep this rank's parts of a model's arrays; return the model, which computes the same.

    The model stays as it is written, for one device. Its programs, and those of models around it,
    are rewritten: what is computed from parts is a part, and ranks exchange what must be whole
    (`meta.passes.distributed.tensor_parallel`). Results are whole, on all ranks. All ranks along
    ``over`` call it with a model of the same layers, and from then on with the same arguments. The
    arrays are those of the first of these ranks. Call it before the model is compiled, or given to
    an optimizer.

    plan: how layers are divided, by patterns of their names, in which ``*`` stands for any part
    between dots; a later entry counts more than an earlier one. None: the plan that comes with the
    model and with those inside of it (`tensor_parallel_plan`).

    - "column": by output features, and the bias with them. What follows computes with parts.
    - "row": by input features; the results are summed over the ranks, then the bias is added.
    - "vocabulary": an embedding by its rows, a head by its scores; a cross entropy of these is
      computed without gathering them.
    - "whole": on all ranks.
    - of an array instead of a layer, the axis along which it is divided.
    - ("column", 3), or (axis, 3): so many arrays lie one after the other, as the projections of
      query, key and value, and each is divided. ("column", (4, 1, 1)): the first of three is four
      times as long as the others.

    Random numbers: a dropout of whole values drops the same on all of these ranks; of parts each
    rank drops by itself.

    Raises UnknownName for a pattern that names nothing, ArgumentError for a plan that does not fit,
    a size that is no multiple of the ranks, a model without a plan, and one whose forward is not
    traced, DistributedError if the mesh has no such axis, or its ranks do not draw the same random
    numbers, or divide the model in different ways.

    >>> import meta
    >>> from meta import distributed as dist
    >>> def shape():
    ...     net = meta.model.Sequential(meta.model.Linear(4, 8), meta.model.Linear(8, 4))
    ...     dist.tensor_parallel(net, {"0": "column", "1": "row"})
    ...     return net[0].weight.shape, net[1].weight.shape, net(meta.ones((2, 4))).shape
    >>> dist.simulate({"tp": 2}).run(shape)[0]
    ((4, 4), (4, 4), (2, 4))
    """
    _require_model(model)
    ranks = axis_size(over)
    if plan is None:
        plan = tensor_parallel_plan(model, over)
    splits = _splits(model, plan, over, ranks)
    for inner in model.models():
        if type(inner).forward is not Model.forward:
            inner.traced_entry()  # what is not traced would compute with parts as they are
    if ranks == 1:
        return model
    state = model.state()
    told = {name: splits[id(a)] for name, a in state.items() if id(a) in splits}
    _require_alike(over, {name: split for name, split in told.items() if split is not None})
    place = {over: rank(over)}
    for name, array in state.items():
        if array.grad is not None:
            raise ArgumentError(
                f"{name!r} has a gradient already", hint="divide a model before it is trained"
            )
        split = splits.get(id(array))
        _set(array, () if split is None else (split,), over, ranks, place)
    for inner in model.models():
        inner._sharded = True
    return model


def _require_model(model: object) -> None:
    """Raise ArgumentError for what is no model of ours."""
    if not isinstance(model, Model):
        raise ArgumentError(
            "ranks divide a model",
            expected="a meta.Model",
            found=type(model).__name__,
            hint="meta.frontend.from_torch(module, (x,)) makes one of a torch module",
        )


def _require_alike(over: str, splits: Mapping[str, Split]) -> None:
    """Raise DistributedError unless the ranks divide a model alike, and draw the same random
    numbers from now on.
    """
    seed, counter = default.state()
    told = (
        "\n".join(f"{name}: {splits[name]}" for name in sorted(splits)),
        f"the stream {current_mesh().stream}",
        f"seed {seed}, {counter} draws",
    )
    given = axis_group(over).gather("\0".join(told).encode(), "how a model is divided")
    others = [one.decode().split("\0") for one in given]
    for number, (what, hint) in enumerate(
        (
            ("divide a model in different ways", "call it with one plan, and models alike"),
            ("draw from different streams of random numbers", f"Mesh(sizes, alike={over!r})"),
            ("draw different random numbers", "meta.random.seed(0) on all of them"),
        )
    ):
        found = [one[number] for one in others]
        different = next((r for r, one in enumerate(found) if one != found[0]), None)
        if different is not None:
            raise DistributedError(
                f"the ranks along {over!r} {what}",
                expected=f"on all as on rank 0: {found[0]}",
                found=f"on rank {different}: {found[different]}",
                hint=hint,
            )


def _set(
    array: ndarray, splits: tuple[Split, ...], over: str, ranks: int, place: Mapping[str, int]
) -> None:
    """Give an array its part of what the first rank has."""
    whole = op.broadcast_from(array.detach(), over, ranks).tensor
    if not splits:
        array.update(ndarray(whole))
        return
    placement = Placement(array.shape, splits)
    array.tensor = placement.part(whole, place)
    array.key = key_of(array.tensor)
    array.placement = placement


@check_signature
def tensor_parallel_plan(model: Model, over: str = "tp") -> dict[str, Any]:
    """Return the plan that comes with a model, and with the models inside of it.

    A model says how the layers in it are divided by a method ``tensor_parallel_plan(ranks)``, which
    returns a plan of names inside of it. ArgumentError if there is none.

    >>> config = meta.model.zoo.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2)
    >>> model = meta.model.zoo.GPT2Model(config)
    >>> plan = lambda: meta.distributed.tensor_parallel_plan(model)
    >>> styles = meta.distributed.simulate({"tp": 2}).run(plan)[0]
    >>> styles["wte"], styles["h.0.attn.c_attn"], styles["h.0.attn.c_proj"]
    ('vocabulary', ('column', 3), 'row')
    """
    _require_model(model)
    ranks, plan = axis_size(over), dict[str, Any]()
    for path, inner in model.paths():
        if isinstance(inner, Model):
            own = inner.tensor_parallel_plan(ranks)
            plan |= {f"{path}.{name}" if path else name: how for name, how in own.items()}
    if not plan:
        layers = [path for path, inner in model.paths() if _is_layer(inner)]
        example = ", ".join(
            f'"{name}": "{style}"' for name, style in zip(layers, (COLUMN, ROW), strict=False)
        )
        raise ArgumentError(
            f"no plan comes with {type(model).__name__}",
            expected=f"plan={{{example}}}: how layers are divided, by their names",
            hint="or a method tensor_parallel_plan(self, ranks) of the model, which returns this",
        )
    return plan


def _is_layer(value: object) -> bool:
    return isinstance(value, Model) and bool(value.feature_axes)


def _matches(path: str, pattern: str) -> bool:
    names, patterns = path.split("."), pattern.split(".")
    return len(names) == len(patterns) and all(map(fnmatchcase, names, patterns))


def _splits(
    model: Model, plan: Mapping[str, Any], over: str, ranks: int
) -> dict[int, Split | None]:
    """Return how arrays are split, by their ids."""
    if not isinstance(plan, Mapping):
        raise ArgumentError(
            "a plan is a dict", expected='{"name of a layer": "column"}', found=repr(plan)
        )
    paths = {path: value for path, value in model.paths() if path}
    arrays: dict[str, tuple[ndarray, Split | None]] = {}
    for pattern, how in plan.items():
        if not isinstance(pattern, str):
            raise ArgumentError(
                "a plan names layers", expected='{"name of a layer": "column"}', found=repr(pattern)
            )
        found = [p for p in paths if _matches(p, pattern)]
        if not found:
            raise UnknownName(
                f"the plan names {pattern!r}, which {type(model).__name__} does not have",
                hint=nearest(pattern, paths),
            )
        for path in found:
            arrays |= _of_entry(path, paths[path], how, over, ranks)
    splits: dict[int, Split | None] = {}
    names: dict[int, str] = {}
    for name, (array, split) in arrays.items():
        if splits.setdefault(id(array), split) != split:
            raise ArgumentError(
                f"{names[id(array)]!r} and {name!r} are one array, which the plan divides in two "
                "ways",
                found=f"{splits[id(array)]} and {split}",
                hint='as "vocabulary" both, if they are an embedding and a head',
            )
        names.setdefault(id(array), name)
    return splits


def _of_entry(
    path: str, value: Any, how: Any, over: str, ranks: int
) -> dict[str, tuple[ndarray, Split | None]]:
    """Return the arrays that an entry of a plan names, and how each is split."""
    style, joined = how if isinstance(how, tuple) and len(how) == 2 else (how, 1)
    if isinstance(value, ndarray):
        fits = type(style) is int and -value.ndim <= style < value.ndim
        axes = {path: (value, style % value.ndim if fits else None)}
        expected = f'an axis of {value.shape}, or "whole"'
    else:
        fits, expected = style in STYLES, f"{', '.join(STYLES)}, or (style, how many are joined)"
        axes = {}
        if fits and not value.feature_axes:
            raise ArgumentError(
                f"{path!r} is a {type(value).__name__}, of which it is not known what {style!r} is",
                expected="a layer with feature_axes, such as Linear and Embedding",
                hint=f'name its arrays: {{"{path}.weight": 0}} divides one along axis 0',
            )
        for name, of in value.feature_axes.items() if fits and style != REPLICATED else ():
            array = getattr(value, name, None)
            if array is not None:
                axes[f"{path}.{name}"] = array, of[_which(value, style)]
        if style == REPLICATED:
            axes = {f"{path}.{n}": (a, None) for n, a in value.state_dict().items()}
    pieces = joined if isinstance(joined, tuple) and joined else (joined,)
    if not (fits or style == REPLICATED) or any(type(n) is not int or n < 1 for n in pieces):
        raise ArgumentError(
            f"the plan divides {path!r} in a way that is not known",
            expected=expected,
            found=repr(how),
            hint=f'write "{habit}"' if (habit := _TORCH_STYLES.get(type(style).__name__)) else None,
        )
    joined = joined_of(joined) if isinstance(joined, tuple) else joined
    return {
        name: (array, _split(name, array, axis, over, ranks, joined))
        for name, (array, axis) in axes.items()
    }


def _which(layer: Model, style: str) -> int:
    """Return which feature axis is divided: 0 for that of output features, 1 of input features."""
    if style != VOCABULARY:
        return _AXES_OF_STYLE[style]
    # An embedding has a vocabulary of what goes in, a head one of what comes out.
    return 1 if isinstance(layer, Embedding) else 0


def _split(
    name: str, array: ndarray, axis: int | None, over: str, ranks: int, joined: Joined
) -> Split | None:
    if axis is None:
        return None
    if array.placement.splits:
        raise ArgumentError(f"{name!r} is divided already", found=str(array.placement))
    least = sum(lengths(joined)) * ranks
    if array.shape[axis] % least:
        layer = name.rpartition(".")[0] or name
        each = f" for each of {joined} arrays" if joined != 1 else ""
        raise ArgumentError(
            f"{name!r} is not divided by {ranks} ranks",
            expected=f"a multiple of {least} along axis {axis}{each}",
            found=f"{array.shape[axis]} of shape {array.shape}",
            hint=f'leave it whole: plan={{**tensor_parallel_plan(model), "{layer}": "whole"}}; a '
            "vocabulary may get words that are never used",
        )
    return Split(over, ranks, axis, joined)


@dataclass(frozen=True)
class TensorParallelReport:
    """What a model's program has become. arrays: by name, the shape of the whole and of the part.
    exchanges: the collectives that its program has, in order.
    """

    arrays: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    exchanges: tuple[InsertedCollective, ...]

    def __str__(self) -> str:
        width = max(map(len, self.arrays), default=0)
        lines = [
            f"{name:{width}}  {list(whole)}" + ("" if whole == part else f" -> {list(part)}")
            for name, (whole, part) in self.arrays.items()
        ]
        return "\n".join([*lines, *map(str, self.exchanges)])


@check_signature
def explain_tensor_parallel(model: Model, *args: Any, **kwargs: Any) -> TensorParallelReport:
    """Return, for arguments as of a call, what each array of a model has become, and which
    collectives its program has, where and why: a ``gather_from`` is there because an operator has
    no rule for parts, or the parts do not fit it.

    >>> def collectives():
    ...     net = meta.model.Sequential(meta.model.Linear(4, 8), meta.model.Linear(8, 4))
    ...     meta.distributed.tensor_parallel(net, {"0": "column", "1": "row"})
    ...     report = meta.distributed.explain_tensor_parallel(net, meta.ones((2, 4)))
    ...     return report.arrays["0.weight"], [one.collective for one in report.exchanges]
    >>> meta.distributed.simulate({"tp": 2}).run(collectives)[0]
    (((8, 4), (4, 4)), ['copy_to', 'reduce_from'])
    """
    _require_model(model)
    entry = model.traced_entry()
    state = model.state()
    device = next(iter(state.values())).device
    with record_exchanges() as exchanges:
        entry.program_on_types(device, *args, **kwargs)
    arrays = {name: (a.placement.shape, a.shape) for name, a in state.items()}
    return TensorParallelReport(arrays, tuple(exchanges))
