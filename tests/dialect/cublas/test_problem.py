"""How factors lie in memory, as cuBLASLt is told; refusals; the plan of a fake library."""

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from meta.dialect.core import Unsupported
from meta.dialect.cublas import choose, cublas, plan
from meta.dialect.cublas import library as lt
from meta.dialect.cublas.problem import Matrix, Problem, aligned, compact, matrix
from meta.dialect.cublas.product import FusedProduct, Product, prepared, problem
from meta.ir.types import TensorType


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((4, 6), (6, 1), Matrix(6, False)),
        ((4, 6), (1, 4), Matrix(4, True)),
        ((4, 6), (12, 1), Matrix(12, False)),
        ((4, 6), (1, 9), Matrix(9, True)),
        ((3, 4, 6), (24, 6, 1), Matrix(6, False, 24)),
        ((3, 4, 6), (0, 6, 1), Matrix(6, False, 0)),
        ((1, 4, 6), (99, 6, 1), Matrix(6, False, 0)),
        ((3, 4, 6), (24, 1, 4), Matrix(4, True, 24)),
        ((1, 6), (77, 1), Matrix(6, False)),  # strides of an axis of one element mean nothing
        ((4, 1), (1, 55), Matrix(1, False)),
        ((4, 1), (9, 1), Matrix(9, False)),
        ((1, 6), (1, 3), Matrix(3, True)),
        ((4, 6), (12, 2), None),
        ((4, 6), (0, 1), None),
        ((4, 6), (3, 1), None),
    ],
)
def test_layouts(shape: Any, strides: Any, expected: Matrix | None) -> None:
    assert matrix(shape, strides) == expected


def test_a_layout_reads_the_elements_that_the_strides_say() -> None:
    data = torch.arange(200.0)
    for rows, columns in itertools.product((1, 2, 5), repeat=2):
        for strides in ((7, 1), (1, 7), (columns, 1), (1, rows), (5, 5)):
            found = matrix((rows, columns), strides)
            if found is None:
                continue
            seen = (1, found.lead) if found.transposed else (found.lead, 1)
            expected = data.as_strided((rows, columns), strides)
            assert torch.equal(data.as_strided((rows, columns), seen), expected)
            assert choose.extent(found, (rows, columns), 1) <= 200


def test_alignment() -> None:
    assert [aligned(a) for a in (0, 16, 256, 8, 24, 2, 6, 1)] == [16, 16, 16, 8, 8, 2, 2, 1]


def kinds(*shapes: tuple[Any, ...], dtype: str = "float16") -> list[TensorType]:
    return [TensorType(shape, dtype) for shape in shapes]


def test_problems() -> None:
    of = problem(*kinds((5, 3), (7, 5)), True, True)
    assert (of.batch, of.m, of.n, of.k) == (1, 3, 7, 5)
    assert of.x1 == Matrix(3, True) and of.x2 == Matrix(5, True)
    of = problem(*kinds((1, 3, 5), (4, 5, 7)), False, False)
    assert (of.batch, of.x1.step, of.x2.step) == (4, 0, 35)
    assert compact((4, 5, 7), False) == of.x2


