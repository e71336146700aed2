"""Networks with the channels last: which operators, and that programs then still give the same."""

from __future__ import annotations

import pytest
import torch

import meta
from meta import op
from meta.base import config
from meta.base.device import CPU, Device
from meta.ir import Module, parse
from meta.model import Model, layers, trace
from meta.model.zoo import ResNet, ResNetConfig
from meta.optim import with_sgd
from meta.passes import channels_last, dead_code, infer_type
from tests.program_text import names

CUDA = Device("cuda")
IMAGE, KERNEL = "float16[2, 8, 6, 6]", "float16[8, 8, 3, 3]"


def converted(
    body: str,
    result: str,
    head: str = f"%x: {IMAGE}, %w: {KERNEL}",
    device: Device = CUDA,
) -> Module:
    module = infer_type(parse(f"func @main({head}) {{\n{body}\nreturn {result}\n}}"))
    return infer_type(channels_last(module, device=device))


def test_other_devices_and_float64_stay() -> None:
    module = infer_type(
        parse(f"func @main(%x: {IMAGE}, %w: {KERNEL}) {{%y = conv2d(%x, %w)\nreturn %y}}")
    )
    assert channels_last(module, device=CPU, devices=("cuda",)) is module
    wide = "%x: float64[2, 8, 6, 6], %w: float64[8, 8, 3, 3]"
    assert names(converted("%y = conv2d(%x, %w)", "%y", wide, CPU)) == ["conv2d"]


@pytest.mark.parametrize(
    ("groups", "count", "tf32", "moves"),
    [
        (1, 64, False, False),
        (1, 1, True, True),
        (2, 64, False, False),
        (2, 1, True, True),
        (8, 64, False, True),
        (8, 1, False, False),
        (8, 1, True, True),
    ],
)
def test_float32_on_cuda_moves_for_tensor_cores_or_many_single_channels(
    groups: int, count: int, tf32: bool, moves: bool
) -> None:
    params = f"%x: float32[{count}, 8, 64, 64], %w: float32[8, {8 // groups}, 3, 3]"
    with config.override(META_TF32=tf32):
        found = converted(f"%y = conv2d(%x, %w, groups={groups})", "%y", params)
    assert ("permute_dims" in names(found)) is moves


@pytest.mark.parametrize(
    ("channels", "extent", "groups", "step", "moves"),
    [
        (8, 3, 1, 1, True),
        (64, 3, 1, 1, True),
        (512, 3, 1, 1, False),
        (60, 3, 1, 1, False),
        (64, 1, 1, 1, True),
        (64, 1, 1, 2, True),
        (64, 3, 64, 1, True),
    ],
)
def test_on_the_cpu_kernels_with_more_elements_than_images_stay(
    channels: int, extent: int, groups: int, step: int, moves: bool
) -> None:
    """Unless they are products, in groups, or small; and one convolution alone stays, too."""
    kernel = f"[{channels}, {channels // groups}, {extent}, {extent}]"
    head = f"%x: float32[2, {channels}, 6, 6], %w: float32{kernel}"
    options = f"{step}, {extent // 2}, 1, {groups}"
    one = f"%a = conv2d(%x, %w, {options})"
    found = names(converted(f"{one}\n%y = conv2d(%a, %w, {options})", "%y", head, CPU))
    assert ("permute_dims" in found) is moves
    assert names(converted(one, "%a", head, CPU)) == ["conv2d"]


def test_padding_and_slices_go_with_their_axes() -> None:
    body = """%a = conv2d(%x, %w, padding=1)
    %b = pad(%a, (0, 0, 0, 1, 1, 0, 0, 2))
    %d = strided_slice(%b, (0, 1, -1), (2, 9, 0), (1, 2, -1))
    %e = strided_slice(%d, (0, 0, 0), (2, 4, 7), 2)
    %c = relu(%e)"""
    found = dead_code(converted(body, "%c"))
    assert names(found)[2:] == ["conv2d", "pad", *["strided_slice"] * 2, "relu", "permute_dims"]
    wide = parse(str(found).replace("float16", "float64"))
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    w = torch.randn(8, 8, 3, 3, dtype=torch.float64)
    y = meta.vm.compile(wide)(meta.array(x), meta.array(w)).torch()
    expected = torch.conv2d(x, w, padding=1)
    expected = torch.nn.functional.pad(expected, (0, 2, 1, 0, 0, 1)).relu()
    expected = expected[:, 1:9:2, 1:].flip(2)[::2, ::2, ::2]
    torch.testing.assert_close(y, expected)


