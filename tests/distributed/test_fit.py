"""Training runs over a mesh equal those of one rank with the batches of all."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import meta
from meta import distributed as dist
from meta.base.errors import ArgumentError, DistributedError, NonFiniteError
from meta.model import BatchNorm, Dropout, Linear, ReLU, Sequential, sync_batch_norm
from meta.optim import DynamicLossScale, with_adamw, with_sgd
from meta.optim.schedule import cosine, linear_warmup
from meta.train import AUC, Accuracy, Batches, Callback, EarlyStop, ReduceOnPlateau, evaluate, fit

SAMPLES, FEATURES, CLASSES, SIZE = 52, 4, 3, 12


@pytest.fixture(autouse=True)
def only_torch() -> Iterator[None]:
    """Nothing is compiled."""
    with meta.dialect.only("torch", "gloo"):
        yield


def arrays(samples: int = SAMPLES) -> tuple[Any, Any]:
    """Return inputs in float64 and labels."""
    drawn = np.random.default_rng(7)
    labels = drawn.integers(0, CLASSES, samples)
    return drawn.normal(size=(samples, FEATURES)) + 2 * np.eye(CLASSES, FEATURES)[labels], labels


def network(dtype: str = "float64", dropout: float = 0.0) -> meta.Model:
    meta.random.seed(0)
    layers = [
        Linear(FEATURES, 6, bias=False),
        BatchNorm(6),
        ReLU(),
        Dropout(dropout),
        Linear(6, CLASSES),
    ]
    net = Sequential(*layers)
    net.to(dtype=dtype)
    return net


def loss(scores: Any, labels: Any) -> Any:
    return meta.cross_entropy(scores, labels)


def likeliest(scores: Any, labels: Any) -> Any:
    """Return the mean of the largest score: a metric that is a function."""
    return scores.max(axis=-1).mean()


def run(mesh: Any, optimizer: Any, data: Any = None, **options: Any) -> tuple[Any, Any]:
    """Train on this rank; return the record and the state of the step."""
    net = network()
    if mesh is not None:
        sync_batch_norm(net)
    given = data() if data else Batches(*arrays(), SIZE, seed=2, drop_last=True)
    options = {"epochs": 2, "executor": "interpreter", **options}
    record = fit(net, loss, given, optimizer(), mesh=mesh, **options)
    state = dist.unshard(record.training_step.state())
    return record, {n: a.numpy() for n, a in state.items() if a.dtype != "int64"}


def on_ranks(count: int, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    return dist.simulate(count).run(partial(function, count, *args, **options))


def assert_equal(found: tuple[Any, Any], alone: tuple[Any, Any]) -> None:
    """Compare losses, evaluations and states of runs."""
    np.testing.assert_allclose(found[0].losses, alone[0].losses, 1e-10)
    assert len(found[0].evaluations) == len(alone[0].evaluations)
    for one, wanted in zip(found[0].evaluations, alone[0].evaluations, strict=True):
        assert one == pytest.approx(wanted, rel=1e-9)
    assert found[0].samples == alone[0].samples and found[0].stopped == alone[0].stopped
    assert found[1].keys() == alone[1].keys()
    for name, value in found[1].items():
        np.testing.assert_allclose(value, alone[1][name], 1e-9, 1e-12, err_msg=name)


OPTIMIZERS = {
    "clipped": lambda: with_adamw(1e-2, clip_norm=0.1),
    "accumulated": lambda: with_sgd(0.1, momentum=0.9, accumulate=2, ema=0.5),
    "scaled": lambda: with_sgd(0.1, loss_scale=DynamicLossScale(init=16.0, growth_interval=2)),
}
OF_RANKS: dict[str, Callable[[], Any]] = {
    **OPTIMIZERS,
    "reduced in float64": lambda: with_sgd(0.1, over="dp", reduce_dtype="float64"),
    "in parts": lambda: with_adamw(1e-2, ema=0.5, over="dp", zero=2),
    "parameters in parts": lambda: with_adamw(1e-2, ema=0.5, over="dp", zero=3),
}
"""With options that only ranks have; one rank has those of `OPTIMIZERS`, or of `PLAIN`."""
PLAIN = {
    "reduced in float64": lambda: with_sgd(0.1),
    **dict.fromkeys(("in parts", "parameters in parts"), lambda: with_adamw(1e-2, ema=0.5)),
}


@pytest.mark.parametrize("count", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
@pytest.mark.parametrize("name", OF_RANKS)
def test_a_run_is_that_of_one_rank(name: str, count: int) -> None:
    """With evaluations of batches whose rows ranks do not divide: 52 rows in batches of 10."""
    options = {
        "schedule": linear_warmup(3).then(cosine(5)),
        "eval_data": Batches(*arrays(), 10, shuffle=False),
    }

    def metrics() -> Any:
        return {"accuracy": Accuracy(), "likeliest": likeliest}

    alone = run(None, {**OPTIMIZERS, **PLAIN}[name], **options, metrics=metrics())
    found = on_ranks(count, lambda n: run(n, OF_RANKS[name], **options, metrics=metrics()))
    for one in found:
        assert_equal(one, alone)
        assert one[0].losses == found[0][0].losses
        assert one[0].evaluations == found[0][0].evaluations


@pytest.mark.parametrize("executor", ["interpreter", "vm"])
def test_executors(executor: str) -> None:
    alone = run(None, OPTIMIZERS["clipped"], executor=executor)
    for found in on_ranks(2, run, OPTIMIZERS["clipped"], executor=executor):
        assert_equal(found, alone)


class Divided(meta.Model):
    """Two layers whose hidden features may be divided over ranks, in float64."""

    def build(self, dropout: float = 0.0) -> None:
        self.up, self.drop, self.down = Linear(FEATURES, 8), Dropout(dropout), Linear(8, CLASSES)
        self.to(dtype="float64")

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        """Return scores."""
        return self.down(meta.relu(self.up(self.drop(x))))


@pytest.mark.parametrize("zero", [0, 2])
def test_a_grid(zero: int) -> None:
    """Ranks along "tp" have parts of the model, and the same rows; also in an evaluation of what
    ranks along "dp" begin with.
    """
    grid = {"dp": 2, "tp": 2}

    def rank(mesh: Any) -> tuple[Any, Any, Any]:
        meta.random.seed(1)
        net = Divided()
        if mesh:
            dist.tensor_parallel(net, {"up": "column", "down": "row"})
        options = {"over": "dp", "zero": zero} if mesh else {}
        optimizer = with_sgd(0.1, 0.9, **options)
        rows = Batches(*arrays(), 10, shuffle=False)
        before = evaluate(net, loss, rows, executor="interpreter", mesh=mesh)
        data = Batches(*arrays(), SIZE, drop_last=True)
        record = fit(net, loss, data, optimizer, epochs=2, eval_data=rows, mesh=mesh,
                     executor="interpreter")  # fmt: skip
        state = dist.unshard(record.training_step.state())
        return record, {n: a.numpy() for n, a in state.items()}, before

    alone = rank(None)
    for found in dist.simulate(grid).run(rank, grid):
        assert_equal(found[:2], alone[:2])
        assert found[2] == pytest.approx(alone[2], rel=1e-12)


def test_dropout_on_a_grid() -> None:
    """The masks of a rank are those of its row of the grid: losses differ from another seed's."""
    grid = {"dp": 2, "tp": 2}

    def rank(seed: int) -> Any:
        net = dist.tensor_parallel(Divided(0.5), {"up": "column", "down": "row"})
        data = Batches(*arrays(), SIZE, drop_last=True)
        return fit(net, loss, data, with_sgd(0.1), steps=3, mesh=grid, seed=seed,
                   executor="interpreter").losses  # fmt: skip

    def runs(seed: int) -> Any:
        meta.random.seed(0)
        return dist.simulate(grid).run(rank, seed)

    first = runs(5)
    assert first == runs(5) and first != runs(6)
    assert first[0] == first[1] == first[2] == first[3]


