"""The `triton` dialect: kernels written in Triton, ours and everybody's.

``@triton_dialect.kernel(op.X, grid=...)`` above a function of ``@triton.jit`` registers it; a
dialect of one's own is another `TritonDialect`. docs/howto/triton.md is the guide.

From a function to a launch: `function.py` reads its parameters, `binding.py` finds the value of
each in a call, `configs.py` the configurations, `build.py` compiles what was found and keeps the
machine code, `launch.py` launches it. `single_launch.py` is the kernel of an operator that is one
launch, and `sequence.py` one launch of several, for makers of their own. `pointwise.py` writes
kernels of elementwise operators around a function of elements. `interpreter.py` runs kernels on the
CPU.

Triton is imported by the modules of this package, which are loaded when a kernel may run, and never
by `import meta`. Its autotuner is not used: configurations take part in measured dispatch.
"""

from meta.dialect.triton.dialect import TritonDialect, interpreted

triton_dialect = TritonDialect("triton", package=__name__)

__all__ = ["TritonDialect", "interpreted", "triton_dialect"]
