"""The emulated dialect, for every test of this folder that asks for it."""

from tests.dialect.cutlass.emulation import emulated

__all__ = ["emulated"]
