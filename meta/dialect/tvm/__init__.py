"""The `tvm` dialect: every operator that computes, as a TE compute function that Apache TVM
compiles.

It is the default everywhere (COMPILER). Add a kernel in the operator's family file with `@compute`.
Nothing here imports TVM itself: the family files do, and they are loaded by the first dispatch.
"""

from importlib.util import find_spec

from meta.dialect.core import COMPILER, Dialect


def probe() -> str | None:
    """Return why TVM cannot be used, or None."""
    return None if find_spec("tvm") is not None else "the package apache-tvm is not installed"


tvm = Dialect(
    "tvm",
    devices=("cpu", "cuda"),
    plevel=COMPILER,
    probe=probe,
    package=__name__,
    restorer=f"{__name__}.artifact",
)
