"""How factors lie in memory, as cuBLASLt is told; refusals; the plan of a fake library."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from meta import op
from meta.base import config
from meta.base.device import Device
from meta.dialect.core import Unsupported
from meta.dialect.core.openv import config_of, config_text
from meta.dialect.cublas import cublas, gemm, plan
from meta.dialect.cublas import library as lt
from meta.dialect.cublas.gemm import ScaledProduct, SplitProduct
from meta.dialect.cublas.problem import Matrix, Problem, aligned, compact, matrix
from meta.dialect.cublas.product import FusedProduct, Product, prepared, problem
from meta.ir.dims import SymbolicDim
from meta.ir.types import TensorType
from tests.dialect.cublas.emulation import extent


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
            assert extent(found, (rows, columns), 1) <= 200


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
        (kinds((SymbolicDim("n"), 3), (3, 4)), "extents that are numbers"),
    ],
)
def test_refusals(types: list[TensorType], says: str) -> None:
    with pytest.raises(Unsupported, match=says):
        problem(*types, False, False)


def test_a_sum_over_an_extent_that_is_a_name() -> None:
    types = kinds((SymbolicDim("n"), 3), (SymbolicDim("n"), 4))
    with pytest.raises(Unsupported, match="extents that are numbers"):
        gemm._make(op.matmul_tn.call_values(tuple(types), Device("cuda:0")))


def test_the_dialect_says_why_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from meta.dialect.cublas import probe

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert probe() == "no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("meta.dialect.cublas.find_library", lambda: None)
    assert probe().startswith("libcublasLt not found")  # type: ignore[union-attr]
    assert cublas.devices == ("cuda",)


class FakeLibrary:
    """Notes what objects are made and which attributes they get. Its heuristic finds ``count``
    ways, of which the first takes 4096 bytes and each other one 64 more.
    """

    def __init__(self, status: int = 0) -> None:
        self.status, self.objects, self.calls = status, {}, []  # type: ignore[var-annotated]
        self.count, self.version, self.refused = 3, 130100, 0

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
                wanted, found, number = arguments[-3:]
                for i in range(min(wanted, self.count)):
                    found[i].algo[:2] = 66, i << 8
                    found[i].workspace = 4096 + 64 * i
                ctypes.cast(number, ctypes.POINTER(ctypes.c_int))[0] = min(wanted, self.count)
                return self.status
            elif name.endswith("AlgoCheck"):
                algorithm, result = (
                    ctypes.cast(a, ctypes.POINTER(lt.Algorithm))[0] for a in arguments[-2:]
                )
                result.workspace = 4096 + 64 * (algorithm.algo[1] >> 8)
                return self.refused
            elif name.endswith("GetVersion"):
                return self.version
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


@pytest.fixture
def of(fake: FakeLibrary) -> Iterator[Problem]:
    """A product whose plans nobody else has."""
    plan._cached_plan.cache_clear()
    yield problem(*kinds((4, 8), (8, 4)), False, False)
    plan._cached_plan.cache_clear()


def test_equal_problems_share_a_plan_and_few_are_kept(of: Problem) -> None:
    first = plan.plan(of, 0)
    assert plan.plan(problem(*kinds((4, 8), (8, 4)), False, False), 0) is first
    assert plan.plan(problem(*kinds((4, 8), (4, 8)), False, True), 0) is not first
    assert plan._cached_plan.cache_info().maxsize == plan.PLANS


PRODUCTS = {
    "alone": lambda of: partial(Product, of, False, False, 0),
    "fused": lambda of: partial(FusedProduct, of, ("x1", "x2", "out"), 0),
    "parts": lambda of: partial(SplitProduct, replace(of, batch=2), 0),
    "scaled": lambda of: partial(ScaledProduct, replace(of, scales="whole"), 0),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_kernels_have_the_algorithms_of_the_heuristic(name: str, of: Problem) -> None:
    env = prepared(PRODUCTS[name](of))
    assert env.workspace_bytes == 4096 and env.configs is not None
    configs = env.configs.listed()
    assert [env.configured(c).workspace_bytes for c in configs] == [4160, 4224]
    for one in configs:
        # What is written into programs and files.
        assert config_of(config_text(one)) == one == env.configured(one).config
        assert bytes(env.configured(one).run.plans().algorithm.algo)[:1] == b"\x42"


def test_all_algorithms_of_the_heuristic_are_listed_but_the_first(
    of: Problem, fake: FakeLibrary
) -> None:
    fake.count = 99
    found = plan.other_algorithms(of, 0)
    assert len(set(found)) == plan.LISTED
    assert plan.config_of(plan.plan(of, 0).algorithm) not in found


def test_a_configuration_belongs_to_the_precision_in_which_it_was_found(
    fake: FakeLibrary,
) -> None:
    plan._cached_plan.cache_clear()
    env = prepared(
        PRODUCTS["alone"](problem(*kinds((4, 8), (8, 4), dtype="float32"), False, False))
    )
    assert env.configs is not None
    made = env.configured(env.configs.listed()[1])
    with config.override(META_TF32=True):
        assert made.workspace_bytes == 4096
    assert made.workspace_bytes == 4224
    plan._cached_plan.cache_clear()


def test_algorithms_that_are_not_ours_are_refused(of: Problem, fake: FakeLibrary) -> None:
    [good, *_] = plan.other_algorithms(of, 0)
    (name, text), version = good
    assert isinstance(text, str)
    changed = text[:-1] + ("0" if text[-1] != "0" else "1")
    for wrong, says in (
        ((("tile", 3),), "does not name an algorithm"),
        (((name, text), ("version", 120900)), "of cuBLASLt 120900; this is 130100"),
        (((name, changed), version), "in good order"),
        (((name, text[:-2]), version), "in good order"),
        (((name, "xyz"), version), "in good order"),
        (((name, 3), version), "in good order"),
        (((name, "x" + "00" * 99), version), "in good order"),
    ):
        with pytest.raises(Unsupported, match=says):
            plan.plan(of, 0, wrong)
    fake.refused = 8
    with pytest.raises(Unsupported, match="architecture mismatch"):
        plan.plan(of, 0, good)
    fake.refused = 0
    assert plan.WORKSPACE < 4096 + 64 * (1 << 20)
    large = lt.Algorithm()
    large.algo[:2] = 66, 1 << 28
    with pytest.raises(Unsupported, match="does not take"):
        plan.plan(of, 0, plan.config_of(large))
