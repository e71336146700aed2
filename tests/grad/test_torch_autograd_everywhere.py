"""Everything public that takes a torch tensor is given one that requires a gradient: the history of
the result reaches the tensor, or there is an error. Nothing is listed by hand: operators come from
their records, functions from their registries, methods and layers from their classes.

The oracles are that of the operator's record and torch's layer, differentiated by torch in float64,
and numeric differences for functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import GradientError, MetaError
from meta.base.methods import Overloads
from meta.base.registry import FUNCTIONS, OPERATORS
from meta.op.core import tree
from meta.op.core.op import by_schema
from meta.op.functional_updates import IndexedUpdate
from meta.runtime.no_gradient import NoGradient
from meta.testing.case import OpCase, Sample
from tests.model.layers.cases import CASES as LAYERS
from tests.op.records import CASES

STEP = 1e-6


@pytest.fixture(autouse=True)
def torch_kernels() -> Iterator[None]:
    """Nothing is compiled: operators have tests of their own on each dialect."""
    with meta.dialect.prefer("torch"):
        yield


def is_floating(value: Any) -> bool:
    tensor = isinstance(value, torch.Tensor)
    return tensor and (value.dtype.is_floating_point or value.dtype.is_complex)


def entering(values: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return a tree with copies of its floats that require a gradient, and these copies."""
    leaves, structure = tree.flatten(values)
    new = [v.detach().clone().requires_grad_() if is_floating(v) else v for v in leaves]
    return tree.unflatten(structure, new), [v for v in new if is_floating(v)]


def arrays(result: Any) -> list[meta.ndarray]:
    return [a for a in tree.flatten(result)[0] if isinstance(a, meta.ndarray)]


def left(results: list[meta.ndarray], what: str) -> list[torch.Tensor]:
    """Return those results that have history, as tensors; the others say why they have none."""
    for a in results:
        assert a.requires_grad or a.node.__class__ is NoGradient, f"{what} drops the gradient"
    found = [a.torch() for a in results if a.requires_grad]
    assert all(t.requires_grad for t in found)
    return found


def gradients(
    ys: list[torch.Tensor], dys: list[torch.Tensor], xs: list[torch.Tensor]
) -> list[torch.Tensor]:
    pairs = [(y, dy.to(y.dtype)) for y, dy in zip(ys, dys, strict=True) if y.requires_grad]
    found = torch.autograd.grad(
        [y for y, _ in pairs], xs, [dy for _, dy in pairs], allow_unused=True
    )
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, xs, strict=True)]


