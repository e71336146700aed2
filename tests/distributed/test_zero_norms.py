"""ZeRO and tensor parallelism with optimizers that look at a parameter as a whole: norms, rows and
columns are those of all parts together.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from meta import op, optim
from meta.base.errors import ArgumentError
from meta.runtime.placement import Placement, Split
from tests.distributed.training import STAGES, Net

SPLIT = STAGES[1:]
SHAPES: dict[str, tuple[int, ...]] = {
    "matrix": (7, 5),
    "kernel": (3, 2, 1, 3),
    "column": (4, 1),
    "row": (1, 5),
    "one": (1, 1),
    "vector": (7,),
    "number": (),
}
ROWS = 6
slow = pytest.mark.slow


class Linear(meta.Model):
    """The sum of every parameter times the mean of its rows: no number of ranks divides all."""

    def build(self) -> None:
        drawn = np.random.default_rng(0)
        for name, shape in SHAPES.items():
            array = meta.array(drawn.standard_normal(shape), "float64", name=name)
            array.requires_grad = True
            setattr(self, name, array)

    @meta.model.trace
    def forward(self, *rows: Any) -> Any:
        """Return the loss."""
        terms = [
            op.sum(getattr(self, n) * op.mean(x, axis=0)) for n, x in zip(SHAPES, rows, strict=True)
        ]
        return sum(terms[1:], terms[0])


GROUPS = [{"params": ["vector", "row"], "lr": 0.3, "weight_decay": 0.0}]
MAKERS = {
    "lamb": partial(optim.with_lamb, 0.1, weight_decay=0.1, clip_norm=0.5, groups=GROUPS),
    # What fills up a part has gradients of 0: without eps its quotients are no numbers.
    "lamb without eps": partial(optim.with_lamb, 0.1, eps=0.0, accumulate=2, ema=0.5),
    "lans": partial(optim.with_lans, 0.1, weight_decay=0.1, clip_norm=0.5, maximize=True),
    "lans accumulated": partial(optim.with_lans, 0.1, eps=0.0, accumulate=2, clip_value=0.2),
    "adafactor": partial(optim.with_adafactor, 0.1, weight_decay=0.1, clip_norm=0.5, groups=GROUPS),
    "adafactor accumulated": partial(
        optim.with_adafactor, 0.1, accumulate=2, ema=0.5, clip_value=0.2
    ),
    "muon": partial(optim.with_muon, 0.1, clip_norm=0.5, groups=GROUPS),
    "muon accumulated": partial(
        optim.with_muon, 0.1, accumulate=2, groups=[{"params": "kernel", "orthogonal": False}]
    ),
}


def trained(name: str, compiled: bool, over: str | None = None, zero: int = 0) -> Any:
    """Make four steps with this rank's rows; return the state, of parts the whole arrays."""
    rank, count = (0, 1) if over is None else (dist.rank(over), dist.size(over))
    own = slice(rank * (ROWS // count), (rank + 1) * (ROWS // count))
    step = MAKERS[name](over=over, zero=zero)(Linear())
    drawn = np.random.default_rng(1)
    run: Any = step
    for number in range(4):
        rows = [meta.array(drawn.standard_normal((ROWS, *s))[own]) for s in SHAPES.values()]
        given = meta.array(1.0, "float64"), *rows
        if compiled and number == 0:
            run = meta.vm.compile(step, *given)
        run(*given)
    return {n: dist.unshard(a).numpy() for n, a in step.state().items()}


@pytest.mark.parametrize(
    ("compiled", "count"), [(True, 3), (False, 2), pytest.param(True, 2, marks=slow)]
)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.long
def test_ranks_train_as_one(name: str, compiled: bool, count: int) -> None:
    alone = trained(name, compiled)
    assert all(np.isfinite(value).all() for value in alone.values())
    for zero in SPLIT:
        found = dist.simulate(count).run(partial(trained, zero=zero), name, compiled, "dp")
        for state in found:
            assert state.keys() == alone.keys()
            for key, value in state.items():
                np.testing.assert_allclose(value, alone[key], 1e-10, 1e-13, err_msg=f"{zero} {key}")
                np.testing.assert_array_equal(value, found[0][key], err_msg=key)


def layer(dtype: str) -> meta.model.Linear:
    """Return a layer whose arrays no number of ranks divides: the same on all ranks."""
    made = meta.model.Linear(5, 7)
    drawn = np.random.default_rng(0)
    for array in made.state().values():
        array.update(meta.array(drawn.standard_normal(array.shape), "float32"))
    made.to(dtype=dtype)
    return made


WITHOUT_OPTIONS = {
    "lamb": optim.with_lamb,
    "lans": optim.with_lans,
    "adafactor": optim.with_adafactor,
    "muon": optim.with_muon,
}


@pytest.mark.parametrize("name", WITHOUT_OPTIONS)
def test_masters_and_overflows(name: str) -> None:
    """In bfloat16, with masters: an overflow on one rank changes nothing on any, and steps are as
    those without ZeRO.
    """

    def rank(zero: int) -> Any:
        scale = optim.DynamicLossScale(init=8.0)
        options = {"over": "dp", "zero": zero, "loss_scale": scale, "reduce_dtype": "float32"}
        step = WITHOUT_OPTIONS[name](0.1, **options)(layer("bfloat16"))
        dy = meta.ones((1, 7), "bfloat16")
        states = []
        for bad in (False, True, False):
            value = inf if bad and dist.rank("dp") else 0.5 + dist.rank("dp")
            step(dy, meta.full((1, 5), value, "bfloat16"))
            state = {n: dist.unshard(a).astype("float32").numpy() for n, a in step.state().items()}
            states.append({n: a for n, a in state.items() if "loss_scale" not in n})
        return states

    whole = dist.simulate(3).run(rank, 0)[0]
    for zero in SPLIT:
        for good, skipped, last in dist.simulate(3).run(rank, zero):
            for key, value in last.items():
                np.testing.assert_array_equal(skipped[key], good[key], err_msg=key)
                np.testing.assert_allclose(value, whole[-1][key], 1e-2, 1e-3, err_msg=key)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("lamb", 2 * 15), ("lans", 2 * 15), ("adafactor", 7 + 5 + 3), ("muon", 12 + 2 * 3)],
)
def test_what_a_rank_keeps(name: str, kept: int) -> None:
    """Of 35 + 7 parameters three ranks have 12 + 3; means of rows and columns are whole."""

    def rank() -> Any:
        state = WITHOUT_OPTIONS[name](over="dp", zero=2)(layer("float32")).optimizer.state()
        return {n: (a.size, a.placement) for n, a in state.items() if a.shape}

    parts = {n: Placement(s, (Split("dp", 3),)) for n, s in (("weight", (7, 5)), ("bias", (7,)))}
    for state in dist.simulate(3).run(rank):
        assert sum(size for size, _ in state.values()) == kept
        for key, (_, placement) in state.items():
            whole = key in ("rows.weight", "columns.weight")
            assert whole != (placement == parts[key.split(".")[-1]]), key


