"""The pass `gather_parameters`: what is gathered when, and that it changes nothing."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from meta import optim
from meta.base.errors import DistributedError
from meta.dialect.core.ir_calls import base_op, view_source
from meta.ir import Call, Module, TensorType, parse, type_bytes
from meta.ir.visit import uses
from meta.passes import autodiff, dead_code
from meta.passes.distributed.gather_parameters import gather_parameters
from meta.runtime.placement import Split

SPLIT = Split("dp", 2)


def gathers(module: Module) -> list[str]:
    """Return the parameter of each gather, in order, and the dtype it is gathered in."""
    made: dict[Any, str] = {p: p.name for p in module.main.params}
    found = []
    for binding in module.main.body.bindings:
        call = binding.value
        assert isinstance(call, Call)
        op = base_op(call.callee)
        if op is not None and op.name in ("all_gather", "optimization_barrier", "astype"):
            made[binding.var] = made.get(call.args[0], "")
        if op is meta.op.all_gather:
            assert isinstance(binding.var.type, TensorType)
            found.append(f"{made[binding.var]}: {binding.var.type.dtype}")
    return found


def most_in_flight(module: Module) -> int:
    """Return the most bytes of gathered parameters that lie between a gather and its last use."""
    bindings = module.main.body.bindings
    owner: dict[Any, int] = {}
    last: dict[int, int] = {}
    size: dict[int, int] = {}
    for i, binding in enumerate(bindings):
        call = binding.value
        assert isinstance(call, Call)
        op = base_op(call.callee)
        read = {owner[a] for a in uses(call) if a in owner}
        last.update(dict.fromkeys(read, i))
        if op is meta.op.all_gather:
            owner[binding.var] = i
        elif read and (view_source(call) is not None or op is meta.op.strided_slice):
            (owner[binding.var],) = read
            assert binding.var.type is not None
            size[owner[binding.var]] = type_bytes(binding.var.type)
    return max(sum(size[g] for g in last if g <= i <= last[g]) for i in range(len(bindings)))


def network(widths: list[int]) -> Module:
    """Return the forward and backward pass of layers of these widths."""
    pairs = list(pairwise(widths))
    lines, x = [], "x"
    for i, (_, n) in enumerate(pairs):
        lines += [f"%y{i}: float32[3, {n}] = matmul(%{x}, %w{i})"]
        lines += [f"%h{i}: float32[3, {n}] = tanh(%y{i})"]
        x = f"h{i}"
    params = ", ".join(f"%w{i}: float32[{a}, {b}]" for i, (a, b) in enumerate(pairs))
    body = "\n".join(lines)
    module = parse(
        f"func @main(%x: float32[3, {widths[0]}], {params}) -> float32[3, {widths[-1]}] {{\n"
        f"{body}\nreturn %{x}\n}}"
    )
    return dead_code(autodiff(module, wrt=list(range(1, len(widths)))))


@pytest.mark.parametrize("limit", [0, 500, 900, 2000, 10**6, None])
@pytest.mark.parametrize("widths", [[8] * 7, [3, 20, 5, 9, 16, 2], [1, 1]])
def test_the_bound(widths: list[int], limit: int | None) -> None:
    module = network(widths)
    count = len(widths) - 1
    sizes = [4 * a * b for a, b in pairwise(widths)]
    parts = dict.fromkeys(range(2, 2 + count), SPLIT)
    found = gather_parameters(module, parts=parts, limit=limit, small=0)
    if limit is not None:
        assert most_in_flight(found) <= max(limit, *sizes)
    named = gathers(found)
    # Each is gathered, and again in the backward pass but for the first, whose input has no
    # gradient, and for what stayed.
    assert {n.split(":")[0] for n in named} == {f"w{i}" for i in range(count)}
    assert named[0] == "w0: float32"
    if limit == 10**6 or count == 1:
        assert len(named) == count
    if limit == 0:
        assert named == [f"w{i}: float32" for i in [*range(count), *range(count - 2, 0, -1)]]


def test_it_changes_nothing() -> None:
    drawn = np.random.default_rng(0)
    module = network([3, 20, 5, 9, 16, 2])
    types = [p.type for p in module.main.params if isinstance(p.type, TensorType)]
    arrays = [drawn.standard_normal(t.static_shape).astype("float32") for t in types]
    wanted = meta.vm.compile(module)(*map(meta.array, arrays))
    parts = dict.fromkeys(range(2, len(arrays)), SPLIT)

    def rank(limit: int | None, small: int) -> Any:
        given = [
            meta.array(SPLIT.part(meta.array(a).torch(), dist.rank("dp")) if i in parts else a)
            for i, a in enumerate(arrays)
        ]
        options: dict[str, Any] = {"parts": parts, "limit": limit, "small": small}
        found = meta.vm.compile(gather_parameters(module, **options))(*given)
        return [y.numpy() for y in (found[0], *found[1])]

    for limit, small in ((0, 0), (None, 0), (None, 200), (2000, 1000)):
        for results in dist.simulate(2).run(rank, limit, small):
            for mine, expected in zip(results, (wanted[0], *wanted[1]), strict=True):
                np.testing.assert_allclose(mine, expected.numpy(), 1e-5, 1e-6)


def test_small_parameters_are_gathered_together() -> None:
    """Two of 32 and 60 bytes in one exchange, as far as there is room for them."""
    module = network([8, 1, 15, 30, 8])
    parts = dict.fromkeys(range(2, 6), SPLIT)
    # w2, of 15 * 30 numbers, needs most.
    for room, count in ((0, 0), (60, 1), (91, 1), (92, 2), (10**6, 2)):
        found = gather_parameters(module, parts=parts, limit=1800 + room, small=100)
        text = str(found)
        together = text.count("concat((%w0, %w1))")
        assert together == (count == 2)
        assert most_in_flight(found) <= 1800 + room
        # The second one, which is needed in the backward pass, too, has stayed.
        assert len([n for n in gathers(found) if n == "w1: float32"]) == (
            {0: 2, 1: 2, 2: 0}[count] if room < 10**6 else 0
        )


def test_views_and_casts_are_made_again() -> None:
    """A weight is gathered in bfloat16, twice; what its transpose and its cast were is not kept."""
    module = parse("""
    func @main(%x: bfloat16[3, 5], %w: float32[4, 5], %v: float32[4, 4]) -> bfloat16[3, 4] {
      %t: float32[5, 4] = permute_dims(%w, axes=(1, 0))
      %c: bfloat16[5, 4] = astype(%t, dtype="bfloat16")
      %y: bfloat16[3, 4] = matmul(%x, %c)
      %d: bfloat16[4, 4] = astype(%v, dtype="bfloat16")
      %z: bfloat16[3, 4] = matmul(%y, %d)
      %e: bfloat16[4, 5] = astype(%w, dtype="bfloat16")
      %u: bfloat16[3, 5] = matmul_nt(%z, %c)
      %a: bfloat16[3, 4] = matmul_nt(%u, %e)
      return %a
    }""")
    found = gather_parameters(module, parts={1: SPLIT, 2: SPLIT}, limit=0, small=0)
    meta.ir.verify(found, typed=True)
    assert gathers(found) == ["w: bfloat16", "v: bfloat16", "w: bfloat16"]
    drawn = np.random.default_rng(0)
    arrays = [meta.array(drawn.standard_normal(s), "float32") for s in ((3, 5), (4, 5), (4, 4))]
    arrays[0] = arrays[0].astype("bfloat16")
    wanted = meta.vm.compile(module)(*arrays).astype("float32").numpy()

    def rank() -> Any:
        parts = [meta.array(SPLIT.part(a.torch(), dist.rank("dp"))) for a in arrays[1:]]
        return meta.vm.compile(found)(arrays[0], *parts).astype("float32").numpy()

    for result in dist.simulate(2).run(rank):
        np.testing.assert_array_equal(result, wanted)


def test_parameters_in_blocks_and_as_results() -> None:
    class Chooses(meta.Model):
        def build(self) -> None:
            self.layers = [meta.model.Linear(3, 3), meta.model.Linear(3, 3)]

        @meta.model.trace
        def forward(self, x: Any) -> Any:
            """Return one layer's result, and a parameter."""
            first, last = self.layers
            y = meta.cond(x.sum() > 0, lambda: first(x), lambda: last(first(x)))
            return y, self.layers[0].weight * 2.0

    def rank(zero: int, sign: float) -> Any:
        model = Chooses()
        for array in model.parameters():
            array.update(meta.full(array.shape, 0.5))
        step = optim.with_sgd(0.1, over="dp", zero=zero)(model)
        dy = meta.ones((2, 3)), meta.ones((3, 3))
        run = meta.vm.compile(step, dy, meta.ones((2, 3)))
        y, weight = run(dy, meta.full((2, 3), sign))
        state = {n: dist.unshard(a).numpy() for n, a in model.state().items()}
        return {"y": y.numpy(), "weight": weight.numpy()} | state

    for sign in (1.0, -1.0):
        for found in zip(*(dist.simulate(2).run(rank, z, sign) for z in (0, 3)), strict=True):
            for name, value in found[1].items():
                np.testing.assert_allclose(value, found[0][name], 1e-6, err_msg=f"{sign} {name}")