def directions(ys: list[torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(5)
    return [torch.randn_like(y) for y in ys]


def _recorded(case: OpCase) -> Sample | None:
    """Return a sample of smooth floats in float64."""
    usable = (s for s in case.samples if s.is_smooth and s.has_floats)
    return next(usable, None) if "float64" in case.dtypes else None


OPERATIONS: dict[str, tuple[OpCase, Sample]] = {}
for _case in CASES:
    _sample = _recorded(_case)
    if _sample is not None and (_case.op not in OPERATIONS or _case.grad):
        OPERATIONS.setdefault(_case.op, (_case, _sample))


@pytest.mark.parametrize("name", OPERATIONS)
def test_operators(name: str) -> None:
    case, sample = OPERATIONS[name]
    operator = OPERATORS[name]
    given = sample.make("float64")
    (args, kwargs), xs = entering(given)

    def run() -> Any:
        meta.random.seed(0)
        return by_schema(operator)(*args, **kwargs)

    if operator.schema.written:
        with pytest.raises(GradientError, match="would write"):
            run()
        return
    results = arrays(run())
    if not left(results, name) or not case.grad:
        return
    (args, kwargs), leaves = entering(given)
    oracle = tree.flatten(case.oracle(*args, **kwargs))[0]
    pairs = [(a.torch(), w) for a, w in zip(results, oracle, strict=True)]
    # What the record does not differentiate is left out.
    pairs = [(y, w) for y, w in pairs if is_floating(w) and w.requires_grad]
    ys, wanted = [y for y, _ in pairs], [w for _, w in pairs]
    dys = directions(ys)
    for found, expected in zip(gradients(ys, dys, xs), gradients(wanted, dys, leaves), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def _pool() -> list[tuple[Any, ...]]:
    """Return arguments that functions may be called with, in the order in which they are tried."""
    generator = torch.Generator().manual_seed(1)

    def new(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1

    x, y, v, w = new(3, 3), new(3, 3), new(3), new(3)
    x = x + x.T + 3 * torch.eye(3, dtype=torch.float64)
    row, rows = torch.tensor([0, 2, 1]), torch.tensor([[0, 1, 2], [2, 0, 1], [1, 2, 0]])
    image, heads = new(1, 2, 4, 4), new(1, 2, 3, 4)
    mask, ones = x > 0.5, torch.ones(3, dtype=torch.float64)
    return [
        *((x,), (x, y), (v,), (v, w), (x, rows, y, 0), (x, y, v), (x, 2), (x, row)),
        *((x, 0, row, y),),
        *((x, 0, row, 0.5), (x, 0, 1), (x, row, y), (x, mask), (x, mask, 0.5), (x, mask, y)),
        *((new(8, 3),), (new(1, 3, 8),)),
        *(([x, y],), (x, y, row), (x, v, row), (v, w, ones), (image,), (image, image), (image, 2)),
        *((heads, heads, heads), (x, y, x + y), (x, v, v, v), (x, rows)),
        *((x, rows, y), (x, 0, row, y, "mean"), (row, x), (x, 3, 3), (x, v, w), (x, y, True)),
        *((row, v), (x, row.int() + 1, y), (new(1, 1, 3), rows[:1, None], 2)),
        *((new(1, 1, 1, 3), rows[:1, None, None], 2),),
        *((new(1, 1, 1, 1, 3), rows[:1, None, None, None], 2),),
        (new(4, 1, 3).log_softmax(-1), rows[:1, :2] + 1, torch.tensor([4]), torch.tensor([2])),
        *((rows, x), (y / 2,), (rows.to(torch.int8), new(3, 1))),
    ]


def _functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in FUNCTIONS:
        yield name, FUNCTIONS[name]
    for module in (meta.linalg, meta.fft, meta.random):
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and not inspect.isclass(value):
                yield f"{module.__name__.rpartition('.')[2]}.{name}", value


CALLABLES = dict(_functions())
# No parameter of theirs is a tensor of floats.
OF_NUMBERS = {
    *("broadcast_shapes", "empty", "eye", "linspace", "unravel_index"),
    *("fft.fftfreq", "fft.rfftfreq"),
    *("random.normal", "random.uniform", "random.randint", "random.seed", "random.exponential"),
    *("random.gumbel", "random.permutation"),
}


def _fitting(f: Callable[..., Any]) -> tuple[Any, ...] | None:
    """Return arguments with floats that a function takes, and of which it makes arrays."""
    for args in _pool():
        try:
            if any(map(is_floating, tree.flatten(args)[0])) and arrays(f(*args)):
                return args
        except (MetaError, TypeError, ValueError, IndexError, AttributeError, RuntimeError):
            continue
    return None


@pytest.mark.parametrize("name", CALLABLES)
def test_functions(name: str) -> None:
    f = CALLABLES[name]
    args = _fitting(f)
    if name in OF_NUMBERS and args is None:
        return
    assert args is not None, f"no arguments for {name}: add some to the pool"

    def run(given: Any) -> list[meta.ndarray]:
        meta.random.seed(0)
        return arrays(f(*given))

    given, xs = entering(args)
    results = run(given)
    ys = left(results, name)
    if not ys:
        return
    dys = directions(ys)
    try:
        found = gradients(ys, dys, xs)
    except GradientError:
        return  # of an argument by which nobody differentiates, as a condition
    leaves, structure = tree.flatten(args)
    # Symmetric, as what reads one half of a matrix takes it for the other half, too.
    drawn = directions([v for v in leaves if is_floating(v)])
    along = iter([m + m.mT if m.shape == (3, 3) else m for m in drawn])
    moves = [next(along) if is_floating(v) else None for v in leaves]

    def value(step: float) -> float:
        moved = [v if m is None else v + step * m for v, m in zip(leaves, moves, strict=True)]
        outs = run(tree.unflatten(structure, moved))
        chosen = [o.torch() for o, r in zip(outs, results, strict=True) if r.requires_grad]
        return sum(_inner(o, dy) for o, dy in zip(chosen, dys, strict=True))

    numeric = (value(STEP) - value(-STEP)) / (2 * STEP)
    used = [m for m in moves if m is not None]
    slope = sum(_inner(g, m) for g, m in zip(found, used, strict=True))
    assert slope == pytest.approx(numeric, rel=1e-5, abs=1e-6)


def _inner(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the sum of products, of complex numbers as of pairs of real ones."""
    return (a * b.conj()).real.sum().item()


X = torch.tensor([[1.5, 2.0], [3.0, 0.5]], dtype=torch.float64)
METHODS = sorted(
    {n for n in vars(Overloads) if n.startswith("__") and n not in object.__dict__}
    - {"__slots__", "__module__", "__setitem__", "__annotations__", "__firstlineno__"}
    - {"__static_attributes__", "__getitem__"}
)


@pytest.mark.parametrize("name", METHODS)
def test_python_operators(name: str) -> None:
    """Beside an array, and on either side."""
    method = getattr(meta.ndarray, name)
    for x in (meta.array(X), meta.array(X > 1), meta.array(X.long())):
        t = X.clone().requires_grad_()
        if len(inspect.signature(method).parameters) == 1:
            x, other = meta.asarray(t), ()
        else:
            other = (t,)
        try:
            result = method(x, *other)
        except MetaError:
            continue
        if result is not NotImplemented:
            for y in left(arrays(result), name):
                assert torch.autograd.grad(y.sum(), t)[0].shape == t.shape


UPDATES = [n for n in vars(IndexedUpdate) if not n.startswith("_") and n != "get"]


@pytest.mark.parametrize("name", UPDATES)
def test_parts_of_new_arrays(name: str) -> None:
    t = X[0].clone().requires_grad_()
    (y,) = left([getattr(meta.array(X).at[0], name)(t)], name)
    move = torch.tensor([0.3, -0.7], dtype=torch.float64)
    values = [
        getattr(meta.array(X).at[0], name)(t.detach() + s * move).torch() for s in (STEP, -STEP)
    ]
    numeric = ((values[0] - values[1]) / (2 * STEP)).sum().item()
    assert (torch.autograd.grad(y.sum(), t)[0] * move).sum().item() == pytest.approx(numeric)


LAYER_NAMES = {name.split()[0]: name for name in reversed(LAYERS) if not LAYERS[name].indices}


@pytest.mark.parametrize("name", LAYER_NAMES.values(), ids=LAYER_NAMES)
def test_layers(name: str) -> None:
    case = LAYERS[name]
    torch.manual_seed(3)
    theirs, ours = case.theirs(), case.ours()
    ours.load_state_dict(theirs.state_dict())
    given, xs = entering(case.inputs())
    again, leaves = entering(given)
    ys = left(arrays(ours(*given)), name)
    wanted = [w for w in tree.flatten(theirs(*again))[0] if w is not None]
    dys = directions(ys)
    for found, expected in zip(gradients(ys, dys, xs), gradients(wanted, dys, leaves), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
