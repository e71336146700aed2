"""Collectives apart into start and wait: where both come, what stays whole, and the bound on what
is in flight. That the results are the same is tested in tests/distributed.
"""

from __future__ import annotations

from typing import Any

import pytest

from meta.base.device import CPU
from meta.dialect import only
from meta.ir import Module, parse, verify
from meta.passes import bucket_collectives, dispatch, schedule_collectives
from meta.passes.liveness import Liveness

SUM = 'over="dp", size=2'


def scheduled(text: str, **options: Any) -> Module:
    with only("torch", "gloo"):
        module = dispatch(bucket_collectives(parse(text), first_mib=0, bucket_mib=0), device=CPU)
        module = schedule_collectives(module, device=CPU, **options)
    verify(module)
    return module


def lines(module: Module) -> list[str]:
    """Return the names of bindings, with what is started and waited for."""
    found = []
    for binding in module.main.body.bindings:
        text = str(binding.value)
        values = text.partition("(")[2].partition(", over")[0]
        kind = "start" if "_start" in text else "wait" if "collective_wait" in text else ""
        kind = kind or ("whole" if "all_reduce" in text else "")
        found.append(f"{kind} {values}" if kind else f"%{binding.var.name}")
    return found


CHAIN = f"""
func @main(%x: float32[8]) -> float32[8] {{
  %a: float32[8] = exp(%x)
  %b: float32[8] = tanh(%a)
  %c: float32[8] = sin(%b)
  %d: float32[8] = cos(%c)
  %ga: float32[8] = multiply(%a, %x)
  %gb: float32[8] = multiply(%b, %x)
  %ra: float32[8] = all_reduce(%ga, {SUM})
  %rb: float32[8] = all_reduce(%gb, {SUM})
  %e: float32[8] = add(%ra, %d)
  %f: float32[8] = add(%e, %rb)
  return %f
}}"""


def test_it_begins_early_and_is_waited_for_late() -> None:
    found = lines(scheduled(CHAIN))
    assert found == [
        *("%a", "%b", "%c", "%d", "%ga", "start (%ga,)", "%gb", "start (%gb,)"),
        *("wait (%ga,)", "%e", "wait (%gb,)", "%f"),
    ]


def test_nothing_beside_it() -> None:
    """One whose result is needed at once stays whole, and in its place."""
    found = lines(
        scheduled(
            f"""
func @main(%x: float32[8]) -> float32[8] {{
  %a: float32[8] = exp(%x)
  %r: float32[8] = all_reduce(%a, {SUM})
  %v: float32[2, 4] = reshape(%r, shape=(2, 4))
  %s: float32[2, 4] = exp(%v)
  %b: float32[8] = reshape(%s, shape=(8,))
  return %b
}}"""
        )
    )
    assert found == ["%a", "whole (%a,)", "%v", "%s", "%b"]


def test_one_behind_another_on_the_same_memory() -> None:
    found = lines(
        scheduled(
            f"""
func @main(%x: float32[8]) -> float32[8] {{
  %a: float32[8] = exp(%x)
  %b: float32[8] = tanh(%x)
  %r: float32[8] = all_reduce(%a, {SUM})
  %c: float32[8] = sin(%b)
  %s: float32[8] = all_reduce(%r, over="tp", size=2)
  %d: float32[8] = cos(%c)
  %e: float32[8] = add(%s, %d)
  return %e
}}"""
        )
    )
    assert found == [
        *("%a", "start (%a,)", "%b", "wait (%a,)", "start (%a,)", "%c", "%d", "wait (%a,)", "%e")
    ]


@pytest.mark.parametrize(("limit", "most"), [(1024.0, 3), (2 * 32 / 2**20, 2), (0.0, 1)])
def test_the_bound_on_what_is_in_flight(limit: float, most: int) -> None:
    functions = ["exp", "sin", "cos"]
    program = "\n  ".join(
        [
            *(f"%g{i}: float32[8] = {f}(%x)" for i, f in enumerate(functions)),
            *(f"%r{i}: float32[8] = all_reduce(%g{i}, {SUM})" for i in range(3)),
            "%t: float32[8] = tanh(%x)",
            "%u: float32[8] = add(%r0, %t)",
            "%v: float32[8] = add(%r1, %u)",
            "%w: float32[8] = add(%r2, %v)",
            "return %w",
        ]
    )
    text = f"func @main(%x: float32[8]) -> float32[8] {{\n  {program}\n}}"
    flying, seen = 0, 0
    for line in lines(scheduled(text, in_flight_mib=limit)):
        flying += line.startswith("start") - line.startswith("wait")
        seen = max(seen, flying)
    assert (flying, seen) == (0, most)


