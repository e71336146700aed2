"""C libraries are linked by a C compiler, on Linux for x86-64."""

import platform
import shutil
import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def compiler() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("C libraries are written on Linux for x86-64")
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler")
