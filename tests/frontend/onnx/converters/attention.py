"""Cases of attention and of com.microsoft."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.frontend.onnx.records import OnnxCase, calls, data

MICROSOFT = "com.microsoft"
Q, K, V = data(2, 4, 3, 8), data(2, 4, 5, 8), data(2, 4, 5, 6)
FEW_K, FEW_V = data(2, 2, 5, 8), data(2, 2, 5, 6)
PAST = data(2, 4, 2, 8), data(2, 4, 2, 6)
MASK = data(3, 5)
SEEN = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]], bool)
X = data(2, 3, 4)


def tensors(*arrays: Any) -> list[torch.Tensor]:
    return list(map(torch.from_numpy, arrays))


def norm(x: Any, skip: Any, scale: Any, shift: Any, bias: Any) -> tuple[Any, Any]:
    total = x + skip + bias
    return functional.layer_norm(*tensors(total), (4,), *tensors(scale, shift)).numpy(), total


def rms(x: Any, skip: Any, scale: Any) -> Any:
    total = x + skip
    return total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6) * scale


CASES: list[OnnxCase] = [
    *(
        c
        for causal, (mask, label) in itertools.product(
            (0, 1), ((None, "none"), (MASK, "added"), (SEEN, "seen"))
        )
        for c in calls(
            "Attention",
            Q,
            K,
            V,
            mask,
            opsets=(24,),
            is_causal=causal,
            label=f"{causal},{label}",
        )
    ),
    *calls("Attention", Q, FEW_K, FEW_V, opsets=(23, 24), label="grouped"),
    *calls("Attention", Q, K, V, opsets=(24,), scale=0.3),
    *calls("Attention", Q, K, V, opsets=(24,), softcap=2.0),
    *calls("Attention", Q, K, V, opsets=(24,), results=1, softmax_precision=11),
    *(
        c
        for causal in (0, 1)
        for c in calls("Attention", Q, K, V, None, *PAST, opsets=(24,), results=3, is_causal=causal)
    ),
    *calls(
        "Attention",
        data(2, 3, 32),
        data(2, 5, 16),
        data(2, 5, 12),
        opsets=(24,),
        q_num_heads=4,
        kv_num_heads=2,
    ),
    *calls("Attention", Q, K, V, MASK[:, :4], opsets=(24,), label="a short mask"),
    *calls(
        "Gelu",
        X,
        domain=MICROSOFT,
        expected=lambda x: functional.gelu(*tensors(x)).numpy(),
    ),
    *calls(
        "BiasGelu",
        X,
        X[0, 0],
        domain=MICROSOFT,
        expected=lambda x, b: functional.gelu(*tensors(x + b)).numpy(),
    ),
    *calls(
        "FastGelu",
        X,
        domain=MICROSOFT,
        expected=lambda x: functional.gelu(*tensors(x), approximate="tanh").numpy(),
    ),
    *calls(
        "QuickGelu",
        X,
        domain=MICROSOFT,
        expected=lambda x: (x / (1 + np.exp(-1.702 * x))).astype(np.float32),
    ),
    *calls(
        "FusedMatMul",
        data(2, 4, 3),
        data(2, 5, 4),
        domain=MICROSOFT,
        alpha=0.5,
        transA=1,
        transB=1,
        expected=lambda a, b: 0.5 * a.swapaxes(1, 2) @ b.swapaxes(1, 2),
    ),
    *calls(
        "FusedMatMul",
        data(2, 4, 3),
        data(2, 3, 4),
        domain=MICROSOFT,
        transBatchA=1,
        refused="the batch axis",
    ),
    *calls(
        "SkipLayerNormalization",
        X,
        X[::-1].copy(),
        X[0, 1],
        X[1, 0],
        X[1, 2],
        domain=MICROSOFT,
        epsilon=1e-5,
        tolerance=1e-4,
        expected=lambda *arrays: norm(*arrays)[0],
    ),
    *calls(
        "SkipLayerNormalization",
        X,
        X,
        X[0, 1],
        domain=MICROSOFT,
        results=2,
        refused="not supported as results",
    ),
    *calls(
        "SkipSimplifiedLayerNormalization",
        X,
        X[::-1].copy(),
        X[0, 1],
        domain=MICROSOFT,
        epsilon=1e-6,
        tolerance=1e-4,
        expected=rms,
    ),
]
