"""Attention that is written out becomes one call, forward and backward, where that is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.device import CPU, Device
from meta.ir import parse, parse_type, verify
from meta.model import gradient
from meta.passes import explain_attention, fuse_attention, infer_type
from meta.vm.compiler.pipeline import before_autodiff
from tests.passes.attention_programs import (
    INF,
    MASKS,
    B,
    D,
    H,
    S,
    T,
    Way,
    computed,
    inputs,
    oracle,
    random_way,
)
from tests.passes.attention_programs import program as written

ALWAYS = {"least_keys": {"cpu": (0, 0)}}
# Scores near -1e4 have fewer digits.
COARSE = ("padding", "two", "rows", "causal_and_padding", "subtracted")


def always() -> meta.PassContext:
    """Take attention of few keys, too."""
    return meta.PassContext(config={"fuse_attention": ALWAYS, "write_out_attention": ALWAYS})


class Attention(meta.Model):
    """Attention whose query, key and value are parameters, and the mask if it is trained."""

    def build(self, way: Way, tensors: list[torch.Tensor], trained_mask: bool = False) -> None:
        self.way = way
        self.query, self.key, self.value = map(meta.array, tensors[:3])
        self.bias = meta.array(tensors[3])
        for array in self.state().values():
            array.requires_grad = array is not self.bias or trained_mask

    @meta.model.trace
    def forward(self, mask):
        mask = self.bias if self.bias.requires_grad else mask
        return computed(self.way, self.query, self.key, self.value, mask)


def check_way(way: Way, seed: int) -> None:
    """Beside torch in float64: result and gradients, run by the VM and by the interpreter."""
    tensors = inputs(way, seed)
    arrays, dy = [*map(meta.array, tensors)], torch.randn(B, H, S, D)
    function = written(way)
    verify(fuse_attention(function.program(*arrays).module, device=CPU, **ALWAYS), typed=True)
    with always():
        run = meta.vm.compile(function, *arrays)
        step = meta.model.value_and_grad(Attention(way, tensors))
        backward = meta.vm.compile(step, meta.array(dy), arrays[3])
        found = backward(meta.array(dy), arrays[3])
        slowly = step(meta.array(dy), arrays[3])
    assert run.kernels()["torch.fused_attention"] == 1
    assert backward.kernels()["torch.fused_attention_dx"] == 1
    assert not any("softmax" in kernel for kernel in backward.kernels())
    precise = [t.double().requires_grad_(i < 3) for i, t in enumerate(tensors)]
    expected = oracle(way, *precise)
    expected.backward(dy.double())
    near = {"rtol": 1e-3, "atol": 2e-3} if way.mask in COARSE else {"rtol": 1e-4, "atol": 2e-5}
    for y in (run(*arrays), function(*arrays), found[0], slowly[0]):
        torch.testing.assert_close(y.torch().double(), expected.detach(), **near)
    for _, gradients in (found, slowly):
        for name, tensor in zip(("query", "key", "value"), precise, strict=False):
            torch.testing.assert_close(gradients[name].torch().double(), tensor.grad, **near)


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str) -> None:
    check_way(Way("projected", mask=mask), 1)


@pytest.mark.parametrize("seed", range(12))
def test_random_ways(seed: int) -> None:
    check_way(random_way(seed), seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 200))
def test_more_random_ways(seed: int) -> None:
    check_way(random_way(seed), seed)


@pytest.mark.parametrize("mask", ["where_inf", "padding"])
@pytest.mark.parametrize("dialect", ["torch", "tvm"])
def test_a_query_that_sees_nothing_is_nan_as_before(mask: str, dialect: str) -> None:
    way = Way(mask=mask)
    tensors = inputs(way)
    tensors[3][0] = 0 if mask == "where_inf" else -INF
    arrays = [*map(meta.array, tensors)]
    with always(), meta.dialect.only(dialect):
        run = meta.vm.compile(written(way), *arrays)
        y = run(*arrays).torch()
    assert f"{dialect}.fused_attention" in run.kernels()
    expected = oracle(way, *tensors)
    assert torch.isnan(expected[0]).all()
    torch.testing.assert_close(y, expected, equal_nan=True)


def test_softmax_made_safe_keeps_zeros() -> None:
    """As torch.export writes attention: rows without a key are 0, and stay so."""

    @meta.model.trace
    def safe(query, key, value, mask):
        scores = query @ op.permute_dims(key, (0, 1, 3, 2)) + mask
        seen = op.max(op.astype(op.logical_not(op.equal(scores, -INF)), "int8"), -1, True)
        p = op.softmax(scores, -1)
        p = op.where(op.logical_not(op.astype(seen, "bool")), op.full_like(p, 0.0), p)
        return p @ value

    way = Way(scale="none", mask="padding")
    tensors = inputs(way)
    tensors[3][0] = -INF
    arrays = [*map(meta.array, tensors)]
    with always():
        run = meta.vm.compile(safe, *arrays)
    assert "torch.softmax" not in run.kernels()
    expected = oracle(way, *tensors)
    expected[0] = 0.0
    torch.testing.assert_close(run(*arrays).torch(), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mask", ["none", "padding", "where"])
def test_mixed_precision(dtype: str, mask: str) -> None:
    """Products in half precision, softmax in float32, casts between."""
    way = Way("projected", mask=mask)
    tensors = inputs(way)
    given, dy = meta.array(tensors[3]), meta.array(torch.ones(B, H, S, D))
    with always():
        step = meta.model.value_and_grad(meta.amp.autocast(Attention(way, tensors), dtype))
        assert "fused_attention_dx" in str(step.program(dy, given).module)
        y, gradients = step(dy, given)
    precise = [t.double().requires_grad_(i < 3) for i, t in enumerate(tensors)]
    expected = oracle(way, *precise)
    expected.sum().backward()
    near = {"rtol": 0, "atol": 5e-3 if dtype == "float16" else 4e-2}
    torch.testing.assert_close(y.torch().double(), expected.detach(), **near)
    for name, tensor in zip(("query", "key", "value"), precise, strict=False):
        torch.testing.assert_close(gradients[name].torch().double(), tensor.grad, **near)


def test_layout_scale_and_groups_are_those_of_the_operator() -> None:
    way = Way("projected", mask="causal", share="repeat", scale="twice")
    module = fuse_attention(_module(way), device=CPU, **ALWAYS)
    [line] = [x for x in str(module).splitlines() if "fused_attention" in x]
    assert 'causal=True, scale=1.0, layout="BSHD"' in line
    grouped = fuse_attention(_module(replace(way, form="matmul")), device=CPU, **ALWAYS)
    [line] = [x for x in str(grouped).splitlines() if "fused_attention" in x]
    assert f"(%query, %key, %value, causal=True, scale={(D**-0.25) ** 2}" in line


def _module(way: Way) -> Any:
    return written(way).program(*map(meta.array, inputs(way))).module


def _other(kind: str) -> Any:
    @meta.model.trace
    def attention(query, key, value, mask):
        scores = query @ op.permute_dims(key, (0, 1, 3, 2))
        if kind == "tensor scale":
            scores = scores * mask
        if kind == "weak":
            scores = op.where(mask > 0.0, scores, -5.0)
        if kind == "two masks":
            scores = op.where(mask > 0.0, scores, -1e9) + mask
        if kind == "relu":
            scores = op.relu(scores)
        if kind == "number":
            scores = scores + 1.0
        p = op.softmax(scores, 2 if kind == "axis" else -1)
        if kind == "dropped twice":
            p = op.dropout(op.dropout(p, 0.5), 0.5)
        if kind == "dropped mask":
            p, dropped, _ = op.dropout_train(p, 0.5)
            return p @ value, dropped
        if kind == "dropped in turn":
            p = op.permute_dims(op.dropout(op.permute_dims(p, (0, 1, 3, 2)), 0.5), (0, 1, 3, 2))
        if kind == "turned":
            p = op.permute_dims(p, (0, 1, 3, 2))
            return op.permute_dims(p, (0, 1, 3, 2))[:, :, :, :3] @ value[:, :, :3]
        if kind == "other rows":
            return op.batch_matmul_tn(op.reshape(p, (-1, S, T)), op.reshape(query, (-1, S, D)))
        if kind == "narrow":
            return p @ value[:, :, :, : D // 2]
        y = p @ value
        return (y, p) if kind == "returned" else y

    return attention


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("returned", "is also used elsewhere"),
        ("axis", "not over the last axis"),
        ("tensor scale", "multiplied by what is no number"),
        ("weak", "become -5, which does not hide"),
        ("two masks", "beside another mask"),
        ("relu", "the result of relu is between"),
        ("number", "a number is added"),
        ("dropped twice", "dropped out twice"),
        ("dropped mask", "is also used elsewhere"),
        ("dropped in turn", "in another order"),
        ("turned", ""),
        ("other rows", "not a sum over the keys"),
        ("narrow", "want one width"),
    ],
)
def test_what_stays(kind: str, says: str) -> None:
    way = Way()
    query, key, value, _ = inputs(way)
    mask = torch.randn(B, H, S, T)
    module = _other(kind).program(*map(meta.array, (query, key, value, mask))).module
    assert fuse_attention(module, device=CPU, **ALWAYS).functions == module.functions
    assert says in explain_attention(module, device=CPU, **ALWAYS)


class Dropped(Attention):
    """Attention with dropout, between dropouts of query and of the result."""

    @meta.model.trace
    def forward(self, mask):
        query = op.dropout(self.query, 0.25)
        scores = query @ op.permute_dims(self.key, (0, 1, 3, 2)) * 0.4
        scores = op.where(mask > 0.0, scores, -INF)
        weights = op.dropout(op.softmax(scores), 0.3)
        return op.dropout(op.dropout(self.value, 0.1) * 2.0 + 0.0, 0.2), weights @ self.value


def test_dropout_drops_the_same() -> None:
    """Keys are drawn in the same order, and each drops the same weights as without the pass."""
    tensors = inputs(Way())
    mask = torch.rand(B, 1, S, T) - 0.1
    mask[..., 0] = 1.0
    given, dy = (
        meta.array(mask),
        (meta.array(torch.ones(B, H, T, D)), meta.array(torch.randn(B, H, S, D))),
    )
    results = []
    for context in (always(), meta.PassContext(disabled=["fuse_attention"])):
        with context:
            step = meta.model.value_and_grad(Dropped(Way(), tensors))
            run = meta.vm.compile(step, dy, given)
        text = str(run.module)
        assert ("fused_attention_dx" in text) == (not results), text
        meta.random.seed(5)
        results.append([run(dy, given) for _ in range(2)])
    for (y, gradients), (other, others) in zip(*results, strict=True):
        for a, b in zip(y, other, strict=True):
            torch.testing.assert_close(a.torch(), b.torch())
        for name in ("query", "key", "value"):
            torch.testing.assert_close(gradients[name].torch(), others[name].torch())


def _banded(band: Any, hidden: float) -> Any:
    @meta.model.trace
    def attention(query, key, value):
        scores = query @ op.permute_dims(key, (0, 1, 3, 2))
        return op.softmax(op.where(band, scores, hidden)) @ value

    return attention


def test_a_constant_band_is_a_window() -> None:
    steps, width = 12, 8
    tensors = [torch.randn(1, 2, steps, width) for _ in range(3)]
    rows, keys = torch.arange(steps).unsqueeze(-1), torch.arange(steps)
    bands = {
        "window=(2, 1)": (keys >= rows - 2) & (keys <= rows + 1),
        "window=(-1, 3)": keys <= rows + 3,
        "causal=True, ": (keys <= rows) & (keys >= rows - 4),
    }
    for says, band in bands.items():
        for hidden in (-INF, -1e9):
            attention = _banded(meta.array(band), hidden)

            arrays = [*map(meta.array, tensors)]
            found = fuse_attention(attention.program(*arrays).module, device=CPU, **ALWAYS)
            [line] = [x for x in str(found).splitlines() if "fused_attention" in x]
            assert says in line and ("window=(4, -1)" in line) == ("causal" in says)
            query, key, value = (t.double() for t in tensors)
            scores = (query @ key.mT).masked_fill(~band, -INF)
            with always():
                y = meta.vm.compile(attention, *arrays)(*arrays).torch()
            torch.testing.assert_close(y.double(), scores.softmax(-1) @ value, rtol=1e-4, atol=1e-5)


def test_a_trained_mask_stays_and_is_told() -> None:
    way = Way(mask="heads")
    model = Attention(way, inputs(way), trained_mask=True)
    given = meta.array(inputs(way)[3])
    module = model.program(given).module
    names = [p.name for p in module.main.params]
    options = {"device": CPU, "trained": [names.index("query"), names.index("bias")], **ALWAYS}
    assert "a mask is trained" in explain_attention(module, **options)
    assert "1 rewritten" in explain_attention(module, **{**options, "trained": [0]})
    with always():
        step = meta.model.value_and_grad(model)
        program = step.program(meta.array(torch.ones(B, H, S, D)), given)
    assert "softmax_dx" in str(program.module)


def test_a_trained_mask_of_short_attention_in_half_precision_has_a_kernel() -> None:
    """On CUDA; through numbers that only keep exp from overflowing no gradient flows."""
    way = Way(mask="heads")
    model = Attention(way, inputs(way), trained_mask=True)
    given = meta.array(inputs(way)[3])
    module = model.program(given).module
    names = [p.name for p in module.main.params]
    options: dict[str, Any] = {"trained": [names.index("query"), names.index("bias")]}
    cuda = Device("cuda")
    assert "1 rewritten" in explain_attention(module, device=cuda, half=True, **options)
    assert "a mask is trained" in explain_attention(module, device=cuda, **options)
    assert "a mask is trained" in explain_attention(module, device=CPU, half=True, **options)
    assert "detach" in str(fuse_attention(module, device=cuda, half=True, **options))
    plain = fuse_attention(module, device=cuda, half=True, trained=[names.index("query")])
    assert "detach" not in str(plain) and "fused_attention" in str(plain)


def test_the_gradient_of_a_trained_mask_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast says that the program will be in half precision, through copies too."""
    monkeypatch.setattr(gradient, "before_autodiff", lambda _, wrt: on_cuda(wrt))
    way = Way(mask="heads")
    tensors = inputs(way)
    step = meta.model.value_and_grad(Attention(way, tensors, trained_mask=True))
    run = meta.amp.autocast(step, "bfloat16")
    dy = torch.randn(B, H, S, D)
    y, gradients = meta.vm.compile(run, meta.array(dy), meta.array(tensors[3]))(
        meta.array(dy), meta.array(tensors[3])
    )
    assert "fused_attention_dmask" in str(
        run.program(meta.array(dy), meta.array(tensors[3])).module
    )
    precise = [t.double().requires_grad_() for t in tensors]
    expected = oracle(way, *precise)
    expected.backward(dy.double())
    near = {"rtol": 5e-2, "atol": 5e-2}
    torch.testing.assert_close(y.torch().double(), expected.detach(), **near)
    found = [gradients[name].torch().double() for name in ("query", "key", "value", "bias")]
    torch.testing.assert_close(found, [t.grad for t in precise], **near)