def test_memory_is_in_use_until_the_wait() -> None:
    module = scheduled(CHAIN)
    waits = [i for i, line in enumerate(lines(module)) if line.startswith("wait")]
    last = {buffer.name: buffer.last for buffer in Liveness(module.main, module).buffers}
    assert last["ga"] > waits[0] and last["gb"] > waits[1]


def test_gathers_begin_before_and_reductions_beside() -> None:
    """A view of a result waits for nothing; what is read by an exchange stays until its end."""
    module = scheduled(
        f"""
func @main(%x: float32[8], %w: float32[4]) -> float32[4] {{
  %a: float32[8] = exp(%x)
  %g: float32[8] = all_gather(%w, {SUM})
  %v: float32[2, 4] = reshape(%g, shape=(2, 4))
  %b: float32[8] = tanh(%a)
  %c: float32[2, 4] = cos(%v)
  %d: float32[8] = reshape(%c, shape=(8,))
  %e: float32[8] = add(%b, %d)
  %s: float32[4] = reduce_scatter(%e, {SUM})
  %k: float32[8] = sin(%b)
  %l: float32[4] = strided_slice(%k, begin=(0,), end=(4,))
  %m: float32[4] = add(%s, %l)
  return %m
}}""",
        apart_mib=64.0,
    )
    assert lines(module) == [
        *("start %w", "%a", "%v", "%b", "wait (%g,)", "%c", "%d", "%e", "start %e"),
        *("%k", "%l", "wait (%s,)", "%m"),
    ]
    assert "given=(%w,)" in str(module)
    last = {buffer.name: buffer.last for buffer in Liveness(module.main, module).buffers}
    assert last["e"] == lines(module).index("wait (%s,)")


def test_a_cast_comes_with_the_gather() -> None:
    """Which would else wait for it; not past a write to what is cast."""
    text = f"""
func @main(%x: float32[8], %w: float32[4], %v: float32[4]) -> bfloat16[8] {{
  %a: float32[8] = exp(%x)
  %b: bfloat16[8] = astype(%a, dtype="bfloat16")
  %c: bfloat16[8] = tanh(%b)
  %n: bfloat16[4] = astype(%w, dtype="bfloat16")
  %g: bfloat16[8] = all_gather(%n, {SUM})
  %d: bfloat16[8] = add(%c, %g)
  return %d
}}"""
    assert lines(scheduled(text)) == ["%n", "start %n", "%a", "%b", "%c", "wait (%g,)", "%d"]
    twice = text.replace("%d: bf", "%k: bfloat16[8] = concat((%n, %n), axis=0)\n  %d: bf")
    found = lines(scheduled(twice.replace("add(%c, %g)", "add(%k, %g)")))
    assert found.index("%n") < found.index("start %n") < found.index("%k")
    written = "%u: () = assign(%w, %v)\n  %g: bf"
    found = lines(scheduled(text.replace("%g: bf", written)))
    assert found.index("%n") < found.index("%u")


def _kept(count: int, columns: int) -> str:
    """Return a program that gathers values to use them twice, with a matrix in the middle."""
    body = []
    for i in range(count):
        body += [f"%g{i}: float32[256] = all_gather(%w{i}, {SUM})"]
        body += [f"%y{i + 1}: float32[256] = add(%y{i}, %g{i})"]
    body += [f"%m: float32[256, {columns}] = broadcast_to(%r, shape=(256, {columns}))"]
    body += [f"%n: float32[256, {columns}] = exp(%m)", "%s: float32[256] = sum(%n, axis=1)"]
    body += [f"%z{count}: float32[256] = add(%s, %y{count})"]
    body += [f"%z{i}: float32[256] = add(%z{i + 1}, %g{i})" for i in reversed(range(count))]
    head = ", ".join(f"%w{i}: float32[128]" for i in range(count))
    lines_of = "\n  ".join(["%r: float32[256, 1] = reshape(%y0, shape=(256, 1))", *body])
    return (
        f"func @main(%y0: float32[256], {head}) -> float32[256] {{\n  {lines_of}\n  return %z0\n}}"
    )


