"""What fusion joins and what it leaves apart: the calls of each kernel, in programs by hand."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.dialect import only
from meta.ir import parse, structural_equal
from meta.passes import fuse_operators, infer_type
from meta.vm.compiler.calling_convention import module_program
from tests.passes.fused_programs import fused, kernels

PARAMETERS = "%x: float32[4, 6], %y: float32[4, 6]"
CASES = {
    "a chain": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4, 6] = tvm.multiply(%a, %y)
          %c: float32[4, 6] = tvm.relu(%b)
          return %c
        }""",
        ["exp multiply relu"],
    ),
    "a diamond": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4, 6] = tvm.relu(%a)
          %c: float32[4, 6] = tvm.tanh(%a)
          %d: float32[4, 6] = tvm.add(%b, %c)
          return %d
        }""",
        ["exp relu tanh add"],
    ),
    "a value that leaves the function": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4, 6] = tvm.relu(%a)
          return (%a, %b)
        }""",
        ["exp relu"],
    ),
    "users in two kernels": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4, 6] = tvm.relu(%a)
          %c: float32[4, 6] = tvm.tanh(%a)
          return (%b, %c)
        }""",
        ["exp relu", "tanh"],
    ),
    "a value of another shape that leaves the function": (
        """{
          %a: float32[6] = tvm.exp(const float32[6] [0, 0, 0, 0, 0, 0])
          %b: float32[4, 6] = tvm.add(%a, %x)
          return (%a, %b)
        }""",
        ["exp", "add"],
    ),
    "a value that is needed before the kernel is over": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4, 6] = tvm.cumsum(%a, axis=1)
          %c: float32[4, 6] = tvm.add(%a, %b)
          return %c
        }""",
        ["exp", "cumsum", "add"],
    ),
    "a value that is needed after the kernel, too": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4, 6] = tvm.relu(%a)
          %c: float32[4, 6] = tvm.cumsum(%b, axis=1)
          %d: float32[4, 6] = tvm.cumsum(%a, axis=1)
          return (%c, %d)
        }""",
        ["exp relu", "cumsum", "cumsum"],
    ),
    "a value that leaves a reduction's kernel": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4] = tvm.sum(%a, axis=1)
          return (%a, %b)
        }""",
        ["exp", "sum"],
    ),
    "a value that is written later": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4, 6] = tvm.relu(%a)
          %u: () = tvm.sgd(%a, %y, %y, 0.1, 0.9)
          return (%a, %b)
        }""",
        ["exp", "relu", "sgd"],
    ),
    "a value that a branch needs, in between": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %c: bool[] = tvm.less(const float32[] 0.0, const float32[] 1.0)
          %r: float32[4, 6] = if %c {
            yield %a
          } else {
            yield %y
          }
          %b: float32[4, 6] = tvm.add(%a, %r)
          return %b
        }""",
        ["exp", "less", "add"],
    ),
    "into a reduction and out of it": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4] = tvm.sum(%a, axis=1)
          %c: float32[4] = tvm.sqrt(%b)
          return %c
        }""",
        ["exp sum sqrt"],
    ),
    "two reductions": (
        """{
          %a: float32[4] = tvm.sum(%x, axis=1)
          %b: float32[] = tvm.max(%a)
          return %b
        }""",
        ["sum", "max"],
    ),
    "a reduction does not feed a transpose": (
        """{
          %a: float32[4, 6] = tvm.softmax(%x)
          %b: float32[6, 4] = tvm.permute_dims(%a)
          return %b
        }""",
        ["softmax", "permute_dims"],
    ),
    "an opaque call": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4, 6] = tvm.cumsum(%a, axis=1)
          %c: float32[4, 6] = tvm.relu(%b)
          return %c
        }""",
        ["exp", "cumsum", "relu"],
    ),
    "another dialect": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4, 6] = torch.relu(%a)
          %c: float32[4, 6] = tvm.relu(%b)
          return %c
        }""",
        ["exp", "torch.relu", "relu"],
    ),
    "a tuple argument": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[8, 6] = tvm.concat((%a, %y), axis=0)
          return %b
        }""",
        ["exp concat"],
    ),
    "nothing to compute": (
        """{
          %a: float32[0, 6] = tvm.strided_slice(%x, begin=(0,), end=(0,))
          %b: float32[0, 6] = tvm.exp(%a)
          return %b
        }""",
        ["strided_slice", "exp"],
    ),
    "a write to what is read, in between": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %u: () = tvm.sgd(%x, %y, %y, 0.1, 0.9)
          %b: float32[4, 6] = tvm.relu(%a)
          return %b
        }""",
        ["exp", "sgd", "relu"],
    ),
    "a write to something else, in between": (
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %z: float32[4, 6] = tvm.zeros_like(%x)
          %u: () = tvm.sgd(%z, %y, %y, 0.1, 0.9)
          %b: float32[4, 6] = tvm.relu(%a)
          return %b
        }""",
        ["zeros_like", "sgd", "exp relu"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_joined(name: str) -> None:
    body, expected = CASES[name]
    assert kernels(fused(PARAMETERS, body)) == expected


def test_equal_kernels_are_one_function() -> None:
    module = fused(
        PARAMETERS,
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4, 6] = tvm.relu(%a)
          %c: float32[4, 6] = tvm.exp(%y)
          %d: float32[4, 6] = tvm.relu(%c)
          return (%b, %d)
        }""",
    )
    assert kernels(module) == ["exp relu", "exp relu"]
    assert list(module.functions) == ["main", "fused_exp_relu"]


def test_a_constant_is_a_parameter() -> None:
    module = fused(
        PARAMETERS,
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4, 6] = tvm.add(%a, const float32[] 2.0)
          return %b
        }""",
    )
    assert kernels(module) == ["exp add"]
    assert len(module.functions["fused_exp_add"].params) == 2


