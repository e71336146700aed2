"""The memory plan of a program: what has a place, and that no two values in use share one.

The oracle for the second is brute force: the program is walked backward, value by value, by a few
lines that know of views and tuples only, and what is used later is compared pairwise.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from meta.base.device import CPU
from meta.dialect import only
from meta.ir import (
    Binding,
    Call,
    Function,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    operands,
    parse,
    type_bytes,
    verify,
)
from meta.passes import dispatch, infer_type, plan_memory
from meta.passes.liveness import Liveness
from meta.passes.plan_memory import ARENA, OFFSETS, RESIDENT
from meta.runtime.allocate import ALIGNMENT
from meta.runtime.arena import Lifetime, plan


def planned(text: str) -> Module:
    with only("tvm"):
        module = plan_memory(dispatch(infer_type(parse(text)), device=CPU), device=CPU)
    verify(module, typed=True)
    assert parse(str(module)).main.attrs == module.main.attrs
    return module


def offsets(text: str) -> dict[tuple[int, int], int]:
    return {(i, j): at for i, j, at in planned(text).main.attrs[OFFSETS]}


def test_a_chain_takes_turns_and_the_result_has_no_place() -> None:
    module = planned("""
    func @main(%x: float32[100]) -> float32[100] {
      %a = exp(%x)
      %b = tanh(%a)
      %c = exp(%b)
      %d = tanh(%c)
      return %d
    }""")
    assert module.main.attrs == {ARENA: 896, OFFSETS: ((0, 0, 0), (1, 0, 448), (2, 0, 0))}


def test_a_view_keeps_its_source() -> None:
    found = offsets("""
    func @main(%x: float32[6]) -> float32[6] {
      %a = exp(%x)
      %v = reshape(%a, shape=(2, 3))
      %b = exp(%x)
      %c = exp(%b)
      %w = reshape(%v, shape=(6,))
      %d = add(%w, %c)
      return %d
    }""")
    assert set(found) == {(0, 0), (2, 0), (3, 0)}
    assert len(set(found.values())) == 3


def test_tuples_are_looked_through() -> None:
    found = offsets("""
    func @main(%x: float32[6]) -> float32[2] {
      %s = split(%x, indices_or_sections=3, axis=0)
      %a = %s.0
      %b = %s.2
      %t = (%a, %b)
      %u = %t.1
      %e = exp(%x)
      %f = sum(%e, axis=0)
      %c = add(%a, %u)
      %d = multiply(%c, %f)
      return %d
    }""")
    # The middle part is not used after the split, the others are.
    assert found[0, 1] in (found[5, 0], found[6, 0])
    assert not {found[0, 0], found[0, 2]} & {found[5, 0], found[6, 0]}


def test_what_leaves_through_a_view_or_tuple_has_no_place() -> None:
    assert not offsets("""
    func @main(%x: float32[6]) -> (float32[2, 3], (float32[6],)) {
      %a = exp(%x)
      %v = reshape(%a, shape=(2, 3))
      %b = tanh(%x)
      %t = (%b,)
      return (%v, %t)
    }""")


def test_the_blocks_of_an_if_share_and_their_results_live_on() -> None:
    found = offsets("""
    func @main(%p: bool[], %x: float32[16]) -> float32[16] {
      %z = exp(%x)
      %y = if %p {
        %a = exp(%z)
        %b = exp(%a)
        yield %b
      } else {
        %c = tanh(%x)
        %d = tanh(%c)
        yield %d
      }
      %e = exp(%x)
      %f = add(%y, %e)
      return %f
    }""")
    a, b, c, d, e = (found[i, 0] for i in (2, 3, 4, 5, 6))
    assert a == c
    assert len({b, d, e}) >= 2
    assert e not in (b, d)


def test_an_argument_of_a_function_and_a_captured_value_have_no_place() -> None:
    module = planned("""
    func @main(%x: float32[6]) -> float32[6] {
      %a: float32[6] = exp(%x)
      %b: float32[6] = @inner(%a)
      %c: float32[6] = exp(%x)
      %f: fn(float32[6]) -> float32[6] = fn(%y: float32[6]) -> float32[6] {
        %s: float32[6] = add(%y, %c)
        %t: float32[6] = exp(%s)
        return %t
      }
      %e: float32[6] = exp(%b)
      %d: float32[6] = %f(%e)
      return %d
    }
    func @inner(%x: float32[6]) -> float32[6] {
      %a: float32[6] = exp(%x)
      %b: float32[6] = exp(%a)
      return %b
    }""")
    assert module.main.attrs[OFFSETS] == ()
    assert module.functions["inner"].attrs[OFFSETS] == ((0, 0, 0),)
    closure = module.main.body.bindings[3].value
    assert isinstance(closure, Function)
    assert closure.attrs[OFFSETS] == ((0, 0, 0),)


def test_a_kernel_that_allocates_and_an_extent_that_is_not_known_have_no_place() -> None:
    text = """
    func @main(%x: float32[6]) -> float32[6] {
      %a: float32[6] = sort(%x)
      %b: float32[6] = add(%a, %x)
      %c: float32[6] = add(%b, %x)
      return %c
    }"""
    with only("torch"):
        module = plan_memory(dispatch(infer_type(parse(text)), device=CPU), device=CPU)
    assert module.main.attrs[OFFSETS] == ((1, 0, 0),)


STEPS = st.tuples(
    st.sampled_from(["exp", "add", "view", "split", "tuple", "sum"]),
    st.integers(0, 99),
    st.integers(0, 99),
)


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=25), st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_no_two_values_in_use_overlap(
    program: list[tuple[str, int, int]], wanted: list[int]
) -> None:
    lines, values = [], ["%x"]
    for n, (step, i, j) in enumerate(program):
        a, b = values[i % len(values)], values[j % len(values)]
        new = {
            "exp": [f"%v{n} = exp({a})"],
            "add": [f"%v{n} = add({a}, {b})"],
            "view": [f"%r{n} = reshape({a}, shape=(2, 3))", f"%v{n} = reshape(%r{n}, shape=(6,))"],
            "split": [
                f"%s{n} = split({a}, indices_or_sections=2, axis=0)",
                f"%f{n} = %s{n}.1",
                f"%v{n} = concat((%f{n}, %f{n}), axis=0)",
            ],
            "tuple": [f"%t{n} = ({a}, {b})", f"%v{n} = %t{n}.0"],
            "sum": [f"%r{n} = sum({a}, axis=0)", f"%v{n} = add({b}, %r{n})"],
        }[step]
        lines += new
        values.append(f"%v{n}")
    results = [values[i % len(values)] for i in wanted]
    types = ", ".join(["float32[6]"] * len(results))
    text = f"""func @main(%x: float32[6]) -> ({types},) {{
      {chr(10).join(lines)}
      return ({", ".join(results)},)
    }}"""
    check_plan(planned(text).main)


def check_plan(main: Function) -> None:
    places = {(i, j): at for i, j, at in main.attrs[OFFSETS]}
    assert all(at % ALIGNMENT == 0 for at in places.values())
    roots = {p: {(p,)} for p in main.params}
    made: dict[Any, tuple[int, int]] = {}
    sizes: dict[Any, int] = {}

    def root(atom: Any) -> Any:
        if isinstance(atom, Tuple):
            return [root(f) for f in atom.fields]
        return roots[atom]

    def flat(tree: Any) -> set[Any]:
        return set().union(*map(flat, tree)) if isinstance(tree, list) else tree

    def value(number: int, binding: Binding) -> Any:
        match binding.value:
            case TupleGetItem(value=owner, index=index):
                return root(owner)[index]
            case Call(callee=callee, args=args) if callee.name == "reshape":
                return root(args[0])
            case Call():
                type_ = binding.var.type
                fields = [type_] if isinstance(type_, TensorType) else type_.fields
                for j, field in enumerate(fields):
                    made[binding.var, j] = (number, j)
                    sizes[binding.var, j] = type_bytes(field)
                leaves = [{(binding.var, j)} for j in range(len(fields))]
                return leaves[0] if isinstance(type_, TensorType) else leaves
        return root(binding.value)

    bindings = main.body.bindings
    for number, binding in enumerate(bindings):
        roots[binding.var] = value(number, binding)
    result = flat(root(main.body.result))
    assert {made[r] for r in made} - set(places) == {made[r] for r in result & made.keys()}
    for moment in range(len(bindings)):
        # In use: made by now, and read now or later, or made just now.
        later = set().union(*(flat(root(a)) for b in bindings[moment:] for a in read(b)))
        live = [
            r
            for r, (number, _) in made.items()
            if number <= moment and (number == moment or r in later) and r not in result
        ]
        spans = sorted((places[made[r]], places[made[r]] + sizes[r]) for r in live)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert all(end <= main.attrs[ARENA] for _, end in spans)
    found = Liveness(main, Module({"main": main}))
    assert {(b.binding, b.output) for b in found.buffers} == set(made.values())


def read(binding: Binding) -> list[Any]:
    """Return what a kernel reads; a view, a tuple and a field read nothing."""
    call = binding.value
    if not isinstance(call, Call) or call.callee.name == "reshape":
        return []
    return [a for a in operands(call) if isinstance(a, Var)]


@st.composite
def lives(draw: st.DrawFn) -> list[Lifetime]:
    """Lifetimes of some buffers."""
    sizes = st.integers(1, 500)
    times = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted)
    return [Lifetime(draw(sizes), *draw(times)) for _ in range(draw(st.integers(1, 12)))]


def meet(a: Lifetime, x: int, b: Lifetime, y: int) -> bool:
    """Whether two buffers at these offsets share a byte at some time."""
    in_time = a.first <= b.last and b.first <= a.last
    return in_time and x < y + b.size and y < x + a.size


@settings(deadline=None)
@given(lives(), lives(), st.integers(0, 40))
def test_fixed_and_stacked_buffers_are_left_alone(
    stacked: list[Lifetime], others: list[Lifetime], wall: int
) -> None:
    """What a first program leaves behind lies in the arena of a second one, which has a gap."""
    until = [Lifetime(b.size, b.first, 12) for b in stacked]
    found, size = plan([*others, *until], stacked=range(len(others), len(others) + len(until)))
    own = found[len(others) :]
    assert own[0] == 0 and sum(b.size for b in until) <= size
    later = [Lifetime(b.size, -1, b.first) for b in stacked]
    segment = size + ALIGNMENT * wall
    gap = Lifetime(ALIGNMENT, -1, 12)
    everything = [*later, gap, *others]
    fixed = dict(enumerate([*own, segment]))
    places, whole = plan(everything, fixed)
    assert places[: len(fixed)] == [*own, segment] and whole >= segment + ALIGNMENT
    for i, a in enumerate(everything):
        assert places[i] + a.size <= whole and places[i] % ALIGNMENT == 0
        for j, b in enumerate(everything[:i]):
            both_fixed = i < len(fixed) and j < len(fixed)
            assert both_fixed or not meet(a, places[i], b, places[j])


FORWARD = """
func @main(%x: float32[64]) -> (float32[64], float32[64], float32[64]) {
  %a = exp(%x)
  %b = tanh(%a)
  %c = exp(%b)
  %d = tanh(%c)
  return (%d, %a, %c)
}"""
GRADIENT = """
func @main(%dy: float32[64], %a: float32[64], %c: float32[64]) -> (float32[64],) {
  %p = multiply(%dy, %c)
  %q = tanh(%p)
  %r = multiply(%q, %a)
  %s = exp(%r)
  return (%s,)
}"""


def test_a_program_goes_on_in_the_arena_of_another_one() -> None:
    def plans(text: str, **options: Any) -> Any:
        with only("tvm"):
            module = dispatch(infer_type(parse(text)), device=CPU)
            return plan_memory(module, device=CPU, **options).main.attrs

    first = plans(FORWARD, results=[1, 2])
    assert first == {ARENA: 768, OFFSETS: ((0, 0, 0), (1, 0, 512), (2, 0, 256))}
    resident = ((1, 0), (2, 256))
    second = plans(GRADIENT, results=[0], resident=resident, segment=768)
    assert second[RESIDENT] == resident and second[ARENA] == 768 + ALIGNMENT
    at = {i: offset for i, _, offset in second[OFFSETS]}
    assert at[0] == 512  # all is in use
    assert at[1] == 256  # %c was read for the last time
    assert set(at) == {0, 1, 2, 3}
    assert plans(GRADIENT, results=[]).keys() == {ARENA, OFFSETS}
