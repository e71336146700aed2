"""The `cudnn` dialect: NVIDIA's library of deep learning kernels, cuDNN 9.

Convolutions, attention and normalisations are graphs of cuDNN, built through the package
nvidia-cudnn-frontend (`graph.py`) and kept as plans (`plans.py`). Convolutions take a bias, a sum
and relu behind them into the graph, in any layout of their axes. A plan whose kernel cuDNN has
already is preferred to one that it has to compile. Softmax, pooling and activations are functions
of libcudnn, called through ctypes (`library.py`). Which of them goes before other dialects was
measured: ``levels.json`` has their levels. ATen's convolutions and attention, which call cuDNN too,
are one level below on CUDA. Add a kernel in the operator's family file.
"""

from importlib import import_module
from importlib.util import find_spec

import torch

from meta.base.device import Device
from meta.dialect.core import LIBRARY, Dialect
from meta.runtime.nvidia_packages import load


def probe() -> str | None:
    """Return why the kernels cannot be used, or None."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    if find_spec("cudnn") is None:
        return "nvidia-cudnn-frontend is not installed"
    return None if load("libcudnn.so.9") is not None else "libcudnn not found"


def warmup(device: Device) -> None:
    """Make a handle, for which cuDNN loads its parts."""
    import_module(f"{__name__}.library").warmup(device.ordinal)


cudnn = Dialect(
    "cudnn", devices=("cuda",), plevel=LIBRARY, probe=probe, package=__name__, warmup=warmup
)
