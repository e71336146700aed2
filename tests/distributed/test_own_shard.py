"""Parts of arrays that are seen where they lie (`own_shard`), and gathered there: by every
executor, with NumPy as the oracle; and training steps of ZeRO that use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import distributed as dist
from meta import op, optim
from meta.base import config
from meta.base.errors import ArgumentError, DistributedError
from meta.dialect import only
from meta.passes.distributed import chunk_updates
from meta.runtime.ndarray import ndarray
from tests.vm.recorder import TapeRecorder, let_recording_fail, standing_in

COUNTS = [1, 2, 3, 4]
SHAPE = 4, 3, 2


def doubled(x: Any, y: Any, size: int) -> Any:
    """Double this rank's part of x, gather all; return a part of y, and one that is computed."""
    own = op.own_shard(x, "dp", size)
    op.assign(own, own * 2)
    op.multi_tensor_all_gather_in_place([x], "dp", size)
    return op.own_shard(y, "dp", size), op.tanh(op.own_shard(op.sin(x), "dp", size))


EXECUTORS: dict[str, Callable[..., Any]] = {
    "eager": lambda f, *_: f,
    "interpreter": lambda f, *_: meta.model.trace(f),
    "vm": lambda f, *args: meta.vm.compile(meta.model.trace(f), *args),
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("verified", [False, True])
def test_parts_are_views(executor: str, count: int, verified: bool) -> None:
    values = np.arange(24.0, dtype="float32").reshape(SHAPE)

    def rank() -> Any:
        x, y = meta.array(values), meta.array(values + 1)
        run = EXECUTORS[executor](partial(doubled, size=count), x, y)
        found = [run(x, y) for _ in range(2)][1]
        return dist.rank("dp"), x.numpy(), *(one.numpy() for one in found)

    with config.override(META_VERIFY=verified):
        ranks = dist.simulate(count).run(rank)
    for place, x, part, computed in ranks:
        mine = slice(place * (24 // count), (place + 1) * (24 // count))
        np.testing.assert_array_equal(x, values * 4)
        np.testing.assert_array_equal(part, (values + 1).reshape(-1)[mine])
        np.testing.assert_allclose(computed, np.tanh(np.sin(values * 4)).reshape(-1)[mine], 1e-5)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "bfloat16", "float64", "complex64", "uint16"])
def test_dtypes(dtype: str) -> None:
    def rank() -> Any:
        x, empty = meta.zeros((2, 6), dtype), meta.zeros((0, 3), dtype)
        op.assign(op.own_shard(x, "dp", 3), meta.full((4,), dist.rank("dp")).astype(dtype))
        op.multi_tensor_all_gather_in_place([x, empty], "dp", 3)
        return x.astype("complex64").numpy()

    expected = np.repeat(np.arange(3), 4).reshape(2, 6)
    for found in dist.simulate(3).run(rank):
        np.testing.assert_array_equal(found, expected != 0 if dtype == "bool" else expected)


def test_a_part_is_not_written_over_by_what_is_larger() -> None:
    """Half the elements of half the width are as many bytes; they are read while these are made."""

    def rank() -> Any:
        x = meta.array(np.arange(64.0), "float32")

        def widened(x: Any) -> Any:
            part = op.own_shard(op.astype(x * 2, "float16"), "dp", 2)
            return op.sum(op.astype(part, "float32")), op.exp(op.astype(part, "float32") * 0.01)

        run = meta.vm.compile(meta.model.trace(widened), x)
        return [one.numpy() for one in run(x)]

    for place, (total, wide) in enumerate(dist.simulate(2).run(rank)):
        part = np.arange(64.0)[32 * place :][:32] * 2
        assert total == part.sum()
        np.testing.assert_allclose(wide, np.exp(part * 0.01), 1e-5)


def test_a_part_is_reduced_in_a_bucket_of_its_own_memory() -> None:
    """Where it ends is another place on each rank: ranks would join other ranges of the arena."""

    def rank() -> Any:
        x = meta.array(np.arange(16.0), "float32") * (1 + dist.rank("dp"))

        def summed(x: Any) -> Any:
            part, other = op.own_shard(op.exp(x * 0), "dp", 2), op.cos(x * 0)
            return [dist.all_reduce(part, "dp"), dist.all_reduce(other, "dp")]

        run = meta.vm.compile(meta.model.trace(summed), x)
        return [one.numpy().tolist() for one in run(x)]

    assert dist.simulate(2).run(rank) == [[[2.0] * 8, [2.0] * 16]] * 2


def test_saved_programs_are_for_all_ranks(tmp_path: Path) -> None:
    values = np.arange(24.0, dtype="float32").reshape(SHAPE)

    def rank() -> Any:
        x, y = meta.array(values), meta.array(values)
        run = meta.vm.compile(meta.model.trace(partial(doubled, size=2)), x, y)
        run.save(tmp_path / str(dist.rank("dp")))
        dist.all_reduce(x, "dp")  # until all have saved
        part = meta.vm.load(tmp_path / "0")(x, y)[0]
        np.testing.assert_array_equal(part.numpy(), values.reshape(2, 12)[dist.rank("dp")])
        return x.numpy(), str(run.module)

    found = dist.simulate(2).run(rank)
    assert found[0][1] == found[1][1]
    for x, _ in found:
        np.testing.assert_array_equal(x, values * 2)
    first, second = (tmp_path / str(i) / "code.json" for i in range(2))
    assert first.read_bytes() == second.read_bytes()


def test_errors() -> None:
    def rank() -> None:
        x = meta.ones((4, 6))
        with pytest.raises(ArgumentError, match="not compact"):
            op.own_shard(ndarray(torch.ones(6, 4).T), "dp", 2)
        with pytest.raises(DistributedError, match="for 3 ranks"):
            op.own_shard(x, "dp", 3)
        with pytest.raises(DistributedError, match="no axis 'tp'"):
            op.own_shard(x, "tp", 2)

    dist.simulate(2).run(rank)


class Net(meta.Model):
    """Two layers of which numbers of ranks divide all arrays, and one that they do not."""

    def build(self, dtype: str) -> None:
        drawn = np.random.default_rng(0)
        self.first, self.last = meta.model.Linear(16, 48), meta.model.Linear(48, 1)
        for array in self.state().values():
            array.update(meta.array(drawn.standard_normal(array.shape) * 0.3, "float32"))
        self.to(dtype=dtype)

    @meta.model.trace
    def forward(self, x: Any, y: Any) -> Any:
        """Return the loss of a batch."""
        missed = self.last(meta.tanh(self.first(x))) - y
        return meta.sum(op.astype(missed * missed, "float32"))


GROUPS = [{"params": "*bias", "weight_decay": 0.0}]
MAKERS = {
    "adamw": partial(optim.with_adamw, 1e-2, clip_norm=0.5, groups=GROUPS),
    "accumulated": partial(optim.with_sgd, 1e-2, momentum=0.9, accumulate=2, ema=0.5),
    "scaled": partial(optim.with_adamw, 1e-2, loss_scale=optim.DynamicLossScale(init=16.0)),
    "lamb": partial(optim.with_lamb, 1e-2),
    "muon": partial(optim.with_muon, 1e-2, groups=GROUPS),
}
ROWS, STEPS = 12, 4


def trained(
    name: str, dtype: str, compiled: bool, zero: int | None = None, tp: bool = False
) -> dict[str, Any]:
    """Train on this rank's rows; the third batch overflows on the last rank."""
    drawn = np.random.default_rng(1)
    net, own, options = Net(dtype), slice(None), dict[str, Any]()
    if zero is not None:
        if tp:
            dist.tensor_parallel(net, {"first": "column", "last": "row"})
        rows = ROWS // dist.size("dp")
        own = slice(dist.rank("dp") * rows, (dist.rank("dp") + 1) * rows)
        options = {"over": "dp", "zero": zero, "reduce_dtype": "float32"}
    step: Any = MAKERS[name](**options)(net)
    run, one = step, 1.0 if zero is None else float(dist.size("dp"))
    for number in range(STEPS):
        x, y = drawn.standard_normal((ROWS, 16)), drawn.standard_normal((ROWS, 1))
        if name == "scaled" and number == 2:
            x[-1] = np.inf
        given = meta.array(one), meta.array(x[own], dtype), meta.array(y[own], dtype)
        if compiled and number == 0:
            run = meta.vm.compile(step, *given)
        before = {n: a.numpy().copy() for n, a in net.state_dict().items()}
        if dtype != "float32":
            before = {}
        run(*given)
        skipped = name == "scaled" and number == 2
        for key, value in before.items():
            assert np.array_equal(value, net.state_dict()[key].numpy()) == (
                skipped or (name == "accumulated" and number % 2 == 0)
            ), key
    state = dist.unshard(step.state()) if zero is not None else step.state()
    return {n: a.astype("float64").numpy() for n, a in state.items()}


def compare(found: list[dict[str, Any]], alone: dict[str, Any], dtype: str) -> None:
    # Of bfloat16 the gradients of a rank are rounded before they are added up.
    close = (1e-4, 1e-5) if dtype == "float32" else (0.05, 0.05)
    for state in found:
        assert state.keys() == alone.keys()
        for key, value in state.items():
            np.testing.assert_allclose(value, alone[key], *close, err_msg=key)
            np.testing.assert_array_equal(value, found[0][key], err_msg=key)


@pytest.fixture
def parted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few bytes are worth a part."""
    monkeypatch.setattr(chunk_updates, "MIN_CHUNK_BYTES", 64)


@pytest.mark.usefixtures("parted")
@pytest.mark.parametrize("zero", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.long
def test_training(name: str, dtype: str, zero: int) -> None:
    """As one rank: of 2 and 3 ranks compiled, of 4 interpreted, of 1 both."""
    alone = trained(name, dtype, True)
    for count, compiled in ((1, True), (2, True), (3, True), (4, False)):
        found = dist.simulate(count).run(partial(trained, zero=zero), name, dtype, compiled)
        compare(found, alone, dtype)


@pytest.mark.usefixtures("parted")
@pytest.mark.parametrize("zero", [1, 2])
def test_beside_tensor_parallelism(zero: int) -> None:
    alone = trained("adamw", "float32", True)
    ranks = dist.simulate({"dp": 2, "tp": 2})
    found = ranks.run(partial(trained, zero=zero, tp=True), "adamw", "float32", True)
    compare(found, alone, "float32")


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Iterator[TapeRecorder]:
    """Programs compiled here are recorded by a stand-in for CUDA graphs."""
    yield standing_in(monkeypatch)


@pytest.mark.usefixtures("parted")
@pytest.mark.parametrize("zero", [1, 2])
@pytest.mark.parametrize("name", ["adamw", "scaled"])
def test_graphs(tape: TapeRecorder, name: str, zero: int) -> None:
    alone = trained(name, "float32", False)
    with only("torch", "gloo"):
        found = dist.simulate(2).run(partial(trained, zero=zero), name, "float32", True)
    assert tape.recorded >= 2
    compare(found, alone, "float32")


def test_views_of_what_graphs_copy(tape: TapeRecorder) -> None:
    """What leaves a graph as a part of what came in is a part of what the caller gave."""

    def body(x: Any) -> Any:
        own = op.own_shard(x, "dp", 2)
        y = op.sin(op.cos(op.tanh(op.exp(x))))
        return y, op.where(op.sum(own) > 0, own, own), own

    def rank() -> Any:
        x = meta.array(np.arange(8.0))
        run = meta.vm.compile(meta.model.trace(body), x, cuda_graph=True)
        place = dist.rank("dp")
        for number in range(4):
            given = np.arange(8.0) + number
            found = run(meta.array(given))
            np.testing.assert_array_equal(found[2].numpy(), given[4 * place :][:4])
            np.testing.assert_array_equal(found[1].numpy(), given[4 * place :][:4])

    with only("torch", "gloo"):
        dist.simulate(2).run(rank)
    assert tape.replays > 0


@pytest.mark.parametrize("late", [True, False])
def test_views_between_two_graphs(
    tape: TapeRecorder, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """What cannot be recorded is between a view of the model's and what writes to it: both are in
    the second graph, or there is none.
    """
    let_recording_fail(monkeypatch, "torch.sin", ZeroDivisionError, lambda: True)

    class Counter(meta.Model):
        def build(self) -> None:
            self.x = meta.model.parameter(meta.array(np.arange(8.0)))

        @meta.model.trace
        def forward(self, y: Any, more: Any) -> Any:
            own = op.own_shard(self.x, "dp", 2)
            for f in (op.sin, op.exp, op.tanh, op.cos, op.tanh, op.cos, op.tanh):
                y = f(y)
            added = more + op.astype(op.sum(y) * 0.0, "float64")
            op.multi_tensor_axpby([added], [own], 1.0, 1.0)
            y = op.cos(op.tanh(op.cos(y)))
            op.multi_tensor_all_gather_in_place([self.x], "dp", 2)
            return y + self.x

    def rank() -> Any:
        disabled = [] if late else ["schedule_collectives", "memory_schedule"]
        counter, y = Counter(), meta.ones(8)
        more = meta.full((4,), 1.0 + dist.rank("dp")).astype("float64")
        with meta.PassContext(disabled=disabled):
            run = meta.vm.compile(counter, y, more)
        results = [run(y, more) for _ in range(5)]
        difference = results[4] - results[3]
        return counter.x.numpy(), difference.numpy()

    with only("torch", "gloo"):
        found = dist.simulate(2).run(rank)
    added = np.repeat([1.0, 2.0], 4)
    for x, difference in found:
        np.testing.assert_array_equal(x, np.arange(8.0) + 5 * added)
        np.testing.assert_allclose(difference, added, 1e-5)
    assert (tape.replays > 0) == late


@pytest.mark.parametrize("zero", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_is_copied(dtype: str, zero: int) -> None:
    """But for the bias of one element, which ranks do not divide."""

    def rank() -> Any:
        net = Net(dtype)
        step = optim.with_adamw(1e-2, over="dp", zero=zero)(net)
        given = meta.array(1.0), meta.ones((2, 16), dtype), meta.ones((2, 1), dtype)
        run = meta.vm.compile(step, *given)
        return run.kernels(), str(run.module)

    with only("torch", "gloo"):
        (kernels, text), (_, other) = dist.simulate(2).run(rank)
    assert text == other
    assert kernels.get("torch.take", 0) <= 2 and kernels["torch.assign"] == 1
    assert "torch.concat" not in kernels
    assert sum(n for name, n in kernels.items() if "in_place" in name) == 1
    assert ("reduce_scatter" in text) == (zero == 2)
