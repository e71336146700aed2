"""Random inputs, alone or as pairs of an ndarray and the same torch tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from meta import random
from meta.base.dtype import TO_TORCH
from meta.runtime.ndarray import ndarray


def get_testable_devices() -> list[str]:
    """Return the device kinds of this machine: ["cpu"], or ["cpu", "cuda"].

    >>> meta.testing.get_testable_devices()[0]
    'cpu'
    """
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def randn(
    shape: Sequence[int],
    *,
    device: str = "cpu",
    dtype: str = "float32",
    requires_grad: bool = False,
) -> ndarray:
    """Return standard normal values from the default generator.

    >>> x = meta.testing.randn((2, 3), dtype="float64", requires_grad=True)
    >>> x.shape, x.dtype, x.requires_grad
    ((2, 3), 'float64', True)
    """
    array: ndarray = random.normal(shape, dtype=dtype, device=device)
    array.requires_grad = requires_grad
    return array


def randint(
    shape: Sequence[int], *, low: int = 0, high: int = 10, device: str = "cpu", dtype: str = "int64"
) -> ndarray:
    """Return integers, uniform on [low, high).

    >>> x = meta.testing.randint((2, 50), low=3, high=5)
    >>> x.shape, x.dtype, meta.unique_values(x).tolist()
    ((2, 50), 'int64', [3, 4])
    """
    array: ndarray = random.randint(shape, low=low, high=high, dtype=dtype, device=device)
    return array


def randn_torch(
    shape: Sequence[int],
    *,
    device: str = "cpu",
    dtype: str = "float32",
    requires_grad: bool = False,
    mean: float = 0.0,
    std: float = 1.0,
    positive: bool = False,
) -> tuple[ndarray, torch.Tensor]:
    """Return normal values twice, as an ndarray and as a torch tensor with memory of its own.

    ``positive`` takes absolute values and adds 1e-5.

    >>> [x.shape for x in meta.testing.randn_torch((2, 3))]
    [(2, 3), torch.Size([2, 3])]
    """
    values = random.normal(shape, mean=mean, std=std).tensor
    if positive:
        values = values.abs() + 1e-5
    values = values.to(device=device, dtype=TO_TORCH[dtype])
    return pair(values, requires_grad)


def pair(values: torch.Tensor, requires_grad: bool = False) -> tuple[ndarray, torch.Tensor]:
    """Return a tensor's values as an ndarray and as a torch tensor, both leaves."""
    array = ndarray(values.detach().clone().contiguous())
    array.requires_grad = requires_grad
    return array, values.detach().clone().requires_grad_(requires_grad)


def one_hot_torch(
    size: int | Sequence[int], num_classes: int, *, device: str = "cpu", dtype: str = "int64"
) -> tuple[ndarray, torch.Tensor]:
    """Return random class labels (not expanded) twice, as an ndarray and as a torch tensor.

    >>> labels, same = meta.testing.one_hot_torch(100, num_classes=3)
    >>> labels.shape, same.max().item() < 3, labels.tolist() == same.tolist()
    ((100,), True, True)
    """
    shape = (size,) if isinstance(size, int) else tuple(size)
    return pair(random.randint(shape, low=0, high=num_classes, dtype=dtype, device=device).tensor)
