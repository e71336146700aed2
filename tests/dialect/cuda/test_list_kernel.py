"""Kernels of lists of tensors: their source, run as C++ on the CPU, does what the operators'
records say; tables are cut where a launch has no more room.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base.device import CPU
from meta.base.dtype import TO_TORCH, TOLERANCE
from meta.base.registry import OPERATORS
from meta.dialect.cuda import cubin, cuda, list_kernel, memory, optimizer
from meta.ir.types import TupleType
from meta.op.core import map_tensors, runtime_args
from meta.op.core.call import array_type
from meta.runtime.ndarray import as_array
from meta.testing.compare import check
from tests.op import memory as memory_cases
from tests.op import optimizer as optimizer_cases

FILES = {module.__file__ for module in (memory, optimizer)}  # their kernels run over lists
REGISTERED = {one.base.name for one in cuda.ops.values() if one.site.file in FILES}
OFTEN = 3  # each further sample of an operator is more C++ to compile
SAMPLES = [
    pytest.param(case, one, id=f"{case.op}-{number}", marks=[pytest.mark.slow] * (number >= OFTEN))
    for case in (*optimizer_cases.CASES, *memory_cases.CASES)
    if case.op in REGISTERED
    for number, one in enumerate(case.samples)
]


def run(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operator's kernel directly, and return what was written, or the result."""
    op = OPERATORS[name]
    bound = op.schema.bind(args, kwargs, as_array)
    call = op.call_values(map_tensors(op, bound, lambda a: array_type(a.key)), CPU)
    values = [v.torch() if hasattr(v, "torch") else v for v in runtime_args(op, bound)]
    results = (
        ()
        if op.schema.written
        else tuple(torch.empty(t.static_shape, dtype=TO_TORCH[t.dtype]) for t in call.outputs)
    )
    cuda.ops[name].make(call).run(*values, *results)
    if results:
        return results if isinstance(call.out, TupleType) else results[0]
    written = [bound[i] for i in op.schema.written]
    return tuple(t for tensors in written for t in tensors)


@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_a_kernel_does_what_the_operator_says(case, one, emulated) -> None:
    dtypes = ("float32", "float16") if one is case.samples[0] else ("float32",)
    for dtype in dtypes:
        args, kwargs = one.make(dtype)
        wide = lambda t: t.double() if t.is_floating_point() else t  # noqa: E731
        tree = meta.op.core.tree
        leaves, structure = tree.flatten((args, kwargs))
        widened = [wide(v) if isinstance(v, torch.Tensor) else v for v in leaves]
        expected = case.oracle(*(pair := tree.unflatten(structure, widened))[0], **pair[1])
        found = run(case.op, args, kwargs)
        rtol, atol = TOLERANCE[dtype]
        check(found, expected, rtol, max(atol, case.atol.get(dtype, 0)))


def test_tensors_beyond_the_room_take_further_launches(emulated) -> None:
    rooms = list_kernel.capacity(4096, 3, 5)
    x, dx, v = ([torch.full((3,), float(i)) for i in range(rooms + 2)] for _ in range(3))
    run("multi_tensor_sgd", (x, dx, v, 0.5, 0.0), {})
    assert len(emulated) == 2
    assert all((t == i / 2).all() for i, t in enumerate(x))


def test_the_struct_fits_its_limit() -> None:
    for lists in range(1, 6):
        for numbers in range(10):
            for limit in (4096, 32764):
                room = list_kernel.capacity(limit, lists, numbers)
                kinds = {f"l{i}": "float32" for i in range(lists)}
                (part,) = list_kernel.tensor_batches([kinds] * room, [1] * room, (room,))
                content = list_kernel.packed(
                    part, [0.0] * numbers, [[0] * room] * lists, 0, 0, 0, 0, room
                )
                assert limit - 64 < len(content) <= limit and room > 60


def test_empty_tensors_are_left_out_and_dtypes_are_apart() -> None:
    half, single = {"x": "float16"}, {"x": "float32"}
    found = list_kernel.tensor_batches(
        [half, single, half, half], [5, 2 * list_kernel.CHUNK, 0, 7], (8,)
    )
    assert [(p.indices, p.blocks, p.first_chunk) for p in found] == [
        ((0, 3), 2, 0),
        ((1,), 2, 2),
    ]
    sizes = struct.unpack("<8q", found[0].tail[:64])
    assert sizes == (5, 7, 0, 0, 0, 0, 0, 0)


def test_machine_code_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_source(source: str, arch: str) -> bytes:
        compiled.append(source)
        return b"code"

    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cubin.nvrtc, "compile_source", compile_source)
    machine_code = cubin.cubins.load
    assert [machine_code(("a", "sm_90")) for _ in range(3)] == [b"code"] * 3
    assert compiled == ["a"]
    (file,) = (tmp_path / "cubin").iterdir()
    file.write_bytes(file.read_bytes()[:-1])  # damaged
    assert machine_code(("a", "sm_90")) == b"code"
    assert machine_code(("a", "sm_80")) == b"code"
    assert compiled == ["a", "a", "a"]


def test_source_names_what_is_there() -> None:
    one = list_kernel.Pass("x = x + k.by;", ("x",), ("x", "copies"))
    definition = list_kernel.Definition((one,), ("by",))
    text = list_kernel.source(definition, 0, {"x": "float32"}, "float32", 4)
    assert "#define FOR_LISTS(X) X(x, float, 0, 1)\n" in text and "copies" not in text