@pytest.mark.parametrize(
    ("types", "says"),
    [
        (kinds((2, 3), (3, 4), dtype="int8"), "not int8"),
        (kinds((0, 3), (3, 4)), "nothing to multiply"),
        (kinds(("n", 3), (3, 4)), "extents that are numbers"),
    ],
)
def test_refusals(types: list[TensorType], says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        problem(*types, False, False)


def test_the_dialect_says_why_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from meta.dialect.cublas import probe

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert probe() == "no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("meta.dialect.cublas.find_library", lambda: None)
    assert probe().startswith("libcublasLt not found")  # type: ignore[union-attr]
    assert cublas.devices == ("cuda",)


class FakeLibrary:
    """Notes what objects are made and which attributes they get; its heuristic finds one way."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.objects, self.calls = status, {}, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        def run(*arguments: Any) -> int:
            if name.endswith("Create"):
                pointer = ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_void_p))
                pointer[0] = len(self.objects) + 1
                values = tuple(getattr(a, "value", a) for a in arguments[1:])
                self.objects[len(self.objects) + 1] = SimpleNamespace(made=values, set={})
            elif name.endswith("SetAttribute"):
                which, attribute, value, size = arguments
                data = ctypes.string_at(ctypes.cast(value, ctypes.c_void_p), size)
                self.objects[which.value].set[attribute] = int.from_bytes(data, "little")
            elif name.endswith("GetHeuristic"):
                found, number = arguments[-2:]
                found[0].workspace = 4096
                ctypes.cast(number, ctypes.POINTER(ctypes.c_int))[0] = 1
                return self.status
            elif name == "cublasLtMatmul":
                self.calls.append([getattr(a, "value", a) for a in arguments])
            return 0

        return run


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    library = FakeLibrary()
    monkeypatch.setattr(lt, "cublaslt", lambda: library)
    monkeypatch.setattr(lt, "handle", lambda device: ctypes.c_void_p(0))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    pieces = [torch.empty(4096, dtype=torch.uint8)]
    monkeypatch.setattr(plan, "scratch", lambda device, stream, size: pieces[0][:size])
    return library


def test_what_cublaslt_is_told(fake: FakeLibrary) -> None:
    x1, x2 = Matrix(64, False, 640), Matrix(96, True, 0)
    of = Problem("bfloat16", 3, 10, 32, 64, x1, x2, "bias_gelu_aux", True, 8)
    made = plan.ProductPlan(of, 0)
    operation, *layouts = (fake.objects[d.pointer.value] for d in (made.operation, *made.layouts))
    assert operation.made == (lt.COMPUTE_32F, 0)
    assert operation.set == {
        lt.DESC_TRANSA: lt.OP_T, lt.DESC_TRANSB: lt.OP_N, lt.DESC_EPILOGUE: 164,
        lt.DESC_BIAS_POINTER: 8, lt.DESC_AUX_POINTER: 8, lt.DESC_AUX_LD: 32,
    }  # fmt: skip
    # Rows of ours are columns of theirs: x1 is 64 x 10, x2, stored transposed, 64 x 32.
    assert [layout.made for layout in layouts] == [
        (14, 64, 10, 64),
        (14, 64, 32, 96),
        (14, 32, 10, 32),
    ]
    assert [layout.set for layout in layouts] == [
        {lt.LAYOUT_BATCH_COUNT: 3, lt.LAYOUT_STRIDED_BATCH_OFFSET: step} for step in (640, 0, 320)
    ]
    made.with_vectors(1000, 2000, 3000, 4000, 5000, 6000)
    assert operation.set[lt.DESC_BIAS_POINTER] == 4000
    assert operation.set[lt.DESC_AUX_POINTER] == 5000
    [call] = fake.calls
    assert [call[i] for i in (3, 5, 8, 10, 14, 15)] == [2000, 1000, 6000, 3000, 4096, 77]


@pytest.mark.parametrize(
    ("dtype", "tf32", "expected"),
    [
        ("float16", False, (68, 0)), ("float16", True, (68, 0)), ("float32", False, (68, 0)),
        ("float32", True, (77, 0)), ("float64", False, (70, 1)),
    ],
)  # fmt: skip
def test_precision(fake: FakeLibrary, dtype: str, tf32: bool, expected: tuple[int, int]) -> None:
    flat = Matrix(4, False)
    made = plan.ProductPlan(Problem(dtype, 1, 4, 4, 4, flat, flat, tf32=tf32), 0)
    assert fake.objects[made.operation.pointer.value].made == expected


def test_the_status_is_the_reason_of_a_refusal(fake: FakeLibrary) -> None:
    fake.status = lt.NOT_SUPPORTED
    flat = Matrix(4, False)
    with pytest.raises(Unsupported, match=r"no algorithm \(status 15: not supported\)"):
        plan.ProductPlan(Problem("float16", 1, 4, 4, 4, flat, flat), 0)


def test_equal_problems_share_a_plan_and_few_are_kept(
    fake: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose._first.cache_clear()
    types = kinds((4, 8), (8, 4))
    first = choose.plan(problem(*types, False, False), 0)
    assert choose.plan(problem(*types, False, False), 0) is first
    assert choose.plan(problem(*kinds((4, 8), (4, 8)), False, True), 0) is not first
    assert choose._first.cache_info().maxsize == choose.PLANS
    choose._first.cache_clear()


def test_kernels_say_what_their_plans_take(fake: FakeLibrary) -> None:
    choose._first.cache_clear()
    of = problem(*kinds((4, 8), (8, 4)), False, False)
    for run in (Product(of, False, False, 0), FusedProduct(of, ("x1", "x2", "out"), 0)):
        assert prepared(run).workspace_bytes == 4096
    choose._first.cache_clear()
