"""A widening cast or a broadcast is computed in each kernel that reads it, and a cast not at all
for what reads any dtype: what becomes of programs by hand. tests/amp/test_bytes.py counts what that
saves.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.ir import parse, structural_equal
from meta.passes import bypass_casts, dead_code
from meta.testing.emulator.operators import emulated_cuda
from tests.passes.fused_programs import fused, kernels

PARAMETERS = "%h: float16[4, 6], %x: float32[4, 6], %row: float32[6]"
CAST = '%a: float32[4, 6] = tvm.astype(%h, dtype="float32")'
BROADCAST = "%a: float32[4, 6] = tvm.broadcast_to(%row, shape=(4, 6))"
CASES = {
    "what rounds the result of a reduction stays with it": (
        """{
          %a: float32[4, 6] = tvm.softmax(%x)
          %b: float16[4, 6] = tvm.astype(%a, dtype="float16")
          %c: float16[4, 8] = tvm.pad(%b, pad_width=(0, 0, 0, 2))
          return %c
        }""",
        ["softmax astype", "pad"],
    ),
    "what rounds something else goes with what moves it": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float16[4, 6] = tvm.astype(%a, dtype="float16")
          %c: float16[4, 8] = tvm.pad(%b, pad_width=(0, 0, 0, 2))
          return %c
        }""",
        ["exp astype pad"],
    ),
    "cross entropy and its gradient read and write half precision": (
        """{
          %l: int64[4] = tvm.zeros(shape=(4,), dtype="int64")
          %d: float32[] = tvm.ones(shape=(), dtype="float32")
          %a: float32[4, 6] = tvm.astype(%h, dtype="float32")
          %b: float32[] = tvm.cross_entropy(%a, %l)
          %c: float32[4, 6] = tvm.cross_entropy_dpred(%d, %a, %l)
          %e: float16[4, 6] = tvm.astype(%c, dtype="float16")
          return (%b, %e)
        }""",
        ["zeros", "astype cross_entropy", "ones astype cross_entropy_dpred astype"],
    ),
    "readers in two kernels": (
        f"""{{
          {CAST}
          %b: float32[4, 6] = tvm.exp(%a)
          %c: float32[4] = tvm.sum(%a, axis=1)
          return (%b, %c)
        }}""",
        ["astype exp", "astype sum"],
    ),
    "readers in one kernel": (
        f"""{{
          {CAST}
          %b: float32[4, 6] = tvm.exp(%a)
          %c: float32[4, 6] = tvm.add(%a, %b)
          return %c
        }}""",
        ["astype exp add"],
    ),
    "what cannot compute it shares the second result of one that can": (
        f"""{{
          {CAST}
          %b: float32[4, 6] = tvm.exp(%a)
          %c: float32[4, 6] = tvm.cumsum(%a, axis=1)
          %d: float32[4, 6] = torch.relu(%a)
          %e: float32[4, 6] = tvm.tanh(%a)
          return (%b, %c, %d, %e)
        }}""",
        ["astype exp", "cumsum", "torch.relu", "astype tanh"],
    ),
    "or a kernel of its own": (
        f"""{{
          {CAST}
          %c: float32[4, 6] = tvm.cumsum(%a, axis=1)
          %b: float32[4, 6] = tvm.exp(%a)
          return (%b, %c)
        }}""",
        ["astype", "cumsum", "astype exp"],
    ),
    "a result of the program": (
        f"""{{
          {CAST}
          %b: float32[4] = tvm.sum(%a, axis=1)
          return (%a, %b)
        }}""",
        ["astype", "astype sum"],
    ),
    "views": (
        f"""{{
          {CAST}
          %v: float32[24] = reshape(%a, shape=(24,))
          %b: float32[24] = tvm.exp(%v)
          %c: float32[4, 6] = tvm.tanh(%a)
          return (%b, %c)
        }}""",
        ["reshape", "astype exp", "astype tanh"],
    ),
    "a view that the program returns": (
        f"""{{
          {CAST}
          %v: float32[24] = reshape(%a, shape=(24,))
          %b: float32[24] = tvm.exp(%v)
          return (%b, %v)
        }}""",
        ["astype", "reshape", "reshape", "astype exp"],
    ),
    "what it is made of has another reader": (
        f"""{{
          %g: float16[4, 6] = tvm.relu(%h)
          {CAST.replace("%h", "%g")}
          %b: float32[4, 6] = tvm.exp(%a)
          %c: float32[4] = tvm.sum(%a, axis=1)
          return (%b, %c)
        }}""",
        ["relu astype exp", "astype sum"],
    ),
    "what it is made of is read through a view": (
        f"""{{
          %g: float16[4, 6] = tvm.relu(%h)
          {CAST.replace("%h", "%g")}
          %v: float32[24] = reshape(%a, shape=(24,))
          %b: float32[24] = tvm.exp(%v)
          return %b
        }}""",
        ["relu", "reshape", "astype exp"],
    ),
    "a broadcast": (
        f"""{{
          {BROADCAST}
          %b: float32[4, 6] = tvm.exp(%a)
          %c: float32[4] = tvm.sum(%a, axis=1)
          return (%b, %c)
        }}""",
        ["broadcast_to exp", "broadcast_to sum"],
    ),
    "a broadcast of what is computed": (
        f"""{{
          %s: float32[6] = tvm.sum(%x, axis=0)
          {BROADCAST.replace("%row", "%s")}
          %b: float32[4, 6] = tvm.exp(%a)
          %c: float32[4] = tvm.sum(%a, axis=1)
          return (%b, %c)
        }}""",
        ["sum", "broadcast_to exp", "broadcast_to sum"],
    ),
    "a broadcast that a view is of": (
        f"""{{
          {BROADCAST}
          %v: float32[24] = reshape(%a, shape=(24,))
          %b: float32[24] = tvm.exp(%v)
          %c: float32[4] = tvm.sum(%a, axis=1)
          %d: float32[4, 6] = tvm.tanh(%a)
          return (%b, %c, %d)
        }}""",
        ["broadcast_to", "reshape", "exp", "broadcast_to sum", "broadcast_to tanh"],
    ),
    "a broadcast that another dialect reads": (
        f"""{{
          {BROADCAST}
          %c: float32[4] = tvm.sum(%a, axis=1)
          %d: float32[4, 6] = torch.relu(%a)
          return (%c, %d)
        }}""",
        ["broadcast_to", "broadcast_to sum", "torch.relu"],
    ),
    "indices that are known to be in range": (
        """{
          %n: int64[6] = tvm.astype(%row, dtype="int64")
          %m: int64[6] = tvm.clip(%n, 0, 5)
          %a: int64[4, 6] = tvm.broadcast_to(%m, shape=(4, 6))
          %b: float32[4, 6] = tvm.take_along_axis(%x, %a, axis=1)
          %c: float32[4, 6] = tvm.exp(%b)
          %d: float32[4] = tvm.sum(%c, axis=1)
          %e: float32[4, 6] = tvm.take_along_axis(%c, %a, axis=1)
          return (%d, %e)
        }""",
        ["astype clip", "broadcast_to take_along_axis exp", "sum", "broadcast_to take_along_axis"],
    ),
    "a narrowing cast is one value": (
        """{
          %a: float16[4, 6] = tvm.astype(%x, dtype="float16")
          %b: float16[4, 6] = tvm.exp(%a)
          %c: float16[4] = tvm.sum(%a, axis=1)
          return (%b, %c)
        }""",
        ["astype exp", "sum"],
    ),
    "what it is made of is written before a reader comes": (
        f"""{{
          %g: float16[4, 6] = tvm.relu(%h)
          {CAST.replace("%h", "%g")}
          %b: float32[4, 6] = tvm.exp(%a)
          %u: () = tvm.sgd(%g, %h, %h, 0.1, 0.9)
          %c: float32[4, 6] = tvm.tanh(%a)
          return (%b, %c)
        }}""",
        ["relu", "astype exp", "sgd", "tanh"],
    ),
    "it is written itself": (
        f"""{{
          {CAST}
          %b: float32[4, 6] = tvm.exp(%a)
          %u: () = tvm.sgd(%a, %x, %x, 0.1, 0.9)
          %c: float32[4, 6] = tvm.tanh(%a)
          return (%b, %c)
        }}""",
        ["astype", "exp", "sgd", "tanh"],
    ),
    "in a branch": (
        f"""{{
          {CAST}
          %b: float32[4, 6] = tvm.exp(%a)
          %p: bool[] = tvm.less(const float32[] 0.0, const float32[] 1.0)
          %r: float32[4, 6] = if %p {{
            %c: float32[4, 6] = tvm.tanh(%a)
            yield %c
          }} else {{
            yield %x
          }}
          return (%b, %r)
        }}""",
        ["astype exp", "less", "tanh"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_joined(name: str) -> None:
    body, expected = CASES[name]
    assert kernels(fused(PARAMETERS, body)) == expected


def test_a_kernel_reads_a_view_of_what_was_cast() -> None:
    expected = parse(
        """func @main(%h: float16[4, 6], %x: float32[4, 6], %row: float32[6]) {
          %w: float16[24] = reshape(%h, shape=(24,))
          %b: float32[24] = @fused_astype_exp(%w)
          %c: float32[4] = @fused_astype_sum(%h)
          return (%b, %c)
        }

        func @fused_astype_exp(%w: float16[24]) -> float32[24] attrs(fused="tvm") {
          %v: float32[24] = tvm.astype(%w, dtype="float32")
          %b: float32[24] = tvm.exp(%v)
          return %b
        }

        func @fused_astype_sum(%h: float16[4, 6]) -> float32[4] attrs(fused="tvm") {
          %a: float32[4, 6] = tvm.astype(%h, dtype="float32")
          %c: float32[4] = tvm.sum(%a, axis=1)
          return %c
        }"""
    )
    found = fused(
        PARAMETERS,
        f"""{{
          {CAST}
          %v: float32[24] = reshape(%a, shape=(24,))
          %b: float32[24] = tvm.exp(%v)
          %c: float32[4] = tvm.sum(%a, axis=1)
          return (%b, %c)
        }}""",
    )
    assert structural_equal(found, expected), str(found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("heads", [1, 3])
def test_layers_that_read_rows_by_shared_positions(heads: int, dtype: str) -> None:
    """As attention of relative positions does: no kernel writes the positions for each head."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2 * heads, 5, 9, generator=generator).to(getattr(torch, dtype))
    ids = torch.randint(0, 9, (1, 5, 7), generator=generator)

    def model(x: Any, ids: Any) -> Any:
        at = op.broadcast_to(op.clip(ids, 0, 8), (2 * heads, 5, 7))
        first = op.softmax(op.take_along_axis(x, at, 2))
        return first, op.take_along_axis(op.concat([x, first], 2), at, 2)

    arrays = meta.array(scores), meta.array(ids)
    with emulated_cuda(), meta.dialect.only("tvm"):
        executable = meta.vm.compile(meta.model.trace(model), *arrays)
        found = executable(*arrays)
    assert "tvm.broadcast_to" not in executable.kernels()
    assert sum("broadcast_to" in name for name in executable.kernels()) == 2
    at = ids.expand(2 * heads, 5, 7)
    first = scores.double().gather(2, at).softmax(2)
    expected = first, torch.cat([scores.double(), first], 2).gather(2, at)
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    for y, z in zip(found, expected, strict=True):
        torch.testing.assert_close(y.torch().double(), z, rtol=tolerance, atol=tolerance)


def bypassed(body: str) -> str:
    head = "func @main(%h: float16[4], %x: float32[4], %y: float32[4], %d: float64[4])"
    return str(dead_code(bypass_casts(parse(f"{head} {body}"))))


def test_gradients_are_read_as_they_are() -> None:
    text = bypassed(
        """{
          %a: float32[4] = astype(%h, dtype="float32")
          %b: float32[4] = astype(%d, dtype="float32")
          %u: () = multi_tensor_sgd((%x, %y), (%a, %b), (), 0.1)
          return ()
        }"""
    )
    assert "(%h, %b)" in text and text.count(" astype(") == 1  # a narrowing one stays


@pytest.mark.parametrize(
    "between",
    ["%v: () = multi_tensor_axpby((%y,), (%g,), 1.0, 1.0)", ""],
    ids=["written before", "written by it"],
)
def test_what_is_written_is_read_as_it_was(between: str) -> None:
    copies = "()" if between else "(%g,)"
    text = bypassed(
        f"""{{
          %g: float16[4] = add(%h, %h)
          %a: float32[4] = astype(%g, dtype="float32")
          {between}
          %u: () = multi_tensor_sgd((%x,), (%a,), (), 0.1, copies={copies})
          return ()
        }}"""
    )
    assert " astype(" in text


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize(
    "before",
    [
        lambda x: x * x + x,
        lambda x: op.tanh(x) * x,
        lambda x: op.astype(op.astype(x, "float32"), "bfloat16"),
    ],
)
def test_an_index_of_bfloat16_numbers_made_in_the_same_kernel(name: str, before: Any) -> None:
    numbers = torch.randn(33, 17, generator=torch.Generator().manual_seed(0))
    numbers[3, 4], numbers[5, 6], numbers[7] = torch.nan, torch.inf, 0.0
    x = meta.array(numbers, "bfloat16")
    function = meta.model.trace(lambda x: getattr(op, name)(before(x), 1))
    with meta.dialect.only("tvm"):
        executable = meta.vm.compile(function, x)
    assert len(executable.kernels()) == 1
    found, values = executable(x).torch(), before(x).torch().float()
    best = getattr(values, name.removeprefix("arg"))(1).values
    at = values.gather(1, found[:, None])[:, 0]
    # What is computed in the kernel is rounded fewer times than here.
    torch.testing.assert_close(at, best, rtol=2**-7, atol=0.0, equal_nan=True)
