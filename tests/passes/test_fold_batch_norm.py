"""Batch normalisation folded into the weights before it: which, and that results stay."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.base.device import CPU, Device
from meta.frontend import relay
from meta.ir import Call, bindings, parse
from meta.model import Model, trace
from meta.model.zoo import ResNet, ResNetConfig
from meta.passes import fold_batch_norm, infer_type
from meta.vm.compiler.calling_convention import module_program

fold = sys.modules["meta.passes.fold_batch_norm"]  # the package has the pass by this name
LAST, OHWI = {"layout": "NHWC", "out_layout": "NHWC"}, "OHWI"


@dataclass(frozen=True)
class Case:
    """A linear operator of x and w, in torch's layouts, with ``channels`` in its result.

    window: options that are torch's, too. layouts: those in which ours gets the tensors.
    """

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    channels: int
    window: dict[str, Any] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        options = {**self.window, **self.layouts}
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in options.items())})"


CASES = [
    Case("conv1d", (2, 4, 9), (6, 2, 3), 6, {"groups": 2}),
    Case("conv1d", (2, 4, 9), (6, 4, 3), 6, {}, {"layout": "NWC", "out_layout": "NWC"}),
    Case("conv2d", (2, 4, 7, 7), (6, 4, 3, 3), 6, {"stride": 2, "padding": 1}),
    Case("conv2d", (2, 4, 7, 7), (8, 1, 3, 3), 8, {"groups": 4}, {**LAST, "kernel_layout": "HWIO"}),
    Case("conv2d", (2, 4, 7, 7), (6, 4, 1, 1), 6, {}, {**LAST, "kernel_layout": OHWI}),
    Case("conv2d", (2, 4, 7, 7), (6, 4, 3, 3), 6, {}, {"kernel_layout": "HWOI"}),
    Case("conv3d", (1, 2, 4, 5, 5), (3, 2, 2, 2, 2), 3),
    Case("conv_transpose1d", (2, 4, 5), (4, 6, 3), 6, {"stride": 2}),
    Case("conv_transpose2d", (2, 4, 5, 5), (4, 3, 3, 3), 6, {"groups": 2, "stride": 2}),
    Case("conv_transpose2d", (1, 4, 5, 5), (4, 3, 2, 2), 6, {"groups": 2}, {"kernel_layout": OHWI}),
    Case("conv_transpose2d", (1, 4, 5, 5), (4, 3, 2, 2), 3, {}, {**LAST, "kernel_layout": "HWOI"}),
    Case("conv_transpose3d", (1, 2, 3, 3, 3), (2, 4, 2, 2, 2), 4),
    Case("matmul", (5, 4), (4, 6), 6),
    Case("matmul_nt", (5, 4), (6, 4), 6),
    Case("dense", (5, 4), (6, 4), 6),
]


class Normalised(Model):
    """A linear operator, a bias if it is to have one, and batch normalisation."""

    def build(self, case: Case, bias: bool, affine: bool, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        c = case.channels
        self.case = case
        self.w = meta.array(arranged(torch.randn(case.w, generator=g), case, "kernel_layout"))
        self.b = meta.array(torch.randn(c, generator=g)) if bias else None
        self.mean = meta.array(torch.randn(c, generator=g))
        self.var = meta.array(torch.rand(c, generator=g) + 0.1)
        self.scale = meta.array(torch.randn(c, generator=g)) if affine else None
        self.shift = meta.array(torch.randn(c, generator=g)) if affine else None

    @trace
    def forward(self, x: Any) -> Any:
        case = self.case
        y = getattr(op, case.name)(x, self.w, **case.window, **case.layouts)
        axis = case.layouts.get("out_layout", "NC").index("C")
        if self.b is not None:
            y = op.bias_add(y, self.b, axis)
        return op.batch_norm_infer(
            y, self.mean, self.var, self.scale, self.shift, eps=1e-3, axis=axis
        )


def arranged(x: torch.Tensor, case: Case, which: str, back: bool = False) -> torch.Tensor:
    """x in one of a case's layouts, or back in torch's."""
    if which not in case.layouts:
        return x
    first = "IO" if "transpose" in case.name else "OI"
    theirs = ("NC" if which != "kernel_layout" else first) + {3: "W", 4: "HW", 5: "DHW"}[x.ndim]
    a, b = (case.layouts[which], theirs) if back else (theirs, case.layouts[which])
    return x.permute([a.index(letter) for letter in b]).contiguous()


def expected(model: Normalised, x: torch.Tensor) -> torch.Tensor:
    """The result by torch in float64, in torch's layout."""
    case = model.case
    wide = {n: a.torch().double() for n, a in model.state().items()}
    w = arranged(wide["w"], case, "kernel_layout", back=True)
    if case.name in ("matmul", "matmul_nt", "dense"):
        y = x.double() @ (w if case.name == "matmul" else w.T)
    else:
        y = getattr(F, case.name)(x.double(), w, **case.window)
    if "b" in wide:
        y = y + wide["b"].reshape(-1, *[1] * (y.ndim - 2))
    return F.batch_norm(
        y, wide["mean"], wide["var"], wide.get("scale"), wide.get("shift"), eps=1e-3
    )


