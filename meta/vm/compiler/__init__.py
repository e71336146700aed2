"""From a program, called by its `Convention`, to `Code` and the kernels that it names.

`pipeline.py` has the passes in order, `emit.py` makes `Code` of the last module (`code.py`:
functions of instructions over registers, constants, names of kernels), and `kernels.py` finds and
compiles the kernels in one go. A kernel of unknown dimensions is looked up by the dimension sizes
of a call (`ByExtents`), unless its dialect has one for all sizes, as `tvm` has for elementwise
operators. The function that users call is `meta.vm.compile` (`compilation.py`).
"""
