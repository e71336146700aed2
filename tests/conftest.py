"""What all tests share.

Tests marked ``cuda`` are skipped where there is no NVIDIA GPU.
"""

import os
from pathlib import Path

import pytest
import torch


def first_on_path(folder: Path) -> dict[str, str]:
    """Return the environment of a process that imports from ``folder`` before anything else."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no NVIDIA GPU")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)