def test_one_exchange_for_the_norms_of_all_parameters() -> None:
    def rank() -> Any:
        found = []
        for name, make in WITHOUT_OPTIONS.items():
            step = make(over="dp", zero=2)(Linear())
            given = [meta.ones((2, *s), "float64") for s in SHAPES.values()]
            text = str(step.program(meta.array(1.0, "float64"), *given).module)
            found.append((name, text.count("all_reduce(")))
        return found

    expected = [("lamb", 1), ("lans", 2), ("adafactor", 2), ("muon", 0)]
    assert dist.simulate(2).run(rank) == [expected] * 2


class Deep(meta.Model):
    """Layers whose gradients are most of the memory."""

    def build(self) -> None:
        self.layers = meta.model.Sequential(*(meta.model.Linear(128, 128) for _ in range(8)))

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        """Return the mean square."""
        y = self.layers(x)
        return op.mean(y * y)


@pytest.mark.parametrize("name", ["lamb", "adafactor", "muon"])
def test_new_values_are_written_as_they_are_known(name: str) -> None:
    """An update needs little more memory than all gradients."""

    def rank() -> float:
        step = WITHOUT_OPTIONS[name](over="dp", zero=2)(Deep())
        executable = meta.vm.compile(step, meta.array(1.0), meta.ones((2, 128)))
        return executable.memory().peak / (8 * 128 * 129 * 4)

    assert max(dist.simulate(2).run(rank)) < 1.5


ALONG = {"first": "column", "last": "row"}


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("name", ["lamb", "lans"])
def test_beside_tensor_parallelism(name: str, zero: int) -> None:
    """Two by two ranks: a norm is that of a parameter that is divided along both axes."""
    drawn = np.random.default_rng(0)
    x, y = (drawn.standard_normal((4, n)) for n in (6, 1))
    weights = [drawn.standard_normal(a.shape) for a in Net().parameters()]

    def rank(zero: int | None) -> Any:
        net, rows = Net(), slice(0, 4)
        for array, value in zip(net.parameters(), weights, strict=True):
            array.update(meta.array(value))
        net.to(dtype="float64")
        options: dict[str, Any] = {}
        if zero is not None:
            dist.tensor_parallel(net, ALONG)
            rows = slice(2 * dist.rank("dp"), 2 * dist.rank("dp") + 2)
            options = {"over": "dp", "zero": zero}
        step = WITHOUT_OPTIONS[name](0.1, weight_decay=0.1, **options)(net)
        for _ in range(3):
            step(meta.array(1.0, "float64"), meta.array(x[rows]), meta.array(y[rows]))
        return {n: dist.unshard(a).numpy() for n, a in step.state().items()}

    alone = rank(None)
    for state in dist.simulate({"dp": 2, "tp": 2}).run(rank, zero):
        assert state.keys() == alone.keys()
        for key, value in state.items():
            np.testing.assert_allclose(value, alone[key], 1e-10, 1e-13, err_msg=key)


def test_an_eager_optimizer_has_the_norms_of_all_parts() -> None:
    values = np.arange(1.0, 5.0)

    def rank(parts: bool) -> Any:
        place = 2 * dist.rank("tp") if parts else 0
        x = meta.array(values[place : place + 2] if parts else values, "float64")
        x.requires_grad = True
        if parts:
            x.placement = Placement((4,), (Split("tp", 2, 0),))
        optimizer = optim.LANS([x], 0.1)
        for _ in range(2):
            (x * x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return dist.unshard(x).numpy()

    for found in dist.simulate({"tp": 2}).run(rank, True):
        np.testing.assert_allclose(found, rank(False), 1e-12)


@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_rows_and_columns_that_tensor_parallelism_divides(name: str) -> None:
    def rank() -> None:
        net = Net()
        dist.tensor_parallel(net, ALONG)
        with pytest.raises(ArgumentError, match=r"(?s)rows and columns.*'first.weight'.*try: "):
            WITHOUT_OPTIONS[name](over="dp", zero=1)(net)

    dist.simulate({"dp": 2, "tp": 2}).run(rank)
