"""Buckets of collectives: which values share one, what they leave alone, and where they lie. That
the results are the same is tested in tests/distributed.
"""

from __future__ import annotations

from typing import Any

import pytest

from meta.base.device import CPU
from meta.dialect import only
from meta.ir import Module, parse, verify
from meta.passes import bucket_collectives, dispatch, plan_memory

MEAN = 'over="dp", size=2, reduction="mean"'


def bucketed(text: str, **options: Any) -> list[str]:
    """Return the bindings of a program after the pass, without their types."""
    module = bucket_collectives(parse(text), **options)
    verify(module)
    lines = str(module).splitlines()[1:-2]
    return [" = ".join((n.split(":")[0], v)) for n, v in (x.strip().split(" = ") for x in lines)]


def gradients(*sizes: int, dtype: str = "float32", tail: str = "") -> str:
    """A program that makes values one after another, reduces them at its end, and adds them up."""
    count = range(len(sizes))
    lines = [
        *(f'%g{i}: {dtype}[{n}] = full(shape=({n},), fill_value=1.0, dtype="{dtype}")'
          for i, n in enumerate(sizes)),
        *(f"%r{i}: {dtype}[{n}] = all_reduce(%g{i}, {MEAN})" for i, n in enumerate(sizes)),
        *(f"%s{i}: {dtype}[] = sum(%r{i})" for i in count),
        *(f"%t{i}: {dtype}[] = add(%{f't{i - 1}' if i > 1 else 's0'}, %s{i})" for i in count if i),
        tail or f"return %t{len(sizes) - 1}",
    ]  # fmt: skip
    body = "\n  ".join(lines)
    return f"func @main(%x: {dtype}[4]) -> {dtype}[] {{\n  {body}\n}}"


def buckets(lines: list[str]) -> list[str]:
    """Return the operands of each bucket."""
    calls = (line.partition("multi_tensor_all_reduce(")[2] for line in lines)
    return [call.partition(", over")[0] for call in calls if call]


