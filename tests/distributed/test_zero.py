"""ZeRO: ranks that have parts of states, gradients and parameters train as one rank with the joined
batch.
"""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from meta import optim
from meta.base.errors import ArgumentError, DistributedError
from meta.optim.data_parallel import gradient_norm
from meta.runtime.placement import Placement, Split
from tests.distributed.training import MAKERS, STAGES, Net, trained

SPLIT = STAGES[1:]
slow = pytest.mark.slow


@pytest.mark.product
@pytest.mark.parametrize("count", [2, *(pytest.param(n, marks=slow) for n in (1, 3, 4))])
@pytest.mark.parametrize("zero", SPLIT)
@pytest.mark.parametrize("name", MAKERS)
def test_ranks_train_as_one(name: str, zero: int, count: int) -> None:
    alone = trained(name, True)
    found = dist.simulate(count).run(partial(trained, zero=zero), name, True, "dp")
    for state in found:
        assert state.keys() == alone.keys()
        for key, value in state.items():
            np.testing.assert_allclose(value, alone[key], 1e-10, 1e-13, err_msg=key)
            np.testing.assert_array_equal(value, found[0][key], err_msg=key)


@pytest.mark.parametrize("zero", SPLIT)
def test_interpreted(zero: int) -> None:
    alone = trained("adamw", False)
    for state in dist.simulate(3).run(partial(trained, zero=zero), "adamw", False, "dp"):
        for key, value in state.items():
            np.testing.assert_allclose(value, alone[key], 1e-10, 1e-13, err_msg=key)


def odd(dtype: str = "float32") -> meta.model.Linear:
    """Return a layer whose arrays no number of ranks divides: the same on all ranks."""
    layer = meta.model.Linear(5, 7)
    drawn = np.random.default_rng(0)
    for array in layer.state().values():
        array.update(meta.array(drawn.standard_normal(array.shape), "float32"))
    layer.to(dtype=dtype)
    return layer


