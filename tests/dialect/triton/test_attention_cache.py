"""Caches in Triton: run by the interpreter beside the oracles in float64, and compiled for sm_90
within its shared memory.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base import config
from meta.base.device import Device
from meta.dialect.core import Unsupported
from meta.ir.types import TensorType
from tests.op import attention_cache as records

pytest.importorskip("triton")

from meta.dialect.triton import attention_cache, build, interpreted

CUDA = Device("cuda:0")
MOST_SHARED = 227 * 1024
BOUNDS = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-2}
SAMPLES = [(c, s) for c in records.CASES for s in c.samples]


def wide(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def array(x: Any) -> Any:
    return meta.array(x) if isinstance(x, torch.Tensor) else x


def compare(name: str, args: list[Any], how: dict[str, Any], dtype: str) -> None:
    """Run an operator beside its oracle."""
    wanted = getattr(records, name)(*map(wide, args), **how)
    arrays = list(map(array, args))
    with interpreted():
        found = getattr(meta.op.triton, name)(*arrays, **how)
    pairs = zip(arrays, wanted, strict=False) if name == "cache_update" else [(found, wanted)]
    for a, b in pairs:
        torch.testing.assert_close(a.torch().double(), b, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("case", "sample"), SAMPLES)
def test_samples(case: Any, sample: Any, dtype: str) -> None:
    args, how = sample.make(dtype)
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    if not all(x.numel() for x in tensors):
        with pytest.raises(Unsupported, match="an empty tensor"):
            types = [TensorType(tuple(x.shape), str(x.dtype)[6:]) for x in args]
            operator = getattr(op, case.op)
            getattr(attention_cache, case.op).make(operator.call_values(types, CUDA))
        return
    compare(case.op, list(args), how, dtype)


def tokens(n: int, steps: int, slots: int) -> torch.Tensor:
    """Rows at places of their own, the last tokens of one being padding."""
    first = torch.linspace(0, slots - steps, n).long().unsqueeze(1)
    positions = first + torch.arange(steps)
    positions[0, max(steps // 2, 1) :] = -1
    return positions


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize(
    ("steps", "how"),
    [
        (1, {}),
        (1, {"window": 130, "score_cap": 3.0}),
        (3, {"window": 40}),
        (40, {"score_cap": 2.0, "scale": 0.3}),
        (40, {"window": 20}),
    ],
)
@pytest.mark.long
def test_parts_and_tiles(steps: int, how: dict[str, Any], paged: bool) -> None:
    n, slots, heads, groups, generator = 3, 400, 6, 2, torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    size = 25 if paged else slots
    count = n * slots // size + 2 if paged else n
    caches = random(count, groups, size, 20), random(count, groups, size, 12)
    positions, table = tokens(n, steps, slots), None
    if paged:
        table = torch.randperm(count, generator=generator)[: n * slots // size].int().view(n, -1)
        table[1, -4:] = -1
        positions[1] = positions[1].clamp(max=299)
    args = [random(n, steps, heads, 20), *caches, positions, table, random(heads)]
    wanted = records.cached_attention(*map(wide, args), **how)
    # Slots behind the tokens of a text are not read.
    for row in range(n):
        for slot in range(int(positions[row].max()) + 1, slots):
            at = records.slot(caches[0], row, slot, table)
            for cache in caches if at else ():
                cache[at[0], :, at[1]] = torch.nan
    with interpreted():
        found = meta.op.triton.cached_attention(*map(array, args), **how)
    torch.testing.assert_close(found.torch().double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("paged", [False, True])
def test_blocks_that_write_several_tokens(paged: bool) -> None:
    n, steps, slots, heads, generator = 3, 1409, 1500, 2, torch.Generator().manual_seed(0)
    size = 30 if paged else slots
    cache = torch.zeros(n * slots // size, heads, size, 20)
    positions, table = tokens(n, steps, slots), None
    if paged:
        table = torch.randperm(len(cache), generator=generator).int().view(n, -1)
        table[1, -4:] = -1
    given = torch.randn(n, steps, heads, 20, generator=generator)
    args = [cache, cache[..., :12], given, given[..., :12], positions, table]
    compare("cache_update", args, {}, "float32")


def calls(width: int, dtype: str, steps: int, paged: bool, **how: Any) -> list[Any]:
    """Return calls as of a CUDA device."""
    shape = (40, 2, 16, width) if paged else (2, 2, 600, width)
    cache, token = TensorType(shape, dtype), TensorType((2, steps, 2, width), dtype)
    query, positions = TensorType((2, steps, 8, width), dtype), TensorType((2, steps), "int64")
    table = TensorType((2, 20), "int32") if paged else None
    sinks = TensorType((8,), "float32") if how else None
    given = query, cache, cache, positions, table, sinks, None, how.get("window"), how.get("cap")
    return [
        op.cache_update.call_values((cache, cache, token, token, positions, table), CUDA),
        op.cached_attention.call_values(given, CUDA),
    ]


def compile_all(width: int, dtype: str, steps: int, paged: bool, exact: bool, **how: Any) -> int:
    """Compile the launches of both operators, and return how many there are."""
    made: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, config.override(META_TF32=not exact):
        patch.setattr(
            attention_cache, "launch_sequence", lambda run, *launches, **_: made.extend(launches)
        )
        for call in calls(width, dtype, steps, paged, **how):
            maker = getattr(attention_cache, call.op.name).make
            getattr(maker, "__wrapped__", maker)(call)
    for launch in made:
        for variant in launch.unit.variants[:1]:
            code = build.compiled(launch.unit, variant)
            assert code.shared <= MOST_SHARED, (launch.source.name, width, dtype, code.shared)
            assert code.early == 1
            text = build.assembled(launch.unit, variant).asm["ptx"]
            waits, first = text.index("griddepcontrol.wait"), text.find("ld.global")
            assert -1 < waits < first < text.find("st.global")
    return len(made)


def test_compiles() -> None:
    assert compile_all(64, "bfloat16", 1, True, False, window=300, cap=5.0) == 3
    assert compile_all(64, "bfloat16", 700, False, False) == 2


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 24, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "exact"])
def test_compiles_for_all_widths(width: int, dtype: str) -> None:
    kind = "float32" if dtype == "exact" else dtype
    for steps in (1, 300):
        compile_all(width, kind, steps, False, dtype == "exact")
        compile_all(width, kind, steps, True, dtype == "exact", window=40, cap=5.0)


@pytest.mark.parametrize(
    ("width", "dtype", "says"),
    [(64, "float64", "made for float16"), (264, "float16", "up to 256 elements")],
)
def test_what_is_left_to_others(width: int, dtype: str, says: str) -> None:
    for call in calls(width, dtype, 1, False):
        with pytest.raises(Unsupported, match=says):
            getattr(attention_cache, call.op.name).make(call)
