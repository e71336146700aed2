"""Updates of a part of an array that are written in place: which are; and all give the same."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

import meta
from meta.dialect.core.ir_calls import called_op, callee_name
from meta.ir import Module, bindings, parse, verify
from meta.passes import infer_type, reinplace
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret

HEAD = "%p: float32[4, 3], %q: float32[4, 3], %i: int64[1, 2], %v: float32[2, 3], %n: int64[2]"
NEW = "%a = scatter_nd(%p, %i, %v)\n"
INDEX = "%w = reshape(%n, (2, 1))\n%m = broadcast_to(%w, (2, 3))\n"


def program(body: str, result: str = "%r", head: str = HEAD) -> Module:
    return infer_type(parse(f"func @main({head}) {{\n{body}\n return {result}\n}}"))


def operators(module: Module) -> Counter[str]:
    found = (callee_name(b.value) for b in bindings(module.main) if called_op(b.value))
    return Counter(name for name in found if name.startswith(("assign", "scatter", "strided_s")))


def outcome(module: Module, seed: int = 0) -> list[Any]:
    """Return what a program returns, and what its arguments are then."""
    make = np.random.default_rng(seed)
    shapes = [p.type.static_shape for p in module.main.params]  # type: ignore[union-attr]
    arrays = [
        meta.array(
            make.permutation(4)[: np.prod(shape)].reshape(shape).astype("int64")
            if p.type.dtype == "int64"  # type: ignore[union-attr]
            else make.normal(size=shape).astype("float32")
        )
        for p, shape in zip(module.main.params, shapes, strict=True)
    ]
    results = interpret(module_program(module), *arrays)
    results = results if isinstance(results, tuple) else (results,)
    return [a.numpy().tolist() for a in (*results, *arrays)]


def check(before: Module, seed: int = 0) -> Module:
    expected, after = outcome(before, seed), reinplace(before)
    verify(after, typed=True)
    assert outcome(after, seed) == expected, f"{before}\n{after}"
    return after


@pytest.mark.parametrize(
    "body",
    [
        NEW + "%r = sum(%a, axis=0)\n%u = assign(%p, %a)",
        NEW + "%u = assign(%p, %a)\n%r = sum(%a, axis=0)",  # the result is read later
        "%r = add(%p, %q)\n" + NEW + "%u = assign(%p, %a)",  # the old values are, before
        INDEX + "%a = scatter(%p, 0, %m, %v)\n%r = exp(%a)\n%u = assign(%p, %a)",
        "%a = strided_set(%p, %v, (1,), (3,))\n%r = exp(%a)\n%u = assign(%p, %a)",
        "%b = reshape(%p, (2, 2, 3))\n%x = reshape(%v, (1, 2, 3))\n%j = strided_slice(%i, (0, 0), "
        "(1, 1))\n%k = floor_divide(%j, 2)\n%c = scatter_nd(%b, %k, %x)\n%a = reshape(%c, (4, 3))"
        "\n%r = exp(%c)\n%u = assign(%p, %a)",  # of a view
        NEW + "%b = scatter_nd(%a, %i, %v)\n%r = exp(%b)\n%u = assign(%p, %b)",  # two
        "%b = add(%p, %q)\n%r = scatter_nd(%b, %i, %v)",  # of what the program made
        NEW + "%b = scatter_nd(%q, %i, %v)\n%r = add(%a, %b)\n%u = assign(%p, %a)\n"
        "%w = assign(%q, %b)",
    ],
)
def test_in_place(body: str) -> None:
    count = body.count("scatter") + body.count("strided_set")
    after = operators(check(program(body)))
    assert after.pop("strided_slice", 0) == body.count("strided_slice")
    assert after == {"assign_at": count}


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (NEW + "%r = add(%p, %a)\n%u = assign(%p, %a)", "%r"),  # old values are read later
        (NEW + "%u = assign(%p, %a)", "%a"),  # the result is to be an array of its own
        (NEW + "%u = assign(%q, %a)\n%r = add(%p, 1.0)", "%r"),  # another argument is written
        (NEW + "%u = assign(%p, %q)\n%z = assign(%p, %a)", "%q"),  # and in between
        (NEW + "%r = exp(%a)", "%r"),  # the argument stays as it is
        ("%b = add(%p, %q)\n%a = scatter_nd(%b, %i, %v)\n%r = add(%a, %b)", "%r"),
        ("%b = reshape(%p, (12,))\n" + NEW + "%r = exp(%b)\n%u = assign(%p, %a)", "%r"),  # a view
        (NEW + '%b = scatter_nd(%p, %i, %v, "add")\n%r = add(%a, %b)\n%u = assign(%p, %b)', "%r"),
        ("%a = scatter_nd(%p, %i, %p[0:2])\n".replace("%p[0:2]", "%s"), "%a"),
    ],
)
def test_not_in_place(body: str, result: str) -> None:
    before = program(body.replace("%s", "%v"), result)
    assert "assign_at" not in operators(check(before))


def test_indices_that_are_written_between() -> None:
    body = INDEX + "%o = add(%n, 1)\n%u = assign(%n, %o)\n%a = scatter(%p, 0, %m, %v)\n"
    before = program(body + "%r = exp(%a)\n%z = assign(%p, %a)")
    assert "assign_at" not in operators(reinplace(before))


def test_general_indices_are_no_slices() -> None:
    head = HEAD + ", %m: int64[2, 3]"
    before = program("%a = scatter(%p, 0, %m, %v)\n%u = assign(%p, %a)", "%q", head)
    assert "assign_at" not in operators(reinplace(before))


def test_a_branch_reads_the_old_values() -> None:
    """What an `If` reads, it reads where it stands."""
    branch = "%r = if %b {\n %x = exp(%p)\n yield %x\n} else {\n yield %q\n}\n"
    head = HEAD + ", %b: bool[]"
    late = program(NEW + branch + "%u = assign(%p, %a)", head=head)
    early = program(branch + NEW + "%u = assign(%p, %a)", head=head)
    assert "assign_at" not in operators(reinplace(late))
    assert operators(reinplace(early)) == {"assign_at": 1}


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    """Updates, reads, views and writes in any order give what they give without the pass."""
    draw, lines, values = random.Random(seed), [INDEX], ["p", "q"]
    calls = {
        "scatter_nd(%{x}, %i, %v)": 3,
        "scatter(%{x}, 0, %m, %v)": 2,
        "strided_set(%{x}, %v, (1,), (3,))": 1,
        "add(%{x}, %{y})": 1,
        "exp(%{x})": 1,
        "reshape(%{x}, (4, 3))": 1,
    }
    for number in range(draw.randint(2, 8)):
        (call,) = draw.choices(list(calls), list(calls.values()))
        x, y = draw.choice(values[-3:]), draw.choice(values)
        if draw.random() < 0.2:
            lines.append(f"%u{number} = assign(%{draw.choice('pq')}, %{x})")
        lines.append(f"%x{number} = {call.format(x=x, y=y)}")
        values.append(f"x{number}")
    lines += [f"%w{a} = assign(%{a}, %{draw.choice(values[-3:])})" for a in "pq"[seed % 3 :]]
    lines += [f"%r{i} = sum(%{values[-1 - i]}, axis=0)" for i in (0, 1)]
    check(program("\n".join(lines), draw.choice(["(%r0, %r1)", f"(%r0, %{values[-1]})"])), seed)


def test_compiled_programs_write_in_place() -> None:
    """Two steps of decoding: the cache is the caller's, and stays where it is."""
    head = "%p: float32[2, 8, 4], %n: int64[1], %v: float32[2, 1, 4]"
    index = "%w = reshape(%n, (1, 1, 1))\n%m = broadcast_to(%w, (2, 1, 4))\n"
    body = index + "%a = scatter(%p, 1, %m, %v)\n%r = sum(%a)\n%u = assign(%p, %a)"
    compiled = meta.vm.compile(program(body, head=head))
    cache = meta.zeros((2, 8, 4), "float32")
    rows = meta.array(np.ones((2, 1, 4), "float32"))
    address = cache.tensor.data_ptr()
    for at, total in ((3, 8), (5, 16)):
        assert compiled(cache, meta.array(np.array([at])), rows).item() == total
    assert cache.tensor.data_ptr() == address
    assert cache.numpy()[:, :, 0].tolist() == [[0, 0, 0, 1, 0, 1, 0, 0]] * 2
    kernels = {kernel.name for kernel in compiled.code.kernels}
    assert "torch.assign_at" in kernels
    assert not {"torch.scatter", "torch.assign"} & kernels


