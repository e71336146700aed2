"""Code that the machine cannot run is refused, with the place; the emitter's is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meta.base.errors import IRError
from meta.ir import TensorType
from meta.vm.compiler.bytecode import (
    AllocateStorage,
    AllocateTensor,
    Branch,
    CallFunction,
    Instruction,
    Invoke,
    Jump,
    MakeClosure,
    Move,
    Release,
    Return,
    TailCall,
)
from meta.vm.compiler.code import Code, FunctionCode
from meta.vm.compiler.code_analysis import verify_code
from tests.vm import test_control_flow as simple
from tests.vm import test_machine as programs
from tests.vm.test_code_analyses import code

F2 = TensorType((2,), "float32")
TEXTS = [v for m in (simple, programs) for v in vars(m).values() if str(v).startswith("\nfunc")]


def one(*blocks: tuple[Instruction, ...]) -> Code:
    main = FunctionCode(1, 6, blocks)
    return Code({"main": main}, "main", (("x", F2),), F2, (), ())


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_emitted_passes(text: str) -> None:
    verify_code(code(text))


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([(Return(1),)], "r1 is read and has no value"),
        ([(Return((0, (0, 5))),)], "r5 is read"),
        ([(Release((0,)), Return(0))], "r0 is read"),
        ([(Move(1, 0),)], "terminator"),
        ([(Return(0), Return(0))], "terminator"),
        ([(Jump(0),)], "forward"),
        ([(Jump(1), ), (Branch(0, 0, 2),), (Return(0),)], "forward"),
        ([(Branch(0, 1, 2),), (Move(1, 0), Jump(2)), (Return(1),)], "r1 is read"),
        ([(TailCall("f", (0,)),)], "no such function"),
        ([(TailCall("main", ()),)], "takes 1 arguments"),
        ([(CallFunction(1, "main", (0, 0)), Return(1))], "takes 1 arguments"),
        ([(MakeClosure(1, "main", (0, 0)), Return(1))], "takes 1 arguments"),
        ([(AllocateTensor(1, F2, 2), Return(1))], "r2 is read"),
        ([(AllocateStorage(2, 64), AllocateTensor(1, F2, 2, 60), Return(1))], "outside"),
        ([(AllocateStorage(2, 64), AllocateTensor(1, F2, 2, -8), Return(1))], "outside"),
        ([(Move(2, 0), AllocateTensor(1, F2, 2, 0), Return(1))], "outside"),
        ([(AllocateTensor(1, F2), Return(1))], "not filled"),
        ([(AllocateTensor(1, F2), Move(2, 1), Return(2))], "not filled"),
        (
            [(AllocateStorage(2, 64), CallFunction(1, "main", (0,)), Return(1))],
            "recursive function has no memory",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(blocks: Any, message: str) -> None:
    with pytest.raises(IRError, match=message) as caught:
        verify_code(one(*blocks))
    assert "@main, block" in str(caught.value)


def test_a_symbolic_tensor_is_not_allocated() -> None:
    unknown = replace(AllocateTensor(1, TensorType((), "float32")), type=TensorType((), "int8"))
    verify_code(one((unknown, Invoke(0, (0,), (1,), True), Return(1))))
    from_file = AllocateTensor(1, code(programs.UNKNOWN_EXTENTS).result.fields[0])
    with pytest.raises(IRError, match="extents are not known"):
        verify_code(one((from_file, Invoke(0, (0,), (1,), True), Return(1))))