def on_cuda(wrt: list[int]) -> Any:
    """Return the passes before differentiation on CUDA."""
    return before_autodiff(Device("cuda"), wrt)


def test_what_the_program_writes_in_between_is_seen() -> None:
    text = """
    func @main(%q: float32[3, 6, 8], %k: float32[3, 6, 8], %v: float32[3, 6, 8],
               %g: float32[3, 6, 8], %m: float32[3, 6, 8]) -> float32[3, 6, 8] {{
      %s: float32[3, 6, 6] = batch_matmul_nt(%q, %k)
      %p: float32[3, 6, 6] = softmax(%s)
      %0: () = sgd({0}, %g, %m, 0.1, 0.0)
      %y: float32[3, 6, 8] = batch_matmul(%p, %v)
      return %y
    }}"""
    for written_to, stays in (("%k", True), ("%q", True), ("%v", False)):
        module = infer_type(parse(text.format(written_to)))
        found = fuse_attention(module, device=CPU, **ALWAYS)
        assert (found.functions == module.functions) == stays, written_to


def test_few_keys_levels_and_contexts() -> None:
    way = Way()
    arrays = [*map(meta.array, inputs(way))]
    function = written(way)
    assert "6 keys are fewer than 512" in explain_attention(_module(way), device=CPU)
    assert "torch.softmax" in meta.vm.compile(function, *arrays).kernels()
    with always():
        assert "torch.softmax" in meta.vm.compile(function, *arrays, opt_level=1).kernels()
        with meta.PassContext(disabled=["fuse_attention"]):
            assert "torch.softmax" in meta.vm.compile(function, *arrays).kernels()
        assert "torch.softmax" not in meta.vm.compile(function, *arrays).kernels()