class Read:
    """Batches that a rank reads by itself: every other row."""

    def __init__(self, place: int = 0, count: int = 1, known: bool = True) -> None:
        self.place, self.count, self.known = place, count, known

    def shard(self, place: int, count: int) -> Any:
        return Read(place, count) if self.known else iter(Read(place, count))

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        x, y = arrays()
        for start in range(0, 4 * SIZE, SIZE):
            rows = slice(start + self.place, start + SIZE, self.count)
            yield x[rows], y[rows]


def loader(sampler: Any = None, **options: Any) -> Any:
    data = TensorDataset(*map(torch.from_numpy, arrays(48)))
    return DataLoader(data, SIZE if sampler is None else SIZE // 2, sampler=sampler, **options)


def sampled() -> Any:
    """Return a DataLoader of this rank's part, or of all where there is no mesh."""
    data = TensorDataset(*map(torch.from_numpy, arrays(48)))
    try:
        place, count = dist.rank("dp"), dist.size("dp")
    except DistributedError:
        return loader()
    return loader(DistributedSampler(data, count, place, shuffle=False))


DATA: dict[str, Callable[[], Any]] = {
    "list": lambda: [(x, y) for x, y in Read()],
    "dicts": lambda: [({"x": x}, {"labels": y}) for x, y in Read()],
    "loader": loader,
    "read by each rank": Read,
    "of a length that nobody knows": lambda: Read(known=False),
    "sampled": sampled,
}


@pytest.mark.parametrize("name", DATA)
def test_data(name: str) -> None:
    epochs = 1 if "nobody" in name else 2
    data = Read if "nobody" in name else DATA[name]
    alone = run(None, OPTIMIZERS["clipped"], data, epochs=epochs)
    for found in on_ranks(2, run, OPTIMIZERS["clipped"], DATA[name], epochs=epochs):
        assert_equal(found, alone)


def test_batches_are_shared_out_once() -> None:
    """In every epoch each rank has its rows of the one permutation of all."""
    whole = Batches(np.arange(24.0), None, 6, seed=3)
    parts = [Batches(np.arange(24.0), None, 6, seed=3).shard(place, 3) for place in range(3)]
    for _ in range(3):
        for batch, *of_ranks in zip(whole, *parts, strict=True):
            joined = np.concatenate([one[0].numpy() for one in of_ranks])
            np.testing.assert_array_equal(joined, batch[0].numpy())


@pytest.mark.parametrize("samples", [1, 2, 5, 12, 13])
def test_an_evaluation_counts_each_row_once(samples: int) -> None:
    """Also where a rank has none; areas under curves are of all scores together."""
    x, _ = arrays(samples)
    y = (np.arange(samples) % 2).astype("int64")

    def found(mesh: Any) -> Any:
        meta.random.seed(0)
        net = Linear(FEATURES, 2)
        net.to(dtype="float64")
        metrics = {"auc": AUC(), "accuracy": Accuracy(), "likeliest": likeliest}
        data = Batches(x, y, 5, shuffle=False)
        return evaluate(net, loss, data, metrics=metrics, executor="interpreter", mesh=mesh)

    alone = found(None)
    for one in dist.simulate({"dp": 3, "tp": 2}).run(found, {"dp": 3, "tp": 2}):
        assert one == pytest.approx(alone, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("counts", [(2, 1, 4), (1, 3, 2)], ids=str)
def test_a_checkpoint_goes_on_with_other_numbers_of_ranks(
    counts: tuple[int, ...], tmp_path: Path
) -> None:
    """In the middle of an epoch, too, with all that ranks decide: the data's order, the plateau."""

    def part(count: Any, steps: int, checkpoint: Path | None) -> Any:
        def one() -> Any:
            return run(
                None if count is None else count,
                partial(with_adamw, 1e-1, ema=0.9),
                epochs=None,
                steps=steps,
                checkpoint=checkpoint,
                eval_data=Batches(*arrays(), 10, shuffle=False),
                eval_every=2,
                callbacks=[ReduceOnPlateau(0.5, 1)],
            )

        return one() if count is None else dist.simulate(count).run(one)[0]

    alone = part(None, 9, None)
    for steps, count in zip((3, 6, 9), counts, strict=True):
        last = part(count, steps, tmp_path / "kept")
    assert_equal_tail(last, alone, 6)


def assert_equal_tail(last: Any, alone: Any, begin: int) -> None:
    np.testing.assert_allclose(last[0].losses, alone[0].losses[begin:], 1e-10)
    for name, value in last[1].items():
        np.testing.assert_allclose(value, alone[1][name], 1e-9, 1e-12, err_msg=name)


def test_dropout_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Bit for bit; the masks of the ranks differ."""

    def part(steps: int, checkpoint: Path | None) -> Any:
        net = network("float32", dropout=0.5)
        data = Batches(arrays()[0].astype("float32"), arrays()[1], SIZE, drop_last=True)
        record = fit(
            net, loss, data, with_sgd(0.1), steps=steps, checkpoint=checkpoint, mesh=2, seed=4,
            executor="interpreter",
        )  # fmt: skip
        return record.losses, net[0].weight.numpy().tolist()

    whole = dist.simulate(2).run(part, 6, None)
    assert whole[0] == whole[1] and len(set(whole[0][0])) == 6
    first = dist.simulate(2).run(part, 3, tmp_path)
    for one in dist.simulate(2).run(part, 6, tmp_path):
        assert first[0][0] + one[0] == whole[0][0] and one[1] == whole[0][1]


def test_the_first_rank_writes(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    data = Batches(*arrays(), SIZE, shuffle=False)
    options = {"log": log, "checkpoint": tmp_path / "kept", "eval_data": data}
    found = on_ranks(3, run, OPTIMIZERS["clipped"], **options)
    assert len({record.checkpoint for record, _ in found}) == 1
    rows = list(csv.DictReader(log.read_text().splitlines()))
    assert [int(r["step"]) for r in rows if r["loss"]] == [*range(1, 9)]
    np.testing.assert_allclose([float(r["loss"]) for r in rows if r["loss"]], found[2][0].losses)
    assert len([r for r in rows if r["eval.loss"]]) == 2


class StopsOnOne(Callback):
    """Ends the run on one rank, in one of its methods."""

    def __init__(self, method: str) -> None:
        setattr(self, method, self.end)

    def end(self, run: Any, *_: Any) -> None:
        if run.step == 4 and dist.rank("dp") == 1:
            run.stop("rank 1 has had enough")


@pytest.mark.parametrize("method", ["on_step", "on_evaluation", "on_epoch"])
def test_what_one_rank_ends_ends_for_all(method: str) -> None:
    data = Batches(*arrays(), SIZE, shuffle=False)
    options = {"eval_data": data, "epochs": 3, "callbacks": [StopsOnOne(method)]}
    for record, _ in on_ranks(2, run, OPTIMIZERS["clipped"], **options):
        assert record.step == 4 and record.stopped == "rank 1 has had enough"


def test_early_stop() -> None:
    options = {"eval_data": Batches(*arrays(), 10, shuffle=False), "epochs": 9}

    def stops(mesh: Any) -> Any:
        return run(mesh, lambda: with_sgd(8.0), **options, callbacks=[EarlyStop(1)])

    alone = stops(None)
    assert alone[0].epoch < 9
    for found in on_ranks(3, stops):
        assert found[0].epoch == alone[0].epoch and found[0].stopped == alone[0].stopped


def test_local_statistics_are_those_of_the_first_rank() -> None:
    """What is evaluated, on all ranks, is the model that is kept."""

    def rank() -> Any:
        net = network()
        data = Batches(*arrays(), SIZE, seed=2, drop_last=True)
        kept = fit(net, loss, data, with_sgd(0.1), epochs=1, eval_data=data, mesh=2)
        again = evaluate(net, loss, Batches(*arrays(), SIZE, seed=2, drop_last=True))
        return kept.metrics["loss"], net[1].running_mean.numpy().tolist(), again["loss"]

    first, second = dist.simulate(2).run(rank)
    assert first == second and first[0] == pytest.approx(first[2], rel=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed_precision(dtype: str) -> None:
    def rank(mesh: Any) -> Any:
        net = network("float32")
        if mesh:
            sync_batch_norm(net)
        data = Batches(arrays()[0].astype("float32"), arrays()[1], SIZE, drop_last=True)
        scale = DynamicLossScale(init=2.0**8) if dtype == "float16" else None
        optimizer = with_adamw(5e-2, loss_scale=scale, clip_norm=1.0)
        record = fit(net, loss, data, optimizer, epochs=4, amp=dtype, mesh=mesh)
        scale = record.training_step.loss_scale
        return record.losses, None if scale is None else scale.scale.item()

    losses, scale = rank(None)
    assert losses[-1] < 0.8 * losses[0]
    for found in dist.simulate(2).run(rank, 2):
        assert found[1] == scale
        np.testing.assert_allclose(found[0], losses, 0.05, 0.02)


def test_a_loss_that_is_not_finite_ends_all_ranks() -> None:
    x, y = arrays(24)
    x[8] = x[20] = math.nan

    def rank() -> str:
        data = Batches(x, y, SIZE, shuffle=False)
        with pytest.raises(NonFiniteError) as raised:
            run(2, OPTIMIZERS["clipped"], lambda: data, epochs=9)
        return str(raised.value)

    for text in dist.simulate(2).run(rank):
        assert "the loss of step 1 is not finite" in text
        assert "NaN in the data, in the last batch, on rank 1" in text


def differing_order() -> Any:
    return [(x + dist.rank("dp"), y) for x, y in Read()]


def differing_length() -> Any:
    return [(x, y) for x, y in Read()][: 4 - dist.rank("dp")]


ERRORS: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    "other data": (
        DistributedError, "do not agree on the data",
        lambda: run(2, OPTIMIZERS["clipped"], differing_order),
    ),
    "another length": (
        DistributedError, "do not agree on the data",
        lambda: run(2, OPTIMIZERS["clipped"], differing_length),
    ),
    "uneven batches": (
        ArgumentError, "not shared out equally over 2 ranks",
        lambda: run(2, OPTIMIZERS["clipped"], lambda: Batches(*arrays(), 13)),
    ),
    "an uneven last batch": (
        ArgumentError, "batches of 14, the last one of 9",
        lambda: run(2, OPTIMIZERS["clipped"], lambda: Batches(*arrays(51), 14)),
    ),
    "an uneven batch of a list": (
        ArgumentError, "a multiple of 2 rows",
        lambda: run(2, OPTIMIZERS["clipped"], lambda: [arrays(3)]),
    ),
    "an array without rows": (
        ArgumentError, "not all arrays have them",
        lambda: run(2, OPTIMIZERS["clipped"], lambda: [((arrays(4)[0], np.array(1.0)), None)]),
    ),
    "another mesh": (
        DistributedError, "not the mesh at hand", lambda: run(3, OPTIMIZERS["clipped"])
    ),
    "another axis": (
        DistributedError, "no axis 'pd'", lambda: run(2, OPTIMIZERS["clipped"], over="pd")
    ),
    "two axes": (
        ArgumentError, "averages over other ranks",
        lambda: run(2, lambda: lambda model: with_sgd(0.1)(model)),
    ),
    "no mesh": (
        ArgumentError, "the run has no mesh", lambda: run(None, partial(with_sgd, 0.1, over="dp"))
    ),
    "other learning rates": (
        DistributedError, "do not agree on the learning rate",
        lambda: run(2, OPTIMIZERS["clipped"], schedule=lambda step: 1.0 + dist.rank("dp")),
    ),
    "another sampler": (
        ArgumentError, "the sampler is of another rank",
        lambda: run(2, OPTIMIZERS["clipped"], lambda: loader(
            DistributedSampler(loader().dataset, 2, 1 - dist.rank("dp"))
        )),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    kind, message, call = ERRORS[name]

    def rank() -> None:
        with pytest.raises(kind, match=message):
            call()

    dist.simulate(2).run(rank)


def test_a_mesh_that_is_not_there() -> None:
    with pytest.raises(DistributedError, match=r"no processes|no launcher"):
        run(2, OPTIMIZERS["clipped"])
