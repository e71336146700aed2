"""What vendors' files import from FlagGems means what it says: against torch and NumPy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from meta.base.errors import ArgumentError, DeviceError, RegistrationError

pytest.importorskip("triton")

import triton

from meta.dialect.triton.interpreter import interpreting_launches
from meta.dialect.vendors import idioms
from meta.dialect.vendors.flaggems import MODULES, attribute, buffers, shapes
from meta.dialect.vendors.flaggems.codegen import CodeGenConfig
from meta.dialect.vendors.flaggems.operators import operator
from meta.dialect.vendors.flaggems.pointwise import pointwise_dynamic
from meta.dialect.vendors.flaggems.tuner import LibTuner, libtuner
from meta.dialect.vendors.folder import Reading
from meta.dialect.vendors.vendor import Vendor
from tests.dialect.vendors import flaggems_kernels as kernels

DEFAULT = [(0, 1, "DEFAULT")]
SEED = torch.Generator().manual_seed(0)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=SEED).mul(3).to(dtype)


@pytest.fixture
def here() -> Iterator[None]:
    """The folder of a vendor of the CPU, which runs."""
    with idioms.spoken(Reading(Vendor("acme", "cpu"), ModuleType("_acme"), [])):
        yield


PAIRS = [
    (random(5, 70), random(70)),
    (random(5, 1, 3), random(4, 1)),
    (random(1500), random(1500)),
    (random(6, 8).t(), random(8, 6)),
    (random(6, 8)[:, ::2], random(4)),
    (random(2, 3, 4, 5).permute(3, 1, 0, 2), random(3, 1, 4)),
    (random(()), random(())),
    (random(0, 4), random(4)),
    (random(7, dtype=torch.float16), random(7, dtype=torch.float32)),
    (random(7, dtype=torch.int32), random(7, dtype=torch.float16)),
    (random(7, dtype=torch.int16), random(7, dtype=torch.int64)),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: f"{tuple(p[0].shape)}{p[0].dtype}")
def test_a_function_of_elements_on_tensors(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = pair
    three = pointwise_dynamic(
        kernels.scaled, is_tensor=[True, True, False], promotion_methods=DEFAULT
    )
    with interpreting_launches():
        found = three(x, y, 3)
    torch.testing.assert_close(found, x + y * 3, rtol=2e-3, atol=2e-3)
    assert found.dtype == torch.result_type(x, y) and found.is_contiguous()


def test_several_results_numbers_and_constants() -> None:
    two = pointwise_dynamic(
        kernels.split, promotion_methods=[*DEFAULT, (0, 1, "ALWAYS_BOOL")], num_outputs=2
    )
    x, y = random(3, 5), random(5)
    with interpreting_launches():
        total, greater = two(x, y)
        filled = pointwise_dynamic(
            kernels.fill, dtypes=[None, int], promotion_methods=[(0, "DEFAULT")]
        )(x, 7)
    assert torch.equal(total, x + y) and torch.equal(greater, x > y)
    assert greater.dtype == torch.bool and torch.equal(filled, torch.full_like(x, 7))


@pytest.mark.parametrize("grid", [1, 2, 65536])
def test_results_in_memory_that_is_there_and_small_grids(grid: int) -> None:
    config = CodeGenConfig(1024, (grid, 1, 1), 32, False, False)
    negate = pointwise_dynamic(kernels.negated, promotion_methods=[(0, "DEFAULT")], config=config)
    x, out = random(70, 50), torch.zeros(50, 140)
    view = out[:, ::2].t()
    with interpreting_launches():
        assert negate(x, out0=view) is view
        assert torch.equal(out[:, ::2], -x.t()) and not out[:, 1::2].any()
        backwards = buffers.StridedBuffer(x, strides=(-50, 1), offset=69 * 50)
        assert backwards.data_ptr() == x[69].data_ptr()
        flipped = negate.instantiate(2)(backwards, out0=torch.empty(70, 50))
        expected = -x.flip(0)
        negate(x, out0=x)
    assert torch.equal(flipped, expected) and torch.equal(x, expected.flip(0))
    with pytest.raises(ArgumentError, match="another shape"):
        negate(x, out0=torch.empty(3))
    with pytest.raises(ArgumentError, match="takes 1 arguments"):
        negate(x, x)
    with pytest.raises(ArgumentError, match="no real tensors"):
        negate(x.to(torch.complex64))
    with pytest.raises(RegistrationError, match="how the dtype"):
        pointwise_dynamic(kernels.negated)


def test_functions_of_kernels() -> None:
    x = torch.tensor([3.0, 1.0, float("nan"), 1.0, -2.5, 3.0, 0.0, -7.9])
    for descending in (False, True):
        values, indices = torch.empty(8), torch.empty(8, dtype=torch.int32)
        with interpreting_launches():
            kernels.sorts[(1,)](x, values, indices, descending, 8)
        expected = torch.sort(x, stable=True, descending=descending)
        torch.testing.assert_close(values, expected[0], equal_nan=True)
        assert torch.equal(indices.long(), expected[1])
    for dtype in (torch.int8, torch.uint8, torch.int64, torch.bfloat16):
        out = torch.empty(2, dtype=dtype)
        with interpreting_launches():
            kernels.extremes[(1,)](out)
        ints = None if dtype.is_floating_point else torch.iinfo(dtype)
        bounds = (float("inf"), float("-inf")) if ints is None else (ints.max, ints.min)
        assert tuple(out.tolist()) == bounds
    rows = torch.tensor([[1.5, 4.0, 4.0, -2.7], [0.0, -1.0, -1.5, 0.0]])
    values, indices, cut = torch.empty(2), torch.empty(4, dtype=torch.int64), torch.empty(2, 4)
    with interpreting_launches():
        kernels.reductions[(2,)](rows, values, indices, cut, 4)
    assert values.tolist() == [4.0, 0.0] and indices.tolist() == [2, 3, 1, 0]
    assert torch.equal(cut, rows.trunc())


@pytest.mark.parametrize(("n", "even"), [(7, True), (7, False), (3, True)])
def test_logic_of_blocks_is_of_their_elements(n: int, even: bool) -> None:
    x, y, out = random(n), random(n), torch.zeros(n, dtype=torch.int32)
    with interpreting_launches():
        kernels.logic[(1,)](x, y, out, n, even, 8)
    both, neither = (x > 0) & (y > 0), ~((x > 0) | (y > 0))
    if even and n != 3:
        neither = neither | (torch.arange(n) % 2 == 0)
    assert torch.equal(out, both.int() + 2 * neither.int())


def test_uniform_numbers_are_uniform_and_of_their_counter() -> None:
    out, shifted = torch.empty(4, 1024), torch.empty(4, 1024)
    with interpreting_launches():
        kernels.uniforms[(1,)](out, 5, 2**33 + 4, 1024)
        kernels.uniforms[(1,)](shifted, 5, 2**33 + 5, 1024)
    assert torch.equal(out[:, 1:], shifted[:, :-1]), "a counter is an offset and a place"
    assert 0 <= out.min() and out.max() < 1 and abs(out.mean() - 0.5) < 0.02
    assert len(out.unique()) > 4000


SHAPES = [((3, 1, 2), (4, 1)), ((2,), (3, 2)), ((2,), (3,)), ((), (3,)), ((5, 2), (2,)), ((1,), ())]


@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_shapes_and_strides(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    def result(*of: tuple[int, ...]) -> Any:
        try:
            return np.broadcast_shapes(*of)
        except ValueError:
            return None

    both = result(first, second)
    assert shapes.broadcastable(first, second) == (both is not None)
    assert shapes.broadcastable_to(first, second) == (both == second)
    if both is not None:
        assert shapes.broadcast_shapes([first, second]) == both
        x = torch.empty(first)
        strides = shapes.broadcasted_stride(first, x.stride(), both)
        assert strides == x.expand(both).stride()
    assert shapes.c_contiguous_stride(first) == torch.empty(first).stride()


def test_what_is_asked_of_tensors() -> None:
    x = random(3, 4, 5)
    assert torch.equal(shapes.dim_compress(x, 1), x.permute(0, 2, 1))
    assert torch.equal(shapes.dim_compress(x.permute(2, 0, 1), [0, 2]), x.permute(0, 1, 2))
    assert shapes.volume(x.shape) == 60
    overlaps = [
        shapes.has_internal_overlapping(t).name for t in (x, x.mT, x[:, :1].expand(3, 4, 5))
    ]
    assert overlaps == ["No", "No", "Yes"]
    assert shapes.can_use_int32_index(x) and not shapes.can_use_int32_index(
        torch.empty(1, device="meta").expand(2**31).as_strided((2**31,), (2,))
    )
    assert shapes.restride_dim(x, 1, (3, 2, 5), 2).shape == (3, 2, 5)
    assert torch.equal(shapes.restride_dim(x, 1, (3, 2, 5), 2), x[:, ::2])
    with pytest.raises(ValueError, match="expected a tensor"):
        shapes.check_tensor_attributes([3], [True])
    assert shapes.heuristics_for_tile_size(512, 3, 100, 7) == (1, 64, 8)


def test_operators_are_atens() -> None:
    aten = torch.ops.aten
    assert operator("max_dim") is aten.max.dim and operator("zero_") is aten.zero_
    assert operator("true_divide_out") is aten.true_divide.out
    assert operator("_unique2") is aten._unique2
    assert operator("max_kernel_1") is None and operator("neg_func") is None


def test_the_vendors_chip(here: None) -> None:
    from flag_gems import runtime  # type: ignore[import-not-found]
    from flag_gems.runtime import device, torch_device_fn  # type: ignore[import-not-found]
    from flag_gems.runtime.error import backend_not_support  # type: ignore[import-not-found]
    from flag_gems.utils import libentry, tl_extra_shim  # type: ignore[import-not-found]
    from flag_gems.utils.random_utils import (  # type: ignore[import-not-found]
        philox_backend_seed_offset,
    )

    assert device.name == "cpu" and runtime.device.vendor_name == "acme" and callable(libentry)
    assert torch_device_fn.get_device_properties(0).multi_processor_count > 0
    assert tl_extra_shim.fast_tanh is tl_extra_shim.tanh
    with torch_device_fn.device(0):
        torch.manual_seed(3)
        first = philox_backend_seed_offset(8)
        assert first != philox_backend_seed_offset(8) and first[1] == 0
        torch.manual_seed(3)
        assert philox_backend_seed_offset(8) == first
    with pytest.raises(DeviceError, match="does not know the device 'cpu'"):
        backend_not_support("cpu", ["npu"])


def test_each_module_has_what_its_table_says() -> None:
    for module, sources in MODULES.items():
        for source in sources:
            own = __import__(f"meta.dialect.vendors.flaggems.{source}", fromlist=["*"])
            for name in own.__all__:
                assert attribute(module, name) is getattr(own, name), (module, name)
    assert "flag_gems" not in sys.modules


def test_what_others_have_by_the_names_is_theirs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("backend_utils")
    monkeypatch.setitem(sys.modules, "backend_utils", other)
    for _ in range(2):
        with idioms.spoken():
            import backend_utils  # type: ignore[import-not-found]

            assert backend_utils is not other and callable(backend_utils.VendorDescriptor)
        assert sys.modules["backend_utils"] is other
    real = ModuleType("flag_gems")
    monkeypatch.setitem(sys.modules, "flag_gems", real)
    with idioms.spoken():
        import flag_gems

        assert flag_gems is real, "one that is installed is left alone"
    assert sys.modules["flag_gems"] is real


def test_text_is_indented_and_written(tmp_path: Path) -> None:
    code = buffers.IndentedBuffer()
    code.writeline("def f():")
    with code.indent():
        code.writemultiline("a = 1\n\nreturn a")
    code.newline()
    code.tpl("# {x}\n", x=3)
    assert code.getvalue() == "def f():\n    a = 1\n\n    return a\n\n# 3\n"
    buffers.write_atomic(tmp_path / "new" / "f.py", code.getvalue(), make_dirs=True)
    assert (tmp_path / "new" / "f.py").read_text("utf-8") == code.getvalue()
    assert buffers.cache_dir().is_dir()


CONFIGS = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})]


def tuner(configs: list[Any] = CONFIGS) -> LibTuner:
    found = libtuner(configs, ["n"], strategy="log")(kernels.added)
    assert isinstance(found, LibTuner)
    return found


def test_what_was_tuned_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path))
    measured = []

    def choose(one: LibTuner, key: Any, configs: list[Any], chosen: int) -> Any:
        def bench() -> None:
            measured.append(key)
            one.cache[key] = configs[chosen]

        cached = one.check_disk_cache(key, configs, bench)
        return cached, one.cache[key].kwargs["BLOCK"]

    assert choose(tuner(), (7, "float32"), CONFIGS, 1) == (False, 32)
    assert choose(tuner(), (7, "float32"), CONFIGS, 0) == (True, 32), "by another tuner"
    assert choose(tuner(), (8, "float32"), CONFIGS, 0) == (False, 16)
    assert choose(tuner(CONFIGS[:1] * 2), (7, "float32"), CONFIGS[:1] * 2, 0) == (False, 16)
    assert len(measured) == 3
    code = """
        from tests.dialect.vendors.test_flaggems import CONFIGS, tuner
        def bench(): raise SystemExit("measured again")
        one = tuner()
        assert one.check_disk_cache((7, "float32"), CONFIGS, bench)
        print(one.cache[7, "float32"].kwargs)
        """
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.stdout == "{'BLOCK': 32}\n", ran.stderr


def test_a_tuned_kernel_runs(here: None) -> None:
    x, out = random(10), torch.empty(10)
    with interpreting_launches():
        tuner()[(1,)](x, out, 10)
    assert torch.equal(out, x + 1)