def operators(program: meta.ir.Module) -> list[str]:
    found = (b.value for f in program.functions.values() for b in bindings(f))
    return [str(v.callee).rpartition(".")[2] for v in found if isinstance(v, Call)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_those_of_torch(case: Case) -> None:
    for seed, (bias, affine) in enumerate([(False, True), (True, False), (True, True)]):
        model = Normalised(case, bias, affine, seed)
        model.eval()
        x = torch.randn(case.x, generator=torch.Generator().manual_seed(9))
        given = meta.array(arranged(x, case, "layout"))
        compiled = meta.vm.compile(model, given)
        assert "batch_norm_infer" not in operators(compiled.module)
        for made in (compiled(given), model(given)):
            got = arranged(made.torch(), case, "out_layout", back=True)
            torch.testing.assert_close(got.double(), expected(model, x), rtol=1e-4, atol=1e-4)


PROGRAM = """
func @main(%x: float32[2, 3, 6, 6], %u: float32[4, 3, 1, 1], %w: float32[4, 3, 1, 1],
           %m: float32[{c}], %v: float32[{c}]) attrs({attrs}) {{
  %y = conv2d(%x, {w})
  %z = batch_norm_infer(%y, %m, %v, axis={axis})
  {more}
  return {result}
}}"""
PLAIN = {"c": 4, "attrs": "arrays=3", "w": "%w", "axis": 1, "more": "", "result": "%z"}


@pytest.mark.parametrize(
    ("changed", "folded"),
    [
        ({}, True),
        ({"axis": -3}, True),
        ({"attrs": "arrays=2"}, False),  # the weights are an input
        ({"attrs": "some=1"}, False),  # all are inputs
        ({"w": "%u"}, False),
        ({"result": "(%y, %z)"}, False),  # what is normalised is a result, too
        ({"more": "%r = relu(%y)", "result": "(%r, %z)"}, False),
        ({"axis": 2, "c": 6}, False),
        ({"more": "%s = multi_tensor_axpby((%u,), (%w,), 1.0, 1.0)"}, False),
    ],
)
def test_which_are_folded(changed: dict[str, Any], folded: bool) -> None:
    found = fold_batch_norm(infer_type(parse(PROGRAM.format(**{**PLAIN, **changed}))))
    assert ("batch_norm_infer" not in operators(found)) == folded


def test_constants_are_folded_while_compiling() -> None:
    model = Normalised(CASES[3], True, True, 0).eval()
    x = meta.array(arranged(torch.randn(CASES[3].x), CASES[3], "layout"))
    closed = trace(lambda x: model.forward.function(model, x))  # its arrays are constants
    compiled = meta.vm.compile(closed, x)
    assert compiled.code.prepared == 0
    assert set(compiled.kernels()) == {"torch.conv2d", "torch.bias_add"}
    torch.testing.assert_close(compiled(x).torch(), model(x).torch(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_no_less_exact(dtype: str) -> None:
    """What is folded in float32 and rounded once is as exact as what is not folded."""
    torch.manual_seed(0)
    case = Case("conv2d", (4, 16, 9, 9), (32, 16, 3, 3), 32)
    model = Normalised(case, False, True, 3)
    model.eval()
    x = meta.array(torch.randn(case.x))
    exact = expected(model, x.torch())
    errors = []
    for disabled in ([], ["fold_batch_norm"]):
        with meta.PassContext(disabled=disabled):
            compiled = meta.vm.compile(meta.amp.autocast(model, dtype), x)
        errors.append((compiled(x).torch().double() - exact).square().mean().sqrt().item())
        # The weights are cast, or folded and cast, once.
        assert "batch_norm_infer" not in operators(compiled.module) or disabled
        assert compiled.code.prepared
    assert errors[0] < 1.1 * errors[1]


def test_weights_in_half_precision() -> None:
    """What is of half precision itself is folded in float32."""
    torch.manual_seed(0)
    case = Case("conv2d", (2, 8, 6, 6), (4, 8, 3, 3), 4)
    model = Normalised(case, True, True, 5)
    model.to(dtype="float16").eval()
    x = meta.array(torch.randn(case.x)).to(dtype="float16")
    compiled = meta.vm.compile(model, x)
    assert "batch_norm_infer" not in operators(compiled.module)
    exact = expected(model, x.torch())
    torch.testing.assert_close(compiled(x).torch().double(), exact, rtol=1e-2, atol=3e-2)


RELAY = """
#[version = "0.0.5"]
def @main(%x: Tensor[(1, 6, 6, 3), float32], %w: Tensor[(3, 3, 3, 4), float32],
          %g: Tensor[(4), float32], %b: Tensor[(4), float32],
          %m: Tensor[(4), float32], %v: Tensor[(4), float32]) {
  %0 = nn.conv2d(%x, %w, channels=4, kernel_size=[3, 3], data_layout="NHWC", kernel_layout="HWIO");
  %1 = nn.batch_norm(%0, %g, %b, %m, %v, axis=3);
  %2 = %1.0;
  nn.relu(%2)
}
"""


def test_relay_programs() -> None:
    shapes = {"w": (3, 3, 3, 4), "g": (4,), "b": (4,), "m": (4,), "v": (4,)}
    params = {name: torch.rand(shape) + 0.5 for name, shape in shapes.items()}
    model = relay.load(RELAY, params={name: a.numpy() for name, a in params.items()})
    x = meta.array(torch.randn(1, 6, 6, 3))
    compiled = meta.vm.compile(model, x)
    assert set(compiled.kernels()) == {"torch.conv2d", "torch.bias_add", "torch.relu"}
    y = F.conv2d(x.torch().permute(0, 3, 1, 2), params["w"].permute(3, 2, 0, 1))
    y = F.batch_norm(y, params["m"], params["v"], params["g"], params["b"]).relu()
    torch.testing.assert_close(compiled(x).torch(), y.permute(0, 2, 3, 1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bottleneck", [False, True])
def test_residual_networks(bottleneck: bool) -> None:
    """One kernel for each convolution; in half precision with the channels last, too."""
    meta.random.seed(0)
    config = ResNetConfig(layers=(1, 2, 1, 1), bottleneck=bottleneck, width=8, num_classes=5)
    model = ResNet(config).eval()
    generator = torch.Generator().manual_seed(1)
    for name, array in model.state().items():
        if "running" in name or ".bn" in name:
            array.update(torch.rand(array.shape, generator=generator) + 0.5)
    # On the CPU convolutions of fewer pixels than their kernels have numbers keep their layout.
    x = meta.array(torch.randn(2, 3, 384, 384, generator=generator))
    compiled = meta.vm.compile(model, x)
    assert "batch_norm_infer" not in operators(compiled.module)
    torch.testing.assert_close(compiled(x).torch(), model(x).torch(), rtol=1e-3, atol=1e-3)
    half = meta.vm.compile(meta.amp.autocast(model, "bfloat16"), x)
    found = [str(b.value.callee) for b in half.module.main.body.bindings if _is_call(b.value)]
    assert found.count("torch.permute_dims") == 1  # the image; weights are transposed once
    assert found.count("torch.astype") == 2  # the image, and the result
    expected_half = model(x).torch()
    scale = expected_half.abs().max().item()
    torch.testing.assert_close(half(x).torch(), expected_half, rtol=0, atol=0.05 * scale)


def _is_call(value: Any) -> bool:
    return isinstance(value, Call)


PER_RUN = """
func @main(%x: float16[{x}], %w: {w}, %m: {c}, %v: {c}, %z: float16[{y}]) {{
  {before}
  %y = conv2d(%x, {kernel}, kernel_layout="{letters}", out_layout="NHWC", layout="NHWC"{options})
  %n = batch_norm_infer(%y, %m, %v, axis=3)
  %r = {behind}
  return %r
}}"""
LARGE = {
    "x": "16, 56, 56, 64",
    "w": "float16[256, 1, 1, 64]",
    "before": "%k = relu(%w)",  # what is convolved with is no parameter
    "kernel": "%k",
    "letters": "OHWI",
    "c": "float16[256]",
    "y": "16, 56, 56, 256",
    "options": "",
    "behind": "relu(%n)",
}
FEW = {"w": "float16[64, 1, 1, 64]", "c": "float16[64]", "y": "16, 56, 56, 64"}
GIVEN = {"before": "", "kernel": "%w"}
LIST = "multi_tensor_fold_batch_norm"


def folded_per_run(change: dict[str, str]) -> list[str]:
    """The operators of a program whose weights differ from run to run, on CUDA."""
    module = infer_type(parse(PER_RUN.format_map(LARGE | change)))
    assert "bias_add" not in operators(fold_batch_norm(module, device=CPU))
    return operators(infer_type(fold_batch_norm(module, device=Device("cuda:0"))))


@pytest.mark.parametrize(
    ("change", "folds"),
    [
        ({}, True),
        ({"behind": "add(%n, %z)"}, True),
        ({"behind": "silu(%n)"}, False),  # one kernel normalises and does that
        ({"options": ", groups=2", "w": "float16[256, 1, 1, 32]"}, False),
        (FEW, False),  # the result is not much larger than the weights
    ],
)
def test_weights_that_are_computed_in_every_run(change: dict[str, str], folds: bool) -> None:
    found = folded_per_run(change)
    assert ("bias_add" in found, "batch_norm_infer" in found) == (folds, not folds)
    assert LIST not in found


SPATIAL = {"w": "float16[256, 3, 3, 64]", "options": ", padding=1"}
FIRST = {"w": "float16[256, 64, 3, 3]", "options": ", padding=1", "letters": "OIHW"}


@pytest.mark.parametrize(
    ("change", "listed"),
    [
        (GIVEN, True),
        (GIVEN | FEW, True),  # one launch folds the weights of all convolutions
        (GIVEN | {"behind": "silu(%n)"}, False),
        (GIVEN | SPATIAL, True),
        (GIVEN | FIRST, False),  # it is transposed and folded in one kernel
        (
            SPATIAL | {"before": "%k = permute_dims(%w, axes=(0, 3, 1, 2))", "letters": "OIHW"},
            True,
        ),
        (FIRST | {"before": "%k = permute_dims(%w, axes=(0, 2, 3, 1))", "letters": "OHWI"}, False),
        (GIVEN | {"w": "float16[64, 1, 1, 256]", "letters": "IHWO"}, False),
        (  # reading and writing the weights takes longer than the pass over the result
            GIVEN
            | {"x": "1, 7, 7, 512", "y": "1, 7, 7, 512", "c": "float16[512]"}
            | {"w": "float16[512, 3, 3, 512]", "options": ", padding=1"},
            False,
        ),
        (  # a cast reads and writes them in any case
            {"x": "1, 7, 7, 512", "y": "1, 7, 7, 512", "c": "float32[512]"}
            | {"w": "float32[512, 3, 3, 512]", "options": ", padding=1"}
            | {"before": '%k = astype(%w, "float16")'},
            True,
        ),
        (  # what is written is not what it was at the beginning
            GIVEN | FEW | {"before": "%t = multi_tensor_axpby((%m,), (%v,), 1.0, 1.0)"},
            False,
        ),
    ],
)
def test_parameters_are_folded_at_the_beginning(change: dict[str, str], listed: bool) -> None:
    found = folded_per_run(change)
    assert (LIST in found) == listed
    assert not listed or (found[0] == LIST and "bias_add" in found)


def chain(*eps: float, biases: bool = False) -> tuple[str, list[torch.Tensor]]:
    """A program of 3x3 convolutions, each normalised with an eps, and what it is given."""
    layouts = 'layout="NHWC", kernel_layout="OIHW", out_layout="NHWC", padding=1'
    head, body, given = ["%y0: float32[2, 5, 5, 4]"], [], [torch.randn(2, 5, 5, 4)]
    for i, one in enumerate(eps):
        vectors = [f"%{n}{i}: float32[4]" for n in "mvgsb"]
        head += [f"%w{i}: float32[4, 3, 3, 4]", *vectors]
        given += [torch.randn(4, 3, 3, 4), *(torch.rand(4) + 0.1 for _ in vectors)]
        body += [f"%k{i} = permute_dims(%w{i}, axes=(0, 3, 1, 2))"]
        body += [f"%c{i} = conv2d(%y{i}, %k{i}, {layouts})"]
        if biases:
            body += [f"%a{i} = bias_add(%c{i}, %b{i}, axis=3)"]
        statistics = f"%m{i}, %v{i}, %g{i}, %s{i}, eps={one}, axis=3"
        body += [f"%n{i} = batch_norm_infer(%{'a' if biases else 'c'}{i}, {statistics})"]
        body += [f"%y{i + 1} = relu(%n{i})"]
    lines = "\n".join(body)
    return f"func @main({', '.join(head)}) {{\n{lines}\nreturn %y{len(eps)}\n}}", given


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(("eps", "calls"), [((1e-5, 1e-5, 1e-5), 1), ((1e-5, 0.5, 1e-5), 2)])
def test_one_call_for_each_eps(eps: tuple[float, ...], calls: int, biases: bool) -> None:
    torch.manual_seed(0)
    text, given = chain(*eps, biases=biases)
    module = infer_type(parse(text))
    folded = fold_batch_norm(module, device=Device("cuda:0"))
    names = operators(folded)
    assert names.count(LIST) == calls and "batch_norm_infer" not in names
    results = [
        meta.vm.compile(module_program(m), device=CPU).on_tensors(list(given))
        for m in (module, infer_type(folded))
    ]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("early", "places"), [(600, [0, 4]), (2000, [0])])
def test_weights_of_late_layers_are_folded_when_they_are_needed(
    early: int, places: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "EARLY", early)
    text, given = chain(1e-5, 1e-5, 1e-5)
    text, given[0] = text.replace("[2, 5, 5, 4]", "[2, 40, 40, 4]"), torch.randn(2, 40, 40, 4)
    module = infer_type(parse(text))
    folded = fold_batch_norm(module, device=Device("cuda:0"))
    names = [name for name in operators(folded) if name != "permute_dims"]
    assert [i for i, name in enumerate(names) if name == LIST] == places
    results = [
        meta.vm.compile(module_program(m), device=CPU).on_tensors(list(given))
        for m in (module, infer_type(folded))
    ]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_a_call_of_the_program_s_own_stays() -> None:
    text = f"""func @main(%x: float32[4, 2], %m: float32[4]) {{
      %w = relu(%x)
      %a = {LIST}((%w,), (%m,), (%m,))
      %b = {LIST}((%x, %x), (%m, %m), (%m, %m))
      %c = {LIST}((%x,), (%m,), (%m,))
      return (%a, %b, %c)
    }}"""
    module = infer_type(parse(text))
    assert str(fold_batch_norm(module, device=Device("cuda:0"))) == str(module)


def test_per_run_the_results_are_the_same() -> None:
    """Of weights that are computed, by kernels of their own."""
    types = {"x": (2, 9, 9, 3), "w": (4, 3, 3, 3), "m": (4,), "v": (4,)}
    head = ", ".join(f"%{n}: float32{list(s)}" for n, s in types.items())
    layouts = 'layout="NHWC", kernel_layout="OHWI", out_layout="NHWC"'
    body = f"%k = relu(%w)\n%y = conv2d(%x, %k, {layouts})"
    body += "\n%n = batch_norm_infer(%y, %m, %v, axis=3)"
    module = infer_type(parse(f"func @main({head}) {{\n{body}\n%r = relu(%n)\nreturn %r\n}}"))
    given = [torch.rand(s) + 0.1 for s in types.values()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "MIN_RESULT_BYTES", 0)
        folded = fold_batch_norm(module, device=Device("cuda:0"))
    assert "batch_norm_infer" not in operators(folded) and LIST not in operators(folded)
    results = [
        meta.vm.compile(module_program(m), device=CPU).on_tensors(list(given))
        for m in (module, infer_type(folded))
    ]
    torch.testing.assert_close(*results)