def test_results_of_a_kernel_are_fields() -> None:
    module = fused(
        PARAMETERS,
        """{
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4, 6] = tvm.relu(%a)
          return (%a, %b)
        }""",
    )
    expected = parse(
        """func @main(%x: float32[4, 6], %y: float32[4, 6]) {
          %both: (float32[4, 6], float32[4, 6]) = @fused_exp_relu(%x)
          %a: float32[4, 6] = %both.0
          %b: float32[4, 6] = %both.1
          return (%a, %b)
        }

        func @fused_exp_relu(%x: float32[4, 6]) -> (float32[4, 6], float32[4, 6])
            attrs(fused="tvm") {
          %a: float32[4, 6] = tvm.exp(%x)
          %b: float32[4, 6] = tvm.relu(%a)
          return (%a, %b)
        }"""
    )
    assert structural_equal(module, expected)


def test_inside_of_branches() -> None:
    before = parse(
        """func @main(%x: float32[4], %c: bool[]) {
          %r: float32[4] = if %c {
            %a: float32[4] = tvm.exp(%x)
            %b: float32[4] = tvm.relu(%a)
            yield %b
          } else {
            yield %x
          }
          return %r
        }"""
    )
    after = fuse_operators(before)
    assert "@fused_exp_relu(%x)" in str(after)


def test_batch_norm_for_inference_fuses_with_what_follows() -> None:
    module = infer_type(
        parse("""
func @main(%x: float32[2, 4, 8, 8], %r: float32[2, 4, 8, 8], %m: float32[4], %v: float32[4]) {
  %y = batch_norm_infer(%x, %m, %v)
  %a = add(%r, %y)
  %z = relu(%a)
  return %z
}""")
    )
    torch.manual_seed(0)
    x, r = torch.randn(2, 4, 8, 8), torch.randn(2, 4, 8, 8)
    mean, variance = torch.randn(4), torch.rand(4) + 0.5
    arrays = [meta.array(t) for t in (x, r, mean, variance)]
    with only("tvm"):
        compiled = meta.vm.compile(module_program(module), *arrays)
    assert len(compiled.kernels()) == 1
    wanted = torch.relu(r + torch.nn.functional.batch_norm(x, mean, variance))
    torch.testing.assert_close(compiled(*arrays).torch(), wanted, rtol=1e-5, atol=1e-5)