ALGORITHMS = {
    "sgd": partial(optim.with_sgd, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": partial(optim.with_adam, 0.1, weight_decay=0.1),
    "rmsprop": partial(optim.with_rmsprop, 0.1, centered=True, momentum=0.5),
    "adagrad": partial(optim.with_adagrad, 0.1, initial_accumulator_value=0.1, maximize=True),
    "lion": partial(optim.with_lion, 0.1, groups=[{"params": "*bias", "lr": 0.01}]),
    "muon": partial(optim.with_muon, 0.1, groups=[{"params": "*bias", "weight_decay": 0.0}]),
    "lamb": partial(optim.with_lamb, 0.1),
    "adafactor": partial(optim.with_adafactor, 0.1),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms(name: str) -> None:
    """In bfloat16, with masters, clipped: each stage on 2 ranks as one rank."""

    def rank(zero: int | None) -> Any:
        layer = odd("bfloat16")
        options = {} if zero is None else {"over": "dp", "zero": zero, "reduce_dtype": "float32"}
        step = ALGORITHMS[name](clip_norm=1.0, ema=0.5, **options)(layer)
        x = np.random.default_rng(1).standard_normal((4, 5))
        if zero is not None:
            x = x[2 * dist.rank("dp") :][:2]
        for _ in range(3):
            step(meta.full((len(x), 7), 4 / len(x), "bfloat16"), meta.array(x, "bfloat16"))
        state = {n: dist.unshard(a).astype("float32").numpy() for n, a in step.state().items()}
        with step.averaged():
            for n, a in dist.unshard(layer.state_dict()).items():
                state[f"averaged {n}"] = a.astype("float32").numpy()
        return state

    alone = rank(None)
    for zero in SPLIT:
        for state in dist.simulate(2).run(rank, zero):
            assert state.keys() == alone.keys()
            for key, value in state.items():
                # The gradient of a rank is rounded to bfloat16 before the mean.
                np.testing.assert_allclose(value, alone[key], 0.02, 0.02, err_msg=f"{zero} {key}")


def test_a_master_follows_what_is_written_to_its_parameter() -> None:
    def rank(zero: int) -> Any:
        layer = odd("bfloat16")
        step = optim.with_sgd(1.0, over="dp", zero=zero)(layer)
        layer.load_state_dict({"bias": np.ones(7)}, strict=False)
        with step.gathered():
            layer.bias.update(meta.full((7,), 2.0, "bfloat16"))
        layer.load_state_dict({"weight": np.full((7, 5), 1 + 2.0**-12)}, strict=False)
        step(meta.ones((1, 7), "bfloat16"), meta.zeros((1, 5), "bfloat16"))
        masters = step.optimizer.master
        bias = dist.unshard(layer.bias).astype("float32").numpy()
        return bias, dist.unshard(masters["weight"]).numpy()

    for zero in SPLIT:
        for bias, weight in dist.simulate(2).run(rank, zero):
            assert (bias == 1).all() and (weight == 1 + 2.0**-12).all()


@pytest.mark.parametrize("zero", SPLIT)
def test_what_a_rank_keeps(zero: int) -> None:
    """Of 35 + 7 parameters in bfloat16, three ranks have 12 + 3 of masters, moments, averages."""

    def rank() -> Any:
        step = optim.with_adamw(accumulate=2, ema=0.5, over="dp", zero=zero)(odd("bfloat16"))
        placements = {n: a.placement for n, a in step.state().items()}
        sizes = dict.fromkeys(("model", "optimizer", "average", "accumulation"), 0)
        for name, array in step.state().items():
            if array.shape:
                sizes[name.split(".")[0]] += array.size
        return sizes, placements

    for sizes, placements in dist.simulate(3).run(rank):
        assert sizes["optimizer"] == 3 * 15 and sizes["model"] == (15 if zero == 3 else 42)
        # The averages of half precision parameters are those of their masters.
        assert sizes["average"] == 15
        assert sizes["accumulation"] == (42 if zero == 1 else 15)
        assert placements["optimizer.m.weight"] == Placement((7, 5), (Split("dp", 3),))
        assert placements["optimizer.master.bias"] == Placement((7,), (Split("dp", 3),))
        whole = Placement((7, 5)), placements["optimizer.m.weight"]
        assert placements["model.weight"] == whole[zero == 3]


def test_an_overflow_on_one_rank_is_one_on_all() -> None:
    def rank(zero: int) -> Any:
        layer = odd()
        scale = optim.DynamicLossScale(init=8.0)
        step = optim.with_sgd(0.1, loss_scale=scale, over="dp", zero=zero)(layer)
        before = layer.weight.numpy()
        x = meta.full((1, 5), float("inf") if dist.rank("dp") else 1.0)
        step(meta.ones((1, 7)), x)
        return step.loss_scale.scale.item(), (layer.weight.numpy() == before).all()

    for zero in SPLIT:
        assert dist.simulate(2).run(rank, zero) == [(4.0, True)] * 2


def test_norms_of_parts() -> None:
    """Split along one axis of the mesh, along both, and whole: as NumPy has it."""
    drawn = np.random.default_rng(0)
    arrays = {n: drawn.standard_normal((4, 6)) for n in ("whole", "rows", "flat", "both")}
    rows, flat = Split("tp", 2, 0), Split("dp", 3)
    splits = {"whole": (), "rows": (rows,), "flat": (flat,), "both": (rows, flat)}
    placements = {n: Placement((4, 6), s) for n, s in splits.items()}

    def rank(names: list[str]) -> Any:
        place = {"dp": dist.rank("dp"), "tp": dist.rank("tp")}
        tensors = {n: meta.array(arrays[n]).torch() for n in names}
        mine = {n: meta.array(placements[n].part(x, place)) for n, x in tensors.items()}
        norm = gradient_norm(mine, placements)
        huge = gradient_norm({n: x * 1e37 for n, x in mine.items()}, placements)
        return norm.numpy(), huge.numpy()

    for names in (list(arrays), ["both"], ["rows", "flat"], ["whole"]):
        expected = np.linalg.norm([arrays[n] for n in names])
        for norm, huge in dist.simulate({"dp": 3, "tp": 2}).run(rank, names):
            np.testing.assert_allclose([norm, huge / 1e37], [expected] * 2, 1e-6)


def test_an_eager_optimizer_clips_by_the_norm_of_all_parts() -> None:
    def rank() -> Any:
        x = meta.full((2,), 1.0 + dist.rank("tp"))
        x.requires_grad = True
        x.placement = Placement((4,), (Split("tp", 2, 0),))
        x.sum().backward()
        optim.SGD([x], 1.0).step(clip_norm=1.0)
        return x.numpy().tolist()

    found = dist.simulate({"tp": 2}).run(rank)
    np.testing.assert_allclose(found, [[0.5, 0.5], [1.5, 1.5]], 1e-5)


def test_a_model_of_parts_is_called_while_it_is_gathered() -> None:
    x = meta.ones((2, 5))

    def rank() -> Any:
        layer = odd()
        expected = layer(x).numpy()
        copied = optim.with_sgd(1.0, over="dp", zero=3)(copy.deepcopy(layer))
        step = optim.with_sgd(1.0, over="dp", zero=3)(layer)
        for call in (layer, layer.forward, partial(meta.vm.compile, layer)):
            with pytest.raises(DistributedError, match=r"(?s)zero=3.*with step.gathered"):
                call(x)
        with step.gathered():
            np.testing.assert_array_equal(layer(x).numpy(), expected)
            np.testing.assert_array_equal(meta.vm.compile(layer, x)(x).numpy(), expected)
            assert layer.weight.shape == (7, 5)
            for call in (step, partial(meta.vm.compile, step)):
                with pytest.raises(DistributedError, match=r"(?s)whole.*outside of the block"):
                    call(meta.ones((2, 7)), x)
        assert layer.weight.shape == (12,) == copied.model.weight.shape
        with pytest.raises(DistributedError, match="zero=3"):
            copied.model(x)
        run = meta.vm.compile(step, meta.ones((2, 7)), x)
        run(meta.ones((2, 7)), x)
        with step.gathered(), pytest.raises(meta.errors.MetaError):
            run(meta.ones((2, 7)), x)
        run(meta.ones((2, 7)), x)
        with copied.gathered():
            assert copied.model(x).shape == (2, 7)
        y, gradients = meta.model.value_and_grad(layer)(meta.ones((2, 7)), x)
        assert gradients["weight"].shape == (7, 5)
        again = pickle.loads(pickle.dumps(layer))
        assert again.weight.placement == layer.weight.placement
        return y.numpy()

    first, *others = dist.simulate(3).run(rank)
    for y in others:
        np.testing.assert_array_equal(y, first)


def test_mixed_precision() -> None:
    """Weights are gathered in bfloat16; numbers are those without ZeRO, bit for bit."""

    def rank(zero: int) -> Any:
        net = Net()
        for array in net.parameters():
            array.update(meta.array(np.random.default_rng(0).standard_normal(array.shape)))
        step = optim.with_adamw(0.1, over="dp", zero=zero)(meta.amp.autocast(net, "bfloat16"))
        x, y = meta.full((2, 6), 0.5 + dist.rank("dp")), meta.ones((2, 1))
        run = meta.vm.compile(step, meta.array(1.0), x, y)
        for _ in range(2):
            run(meta.array(1.0), x, y)
        text = str(step.program(meta.array(1.0), x, y).module)
        assert ("bfloat16[48] = all_gather" in text) == (zero == 3)
        return {n: dist.unshard(a).numpy() for n, a in step.state().items()}

    whole = dist.simulate(2).run(rank, 0)[0]
    for zero in SPLIT:
        for state in dist.simulate(2).run(rank, zero):
            for name, value in state.items():
                np.testing.assert_array_equal(value, whole[name], err_msg=f"{zero} {name}")


@pytest.mark.parametrize("zero", [1, 3])
def test_beside_tensor_parallelism(zero: int) -> None:
    """Two by two ranks: layers are divided along one axis, parts of them along the other."""
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
            dist.tensor_parallel(net, {"first": "column", "last": "row"})
            rows = slice(2 * dist.rank("dp"), 2 * dist.rank("dp") + 2)
            options = {"over": "dp", "zero": zero}
        step = optim.with_sgd(0.1, momentum=0.9, clip_norm=1.0, **options)(net)
        for _ in range(2):
            step(meta.array(1.0, "float64"), meta.array(x[rows]), meta.array(y[rows]))
        with step.gathered():
            loss = net(meta.array(x), meta.array(y)).numpy()
        return {n: dist.unshard(a).numpy() for n, a in step.state().items()} | {"loss": loss}

    alone = rank(None)
    for state in dist.simulate({"dp": 2, "tp": 2}).run(rank, zero):
        for name, value in state.items():
            # The norm is one of float32.
            np.testing.assert_allclose(value, alone[name], 1e-6, 1e-7, err_msg=name)


def test_frozen_parameters_are_split_too() -> None:
    def rank(zero: int) -> Any:
        net = Net()
        net.first.weight.requires_grad = False
        step = optim.with_sgd(0.1, over="dp", zero=zero)(net)
        x, y = meta.ones((2, 6)) * (1 + dist.rank("dp")), meta.ones((2, 1))
        step(meta.array(1.0), x, y)
        assert net.first.weight.shape == ((16,) if zero == 3 else (8, 6))
        return {n: dist.unshard(a).numpy() for n, a in net.state().items()}

    meta.random.seed(0)
    whole = dist.simulate(3).run(rank, 0)[0]
    meta.random.seed(0)
    for state in dist.simulate(3).run(rank, 3):
        for name, value in state.items():
            np.testing.assert_allclose(value, whole[name], 1e-5, 1e-6)


def test_errors() -> None:
    for wrong in ({"zero": 1}, {"over": "dp", "zero": 9}, {"over": "dp", "zero": True}):
        with pytest.raises(ArgumentError, match="zero does not fit"):
            optim.with_sgd(0.1, **wrong)
    for wrong in ({"zero": 2, "gather_limit": 1}, {"zero": 3, "gather_limit": -1}):
        with pytest.raises(ArgumentError, match="gather_limit does not fit"):
            optim.with_sgd(0.1, over="dp", **wrong)
    with pytest.raises(DistributedError, match="no axis 'dp'"):
        optim.with_sgd(0.1, over="dp", zero=1)(odd())
    with pytest.raises(ArgumentError, match="these have no parts"):
        dist.unshard(3)  # type: ignore[call-overload]