def test_a_slice_without_elements_stays() -> None:
    module = parse("""
    func @main(%x: float32[4, 3], %v: float32[4, 0]) -> float32[4, 3] {
      %y = exp(%x)
      %z = strided_set(%y, %v, begin=(0, 1), end=(4, 1), strides=(1, 1))
      %u = assign(%x, %z)
      %e = exp(%z)
      return %e
    }""")
    typed = infer_type(module)
    assert "assign_at" not in str(reinplace(typed))


def test_what_a_program_permutes_may_be_written_for_all_extents() -> None:
    module = parse("""
    func @main(%x: float32[n, 3], %at: int64[1, 2], %v: float32[2, n]) -> float32[3, n] {
      %p = permute_dims(%x, axes=(1, 0))
      %y = scatter_nd(%p, %at, %v)
      %e = exp(%y)
      return %e
    }""")
    assert "assign_at" in str(reinplace(infer_type(module)))
    run = meta.vm.compile(module)
    for n in (4, 7):
        x, v = np.random.rand(n, 3).astype("float32"), np.random.rand(2, n).astype("float32")
        expected = x.T.copy()
        expected[[2, 0]] = v
        found = run(meta.array(x), meta.array(np.array([[2, 0]])), meta.array(v)).numpy()
        np.testing.assert_allclose(found, np.exp(expected), rtol=1e-5)
        assert not np.shares_memory(found, x)
