"""A step of decoding between two projections in CUDA, run as C++ on the CPU, beside torch in
float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect import Dialect
from meta.dialect.core import Unsupported, knobs
from meta.dialect.cuda.decode_attention import decode_attention, launches
from meta.ir import TensorType
from meta.model import Model, trace
from tests.registered import remove_dialects

GPU = Device("cuda:0")
TOLERANCES = {"float16": 3e-3, "bfloat16": 2e-2}


def type_of(x: torch.Tensor | None) -> Any:
    names = {v: k for k, v in TO_TORCH.items()}
    return x if x is None else TensorType(tuple(x.shape), names[x.dtype])


class Case:
    """The arrays of a step: texts of which some tokens are in caches."""

    def __init__(
        self, heads: int, groups: int, width: int, lengths: list[int], size: int, dtype: str,
        norm: bool = False, paged: bool = False,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        n, self.heads, self.groups, self.width = len(lengths), heads, groups, width

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(TO_TORCH[dtype])

        self.rows = draw(n, 1, (heads + 2 * groups) * width)
        self.scales = [draw(width) if norm else None for _ in range(2)]
        if norm and groups == 1:
            self.scales = [draw(width).float() for _ in range(2)]
        angle = torch.rand(n, 1, 1, width // 2, generator=generator) * 6
        self.cos, self.sin = angle.cos(), angle.sin()
        self.positions = torch.tensor(lengths).view(n, 1)
        self.table = None
        self.whole = [draw(n, groups, size, width) for _ in range(2)]
        self.caches = [x.clone() for x in self.whole]
        for x in self.caches:
            for row, at in enumerate(lengths):
                x[row, :, max(at, 0) :] = float("nan")  # what is not seen does not matter
        if paged:
            block = 4
            most = size // block
            order = torch.randperm(n * most, generator=generator)
            self.table = order.view(n, most).to(torch.int32)
            for i, x in enumerate(self.caches):
                blocks = x.view(n, groups, most, block, width).transpose(1, 2)
                pool = torch.empty(n * most, groups, block, width, dtype=x.dtype)
                pool[order] = blocks.reshape(-1, groups, block, width)
                self.caches[i] = pool

    def contiguous(self, cache: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            return cache
        return cache[self.table.long()].transpose(1, 2).flatten(2, 3)

    def expected(self, window: int | None, cap: float | None, interleaved: bool) -> list[Any]:
        """Return keys, values, and the result, in float64."""
        heads, groups, width = self.heads, self.groups, self.width
        n = self.rows.shape[0]
        q, k, v = self.rows.view(n, -1, width).split([heads, groups, groups], 1)

        def rotated(x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
            x = x.double()
            if scale is not None:
                x = F.rms_norm(x, (width,), scale.double(), 1e-3)
            cos, sin = (t.double().view(n, 1, -1) for t in (self.cos, self.sin))
            a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
            both = a * cos - b * sin, b * cos + a * sin
            return torch.stack(both, -1).flatten(-2) if interleaved else torch.cat(both, -1)

        q, k = rotated(q, self.scales[0]), rotated(k, self.scales[1])
        keys, values = (x.double() for x in self.whole)
        out = torch.zeros(n, 1, heads, width, dtype=torch.float64)
        for row, (at,) in enumerate(self.positions.tolist()):
            if at < 0:
                continue
            keys[row, :, at], values[row, :, at] = k[row], v[row].double()
            begin = 0 if window is None else max(0, at + 1 - window)
            seen = [
                x[row, :, begin : at + 1].repeat_interleave(heads // groups, 0)
                for x in (keys, values)
            ]
            scores = torch.einsum("hd,hsd->hs", q[row], seen[0]) * width**-0.5
            scores = scores if cap is None else cap * torch.tanh(scores / cap)
            out[row, 0] = torch.einsum("hs,hsd->hd", scores.softmax(-1), seen[1])
        return [keys, values, out]


CASES = [
    (4, 2, 64, [5], 8, {}),
    (4, 4, 32, [0, 7], 8, {"window": 3}),
    (6, 2, 128, [37, -1, 12], 40, {"cap": 2.0}),
    (8, 1, 32, [63, 30], 64, {"norm": True}),
    (2, 2, 256, [9], 12, {"interleaved": True, "norm": True}),
    (4, 2, 64, [11, 0, 19], 20, {"paged": True, "window": 9}),
    (3, 1, 64, [15], 16, {"rotates": False}),
]


@pytest.mark.usefixtures("emulated")
@pytest.mark.product
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    "case", CASES, ids=[f"{h}-{g}-{w}" + "-".join(k) for h, g, w, *_, k in CASES]
)
def test_against_float64(case: Any, dtype: str, parts: int) -> None:
    heads, groups, width, lengths, size, how = case
    how = dict(how)
    of = Case(
        heads, groups, width, lengths, size, dtype, how.pop("norm", False), how.pop("paged", False)
    )
    rotates, interleaved = how.pop("rotates", True), how.pop("interleaved", False)
    if not rotates:
        of.cos, of.sin = torch.ones_like(of.cos), torch.zeros_like(of.sin)
    window, cap = how.get("window"), how.get("cap")
    expected = of.expected(window, cap, interleaved)
    out = torch.full((len(lengths), 1, heads, width), float("nan"), dtype=of.rows.dtype)
    angles = [of.cos, of.sin] if rotates else [None, None]
    given = [of.rows, *of.scales, *angles, *of.caches, of.positions, of.table]
    types = [type_of(x) for x in given]
    sections = heads * width, (heads + groups) * width
    with knobs.preset({"parts": parts}):
        made = launches(
            types[0], sections, -1, *types[5:8], type_of(out), GPU, None, window, cap, types[8],
            *types[3:5], interleaved, *types[1:3], -1, 1e-3,
        )  # fmt: skip
    made.run(*[x for x in given if x is not None], out)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(out.double(), expected[2], rtol=tolerance, atol=tolerance)
    for cache, wanted in zip(of.caches, expected, strict=False):
        found = of.contiguous(cache)
        for row, at in enumerate(lengths):
            seen = found[row, :, : at + 1].double(), wanted[row, :, : at + 1]
            torch.testing.assert_close(*seen, rtol=tolerance, atol=tolerance)


@pytest.fixture
def emulating() -> Iterator[Dialect]:
    """A dialect of the CPU that has the kernel."""
    dialect = Dialect("emulating", devices=("cpu",), plevel=30)
    dialect.pattern_op(decode_attention, name="decode_attention")(launches)
    yield dialect
    remove_dialects(dialect)


class Step(Model):
    def build(self, keys: Any, values: Any, at: Any) -> None:
        self.keys, self.values, self.at = keys, values, at

    @trace
    def forward(self, rows: Any, cos: Any, sin: Any) -> Any:
        q, k, v = (op.reshape(x, (2, 1, -1, 32)) for x in op.split(rows, (128, 192), -1))
        q, k = op.rotary_embedding(q, cos, sin), op.rotary_embedding(k, cos, sin)
        op.cache_update(self.keys, self.values, k, v, self.at)
        y = op.cached_attention(q, self.keys, self.values, self.at)
        op.assign(self.at, op.add(self.at, 1))
        return op.reshape(y, (2, -1))


@pytest.mark.usefixtures("emulated", "emulating")
def test_a_program_of_steps() -> None:
    of = Case(4, 2, 32, [3, 0], 8, "float16")
    state = [meta.array(x.nan_to_num()) for x in (*of.caches, of.positions)]
    model = Step(*state)
    given = [meta.array(x) for x in (of.rows, of.cos, of.sin)]
    compiled = meta.vm.compile(model, *given)
    assert "emulating.decode_attention" in compiled.kernels()
    for _ in range(3):
        wanted = of.expected(None, None, False)
        found = compiled(*given).torch().double().view(wanted[2].shape)
        torch.testing.assert_close(found, wanted[2], rtol=3e-3, atol=3e-3)
        of.whole = [x.half() for x in wanted[:2]]
        of.positions += 1
    assert model.at.numpy().tolist() == [[6], [3]]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"rows": TensorType((1, 1, 256), "float32")}, "half precision"),
        ({"result": TensorType((1, 2, 4, 32), "float16")}, "2 tokens"),
        ({"sections": (64, 128)}, "not the parts"),
        ({"cos": TensorType((1, 1, 1, 16), "float16")}, "angles"),
        ({"query_scale": TensorType((32,), "float16")}, "only one"),
    ],
)
def test_what_it_declines(changed: dict[str, Any], why: str) -> None:
    half = {"rows": (1, 1, 256), "keys": (1, 2, 8, 32), "values": (1, 2, 8, 32)}
    given: dict[str, Any] = {n: TensorType(s, "float16") for n, s in half.items()}
    given |= {"positions": TensorType((1, 1), "int64"), "sections": (128, 192), "axis": 2}
    given |= {"result": TensorType((1, 1, 4, 32), "float16"), "device": GPU}
    given |= dict.fromkeys(("scale", "window", "cap"))
    with pytest.raises(Unsupported, match=why):
        launches(**given | changed)