def test_gradients_follow_the_context() -> None:
    way = Way()
    tensors = inputs(way)
    given, dy = meta.array(tensors[3]), meta.array(torch.ones(B, H, S, D))
    step = meta.model.value_and_grad(Attention(way, tensors))
    assert "softmax_dx" in str(step.program(dy, given).module)
    with always():
        assert "softmax_dx" not in str(step.program(dy, given).module)
        plain = meta.vm.compile(step, dy, given, opt_level=0)
    assert "torch.softmax_dx" in plain.kernels()


def test_explanations_name_both_ends() -> None:
    arrays = [*map(meta.array, inputs(Way()))]
    said = explain_attention(_module(Way()), device=CPU, **ALWAYS)
    assert said.startswith("attention: 1 rewritten, 0 refused") and "attention_programs.py" in said
    with always():
        explained = str(meta.vm.compile(written(Way()), *arrays).explain())
    assert "fused_attention by torch" in explained


def test_extents_that_are_not_known_stay() -> None:
    types = [parse_type(f"float32[n, {H}, {n}, {D}]") for n in (S, T, T)]
    module = written(Way()).program(*types, parse_type("float32[1]")).module
    assert fuse_attention(module, device=CPU, **ALWAYS).functions == module.functions


@pytest.mark.parametrize("biased", [True, False])
def test_windows_of_images_share_masks(biased: bool) -> None:
    """A mask for each window of an image is not repeated for each image; a bias alone has one."""
    images, windows, heads, steps, width = 3, 4, 2, 5, 8
    batch, generator = images * windows, torch.Generator().manual_seed(0)
    tensors = [torch.randn(batch, heads, steps, width, generator=generator) for _ in range(3)]
    bias = torch.randn(heads, steps, steps, generator=generator)
    hidden = torch.randn(windows, steps, steps, generator=generator) * 3

    @meta.model.trace
    def attention(query, key, value, bias, hidden):
        scores = query @ op.permute_dims(key, (0, 1, 3, 2)) * 0.3 + bias
        if biased:
            apart = (images, windows, heads, steps, steps)
            scores = op.reshape(scores, apart)
            scores = scores + op.reshape(hidden, (1, windows, 1, steps, steps))
            scores = op.reshape(scores, (batch, heads, steps, steps))
        return op.softmax(scores) @ value

    arrays = [meta.array(t) for t in (*tensors, bias, hidden)]
    with always():
        run = meta.vm.compile(attention, *arrays)
    assert "torch.fused_attention" in run.kernels()
    program = str(fuse_attention(attention.program(*arrays).module, device=CPU, **ALWAYS))
    assert f"float32[{batch}, {heads}, {steps}, {steps}]" not in program  # scores, or masks
    query, key, value = (t.double() for t in tensors)
    scores = query @ key.mT * 0.3 + bias.double()
    if biased:
        scores = scores + hidden.double().repeat(images, 1, 1)[:, None]
    expected = scores.softmax(-1) @ value
    for y in (run(*arrays), attention(*arrays)):
        torch.testing.assert_close(y.torch().double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("mask", ["none", "added", "causal"])
@pytest.mark.parametrize("empty", ["batch", "rows", "keys", "depth", "width"])
def test_an_axis_without_elements(empty: str, mask: str, lead: tuple[int, ...]) -> None:
    """Nothing is looked at where there are no scores, or no products: the program stays."""
    sizes = {"batch": 2, "rows": 3, "keys": 4, "depth": 8, "width": 8, empty: 0}
    b, rows, keys, depth, width = sizes.values()
    shapes = ((rows, depth), (keys, depth), (keys, width))
    tensors = [torch.randn(b, *lead, *shape) for shape in shapes]
    constant = torch.full((rows, keys), -INF).triu(1) if mask == "causal" else torch.ones(keys)

    def attention(query, key, value):
        scores = query @ key.swapaxes(-2, -1) * 0.5
        if mask != "none":
            added = constant if isinstance(query, torch.Tensor) else meta.array(constant)
            scores = scores + added
        return (op if query is not tensors[0] else torch).softmax(scores, -1) @ value

    with always():
        run = meta.vm.compile(meta.model.trace(attention), *map(meta.array, tensors))
    torch.testing.assert_close(run(*map(meta.array, tensors)).torch(), attention(*tensors))
