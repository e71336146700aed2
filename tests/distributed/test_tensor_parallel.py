"""A model that is divided among ranks computes, and learns, what it does on one."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from meta.base.errors import ArgumentError, DistributedError, UnknownName
from tests.distributed.parallel import (
    MODELS,
    WORDS,
    gpt2,
    gradients,
    held,
    joined,
    llama,
    made,
    mlp,
    trained,
    words,
)

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


# By model, of how many ranks it is tested in each run.
ALWAYS = {"mlp": 2, "gpt2": 4, "bert": 2, "llama": 4, "vit": 3, "encoder": 3}


def slow(*values: Any, unless: bool) -> Any:
    return pytest.param(*values, marks=() if unless else pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [slow(n, count, unless=ALWAYS[n] == count) for n in MODELS for count in (1, 2, 3, 4)],
)
def test_results_and_gradients(name: str, ranks: int) -> None:
    y, alone = gradients(*MODELS[name], None)
    found = dist.simulate({"tp": ranks}).run(gradients, *MODELS[name], "tp")
    for other, _ in found:
        np.testing.assert_allclose(other, y, **TIGHT)
    whole = joined([g for _, g in found])
    assert whole.keys() == alone.keys()
    for key, (value, _) in alone.items():
        np.testing.assert_allclose(whole[key], value, **TIGHT, err_msg=key)
    if ranks > 1:
        assert any(placement.splits for _, placement in found[0][1].values())


@pytest.mark.parametrize(
    ("name", "compiled"),
    [
        ("gpt2", False),
        ("mlp", True),
        *(slow(name, True, unless=False) for name in ("gpt2", "bert", "llama", "vit", "encoder")),
    ],
)
def test_updates(name: str, compiled: bool) -> None:
    alone = trained(name, None)
    whole = joined(dist.simulate({"tp": 2}).run(trained, name, "tp", compiled))
    for key, (value, _) in alone.items():
        np.testing.assert_allclose(whole[key], value, **TIGHT, err_msg=key)


# One reduction behind the attention and one behind the two linear layers, as Megatron has them,
# one of the embedded words; of the scores the largest, and what the cross entropy adds up.
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_collectives_of_a_layer(name: str) -> None:
    make, inputs, _ = MODELS[name]

    def rank() -> Any:
        net = dist.tensor_parallel(made(make))
        given = [meta.array(x) for x in inputs]
        forward = Counter(e.collective for e in dist.explain_tensor_parallel(net, *given).exchanges)
        step = meta.optim.with_sgd(0.1)(net)
        program = step.program(meta.array(1.0, "float64"), *given).module
        calls = Counter(
            line.split(" = ")[1].split("(")[0]
            for line in str(program).splitlines()
            if " = " in line
        )
        return forward, calls

    forward, calls = dist.simulate({"tp": 2}).run(rank)[0]
    layers = 2
    assert forward == {"reduce_from": 2 + 2 * layers, "copy_to": 1 + 2 * layers, "all_reduce": 1}
    assert calls["reduce_from"] == 2 + 2 * layers
    # Backward, of each input of parts the sum of its gradients, and forward the largest score.
    assert calls["all_reduce"] == 1 + 2 * layers + 1
    assert not calls["all_gather"] and not calls["gather_from"]


def test_a_tied_matrix_is_one_array_divided_once() -> None:
    def rank() -> Any:
        net = dist.tensor_parallel(made(lambda: llama(tied=True)))
        assert net.net.lm_head.weight is net.net.model.embed_tokens.weight
        return net.net.lm_head.weight.shape, len(list(net.parameters()))

    assert dist.simulate({"tp": 2}).run(rank)[0][0] == (WORDS // 2, 24)


def test_ranks_start_as_the_first_one() -> None:
    """Each rank makes other weights, and draws alike afterwards."""

    def rank() -> Any:
        meta.random.seed(5 + dist.rank("tp"))
        net = meta.model.Linear(4, 6)
        first = net.weight.numpy()
        meta.random.seed(0)
        dist.tensor_parallel(net, {"weight": 0})
        return first, net.weight.numpy(), net.bias.numpy(), net.weight.placement

    found = dist.simulate({"tp": 3}).run(rank)
    np.testing.assert_array_equal(np.concatenate([f[1] for f in found]), found[0][0])
    assert all((f[2] == found[0][2]).all() for f in found) and found[1][3].shape == (6, 4)


# With ZeRO, the norm, a float32, is one of other sums.
@pytest.mark.parametrize(
    ("name", "zero"),
    [
        slow(n, z, unless=(n, z) in (("gpt2", 3), ("llama", 0)))
        for n in ("gpt2", "llama")
        for z in (0, 1, 2, 3)
    ],
)
def test_two_axes(name: str, zero: int) -> None:
    """Data parallel along one axis, divided along the other, on two times two ranks."""
    alone = trained(name, None, clip_norm=0.5)
    how = partial(trained, name, "tp", False, "dp", clip_norm=0.5, zero=zero)
    found = dist.simulate({"dp": 2, "tp": 2}).run(how)
    for ranks in (found, found[2:] * 2):
        whole = joined(found if zero == 3 else ranks, 2)
        for key, (value, _) in alone.items():
            np.testing.assert_allclose(whole[key], value, rtol=1e-6, atol=1e-8, err_msg=key)


def test_dropout() -> None:
    """Of whole values one mask for all ranks, of parts one for each; keys follow the seed."""

    class Drops(meta.Model):
        def build(self) -> None:
            self.up, self.drop = meta.model.Linear(8, 64, bias=False), meta.model.Dropout(0.5)

        @meta.model.trace
        def forward(self, x: Any) -> Any:
            return self.drop(x), self.drop(self.up(x))

    def rank(seed: int) -> Any:
        net = dist.tensor_parallel(Drops(), {"up": "column"})
        meta.random.seed(seed)
        run = meta.vm.compile(net, meta.ones((4, 8)))
        return [[y.numpy() != 0 for y in call(meta.ones((4, 8)))] for call in (net, run)]

    first, second = dist.simulate({"tp": 2}).run(rank, 1)
    again, _ = dist.simulate({"tp": 2}).run(rank, 1)
    for (x, y), (x2, y2), (x3, y3) in zip(first, second, again, strict=True):
        assert (x == x2).all() and (y == y2).all(), "results are whole, on all ranks"
        assert (x == x3).all() and (y == y3).all()
        assert 0.3 < y.mean() < 0.7 and 0 < x.mean() < 1
        assert (y[:, :32] != y[:, 32:]).any(), "the two parts have masks of their own"
    assert (first[0][1] != first[1][1]).any(), "each call draws another mask"


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_dropout_trains(name: str) -> None:
    """Arrays that all ranks have stay equal, also with dropout, in blocks that are recomputed."""
    make, inputs, _ = MODELS[name]

    def rank() -> Any:
        net: Any = dist.tensor_parallel(made(partial(make, dropout=0.3)))
        for inner in net.models():
            if type(inner).__name__ in ("GPT2Block", "BertLayer", "LlamaDecoderLayer"):
                meta.model.checkpoint(inner)
        given = [meta.array(x) for x in inputs]
        step = meta.optim.with_sgd(0.1)(net)
        for _ in range(2):
            step(meta.array(1.0, "float64"), *given)
        return {n: (a.numpy(), a.placement) for n, a in net.state().items()}

    first, *others = dist.simulate({"tp": 2}).run(rank)
    for other in others:
        for key, (value, placement) in first.items():
            if not placement.splits:
                np.testing.assert_array_equal(value, other[key][0], err_msg=key)


@pytest.mark.parametrize("dtype", ["bfloat16", slow("float16", unless=False)])
def test_mixed_precision(dtype: str) -> None:
    def rank(over: str | None) -> Any:
        net = made(gpt2)
        net.to(dtype="float32")
        if over is not None:
            dist.tensor_parallel(net, None, over)
        cast = meta.amp.autocast(net, dtype)
        given = [meta.array(x) for x in words()]
        y, gradients = meta.model.value_and_grad(cast)(meta.array(1.0), *given)
        return y.item(), {n: (g.numpy(), net.state()[n].placement) for n, g in gradients.items()}

    alone, wanted = rank(None)
    found = dist.simulate({"tp": 2}).run(rank, "tp")
    whole = joined([g for _, g in found])
    near = {"float16": 2e-2, "bfloat16": 1.5e-1}[dtype]
    for y, _ in found:
        assert y == pytest.approx(alone, rel=near)
    for key, (value, _) in wanted.items():
        assert np.abs(whole[key] - value).max() <= near * (np.abs(value).max() + 1), key


def test_models_that_are_called_in_parts_and_inside_of_others() -> None:
    """Layers inside, eager calls with a tape, a traced function around, another number of rows."""

    def rank(over: str | None) -> Any:
        net: Any = made(gpt2)
        if over is not None:
            dist.tensor_parallel(net, None, over)
        ids, labels = map(meta.array, words())
        logits = net.net(ids)
        around = meta.model.trace(lambda ids: net.net(ids).sum(axis=-1) * 2.0)
        net(ids, labels).backward()
        rows = meta.ir.parse_type("int64[n, 6]")
        run = meta.vm.compile(net.eval(), rows, rows, dims={"n": (1, 8)})
        bias = net.net.transformer.ln_f.bias.grad
        return [logits, around(ids), run(ids[:3], labels[:3]), net.net.transformer(ids), bias]

    alone = rank(None)
    for found in dist.simulate({"tp": 2}).run(rank, "tp"):
        for other, value in zip(found, alone, strict=True):
            np.testing.assert_allclose(other.numpy(), value.numpy(), **TIGHT)


def test_a_program_is_one_for_all_ranks() -> None:
    def rank() -> Any:
        net = dist.tensor_parallel(made(gpt2))
        return str(net.program(*map(meta.array, words())).module)

    first, *others = dist.simulate({"tp": 3}).run(rank)
    assert all(other == first for other in others)


def test_a_copy_and_a_move_keep_the_parts() -> None:
    def rank() -> Any:
        net = dist.tensor_parallel(made(mlp), MODELS["mlp"][2])
        x = meta.array(MODELS["mlp"][1][0])
        y = net(x)
        return y, copy.deepcopy(net)(x), net.to(dtype="float32")(x.astype("float32"))

    y, copied, moved = dist.simulate({"tp": 2}).run(rank)[1]
    np.testing.assert_array_equal(copied.numpy(), y.numpy())
    np.testing.assert_allclose(moved.numpy(), y.numpy(), rtol=1e-4, atol=1e-5)


def test_whole_weights_are_loaded() -> None:
    state = made(gpt2).state_dict()

    def rank() -> Any:
        net = dist.tensor_parallel(gpt2())
        net.to(dtype="float64")
        net.load_state_dict(state)
        return net(*map(meta.array, words())).item()

    wanted = made(gpt2)(*map(meta.array, words())).item()
    assert dist.simulate({"tp": 2}).run(rank) == pytest.approx([wanted] * 2)


ERRORS: list[tuple[Callable[[], Any], Any, type[Exception], str]] = [
    (mlp, {"1": "column"}, ArgumentError, "'1' is a GELU, of which it is not known what 'column'"),
    (mlp, {"0": "columns"}, ArgumentError, "divides '0' in a way that is not known"),
    (mlp, {"0": type("ColwiseParallel", (), {})()}, ArgumentError, 'write "column"'),
    (mlp, {"0.weight": 2}, ArgumentError, r"divides '0.weight' in a way that is not known"),
    (mlp, {"0": ("column", 0)}, ArgumentError, "not known"),
    (mlp, {"0": ("column", 2)}, ArgumentError, "'0.weight' is not divided by 5 ranks"),
    (mlp, {"O": "column"}, UnknownName, "names 'O', which Sequential does not have"),
    (mlp, {"0": "column"}, ArgumentError, "'0.weight' is not divided by 5 ranks"),
    (mlp, ["0"], ArgumentError, "a plan is a dict"),
    (mlp, None, ArgumentError, "no plan comes with Sequential"),
    (gpt2, None, ArgumentError, "ranks must divide n_head"),
    (
        llama,
        {"net.model.layers.*.self_attn.q_proj": "row", "net.lm_head": "whole"},
        ArgumentError,
        r"'net.model.layers.0.self_attn.q_proj.weight' is not divided by 5 ranks",
    ),
]


@pytest.mark.parametrize(("make", "plan", "kind", "match"), ERRORS, ids=range(len(ERRORS)))
def test_plans_that_do_not_fit(make: Any, plan: Any, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        dist.simulate({"tp": 5}).run(lambda: dist.tensor_parallel(make(), plan))


def test_models_that_do_not_fit() -> None:
    def twice() -> None:
        dist.tensor_parallel(dist.tensor_parallel(mlp(), {"0": "column"}), {"0": "column"})

    def tied() -> None:
        net = llama(tied=True)
        plan = {"net.model.embed_tokens": "column", "net.lm_head": "vocabulary"}
        dist.tensor_parallel(net, plan)

    class Eager(meta.Model):
        def build(self) -> None:
            self.layer = meta.model.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return x @ self.layer.weight

    def apart() -> None:
        meta.random.seed(dist.rank("tp"))
        dist.tensor_parallel(mlp(), {"0": "column"})

    def otherwise() -> None:
        dist.tensor_parallel(mlp(), {"0": "column" if dist.rank("tp") else "row"})

    for function, kind, match in (
        (
            lambda: dist.tensor_parallel(Eager(), {"layer": "column"}),
            ArgumentError,
            "Eager.forward is not traced",
        ),
        (twice, ArgumentError, "'0.weight' is divided already"),
        (tied, ArgumentError, "are one array, which the plan divides in two ways"),
        (apart, DistributedError, "draw different random numbers"),
        (otherwise, DistributedError, "divide a model in different ways"),
    ):
        with pytest.raises(kind, match=match):
            dist.simulate({"tp": 2}).run(function)
    with pytest.raises(DistributedError, match="different streams of random numbers"):
        dist.simulate({"mp": 2}).run(
            lambda: dist.tensor_parallel(mlp(), {"0": "column"}, over="mp")
        )
    with pytest.raises(DistributedError, match="no axis 'tp'"):
        dist.tensor_parallel(mlp(), {"0": "column"})


def test_a_mesh_that_is_planned() -> None:
    with dist.planned({"tp": 4}):
        net = dist.tensor_parallel(made(gpt2))
        program = net.program(*map(meta.array, words()))
    assert "reduce_from" in str(program.module)


def fitted(mesh: Any, folder: Path | None, epochs: int) -> Any:
    """Train and evaluate on this rank; return the record and the shape of a weight."""
    drawn = np.random.default_rng(7)
    labels = drawn.integers(0, 4, 24)
    data = drawn.normal(size=(24, 6)) + 2 * np.eye(4, 6)[labels], labels
    net = made(mlp)
    if mesh is not None:
        dist.tensor_parallel(net, MODELS["mlp"][2])
    record = meta.train.fit(
        net,
        lambda scores, labels: meta.cross_entropy(scores, labels),
        meta.train.Batches(*data, 8, seed=2),
        meta.optim.with_adamw(1e-2, eps=1e-4),
        epochs=epochs,
        executor="interpreter",
        eval_data=meta.train.Batches(*data, 8),
        checkpoint=folder,
        mesh=mesh,
    )
    return record, net.state()["0.weight"].shape


def test_a_run_goes_on_on_other_meshes(tmp_path: Path) -> None:
    """Data parallel training of a divided model, evaluated, with checkpoints, is that of one rank;
    also where it begins on two ranks, goes on on four, and ends on one.
    """
    record, _ = fitted(None, None, 3)
    losses: list[float] = []
    for epochs, mesh in ((1, {"dp": 1, "tp": 2}), (2, {"dp": 2, "tp": 2}), (3, None)):
        run = partial(fitted, mesh, tmp_path / "run", epochs)
        ranks = [run()] if mesh is None else dist.simulate(mesh).run(run)
        for found, shape in ranks:
            assert found.losses == ranks[0][0].losses
            assert shape == ((12, 6) if mesh is None else (6, 6))
        losses += map(float, ranks[0][0].losses)
        evaluated = ranks[0][0].evaluations[-1]["loss"]
        assert evaluated == pytest.approx(record.evaluations[epochs - 1]["loss"], rel=1e-9)
    np.testing.assert_allclose(losses, record.losses, 1e-10)


class Convolutions(meta.Model):
    """A convolution, which has no rule for parts, written statistics, and linear layers."""

    def build(self) -> None:
        self.conv, self.norm = meta.model.Conv2d(2, 4, 3), meta.model.BatchNorm(4)
        self.up, self.down = meta.model.Linear(16, 6), meta.model.Linear(6, 2)

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        """Return two numbers for each image of 4 x 4."""
        y = meta.op.relu(self.norm(self.conv(x)))
        return self.down(meta.gelu(self.up(y.reshape((y.shape[0], -1)))))


def test_what_has_no_rule_is_gathered() -> None:
    """Also where another layer, which is no part of the model, has one of its arrays."""

    def rank(over: str | None) -> Any:
        net: Any = made(Convolutions)
        if over is not None:
            dist.tensor_parallel(net, {"up": "column", "down": "row", "conv.weight": 0}, over)
        x = meta.array(np.random.default_rng(0).standard_normal((5, 2, 4, 4)))
        step = meta.optim.with_sgd(0.1)(net)
        for _ in range(2):
            step(meta.ones((5, 2), "float64"), x)
        other = meta.model.Linear(6, 2).to(dtype="float64")
        other.weight = net.down.weight
        return held(net.state(), net.state()), other(meta.ones((3, 6), "float64")) - other.bias

    alone, y = rank(None)
    found = dist.simulate({"tp": 2}).run(rank, "tp")
    whole = joined([arrays for arrays, _ in found])
    for key, (value, _) in alone.items():
        np.testing.assert_allclose(whole[key], value, **TIGHT, err_msg=key)
    for _, other in found:
        np.testing.assert_allclose(other.numpy(), y.numpy(), **TIGHT)