@pytest.mark.parametrize("columns", [1, 4096])
def test_what_is_kept_does_not_hold_up_gathers_while_memory_is_free(columns: int) -> None:
    count = 64
    module = scheduled(_kept(count, columns), apart_mib=64.0)
    # A sixteenth of all are four, of which there are soon more; the last one has nothing beside it.
    assert str(module).count("all_gather_start(") == count - 1
    with only("torch", "gloo"):
        whole = dispatch(parse(_kept(count, columns)), device=CPU)
    peak, least = (max(Liveness(m.main, m).live_bytes()) for m in (module, whole))
    assert peak == least


UPDATE = f"""
func @main(%x: float32[8], %y: float32[8], %z: float32[8], %r: float32[]) {{
  %a: float32[8] = exp(%x)
  %b: float32[8] = tanh(%y)
  %c: float32[8] = sin(%z)
  %ra: float32[8] = all_reduce(%a, {SUM})
  %rb: float32[8] = all_reduce(%b, {SUM})
  %rc: float32[8] = all_reduce(%c, {SUM})
  %u: () = multi_tensor_sgd((%x, %y, %z), (%ra, %rb, %rc), (), %r)
  return ()
}}"""


def test_the_last_gradients_do_not_hold_up_the_others() -> None:
    module = scheduled(UPDATE)
    assert lines(module) == [
        *("%a", "start (%a,)", "%b", "start (%b,)", "%c", "start (%c,)"),
        *("wait (%a,)", "wait (%b,)", "%u", "wait (%c,)", "%u"),
    ]
    first, second = (str(b.value) for b in module.main.body.bindings if b.var.name == "u")
    assert "multi_tensor_sgd((%x, %y), (%a, %b), " in first
    assert "multi_tensor_sgd((%z,), (%c,), " in second


def test_rates_of_each_parameter_are_cut_as_well() -> None:
    module = scheduled(UPDATE.replace("%r: float32[]", "%r: float32[3]"))
    names = "u", "learning_rate"
    found = [str(b.value) for b in module.main.body.bindings if b.var.name in names]
    ends = "begin=(0,), end=(2,)", "begin=(2,), end=(3,)"
    assert found[::2] == [f"torch.strided_slice(%r, {one})" for one in ends]
    assert all("learning_rate=%learning_rate" in one for one in found[1::2])


@pytest.mark.parametrize("what", ["a row", "a number of all gradients"])
def test_updates_that_stay_whole(what: str) -> None:
    """Where the rates of a part do not lie in a row; or a number is made of all gradients."""
    if what == "a row":
        text = UPDATE.replace("%r: float32[]", "%r: float32[3]").replace("%rb, %rc)", "%rc, %rb)")
        text = text.replace("(%x, %y, %z), (%ra, %rc", "(%x, %z, %y), (%ra, %rc")
    else:
        norm = "%n: float32[] = multi_tensor_norm((%ra, %rb, %rc))\n  %u"
        text = UPDATE.replace("%u", norm).replace("%r)", "%r, factor=%n)")
    names = [b.var.name for b in scheduled(text).main.body.bindings]
    assert names.count("u") == 1


PARTS = "\n".join(f"  %o{i}: float32[2097152] = own_shard(%p{i}, {SUM})" for i in range(8))
LISTS = {n: ", ".join(f"%{n}{i}" for i in range(8)) for n in "pog"}
GATHERED = f"""
func @main({LISTS["p"].replace(",", ": float32[4194304],")}: float32[4194304],
           {LISTS["g"].replace(",", ": float32[2097152],")}: float32[2097152], %r: float32[]) {{
{PARTS}
  %u: () = multi_tensor_sgd(({LISTS["o"]}), ({LISTS["g"]}), (), %r)
{{between}}
  %t: () = multi_tensor_all_gather_in_place(({LISTS["p"]}), {SUM})
  return ()
}}"""


def test_parts_are_gathered_beside_the_update_of_the_next() -> None:
    """Eight parameters of 16 MiB in four parts; all are waited for at the end."""
    module = scheduled(GATHERED.replace("{between}", ""), in_flight_mib=0.0)
    found = [one for one in lines(module) if not one.startswith("%o")]
    assert found == [
        *("%u", "start (%p0, %p1)", "%u", "start (%p2, %p3)", "%u", "start (%p4, %p5)"),
        *("%u", "%t", "wait (%p0, %p1)", "wait (%p2, %p3)", "wait (%p4, %p5)"),
    ]
    whole = lines(scheduled(GATHERED.replace("{between}", ""), gathered_parts=1))
    assert whole == [*(f"%o{i}" for i in range(8)), "%u", "%t"]


