"""The emulated dialect, for every test of this folder that asks for it."""

from tests.dialect.cublas.emulation import emulated

__all__ = ["emulated"]
