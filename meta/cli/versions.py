"""Versions of installed packages."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

OF_CUDA = (
    "nvidia-cublas",
    "nvidia-cudnn-cu13",
    "nvidia-cudnn-frontend",
    "nvidia-cuda-nvrtc",
    "nvidia-cutlass-dsl",
    "quack-kernels",
)
"""Packages whose kernels and compilers run on an NVIDIA GPU."""


def installed(package: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