def test_sizes() -> None:
    """The first bucket is small, the others larger; what is larger than one is alone."""
    mib = 1 << 18  # of float32
    program = gradients(mib // 2, mib // 4, mib, mib, 4 * mib, 8, 8)
    lines = bucketed(program, bucket_mib=2.0, first_mib=1.0)
    assert buckets(lines) == ["(%g0, %g1)", "(%g2, %g3)", "(%g4,)", "(%g5, %g6)"]
    assert lines[2].startswith("%bucket = multi_tensor_all_reduce((%g0, %g1)")
    assert lines[5].startswith("%bucket_1 = multi_tensor_all_reduce((%g2, %g3)")
    assert len(buckets(bucketed(program))) == 2


def test_kinds_do_not_mix() -> None:
    lines = bucketed(
        f"""
func @main(%x: float32[4], %y: float64[4]) -> (float32[4], float32[4], float64[4], float32[4]) {{
  %a: float32[4] = exp(%x)
  %b: float32[4] = tanh(%x)
  %c: float64[4] = exp(%y)
  %d: float32[4] = sin(%x)
  %e: float32[4] = cos(%x)
  %a1: float32[4] = all_reduce(%a, {MEAN})
  %b1: float32[4] = all_reduce(%b, over="dp", size=2, reduction="sum")
  %c1: float64[4] = all_reduce(%c, {MEAN})
  %d1: float32[4] = all_reduce(%d, over="tp", size=2, reduction="mean")
  %e1: float32[4] = all_reduce(%e, {MEAN})
  %a2: float32[4] = exp(%a1)
  %b2: float32[4] = exp(%b1)
  %c2: float64[4] = exp(%c1)
  %d2: float32[4] = add(%d1, %e1)
  return (%a2, %b2, %c2, %d2)
}}"""
    )
    assert buckets(lines) == ["(%b,)", "(%c,)", "(%d,)", "(%a, %e)"]


def test_casts_come_to_the_bucket() -> None:
    """Gradients in another dtype do not wait for the end of the program."""
    lines = bucketed(
        f"""
func @main(%x: float32[2, 3], %z: float32[6]) -> float32[6] {{
  %g: float32[2, 3] = exp(%x)
  %h: float32[6] = tanh(%z)
  %far: float32[6] = sin(%z)
  %c: float16[2, 3] = astype(%g, dtype="float16")
  %d: float16[6] = reshape(%c, shape=(6,))
  %a: float16[6] = all_reduce(%d, {MEAN})
  %e: float32[6] = astype(%a, dtype="float32")
  %i: float16[6] = astype(%h, dtype="float16")
  %b: float16[6] = all_reduce(%i, {MEAN})
  %f: float32[6] = astype(%b, dtype="float32")
  %j: float32[6] = add(%e, %far)
  %k: float32[6] = add(%j, %f)
  return %k
}}"""
    )
    names = [line.partition(" = ")[0] for line in lines]
    assert names == ["%g", "%c", "%d", "%h", "%i", "%bucket", "%e", "%f", "%far", "%j", "%k"]


def test_what_another_has_is_copied_and_results_stay() -> None:
    """An argument, a value that is read later, and one that the caller gets."""
    lines = bucketed(
        f"""
func @main(%x: float32[4]) -> (float32[4], float32[4]) {{
  %g: float32[4] = exp(%x)
  %h: float32[4] = tanh(%x)
  %k: float32[4] = sin(%x)
  %m: float32[4] = cos(%x)
  %a: float32[4] = all_reduce(%x, {MEAN})
  %b: float32[4] = all_reduce(%g, {MEAN})
  %c: float32[4] = all_reduce(%h, {MEAN})
  %d: float32[4] = all_reduce(%k, {MEAN})
  %e: float32[4] = add(%g, %a)
  %f: float32[4] = add(%b, %c)
  %n: float32[4] = add(%e, %f)
  %o: float32[4] = multiply(%n, %m)
  return (%d, %o)
}}"""
    )
    assert lines[0] == '%a = astype(%x, dtype="float32")'
    assert lines[2] == '%b = astype(%g, dtype="float32")'
    assert buckets(lines) == ["(%a, %b, %h)"]
    assert lines[7].startswith("%d = all_reduce(%k")
    assert lines[8] == "%e = add(%g, %a)"


def test_one_collective_behind_another() -> None:
    """Over both axes of a mesh, with a cast between: each in its turn."""
    lines = bucketed(
        f"""
func @main(%x: float32[4]) -> float32[4] {{
  %g: float32[4] = exp(%x)
  %h: float32[4] = tanh(%x)
  %a: float32[4] = all_reduce(%g, over="tp", size=2, reduction="sum")
  %b: float16[4] = astype(%a, dtype="float16")
  %c: float16[4] = all_reduce(%b, {MEAN})
  %d: float32[4] = reduce_from(%h, over="tp", size=2)
  %e: float16[4] = astype(%d, dtype="float16")
  %f: float16[4] = all_reduce(%e, {MEAN})
  %k: float16[4] = add(%c, %f)
  %l: float32[4] = astype(%k, dtype="float32")
  return %l
}}"""
    )
    assert buckets(lines) == ["(%g, %h)", "(%b, %e)"]


@pytest.mark.parametrize("body", ["%d: float32[4] = add(%b, %a)", "%d: float32[4] = add(%a, %b)"])
def test_what_depends_on_a_result_is_in_another_bucket(body: str) -> None:
    lines = bucketed(
        f"""
func @main(%x: float32[4]) -> float32[] {{
  %g: float32[4] = exp(%x)
  %b: float32[4] = tanh(%x)
  %a: float32[4] = all_reduce(%g, {MEAN})
  {body}
  %e: float32[4] = all_reduce(%d, {MEAN})
  %f: float32[] = sum(%e)
  return %f
}}"""
    )
    assert buckets(lines) == ["(%g,)", "(%d,)"]


@pytest.mark.parametrize(
    ("values", "in_a_row"),
    [("%g, %a, %b", True), ("%x, %g, %a, %b", True), ("%g, %b, %a", False), ("%a, %g", False)],
)
def test_results_that_lie_side_by_side_already(values: str, in_a_row: bool) -> None:
    """What a kernel wants adjacent stays so, and is in a bucket if that leaves it as it is."""
    attrs = 'attrs(fused="torch", adjacent=True)'
    text = f"""
func @main(%x: float32[4, 16]) -> float32[] {{
  %g: float32[4, 16] = torch.full(shape=(4, 16), fill_value=1.0, dtype="float32")
  %t: (float32[4, 16], float32[4, 16]) = @both(%x)
  %a: float32[4, 16] = %t.0
  %b: float32[4, 16] = %t.1
  %u: () = gloo.multi_tensor_all_reduce(({values}), over="dp", size=2, align=64)
  %n: float32[] = torch.multi_tensor_norm((%g, %a, %b))
  return %n
}}

func @both(%x: float32[4, 16]) -> (float32[4, 16], float32[4, 16]) {attrs} {{
  %p: float32[4, 16] = exp(%x)
  %q: float32[4, 16] = sin(%x)
  return (%p, %q)
}}"""
    with only("torch", "gloo"):
        offsets = plan_memory(parse(text), device=CPU).main.attrs["offsets"]
    at = {(i, j): begin for i, j, begin in offsets}
    g, a, b = at[0, 0], at[1, 0], at[1, 1]
    assert (b == a + 256 and (a == g + 256) == in_a_row) or not in_a_row


def test_parts_are_exchanged_in_groups() -> None:
    """Gathers come behind the update of what they gather; other axes stay alone."""
    lines = bucketed(
        """
func @main(%x: float32[4], %y: float32[6], %g: float32[8], %h: float32[2, 6]) -> float32[12] {
  %a: float32[4] = reduce_scatter(%g, over="dp", size=2)
  %k: float32[12] = reshape(%h, shape=(12,))
  %b: float32[6] = reduce_scatter(%k, over="dp", size=2)
  %c: float32[2, 3] = reduce_scatter(%h, over="dp", size=2, axis=1)
  %u: () = multi_tensor_sgd((%x, %y), (%a, %b), (), 0.1)
  %d: float32[8] = all_gather(%x, over="dp", size=2)
  %e: float32[8] = exp(%d)
  %v: () = multi_tensor_axpby((%a,), (%x,), 1.0, 1.0)
  %f: float32[12] = all_gather(%y, over="dp", size=2)
  %w: float32[8] = all_gather(%x, over="dp", size=2)
  %z: float32[] = sum(%w)
  %r: float32[12] = add(%f, %z)
  return %r
}""",
        share=1,
    )
    names = [line.partition(" = ")[0] for line in lines]
    assert names == [
        *("%k", "%bucket", "%a", "%b", "%c", "%u", "%bucket_1", "%d", "%f", "%e", "%v", "%w"),
        *("%z", "%r"),
    ]
    assert lines[1] == '%bucket = multi_tensor_reduce_scatter((%g, %k), over="dp", size=2)'
    assert lines[6] == '%bucket_1 = multi_tensor_all_gather((%x, %y), over="dp", size=2)'


def test_one_rank_and_other_programs_are_left_alone() -> None:
    module = parse(gradients(4, 4).replace("size=2", "size=1"))
    assert bucket_collectives(module) is module


def planned(text: str) -> Module:
    with only("torch", "gloo"):
        return plan_memory(dispatch(bucket_collectives(parse(text)), device=CPU), device=CPU)


def test_a_bucket_is_a_range_of_the_arena() -> None:
    def places(module: Module) -> dict[str, int]:
        function = module.main
        names = [b.var.name for b in function.body.bindings]
        return {names[i]: at for i, _, at in function.attrs["offsets"]}

    found = places(planned(gradients(3, 20, 1, 40)))
    begin = found["g0"]
    assert [found[f"g{i}"] - begin for i in range(4)] == [0, 64, 192, 256]