def test_one_half_precision_convolution_is_enough() -> None:
    head = f"%a: float64[2, 8, 6, 6], %b: float64[8, 8, 3, 3], %x: {IMAGE}, %w: {KERNEL}"
    found = names(converted("%c = conv2d(%a, %b)\n%d = conv2d(%x, %w)", "(%c, %d)", head))
    assert found == ["conv2d", "permute_dims", "permute_dims", "conv2d", "permute_dims"]


def test_between_operators_nothing_is_transposed() -> None:
    body = """%a = conv2d(%x, %w)
    %b = relu(%a)
    %c = max_pool2d(%b, 2, 2)
    %d = add(%c, 1.0)
    %e = mean(%d, (2, 3))"""
    found = converted(body, "%e")
    moved = ["permute_dims", "permute_dims"]
    assert names(found) == [*moved, "conv2d", "relu", "max_pool2d", "add", "mean"]


def test_a_vector_along_the_channels() -> None:
    head = f"%x: {IMAGE}, %w: {KERNEL}, %b: float16[8]"
    found = converted(
        "%a = conv2d(%x, %w)\n%c = bias_add(%a, %b)\n%s = sum(%c, (0, 2, 3))", "%s", head
    )
    assert [
        b.value.args[2] for b in found.main.body.bindings if b.value.callee.name == "bias_add"
    ] == [3]
    assert [b.value.args[1] for b in found.main.body.bindings if b.value.callee.name == "sum"] == [
        (0, 1, 2)
    ]


def test_extents_of_one_are_reshaped() -> None:
    head = f"%x: {IMAGE}, %k: {KERNEL}, %w: float16[16, 8, 1, 1]"
    body = "%z = conv2d(%x, %k)\n%a = conv2d(%z, %w)\n%b = adaptive_avg_pool2d(%a, 1)"
    pooled = ["reshape", "conv2d", "adaptive_avg_pool2d", "reshape"]
    assert names(converted(body, "%b", head)) == ["permute_dims", "permute_dims", "conv2d", *pooled]


@pytest.mark.parametrize(
    ("body", "stays"),
    [
        ("%y = conv2d(%x, %w)", True),
        ("%a = conv2d(%x, %w)\n%b = relu(%a)\n%y = conv2d(%b, %v)", True),
        ("%y = conv2d(%x, %w, 2)", False),
        ("%y = conv2d(%x, %k)", False),
        ("%a = conv2d(%x, %k)\n%b = conv2d(%a, %w)\n%y = conv2d(%b, %v)", False),
        ("%y = conv2d_dx(%w, %z, %z, (2, 8, 6, 6), 1, 0, 1, 1)", True),
        ("%y = conv2d_dx(%k, %t, %t, (2, 8, 6, 6), 1, 1, 1, 1)", False),
    ],
)
def test_kernels_of_one_element_alone_are_not_worth_transposes(body: str, stays: bool) -> None:
    """They are products of matrices with the channels first, too."""
    head = f"%x: {IMAGE}, %k: {KERNEL}, %w: float16[16, 8, 1, 1], %v: float16[8, 16, 1, 1]"
    head += ", %z: float16[2, 16, 6, 6], %t: float16[2, 8, 6, 6]"
    assert ("permute_dims" not in names(converted(body, "%y", head))) == stays


def test_other_operators_get_the_channels_first() -> None:
    found = names(converted("%a = conv2d(%x, %w)\n%b = softmax(%a, 1)\n%c = relu(%a)", "(%b, %c)"))
    assert found == [
        "permute_dims",
        "permute_dims",
        "conv2d",
        "permute_dims",
        "softmax",
        "relu",
        "permute_dims",
    ]


def test_what_was_written_is_transposed_anew() -> None:
    body = """%a = conv2d(%x, %w)
    %u = multi_tensor_axpby((%w,), (%w,), 1.0, 1.0)
    %b = conv2d(%x, %w)"""
    head = f"%x: {IMAGE}, %w: {KERNEL}"
    found = names(converted(body, "(%a, %b)", head))
    assert found.count("permute_dims") == 5  # x once, w twice, and the results


LAST_IMAGE, LAST_KERNEL = "float16[2, 6, 6, 8]", "float16[8, 3, 3, 8]"


def test_what_is_given_and_returned_with_the_channels_last_is_not_transposed() -> None:
    body = """%a = permute_dims(%x, axes=(0, 3, 1, 2))
    %v = permute_dims(%w, axes=(0, 3, 1, 2))
    %b = conv2d(%a, %v, padding=1)
    %c = relu(%b)
    %d = permute_dims(%c, axes=(0, 2, 3, 1))"""
    found = converted(body, "(%d, %c)", f"%x: {LAST_IMAGE}, %w: {LAST_KERNEL}")
    used = names(dead_code(found))
    assert used.count("permute_dims") == 1 and used.count("reshape") == 1  # of %c, and of %d


