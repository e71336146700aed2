"""Products by oneDNN in the dialect `torch`, as large as they are taken."""

import pytest
import torch

import meta
from meta import op
from meta.dialect.torch import conv_products, onednn
from meta.op.core.op import Op
from meta.op.linalg import STORED_TRANSPOSED

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch without oneDNN"
)
MATRICES = [base for base in STORED_TRANSPOSED if not base.name.startswith("batch_")]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let each product of 1 or more multiplications be a large one; return a list of calls."""
    calls: list[int] = []
    onednn.is_large(1)  # measures, the first time in a process, with products
    product = onednn.product

    def count(*args: object) -> torch.Tensor:
        calls.append(1)
        return product(*args)

    monkeypatch.setattr(onednn, "LARGE", 1)
    monkeypatch.setattr(onednn, "product", count)
    return calls


@pytest.mark.parametrize("base", MATRICES, ids=lambda base: base.name)
def test_products_of_matrices(base: Op, counted: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    t1, t2 = STORED_TRANSPOSED[base]
    x1 = torch.randn((7, 11)[:: -1 if t1 else 1], generator=generator)
    x2 = torch.randn((11, 13)[:: -1 if t2 else 1], generator=generator)
    with meta.dialect.only("torch"):
        found = base(meta.array(x1), meta.array(x2)).torch()
    wide1, wide2 = x1.double(), x2.double()
    expected = (wide1.T if t1 else wide1) @ (wide2.T if t2 else wide2)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert counted
    assert found.is_contiguous()


@pytest.mark.parametrize("after", [3, 7])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_that_are_products(stride: int, after: int, counted: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(2, 4, 4, 5, generator=generator)
    kernel = torch.randn(after, 1, 1, 5, generator=generator)
    arrays = [meta.array(t) for t in (image, kernel)]
    wide = [t.double().permute(0, 3, 1, 2).requires_grad_() for t in (image, kernel)]
    expected = torch.nn.functional.conv2d(*wide, stride=stride)
    dy = torch.randn(expected.shape, generator=generator)
    expected.backward(dy.double())
    for array in arrays:
        array.requires_grad = True
    with meta.dialect.only("torch"):
        y = op.conv2d.plain(*arrays, stride, 0, 1, 1, "NHWC", "OHWI", "NHWC")
        y.backward(meta.array(dy.permute(0, 2, 3, 1).contiguous()))
    found = [y.torch(), *(array.grad.torch() for array in arrays)]
    for one, other in zip(found, [expected, *(t.grad for t in wide)], strict=True):
        torch.testing.assert_close(
            one.double(), other.permute(0, 2, 3, 1).detach(), rtol=1e-5, atol=1e-5
        )
    assert len(counted) == 3


SHAPES = {"OHWI": (0, 3), "OIHW": (0, 1), "HWIO": (3, 2)}


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize(("before", "after"), [(5, 3), (5, 7), (4, 4)])
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_kernels_are_compact(
    stride: int, before: int, after: int, layout: str, counted: list[int]
) -> None:
    """Programs read the result of a kernel as it lies in memory without gaps."""
    outputs, inputs = SHAPES[layout]
    shape = [1, 1, 1, 1]
    shape[outputs], shape[inputs] = after, before
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(2, 4, 4, before, generator=generator)
    dy = torch.randn(2, 4 // stride, 4 // stride, after, generator=generator)
    found = conv_products.product_dw(dy, image, layout, (stride, stride), tuple(shape))
    read = image[:, ::stride, ::stride].double()
    expected = torch.einsum(
        "nhwo,nhwi->oi" if outputs < inputs else "nhwo,nhwi->io", dy.double(), read
    )
    assert counted and found.is_contiguous()
    torch.testing.assert_close(found.double(), expected.view(shape), rtol=1e-5, atol=1e-5)
    matrix = torch.randn(shape, generator=generator)
    dx = conv_products.product_dx(dy, matrix, layout, (stride, stride), image.shape)
    y = conv_products.product(image, matrix, layout, (stride, stride))
    assert dx.is_contiguous() and y.is_contiguous()


def test_small_products_are_left_to_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_far_faster, least in ((True, onednn.MEDIUM), (False, onednn.LARGE)):
        monkeypatch.setattr(onednn, "_is_far_faster", lambda answer=is_far_faster: answer)
        assert onednn.is_large(least)
        assert not onednn.is_large(least - 1)


def test_the_choice_is_measured_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of several wait for each other wherever others use their cores."""
    seen: set[int] = set()
    product = onednn.product

    def count(*args: object) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        return product(*args)

    monkeypatch.setattr(onednn, "product", count)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert onednn._is_far_faster.__wrapped__() in (True, False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == {1}
