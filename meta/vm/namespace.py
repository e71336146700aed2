"""What `meta.vm` shows besides saved programs: what makes programs, and runs eager calls, with all
that this imports.
"""

from meta.base.call_context import Default
from meta.vm.benchmark.measure import measure  # which says what chooses kernels
from meta.vm.benchmark.roofline import measure_peaks
from meta.vm.compilation import compile
from meta.vm.compiler.calling_convention import Program
from meta.vm.compiler.pipeline import PassContext
from meta.vm.eager import call
from meta.vm.inspect.traces import merge_traces
from meta.vm.run.interpreter import interpret

__all__ = [
    "PassContext",
    "Program",
    "compile",
    "interpret",
    "measure",
    "measure_peaks",
    "merge_traces",
]

Default.handler, Default.recorded, Default.failed = call.eager, call.recorded, call.failed
