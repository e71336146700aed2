"""Memory that a program frees is there for its next call: in a process of its own, for the limits
of the heap follow what was freed before.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, torch
from meta.runtime.allocate import retain_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        blocks = [torch.zeros(4 << 20, dtype=torch.uint8) for _ in range(4)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

retain_freed_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a limit of glibc's heap")
def test_the_second_call_needs_no_fresh_pages() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, check=True)
    assert int(run.stdout) < 4096  # a tenth of the pages that are written to