def test_a_program_that_writes_to_a_parameter() -> None:
    module = parse("""
    func @main(%w: float32[4], %x: float32[4]) -> float32[4] {
      %0: () = assign(%w, %x)
      return %x
    }""")
    with pytest.raises(DistributedError, match="writes to a parameter of which ranks have parts"):
        gather_parameters(module, parts={0: SPLIT})


class Deep(meta.Model):
    """Twelve layers of 128 x 128 + 128 numbers."""

    def build(self) -> None:
        self.layers = [meta.model.Linear(128, 128) for _ in range(12)]

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        """Return a number."""
        for layer in self.layers:
            x = meta.tanh(layer(x))
        return x.sum()


def test_memory_of_a_rank() -> None:
    """Of P bytes of parameters, four ranks keep 3 P each of parameters and moments without ZeRO,
    1.5 P with stages 1 and 2, 0.75 P with stage 3. Beside, a step takes all gradients (0, 1), parts
    of gradients (2), or parts of gradients and a few whole parameters (3). What is exchanged beside
    other work is a layer more, in buckets that are no more than one.
    """
    buckets = {"bucket_collectives": {"share": 16}}

    def rank(zero: int, *disabled: str) -> Any:
        step = optim.with_adamw(over="dp", zero=zero)(Deep())
        arguments = meta.array(1.0), meta.ones((2, 128))
        with meta.PassContext(disabled=disabled, config=buckets):
            run = meta.vm.compile(step, *arguments)
        text = str(step.program(*arguments).module)
        again = len(re.findall(r"all_gather\(", text)) - 13  # twelve weights, and all biases
        return sum(a.nbytes for a in step.state().values()), run.memory().peak, again

    p = 12 * (128 * 128 + 128) * 4
    whole = "schedule_collectives"
    found = {zero: dist.simulate(4).run(rank, zero, whole)[0] for zero in range(4)}
    for zero in (2, 3):
        beside = dist.simulate(4).run(rank, zero)[0][1]
        assert beside < found[zero][1] + p / 12 + 2048
    for zero, share in enumerate((3, 1.5, 1.5, 0.75)):
        assert found[zero][0] == pytest.approx(share * p, rel=0.001)
    peaks = [peak for _, peak, _ in found.values()]
    totals = [kept + peak for kept, peak, _ in found.values()]
    assert totals == sorted(totals, reverse=True)
    assert p < peaks[1] == peaks[0] < 1.05 * p
    assert 0.25 * p < peaks[2] < peaks[3] < 0.4 * p
    assert found[3][2] > 0
