"""When values die: releases of registers after their last use.

Within a function control runs forward only, so one walk from the last block to the first is enough.
What a frame holds when it is left dies with it and is not released one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Block, FunctionCode


def with_releases(function: FunctionCode, keep: Iterable[bc.Register] = ()) -> FunctionCode:
    """Return the function with registers released after their last use, but for ``keep``."""
    kept = function.fixed() | set(keep)
    live_in: list[set[bc.Register]] = [set() for _ in function.blocks]
    live_out: list[set[bc.Register]] = [set() for _ in function.blocks]
    arriving: list[set[bc.Register]] = [set() for _ in function.blocks]
    arriving[0] = set(range(function.params))
    blocks: list[Block] = [()] * len(function.blocks)
    for number in reversed(range(len(function.blocks))):
        block = function.blocks[number]
        assert isinstance(block[-1], bc.Terminator)
        for target in block[-1].targets:
            live_out[number] |= live_in[target]
        live = set(live_out[number])
        blocks[number] = _released(block, live, kept)
        live_in[number] = live
    for number, block in enumerate(function.blocks):
        for target in block[-1].targets:  # type: ignore[attr-defined]
            arriving[target] |= live_out[number].union(block[-1].reads)
    for number, (came, needed) in enumerate(zip(arriving, live_in, strict=True)):
        dead = sorted(came - needed - kept)
        if dead and not isinstance(blocks[number][0], bc.Return | bc.TailCall):
            blocks[number] = (bc.Release(tuple(dead)), *blocks[number])
    return replace(function, blocks=tuple(blocks))


def _released(block: Block, live: set[bc.Register], kept: frozenset[bc.Register]) -> Block:
    """Return a block with releases; ``live`` goes from what lives after it to what lives before."""
    reverse: list[bc.Instruction] = []
    for instruction in reversed(block):
        dead = {*instruction.reads, *instruction.results} - live - kept
        leaving = not reverse or isinstance(reverse[-1], bc.Return | bc.TailCall)
        if dead and not leaving:
            reverse.append(bc.Release(tuple(sorted(dead))))
        reverse.append(instruction)
        live.difference_update(instruction.results)
        live.update(instruction.reads)
    return tuple(reversed(reverse))