def test_what_is_written_later_is_transposed_before() -> None:
    body = """%a = permute_dims(%x, axes=(0, 3, 1, 2))
    %b = conv2d(%a, %w, padding=1)
    %d = permute_dims(%a, axes=(0, 2, 3, 1))
    %u = assign(%x, %y)"""
    head = f"%x: {LAST_IMAGE}, %w: {KERNEL}, %y: {LAST_IMAGE}"
    found = converted(body, "(%b, %d)", head)
    assert names(found).count("permute_dims") == 4  # x to %a and back, w, and %b
    x, y = (torch.randn(2, 6, 6, 8).half() for _ in range(2))
    w = torch.randn(8, 8, 3, 3).half()
    with meta.PassContext(disabled=["channels_last"]):
        run = meta.vm.compile(found)
    given = meta.array(x.clone())
    _, returned = run(given, meta.array(w), meta.array(y))
    assert returned.torch().equal(x) and given.torch().equal(y)


@pytest.mark.parametrize("is_before", [True, False])
def test_a_kernel_that_is_written_is_read_where_it_lies_before(is_before: bool) -> None:
    """As parameters of a training step are; what reads it afterwards has the value from before."""
    update = "%u = multi_tensor_axpby((%w,), (%w,), 1.0, 1.0)"
    product = "%b = conv2d(%x, %k, padding=1)"
    lines = [product, update] if is_before else [update, product]
    body = "\n    ".join(["%k = permute_dims(%w, axes=(0, 3, 1, 2))", *lines])
    found = converted(body, "%b", f"%x: {IMAGE}, %w: {LAST_KERNEL}")
    used = names(dead_code(found))
    assert used.count("permute_dims") == (2 if is_before else 4)  # of %x and %b, to %k and back
    x, w = torch.randn(2, 8, 6, 6).half(), torch.randn(8, 3, 3, 8).half()
    with meta.PassContext(disabled=["channels_last"]):
        run = meta.vm.compile(found)
    result = run(meta.array(x), meta.array(w.clone())).torch()
    expected = torch.nn.functional.conv2d(x.float(), w.permute(0, 3, 1, 2).float(), padding=1)
    torch.testing.assert_close(result.float(), expected, rtol=1e-2, atol=1e-1)


class Block(Model):
    """Convolutions with bias, groups and a stride, joined and cut along the channels."""

    def build(self) -> None:
        """Make the layers."""
        self.first = layers.Conv2d(4, 8, 3, stride=2, padding=1)
        self.grouped = layers.Conv2d(8, 8, 3, padding=1, groups=2)
        self.norm = layers.BatchNorm(8)

    @trace
    def forward(self, x):
        """Return a vector for each image."""
        a = op.relu(self.first(x))
        b = self.norm(self.grouped(a))
        c = op.concat((a, b), 1)
        return op.sum(op.avg_pool2d(c, 2, 2) * 0.5, (2, 3))


def resnet() -> tuple[Model, tuple[int, ...]]:
    return ResNet(ResNetConfig(layers=(1, 1, 1, 1), width=8, num_classes=5)), (2, 3, 40, 40)


@pytest.mark.parametrize("make", [lambda: (Block(), (3, 4, 9, 9)), resnet], ids=["block", "resnet"])
def test_a_training_step_gives_the_same(make) -> None:
    results = []
    for devices in ((), ("cpu",)):
        meta.random.seed(0)
        model, shape = make()
        step = meta.amp.autocast(with_sgd(0.1)(Loss(model)), dtype="bfloat16")
        x = meta.array(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
        with meta.PassContext(config={"channels_last": {"devices": devices}}):
            executable = meta.vm.compile(step, meta.array(1.0), x)
        losses = [executable(meta.array(1.0), x).item() for _ in range(2)]
        results.append((losses, {n: a.torch().clone() for n, a in step.state().items()}))
    (losses, state), (expected, other) = results
    assert losses == pytest.approx(expected, rel=2e-2)
    for name, value in state.items():
        torch.testing.assert_close(value, other[name], rtol=5e-2, atol=2e-2)


class Loss(Model):
    """The mean square of what a network returns."""

    def build(self, network: Model) -> None:
        """Wrap it."""
        self.network = network

    @trace
    def forward(self, x):
        """Return a number."""
        y = op.astype(self.network(x), "float32")
        return op.mean(y * y)
