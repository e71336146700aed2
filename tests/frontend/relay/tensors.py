"""Random arrays for the cases of converters, and layouts on torch."""

from __future__ import annotations

import numpy as np
import torch


def floats(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Return normally distributed numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def integers(*shape: int, low: int, high: int, dtype: str, seed: int = 0) -> np.ndarray:
    """Return whole numbers, uniform on [low, high)."""
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype)


def moved(x: np.ndarray | torch.Tensor, source: str, target: str) -> torch.Tensor:
    """Return x with the axes of layout ``source`` in the order of ``target``; no axis is split."""
    return torch.as_tensor(x).permute([source.index(a) for a in target]).contiguous()


def blocked(x: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Return x with an axis in blocks of ``size``, which are behind the last axis."""
    shape = (*x.shape[:axis], x.shape[axis] // size, size, *x.shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(x.reshape(shape), axis + 1, -1))
