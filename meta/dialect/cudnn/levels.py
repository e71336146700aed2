"""Which kernels go before those of other dialects: the one table, by measurement.

Measured on 2026-11-22 on one NVIDIA H200: cuDNN 9, torch 2.11, TVM 0.27. To add a kernel, measure
it beside the other dialects on shapes of ResNet-50 and BERT, and say here what was found.
"""

from __future__ import annotations

from meta.dialect.core import LIBRARY, REFERENCE

LAST = REFERENCE - 1
"""The level of what is slower than other dialects: it runs where it is asked for by name."""

LEVELS: dict[str, int] = {
    # Convolution: torch calls the same kernels, and takes longer to call them.
    "conv1d": LIBRARY,
    "conv1d_dx": LIBRARY,
    "conv1d_dw": LIBRARY,
    "conv2d": LIBRARY,
    "conv2d_dx": LIBRARY,
    "conv2d_dw": LIBRARY,
    "conv3d": LIBRARY,
    "conv3d_dx": LIBRARY,
    "conv3d_dw": LIBRARY,
    "scaled_dot_product_attention": LIBRARY,
    "scaled_dot_product_attention_dx": LIBRARY,
    "layer_norm": LAST,
    "layer_norm_train": LAST,
    "layer_norm_train_dx": LAST,
    "rms_norm": LAST,
    "rms_norm_dx": LAST,
    "softmax": LAST,
    "softmax_dx": LAST,
    "log_softmax": LAST,
    "log_softmax_dx": LAST,
    "max_pool2d": LIBRARY,
    "max_pool2d_dx": LIBRARY,
    "avg_pool2d": LIBRARY,
    "avg_pool2d_dx": LIBRARY,
    "relu": LAST,
    "relu_dx": LAST,
    "sigmoid": LAST,
    "sigmoid_dx": LAST,
    "tanh": LAST,
    "tanh_dx": LAST,
}
FUSED_CONVOLUTION = LIBRARY
"""Of convolutions with bias, relu and a tensor added."""
