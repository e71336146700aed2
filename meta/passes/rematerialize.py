"""Recomputing values instead of keeping them: memory for time."""

from __future__ import annotations

from meta.base.errors import ArgumentError
from meta.ir import Module, Var
from meta.passes.manager import Pass
from meta.passes.recomputation import Program, is_alias
from meta.passes.split_updates import join_small_updates, split_updates

PATIENCE = 20
"""Steps without a lower peak after which the search ends."""


def rematerialize(
    module: Module, *, budget: int | None = None, lower: Pass = lambda module: module
) -> Module:
    """Recompute values of main where they are used again, until it needs ``budget`` bytes at most.

    At the worst moment, of all values that are in use before and after it, but not then, the one
    is recomputed for which bytes x time of idleness / time of recomputation is the largest: the
    heuristic of dynamic tensor rematerialization (Kirisame et al., arXiv:2006.09616) with the times
    of `cost`, applied to the plan instead of at run time. What its recomputation reads, and is not
    in use any more, is recomputed too, or kept if it is small. Random calls, calls with effects and
    what is written to are kept, and so is what a recomputation would find changed. Recomputations
    that were chosen early, and can be spared in the end, are taken back. Before anything is
    recomputed, an update of all parameters at once is taken apart (`split_updates`); those of small
    parameters are joined in the end, if there is room (`join_small_updates`).

    Parameters
    ----------
    budget: bytes for everything but inputs and constants, as `planned_peak` counts them; None
        leaves the program as it is.
    lower: the passes that follow, after which the bytes are counted.

    Raises ArgumentError, with the least budget that this finds a program for, if the program cannot
    be made to fit.

    >>> from meta.ir import parse
    >>> print(rematerialize(parse('''
    ... func @main(%x: float32[64]) -> float32[64] {
    ...   %a: float32[64] = exp(%x)
    ...   %b: float32[64] = cumsum(%a, axis=0)
    ...   %c: float32[128] = concatenate((%b, %b), axis=0)
    ...   %d: float32[] = sum(%c)
    ...   %e: float32[64] = add(%a, %d)
    ...   return %e
    ... }'''), budget=3 * 256))
    func @main(%x: float32[64]) -> float32[64] {
      %a: float32[64] = exp(%x)
      %b: float32[64] = cumsum(%a, axis=0)
      %c: float32[128] = concatenate((%b, %b))
      %d: float32[] = sum(%c)
      %a_1: float32[64] = exp(%x)
      %e: float32[64] = add(%a_1, %d)
      return %e
    }
    """
    if budget is None:
        return module
    program = Program(module, lower, {})
    if program.peak <= budget:
        return module
    apart = Program(split_updates(module), lower, {})
    program = apart if apart.peak < program.peak else program
    least, waited = program.peak, 0
    # What is not recomputed: it is a recomputation, or one of it was undone; it did not help.
    settled, useless = set[Var](), set[Var]()
    while program.peak > budget:
        choice = program.best_choice(settled | useless) if waited <= PATIENCE else None
        if choice is None:
            # What was recomputed early may be of no use any more, and stand in the way.
            program, undone = _with_less(program, lower, program.peak)
            if undone <= settled:
                raise ArgumentError(
                    "the program does not fit the memory budget",
                    expected=f"at least {least} bytes, with what can be recomputed",
                    found=f"{budget} bytes",
                )
            settled, useless, waited = settled | undone, set(), 0
            continue
        changed = Program(choice.applied(program), lower, program.origins | choice.origins)
        if changed.peak > program.peak:
            useless.add(choice.value)
            continue
        program = changed
        settled.update(choice.origins)
        waited = 0 if program.peak < least else waited + 1
        least = min(least, program.peak)
    program = _with_less(program, lower, budget)[0]
    joined = Program(join_small_updates(program.module), lower, program.origins)
    return joined.module if joined.peak <= budget else program.module


def _with_less(program: Program, lower: Pass, limit: int) -> tuple[Program, set[Var]]:
    """Return the program without the recomputations that can be spared within ``limit`` bytes, and
    the values that are not recomputed any more.

    A value that need not be recomputed twice is recomputed once. Values that were computed from
    others come first, since with them goes what only they need.
    """
    undone = set[Var]()
    for binding in reversed(program.bindings):
        clones = program.recomputed(binding.var)
        if not clones or is_alias(binding):
            continue
        ways = [(clones[0], clones[1:])] if len(clones) > 1 else []
        if program.has_room(binding.var, clones[0], limit):
            ways.insert(0, (binding.var, clones))
        for kept, spared in ways:
            changed = Program(program.without(spared, kept), lower, program.origins)
            if changed.peak <= limit:
                program = changed
                undone |= {binding.var} & {kept}
                break
    return program, undone
