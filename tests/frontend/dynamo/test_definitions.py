"""Operators of our own among PyTorch's: PyTorch's own checks of operators, of what they return for
tensors without data, what they write, and how AOTAutograd traces them; and that autocast leaves
them alone.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from meta.base.errors import GradientError
from meta.frontend.aten.cross_entropy import CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD
from meta.frontend.dynamo import attention_operators
from meta.frontend.dynamo.custom_operators import BATCH_NORM_DXWB, BATCH_NORM_UPDATE, MAX_POOL_DX
from meta.frontend.dynamo.norm_operators import RMS_NORM, RMS_NORM_DX

CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
DIFFERENTIATED = (*CHECKS, "test_autograd_registration")


def number(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def labels(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape) % 3


def pooled() -> tuple[Any, ...]:
    x, window = number(2, 3, 6, 6), ([3, 3], [2, 2], [1, 1], [1, 1], False)
    y = torch.nn.functional.max_pool2d(x, *window[:4])
    return torch.ones_like(y), x, y, *window


CASES: dict[str, tuple[torch._ops.OpOverload, tuple[Any, ...]]] = {
    "loss": (CROSS_ENTROPY, (number(4, 5), labels(4), None, 1, 1, -100, torch.float32)),
    "trained loss": (
        CROSS_ENTROPY,
        (number(4, 5).requires_grad_(), labels(4), None, 1, 2, -100, torch.float32),
    ),
    "trained losses of places": (
        CROSS_ENTROPY,
        (number(2, 5, 3).requires_grad_(), labels(2, 3), None, 1, 0, 1, torch.float32),
    ),
    "loss of places": (
        CROSS_ENTROPY,
        (number(2, 5, 3), labels(2, 3), number(5).abs(), 1, 0, 1, torch.float32),
    ),
    "padded loss": (CROSS_ENTROPY, (number(4, 8), labels(4), None, 1, 2, 0, torch.float32, 5)),
    "gradient of a loss": (
        CROSS_ENTROPY_BACKWARD,
        (
            *(number(), number(4, 5).bfloat16(), labels(4), number(4), number(4)),
            *(None, 1, 1, -100, torch.float32),
        ),
    ),
    "root mean square": (RMS_NORM, (number(2, 3, 4).requires_grad_(), number(4), -1, 1e-5)),
    "narrow root mean square": (RMS_NORM, (number(3, 4).bfloat16(), number(4), 1, 1e-5)),
    "root mean square of an axis": (
        RMS_NORM,
        (number(2, 3, 4).requires_grad_(), number(3).requires_grad_(), 1, 1e-5),
    ),
    "root mean square alone": (RMS_NORM, (number(3, 4).requires_grad_(), None, 0, 1e-5)),
    "gradient of it": (RMS_NORM_DX, (number(2, 3, 4), number(2, 3, 4), number(4), 2, 1e-5)),
    "gradient of an axis": (RMS_NORM_DX, (number(2, 3, 4), number(2, 3, 4), number(2), 0, 1e-5)),
    "gradient of it alone": (RMS_NORM_DX, (number(2, 3, 4), number(2, 3, 4), None, 1, 1e-5)),
    "shared heads": (
        attention_operators.fused_attention,
        (number(2, 4, 3, 8), number(2, 2, 5, 8), number(2, 2, 5, 6), None, False, None, False),
    ),
    "gradient of shared heads": (
        attention_operators.fused_attention_dx,
        (
            *(number(2, 4, 3, 8), number(2, 4, 3, 8), number(2, 2, 3, 8), number(2, 2, 3, 8)),
            *(number(3, 3) > 0, number(2, 4, 3, 8), number(2, 4, 3), False, 0.5, False, False),
        ),
    ),
    "attention with a bias": (
        attention_operators.fused_attention,
        (
            *(number(2, 4, 3, 8).bfloat16() for _ in range(3)),
            *(number(1, 4, 3, 3).bfloat16(), False, 0.5, True),
        ),
    ),
    "gradient of a bias": (
        attention_operators.fused_attention_dx,
        (
            *(number(4, 2, 3, 8) for _ in range(4)),
            *(number(2, 2, 3, 3), number(4, 2, 3, 8), number(4, 2, 3), False, 0.5, True, True),
        ),
    ),
    "gradient of a normalisation": (
        BATCH_NORM_DXWB,
        (number(2, 3, 4), number(2, 3, 4), number(3), 1e-5),
    ),
    "statistics": (
        BATCH_NORM_UPDATE,
        (number(2, 3, 4), number(3), None, number(3), number(3).abs(), 0.1, 1e-5),
    ),
    "gradient of maxima": (MAX_POOL_DX, pooled()),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # these are within torch
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_torchs_checks(name: str) -> None:
    overload, args = CASES[name]
    trained = any(isinstance(a, Tensor) and a.requires_grad for a in args)
    torch.library.opcheck(overload, args, test_utils=DIFFERENTIATED if trained else CHECKS)


@pytest.mark.parametrize("name", CASES)
def test_autocast_leaves_dtypes(name: str) -> None:
    overload, args = CASES[name]
    own = [[a.detach().clone() if isinstance(a, Tensor) else a for a in args] for _ in range(2)]
    expected = overload(*own[0])
    with torch.autocast("cpu", torch.bfloat16):
        found = overload(*own[1])
    torch.testing.assert_close(found, expected)


def test_what_has_no_gradient_refuses() -> None:
    x = number(2, 8).requires_grad_()
    y = RMS_NORM(x, None, 1, 1e-5)
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(GradientError, match="rms_norm_dx has no gradient"):
        dx.sum().backward()


def test_what_is_written_is_counted() -> None:
    overload, args = CASES["statistics"]
    own = [a.clone() if isinstance(a, Tensor) else a for a in args]
    before = [own[i]._version for i in (3, 4)]
    overload(*own)
    assert all(own[i]._version > b for i, b in zip((3, 4), before, strict=True))
    assert own[0]._version == own[1]._version == 0
