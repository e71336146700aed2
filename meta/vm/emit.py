"""From a dispatched module to `Code`.

The body of one function is `emit_function.py`'s, what functions share `emit_values.py`'s; the
`plan_memory` pass has said where values lie, unless a function is recursive (`verify.py`).

`with_releases` says when values die. Within a function control runs forward only, so one walk from
the last block to the first is enough. What a frame holds when it is left dies with it and is not
released one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meta.base import config
from meta.base.device import Device
from meta.base.errors import IRError
from meta.ir import Module, TensorType, TupleType
from meta.vm.aliasing import require_writable_constants
from meta.vm.bytecode import Instruction, Register, Release, Return, TailCall, Terminator
from meta.vm.code import Block, Code, FunctionCode
from meta.vm.convention import is_of_tensors
from meta.vm.emit_function import FunctionEmitter
from meta.vm.emit_values import Tables
from meta.vm.extents import ranges_of
from meta.vm.preparation import preparation_of
from meta.vm.verify import recursive, verify_code, without_storage


def with_releases(function: FunctionCode, keep: Iterable[Register] = ()) -> FunctionCode:
    """Return the function with every register released after its last use, on every path.

    Registers in ``keep``, and those that hold no value of one activation only, are not.
    """
    kept = function.fixed() | set(keep)
    live_in: list[set[Register]] = [set() for _ in function.blocks]
    live_out: list[set[Register]] = [set() for _ in function.blocks]
    arriving: list[set[Register]] = [set() for _ in function.blocks]
    arriving[0] = set(range(function.params))
    blocks: list[Block] = [()] * len(function.blocks)
    for number in reversed(range(len(function.blocks))):
        block = function.blocks[number]
        assert isinstance(block[-1], Terminator)
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
        if dead and not isinstance(blocks[number][0], Return | TailCall):
            blocks[number] = (Release(tuple(dead)), *blocks[number])
    return replace(function, blocks=tuple(blocks))


def _released(block: Block, live: set[Register], kept: frozenset[Register]) -> Block:
    """Return a block with releases; ``live`` goes from what lives after it to what lives before."""
    reverse: list[Instruction] = []
    for instruction in reversed(block):
        dead = {*instruction.reads, *instruction.results} - live - kept
        leaving = not reverse or isinstance(reverse[-1], Return | TailCall)
        if dead and not leaving:
            reverse.append(Release(tuple(sorted(dead))))
        reverse.append(instruction)
        live.difference_update(instruction.results)
        live.update(instruction.reads)
    return tuple(reversed(reverse))


ENTRY = "main"


def emit(module: Module, device: Device) -> Code:
    """Return the code of a module's main, and of what it calls, on one device.

    Raises IRError for a main that takes anything but tensors or returns anything but tensors and
    tuples of them, and for a constant that is written.
    """
    main = module.main
    params = []
    for param in main.params:
        if not isinstance(param.type, TensorType):
            raise IRError(
                "a parameter of main must be a tensor", found=f"%{param.name}: {param.type}"
            )
        params.append((param.name, param.type))
    result = main.result_type
    if result is None or not is_of_tensors(result):
        raise IRError("the result of main must be made of tensors", found=result)
    tables = Tables(module, device)
    functions: dict[str, FunctionCode] = {}
    tables.use_global(ENTRY)
    while tables.waiting:
        name, function, captured = tables.waiting.pop()
        functions[name] = FunctionEmitter(tables, name, function, captured).code()
    for name in recursive(functions):
        functions[name] = without_storage(functions[name])
    for name, made in functions.items():
        # Whoever calls the program holds its arguments.
        functions[name] = with_releases(made, keep=range(made.params) if name == ENTRY else ())
    code = Code(
        functions,
        ENTRY,
        tuple(params),
        result,
        tuple(tables.constants),
        tuple(tables.kernels),
        tuple((name, r.least, r.largest) for name, r in ranges_of(main).items()),
        _prepared(module),
    )
    require_writable_constants(code)
    if config.get("META_VERIFY"):
        verify_code(code)
    return code


def _prepared(module: Module) -> int:
    """Return how many of main's parameters are prepared."""
    function = preparation_of(module)
    result = None if function is None else function.result_type
    return len(result.fields) if isinstance(result, TupleType) else 0
