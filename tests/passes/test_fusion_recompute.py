"""Results of a kernel that others compute again, instead of reading what it would have to keep:
what becomes of programs by hand, and the numbers and memory of random ones.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import meta
from meta.base.device import Device
from meta.ir import (
    Call,
    Module,
    Var,
    operands,
    parse,
    type_bytes,
    verify,
)
from meta.model.zoo import LlamaConfig, LlamaForCausalLM, causal_lm_loss
from meta.optim import with_sgd
from meta.passes import dead_code, fuse_operators
from meta.train.objective import Objective
from tests.passes.fused_programs import fused, kernels, run_on_torch

PARAMETERS = "%x: float32[4, 6], %y: float32[4, 6], %w: float32[6, 6], %i: int64[4, 6]"
# The forward pass of a gate, and what a backward pass reads; %d comes from what follows.
GATE = """
  %a: float32[4, 6] = matmul(%x, %w)
  %b: float32[4, 6] = matmul(%y, %w)
  %s: float32[4, 6] = tvm.silu(%a)
  %p: float32[4, 6] = tvm.multiply(%s, %b)
  %d: float32[4, 6] = matmul(%p, %w)"""
CASES: dict[str, tuple[str, list[str]]] = {
    "a gate": (
        f"""{{{GATE}
          %e: float32[4, 6] = tvm.multiply(%d, %s)
          %f: float32[4, 6] = tvm.silu_dx(%a, %d)
          return (%e, %f)
        }}""",
        ["matmul", "matmul", "silu multiply", "matmul", "silu multiply", "silu_dx"],
    ),
    "what it is computed from was used before, but could be later": (
        f"""{{{GATE}
          %f: float32[4, 6] = tvm.silu_dx(%a, %d)
          %e: float32[4, 6] = tvm.multiply(%d, %s)
          return (%e, %f)
        }}""",
        ["matmul", "matmul", "silu multiply", "matmul", "silu_dx", "silu multiply"],
    ),
    "what it is computed from is not there any more": (
        f"""{{{GATE}
          %e: float32[4, 6] = tvm.multiply(%d, %s)
          return %e
        }}""",
        ["matmul", "matmul", "silu multiply", "matmul", "multiply"],
    ),
    "an input is always there": (
        """{
          %s: float32[4, 6] = tvm.silu(%x)
          %p: float32[4, 6] = tvm.multiply(%s, %y)
          %d: float32[4, 6] = matmul(%p, %w)
          %e: float32[4, 6] = tvm.multiply(%d, %s)
          return %e
        }""",
        ["silu multiply", "matmul", "silu multiply"],
    ),
    "a chain of which nothing is kept": (
        """{
          %r: float32[4, 6] = tvm.sigmoid(%x)
          %s: float32[4, 6] = tvm.multiply(%r, %x)
          %p: float32[4, 6] = tvm.multiply(%s, %y)
          %d: float32[4, 6] = matmul(%p, %w)
          %e: float32[4, 6] = tvm.multiply(%d, %s)
          %f: float32[4, 6] = tvm.multiply(%d, %r)
          return (%e, %f)
        }""",
        ["sigmoid multiply multiply", "matmul", "sigmoid multiply multiply", "sigmoid multiply"],
    ),
    "two of a chain read one value of which nothing is kept": (
        """{
          %r: float32[4, 6] = tvm.sigmoid(%x)
          %r1: float32[4, 6] = tvm.tanh(%r)
          %r2: float32[4, 6] = tvm.negative(%r)
          %s: float32[4, 6] = tvm.multiply(%r1, %r2)
          %p: float32[4, 6] = tvm.multiply(%s, %y)
          %d: float32[4, 6] = matmul(%p, %w)
          %e: float32[4, 6] = tvm.multiply(%d, %s)
          return %e
        }""",
        [
            "sigmoid tanh negative multiply multiply",
            "matmul",
            "sigmoid tanh negative multiply multiply",
        ],
    ),
    "too long a chain": (
        """{
          %r: float32[4, 6] = tvm.sigmoid(%x)
          %r1: float32[4, 6] = tvm.tanh(%r)
          %r2: float32[4, 6] = tvm.tanh(%r1)
          %r3: float32[4, 6] = tvm.tanh(%r2)
          %s: float32[4, 6] = tvm.tanh(%r3)
          %p: float32[4, 6] = tvm.multiply(%s, %y)
          %d: float32[4, 6] = matmul(%p, %w)
          %e: float32[4, 6] = tvm.multiply(%d, %s)
          return %e
        }""",
        ["sigmoid tanh tanh tanh tanh multiply", "matmul", "multiply"],
    ),
    "two kernels would read two inputs each": (
        """{
          %s: float32[4, 6] = tvm.multiply(%x, %y)
          %p: float32[4, 6] = tvm.silu(%s)
          %d: float32[4, 6] = matmul(%p, %w)
          %e: float32[4, 6] = tvm.multiply(%d, %s)
          %g: float32[4, 6] = matmul(%e, %w)
          %f: float32[4, 6] = tvm.multiply(%g, %s)
          return (%e, %f)
        }""",
        ["multiply silu", "matmul", "multiply", "matmul", "multiply"],
    ),
    "one kernel reads two inputs": (
        """{
          %s: float32[4, 6] = tvm.multiply(%x, %y)
          %p: float32[4, 6] = tvm.silu(%s)
          %d: float32[4, 6] = matmul(%p, %w)
          %e: float32[4, 6] = tvm.multiply(%d, %s)
          return %e
        }""",
        ["multiply silu", "matmul", "multiply multiply"],
    ),
    "a product needs it in memory": (
        f"""{{{GATE}
          %e: float32[4, 6] = tvm.multiply(%d, %s)
          %f: float32[4, 6] = tvm.silu_dx(%a, %d)
          %g: float32[4, 6] = matmul(%s, %w)
          return (%e, %f, %g)
        }}""",
        ["matmul", "matmul", "silu multiply", "matmul", "multiply", "silu_dx", "matmul"],
    ),
    "the caller needs it": (
        f"""{{{GATE}
          %e: float32[4, 6] = tvm.multiply(%d, %s)
          %f: float32[4, 6] = tvm.silu_dx(%a, %d)
          return (%e, %f, %s)
        }}""",
        ["matmul", "matmul", "silu multiply", "matmul", "multiply", "silu_dx"],
    ),
    "a view of it is read": (
        f"""{{{GATE}
          %v: float32[24] = reshape(%s, shape=(24,))
          %h: float32[24] = reshape(%d, shape=(24,))
          %e: float32[24] = tvm.multiply(%h, %v)
          %f: float32[4, 6] = tvm.silu_dx(%a, %d)
          return (%e, %f)
        }}""",
        [
            *("matmul", "matmul", "silu multiply", "matmul", "reshape", "reshape"),
            *("multiply", "silu_dx"),
        ],
    ),
    "what it is computed from is written meanwhile": (
        """{
          %s: float32[4, 6] = tvm.silu(%x)
          %p: float32[4, 6] = tvm.multiply(%s, %y)
          %d: float32[4, 6] = matmul(%p, %w)
          %u: () = multi_tensor_axpby((%d,), (%x,), 1.0, 1.0)
          %e: float32[4, 6] = tvm.multiply(%d, %s)
          return %e
        }""",
        ["silu multiply", "matmul", "multi_tensor_axpby", "multiply"],
    ),
    "a reduction computes it": (
        """{
          %s: float32[4, 6] = tvm.silu(%x)
          %p: float32[4, 6] = tvm.multiply(%s, %y)
          %d: float32[4, 6] = matmul(%p, %w)
          %e: float32[4, 6] = tvm.multiply(%d, %s)
          %f: float32[6] = tvm.sum(%e, axis=0)
          return %f
        }""",
        ["silu multiply", "matmul", "silu multiply sum"],
    ),
    "wider inputs are no gain": (
        """{
          %s: float16[4, 6] = tvm.astype(%i, dtype="float16")
          %p: float16[4, 6] = tvm.tanh(%s)
          %q: float32[4, 6] = tvm.astype(%p, dtype="float32")
          %d: float32[4, 6] = matmul(%q, %w)
          %h: float16[4, 6] = tvm.astype(%d, dtype="float16")
          %e: float16[4, 6] = tvm.multiply(%h, %s)
          return %e
        }""",
        ["astype tanh astype", "matmul", "astype multiply"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_computed_again(name: str) -> None:
    body, expected = CASES[name]
    assert kernels(fused(PARAMETERS, body, recompute=True)) == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_by_default_on_cuda_alone(device: str) -> None:
    body, again = CASES["a gate"]
    found = fuse_operators(parse(f"func @main({PARAMETERS}) {body}"), device=Device(device))
    kept = ["matmul", "matmul", "silu multiply", "matmul", "multiply", "silu_dx"]
    assert kernels(found) == {"cpu": kept, "cuda": again}[device]


TORCH = {
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "negative": torch.neg,
    "multiply": torch.mul,
    "add": lambda x, y, *_: x + y,
    "matmul": lambda x, y, *_: x @ y,
}
UNARY, BINARY = ("silu", "tanh", "sigmoid", "negative"), ("multiply", "add")


@st.composite
def programs(draw: st.DrawFn) -> Module:
    """A program of elementwise calls and products, which read random values made before."""
    lines, values = list[str](), ["%x", "%y"]
    for number in range(draw(st.integers(6, 30))):
        # What was made lately more often: or else few are kernels of several calls.
        recent = st.sampled_from(values[-3:])
        pick = st.one_of(recent, recent, st.sampled_from(values))
        kind = draw(st.integers(0, 5))
        if kind == 0:
            call = f"matmul({draw(pick)}, %w)"
        elif kind < 3:
            call = f"tvm.{draw(st.sampled_from(UNARY))}({draw(pick)})"
        else:
            call = f"tvm.{draw(st.sampled_from(BINARY))}({draw(pick)}, {draw(pick)})"
        lines.append(f"%v{number}: float32[4, 4] = {call}")
        values.append(f"%v{number}")
    found = draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3, unique=True))
    names = "%x: float32[4, 4], %y: float32[4, 4], %w: float32[4, 4]"
    body = "\n  ".join([*lines, f"return ({', '.join(found)},)"])
    return parse(f"func @main({names}) {{\n  {body}\n}}")


def moved(module: Module) -> int:
    """Return the bytes that the kernels of main read and write."""
    total = 0
    for binding in module.main.body.bindings:
        if isinstance(binding.value, Call):
            read = {a for a in operands(binding.value) if isinstance(a, Var)}
            total += sum(type_bytes(a.type) for a in read) + type_bytes(binding.var.type)
    return total


@given(programs(), st.integers(2, 24))
def test_random_programs(module: Module, most: int) -> None:
    module = dead_code(module)
    before = fuse_operators(module, max_members=most)
    after = fuse_operators(module, max_members=most, recompute=True)
    verify(after, typed=False)
    assert moved(after) <= moved(before)
    assert all(
        len(f.body.bindings) <= most for name, f in after.functions.items() if name != "main"
    )
    torch.manual_seed(0)
    args = [torch.randn(4, 4, dtype=torch.float64) for _ in range(3)]
    for found, expected in zip(
        *(run_on_torch(m, args, TORCH) for m in (after, module)), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_gated_network_trains_alike_with_less_memory() -> None:
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    words = meta.array(torch.randint(0, 16, (8, 32), generator=torch.Generator().manual_seed(0)))
    losses, peaks = [], []
    for recompute in (False, True):
        meta.random.seed(0)
        model = LlamaForCausalLM(config)
        step = with_sgd(0.1)(Objective(model, causal_lm_loss))
        context = meta.PassContext(config={"fuse_operators": {"recompute": recompute}})
        with context, meta.dialect.only("tvm", "torch"):
            executable = meta.vm.compile(step, meta.array(1.0), (words,), (words,))
        losses.append([executable(meta.array(1.0), (words,), (words,)).item() for _ in range(5)])
        peaks.append(meta.analysis.memory(executable.module).peak)
    assert losses[1] == pytest.approx(losses[0], rel=1e-6) and losses[0][-1] < losses[0][0]
    # Of each layer, one array of a gate's size less: of the last one it is not the worst moment.
    assert peaks[0] - peaks[1] >= 2 * 8 * 32 * 96 * 4
