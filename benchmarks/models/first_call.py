"""Seconds from the start of compilation to the first result, in a process of its own.

    PYTHONPATH=benchmarks python -m models.first_call bert-tiny training meta 2

prints them. Libraries are imported, and model and inputs made, before the clock starts.
"""

from __future__ import annotations

import sys
import time

import torch

from models import NETWORKS
from models.contenders import Contender


def main() -> None:
    """Measure one first call."""
    network, mode, name, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    contender = Contender(NETWORKS[network], name, mode)
    start = time.perf_counter()
    contender.compiled()()
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main()
