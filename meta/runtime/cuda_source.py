"""CUDA source in files beside the Python modules that launch it.

A kernel is a ``.cu`` file, and what several kernels share a ``.cuh`` file that they include. What
varies from call to call are macros, which are defined before the file. NVRTC is given one text, of
which kept machine code is a function, so included files are put in the place of their directives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_INCLUDE = re.compile(r'#include "([\w.]+)"\n')
_ONCE = "#pragma once\n"


def with_macros(file: Path, macros: Mapping[str, object]) -> str:
    """Return the text of a file of CUDA source with these macros defined before it."""
    return "".join(f"#define {name} {value}\n" for name, value in macros.items()) + with_includes(
        file
    )


@cache
def with_includes(file: Path) -> str:
    """Return the text of a file and of the files beside it that it includes, each once."""
    return _resolve_includes(file, set())


def _resolve_includes(file: Path, seen: set[str]) -> str:
    if file.name in seen:
        return ""
    seen.add(file.name)
    content = file.read_text("utf-8").replace(_ONCE, "")
    return _INCLUDE.sub(lambda match: _resolve_includes(file.with_name(match[1]), seen), content)
