"""How the axes of an operator's tensors belong together.

An operator says so beside its type function: ``@op(axes=rule)``. The rule is given the arguments of
a call by name, a tensor being its `TensorType`, and returns `Axes`: several where there are several
ways to see the call, none where there is nothing to say. What a pass makes of an axis more, or of a
part of one, follows: see `meta.passes.batching` and `meta.passes.distributed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meta.ir.types import TensorType
from meta.op.core.check import extents_of, normalize_axes, normalize_axis
from meta.op.core.reduction import reduction

Labels = tuple[str | None, ...]
"""A label for each axis; None for an axis along which the operator mixes elements."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a call, as an equation of `einsum` has them.

    An axis whose label every result has is free: cutting all tensors that have the label there, and
    joining the results there, changes nothing. Other labels are summed over.

    Attributes
    ----------
    tensors: labels by argument; of an argument of several tensors, those of each. One that is not
    here is needed as a whole.
    results: labels of each result, of which a call may have fewer; one for all if they are alike.
    Of an operator that writes, those of the tensors that it writes to.
    in_front: the tensors that may all have one more axis in front, which the results then have.
    numbers: the arguments that number axes of these; None numbers all.
    shapes: the arguments that are a shape, with its labels. counts: the arguments that are a number
    of pieces of an axis: only whole pieces are cut.
    broadcasts: the tensors whose axes of extent 1 are repeated, and axes missing in front are.
    grouped: the labels whose axes differ: to a position of a shorter one belong as many adjacent
    ones of a longer, such as heads of query to one of keys.
    """

    tensors: Mapping[str, Labels]
    results: tuple[Labels, ...]
    in_front: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    shapes: Mapping[str, Labels] = field(default_factory=dict)
    counts: Mapping[str, str] = field(default_factory=dict)
    broadcasts: tuple[str, ...] = ()
    grouped: tuple[str, ...] = ()

    def places(self, label: str) -> dict[str, int]:
        """Return by argument which axis has a label."""
        return {n: labels.index(label) for n, labels in self.tensors.items() if label in labels}

    def of_results(self, count: int) -> tuple[Labels, ...]:
        """Return the labels of each of so many results."""
        return self.results[:count] if len(self.results) > 1 else self.results * count

    def free(self) -> list[str]:
        """Return the labels of free axes, those that lie furthest in front first."""
        places: dict[str, int] = {}
        for labels in (*self.tensors.values(), *self.results):
            for i, label in enumerate(labels):
                if label is not None and all(label in r for r in self.results):
                    places[label] = max(places.get(label, 0), i)
        return sorted(places, key=lambda label: places[label])


Args = Mapping[str, Any]
AxesRule = Callable[[Args], Iterable[Axes]]


def labels_of(ndim: int, mixed: Sequence[int] = ()) -> Labels:
    """Return a label for each of ``ndim`` axes but those that are mixed."""
    return tuple(None if i in mixed else str(i) for i in range(ndim))


def layout_labels(layout: str, **labels: str) -> Labels:
    """Return the labels of some letters of a layout."""
    return tuple(map(labels.get, layout))


def terms(equation: str, **counts: str) -> AxesRule:
    """The axes of an operator as an equation: ``x=nc grid=n -> nc`` gives letters to the first axes
    of tensors and results, a dot being one that is mixed. counts: see `Axes`.
    """

    def labels(letters: str) -> Labels:
        return tuple(None if c == "." else c for c in letters)

    tensors, _, results = equation.partition(" -> ")
    pairs = {n: labels(letters) for n, _, letters in (w.partition("=") for w in tensors.split())}
    made = tuple(map(labels, results.split()))

    def rule(args: Args) -> Iterable[Axes]:
        given = {n: t for n, t in pairs.items() if args[n] is not None}
        fit = all(args[n].ndim >= len(t) for n, t in given.items())
        return (Axes(given, made, counts=counts),) if fit else ()

    return rule


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def along(*tensors: str, by: str = "axis", none_is_all: bool = False) -> AxesRule:
    """The axes of an operator that acts along those that the argument ``by`` numbers. ``tensors``
    have as many axes as the results.
    """

    def rule(args: Args) -> Iterable[Axes]:
        if args[by] is None and not none_is_all:
            return ()
        ndim = _first(args[tensors[0]]).ndim
        labels = labels_of(ndim, normalize_axes(args[by], ndim))
        return (Axes(dict.fromkeys(tensors, labels), (labels,), tensors, (by,)),)

    return rule


def reduction_axes(args: Args) -> Iterable[Axes]:
    """The axes of a reduction of ``x``, or of its gradient, which is given ``dy``."""
    shape = args["x"].shape if "x" in args else extents_of(args["shape"])
    found = reduction(len(shape), args["axis"], args["keepdims"])
    full = labels_of(len(shape), found.axes)
    less = tuple(label for i, label in enumerate(full) if label or i in found.kept)
    tensors = {name: labels for name, labels in (("x", full), ("dy", less)) if name in args}
    shapes = {"shape": full} if "shape" in args else {}
    result = full if "dy" in args else less
    return (Axes(tensors, (result,), tuple(tensors), ("axis",), shapes),)


def new_axis(tensor: str) -> AxesRule:
    """The axes of an operator whose results have a new axis, which ``axis`` numbers."""

    def rule(args: Args) -> Iterable[Axes]:
        labels = labels_of(_first(args[tensor]).ndim)
        at = normalize_axis(args["axis"], len(labels) + 1)
        result = (*labels[:at], None, *labels[at:])
        return (Axes({tensor: labels}, (result,), (tensor,), ("axis",)),)

    return rule


def last(
    *, results: tuple[int, ...] = (), broadcasts: tuple[str, ...] = (), **mixed: int
) -> AxesRule:
    """The axes of an operator that acts along the last axes of tensors, as many as are said here,
    and of its results; as of the first tensor if it is not said. Of those before, ``broadcasts``
    may have fewer.
    """

    def rule(args: Args) -> Iterable[Axes]:
        given = {n: args[n].ndim - k for n, k in mixed.items() if args[n] is not None}
        front = max(given.values())
        if any(k < (0 if n in broadcasts else front) for n, k in given.items()):
            return ()
        labels = labels_of(front)
        tensors = {n: (*labels[front - k :], *(None,) * mixed[n]) for n, k in given.items()}
        ends = results or tuple(mixed.values())[:1]
        made = tuple((*labels, *(None,) * k) for k in ends)
        return (Axes(tensors, made, tuple(tensors), broadcasts=broadcasts),)

    return rule


def images(*tensors: str, free: str = "NC") -> AxesRule:
    """The axes of an operator of images, whose ``layout`` results have, too."""

    def rule(args: Args) -> Iterable[Axes]:
        labels = layout_labels(args["layout"], **{c: c for c in free})
        return (Axes(dict.fromkeys(tensors, labels), (labels,)),)

    return rule


def with_vectors(x: str, *vectors: str) -> AxesRule:
    """The axes of an elementwise operator of ``x`` and of vectors along its ``axis``."""

    def rule(args: Args) -> Iterable[Axes]:
        labels = labels_of(args[x].ndim)
        vector = labels[normalize_axis(args["axis"], len(labels))]
        tensors = {x: labels, **{v: (vector,) for v in vectors if args[v] is not None}}
        return (Axes(tensors, (labels,), (x,), ("axis",)),)

    return rule


def product_terms(equation: str) -> tuple[str, str, str]:
    """Return the letters of the axes of x1, of x2, and of the result."""
    first, second, result = equation.replace("->", ",").split(",")
    return first, second, result


@dataclass(frozen=True, slots=True)
class Product:
    """The axes of a product of x1 and x2, an equation of `einsum`."""

    equation: str

    def __call__(self, args: Args) -> Iterable[Axes]:
        first, second, result = product_terms(self.equation)
        tensors: dict[str, Labels] = {"x1": tuple(first), "x2": tuple(second)}
        return (Axes(tensors, (tuple(result),), broadcasts=("x1", "x2")),)


def elementwise(args: Args, promotes: Sequence[str] = ()) -> Iterable[Axes]:
    """The axes of an elementwise operator."""
    tensors = {n: t for n, t in args.items() if isinstance(t, TensorType)}
    if not tensors:
        return ()
    # Where all have one shape, the operator perhaps does not broadcast.
    alike = len({t.shape for t in tensors.values()}) == 1 and not tensors.keys() <= set(promotes)
    none: dict[str, Any] = dict.fromkeys(tensors, 0)
    return last(broadcasts=() if alike else tuple(tensors), **none)(args)
