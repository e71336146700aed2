"""An emulator of CUDA: the source of kernels is compiled as C++ and run on the CPU.

All threads run, one after the other between barriers.

Every access to memory is checked: it must lie in one of the tensors of the call or in shared
memory, be aligned, and race with no other thread's. A kernel that does what no GPU allows raises
`EmulationError`. It needs g++, and says nothing of speed.

`templates.emulated` is a block in which kernels of `meta.dialect.template` serve the CPU,
`operators.emulated_cuda` one in which those of `@compute` are scheduled and generated as for a GPU.
docs/howto/emulator.md shows both.
"""

from meta.testing.emulator.launching import EmulationError

__all__ = ["EmulationError"]