def test_parts_whose_gradients_come_last_are_last() -> None:
    """Also where rates of each parameter allow for parts in a row only."""
    names = LISTS["g"].split(", ")
    names[0], names[5] = "%s", "%t"
    sums = (
        "  %d: float32[2097152] = sin(%g0)",
        "  %e: float32[2097152] = sin(%g5)",
        f"  %s: float32[2097152] = all_reduce(%d, {SUM})",
        f"  %t: float32[2097152] = all_reduce(%e, {SUM})",
    )
    text = GATHERED.replace(f"({LISTS['g']})", f"({', '.join(names)})").replace("%t:", "%v:")
    text = text.replace("%r: float32[]", "%r: float32[8]").replace("{between}", "")
    module = scheduled(text.replace("{\n", "{\n" + "\n".join(sums) + "\n", 1))
    found = [one for one in lines(module) if one[:2] not in ("%o", "%l")]
    assert found == [
        *("%d", "start (%d,)", "%e", "start (%e,)"),
        *("%u", "start (%p2, %p3)", "%u", "start (%p6, %p7)", "wait (%d,)", "%u"),
        *("start (%p0, %p1)", "wait (%e,)", "%u", "%v"),
        *("wait (%p2, %p3)", "wait (%p6, %p7)", "wait (%p0, %p1)"),
    ]


def test_what_reads_parameters_comes_before_they_are_gathered() -> None:
    average = f"  %v: () = multi_tensor_axpby(({LISTS['o']}), ({LISTS['g']}), 0.5, 0.5)"
    module = scheduled(GATHERED.replace("{between}", average))
    found = [one for one in lines(module) if not one.startswith("%o")]
    assert found == ["%u", "%v", "%t"]


def test_small_parameters_are_gathered_together() -> None:
    small = GATHERED.replace("4194304", "4096").replace("2097152", "2048")
    found = [one for one in lines(scheduled(small.replace("{between}", ""))) if one[:2] != "%o"]
    assert found == ["%u", "%t"]


def test_programs_without_collectives_are_left_alone() -> None:
    module = parse("func @main(%x: float32[8]) -> float32[8] {\n  return %x\n}")
    assert schedule_collectives(module, device=CPU) is module


LATE = f"""
func @main(%x: float32[8], %y: float32[8], %z: float32[4, 2], %i: int64[4], %r: float32[]) {{
  %a: float32[8] = exp(%x)
  %ra: float32[8] = all_reduce(%a, {SUM})
  %b: float32[8] = tanh(%y)
  %rb: float32[8] = all_reduce(%b, {SUM})
{{kernels}}
  %d: float32[4, 2] = sin(%z)
  %g: float32[8, 2] = all_gather(%d, {SUM})
  %e: float32[4, 2] = embedding_dx(%g, const int64[8] [0, 1, 2, 3, 0, 1, 2, 3], num_weight=4)
  %u: () = multi_tensor_sgd((%x, %y, %z), (%ra, %rb, %e), (), %r)
  return ()
}}"""


def kernels(count: int) -> str:
    """Return so many kernels that need no collective."""
    return "\n".join(f"  %k{i}: float32[8] = cos(%y)" for i in range(count))


def test_what_is_made_of_the_last_collectives_does_not_hold_up_the_update_of_the_others() -> None:
    module = scheduled(LATE.replace("{kernels}", kernels(8)), apart_mib=64.0)
    found = [one for one in lines(module) if not one.startswith("%k")]
    assert found == [
        *("%a", "start (%a,)", "%b", "start (%b,)", "%d", "start %d"),
        *("wait (%a,)", "wait (%b,)", "%u", "wait (%g,)", "%e", "%u"),
    ]


def test_what_a_later_collective_needs_stays_before_it() -> None:
    """As with ZeRO, where what is gathered becomes a gradient, which is reduced."""
    text = f"""
func @main(%x: float32[8], %y: float32[8], %z: float32[4], %r: float32[]) {{
  %a: float32[8] = exp(%x)
  %ra: float32[8] = all_reduce(%a, {SUM})
{kernels(9)}
  %c: float32[4] = tanh(%z)
  %g: float32[8] = all_gather(%c, {SUM})
  %b: float32[8] = sin(%g)
  %s: float32[4] = reduce_scatter(%b, {SUM})
  %u: () = multi_tensor_sgd((%x, %z), (%ra, %s), (), %r)
  return ()
}}"""
    module = scheduled(text, apart_mib=64.0)
    found = lines(module)
    (reduced,) = (i for i, one in enumerate(found) if one in ("start %b", "%s"))
    assert found.index("%b") < reduced < len(found) - 1 - found[::-1].index("%u")
