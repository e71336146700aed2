"""Which kernels go before those of other dialects: the one table, by measurement.

Measured on 2026-11-22 on one NVIDIA H200, cuDNN 9.19, torch 2.11, beside ATen, in microseconds of
the GPU unless said otherwise; half precision, channels last, if nothing else is said. To add a
kernel, measure it beside the other dialects on shapes of ResNet-50 and BERT, and say here what was
found.
"""

from __future__ import annotations

from meta.dialect.core import LIBRARY, REFERENCE

LAST = REFERENCE - 1
"""The level of what is slower than other dialects: it runs where it is asked for by name."""

LEVELS: dict[str, int] = {
    # ATen calls the same kernels: 38.5 and 39.3 for [64, 64, 56, 56] by 3x3, but 14.4 of the host's
    # time for a call instead of 9.3. Groups of 16 channels: gradient by x 10.5 and 22.9.
    "conv1d": LIBRARY,
    "conv1d_dx": LIBRARY,
    "conv1d_dw": LIBRARY,
    "conv2d": LIBRARY,
    "conv2d_dx": LIBRARY,
    "conv2d_dw": LIBRARY,
    "conv3d": LIBRARY,
    "conv3d_dx": LIBRARY,
    "conv3d_dw": LIBRARY,
    # 32x12x128x64: 11 and 34, with a mask 19 and 45, gradient 45 and 161. 8x12x512x64, causal: 21
    # and 22, gradient 65 and 157. ATen's figures are of its best kernel, with the host's time.
    "scaled_dot_product_attention": LIBRARY,
    "scaled_dot_product_attention_dx": LIBRARY,
    # [4096, 768]: 8 to 21, gradients 12; [8192, 8192]: 315 and 123. Each is compiled for a second.
    "layer_norm": LAST,
    "layer_norm_train": LAST,
    "layer_norm_train_dx": LAST,
    "rms_norm": LAST,
    "rms_norm_dx": LAST,
    # [49152, 128]: 11 and 13; [4096, 1024]: 16 and 10, gradient 12 and 16; [8192, 8192]: 121 and
    # 255. Not measured beside generated code, which joins what is around it.
    "softmax": LAST,
    "softmax_dx": LAST,
    "log_softmax": LAST,
    "log_softmax_dx": LAST,
    # [64, 64, 112, 112] by 3x3, stride 2: 81 and 215, channels first 163 and 208; 2x2: 24 and 47.
    # Generated code: 38, channels first 33.
    "max_pool2d": LAST,
    # 440, and 487 with 215 for the indices; but 2x2: 318, and 82 with 47; channels first 1207, and
    # 589 with 208.
    "max_pool2d_dx": LAST,
    # 3x3: 395 and 353; 2x2: 79 and 59; 7x7 of [64, 2048, 7, 7]: 11.7 and 9.9.
    "avg_pool2d": LAST,
    # 217 and 1072; 2x2: 185 and 216; 7x7: 93 and 96, channels first 23 and 92. Generated code: 78
    # (3x3, stride 2, of [64, 64, 112, 112], where cuDNN took 217), channels first 70 and 426.
    "avg_pool2d_dx": LAST,
    # 32 Mi elements: 78 to 84 and 35 to 38.
    "relu": LAST,
    "relu_dx": LAST,
    "sigmoid": LAST,
    "sigmoid_dx": LAST,
    "tanh": LAST,
    "tanh_dx": LAST,
}

FUSED_CONVOLUTION = LIBRARY
"""Of convolutions with bias, relu and a tensor added. [64, 64, 56, 56] by 3x3: 39 with bias and
relu and 46 with the tensor, 39 the convolution alone. By 1x1 to 256 channels: 75, and 39 alone.
float32, [8, 64, 28, 28]: 28 in all cases.
"""
