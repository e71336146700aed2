"""Floor 5: execution: eager calls, the interpreter, the compiler and the machine.

`compile` runs the passes of `pipeline.py`, emits `Code` (`emit.py`, `code.py`: functions of
instructions over registers, constants, names of kernels), finds and compiles the kernels in one go
(`kernels.py`), and links them to the code (`link.py`). A program without control flow becomes a
flat list of steps; others run on the machine (`machine.py`). ``executable.history`` has one record
per pass, and is empty if the program came from the program cache. Arguments may be types with
symbolic dimensions: ``dims={"n": (1, 32)}`` gives their ranges, and a call out of range raises. A
kernel of unknown dimensions is looked up by the dimension sizes of a call (`ByExtents` in
`kernels.py`), unless its dialect has one for all sizes, as `tvm` has for elementwise operators.

- **Preparation** (`preparation.py`): what depends on a model's arrays alone is computed before the
  first call, and again after an array was written or exchanged. torch's counters of writes are
  compared before each call; on CUDA after the launch, while the device works, and the call is then
  made again. Arrays whose memory another library holds have no reliable counter: a program compiled
  then prepares nothing, and one compiled before prepares at each call, as it does while somebody
  else records a CUDA graph. A saved program holds the arrays, and prepares when it is loaded and
  called.
- **CUDA graphs** (`graph_regions.py`, `graph_steps.py`, `grapher.py`, `graphs.py`): a *region* is a
  run of kernels with nothing between them that the host decides. It runs kernel by kernel at the
  first call, is recorded at the second, and replayed from then on. Other arguments than the model's
  arrays are copied into the region's own memory on the current stream, and results are copied out.
  A region is recorded again if an array's tensor is exchanged (`runtime/buffer_replacement.py`). A
  kernel that cannot be recorded is found by trying, and its region is split.
  ``executable.cuda_graph`` is the report; ``compile(cuda_graph=True)`` raises CaptureError instead,
  and ``False`` and META_CUDA_GRAPH=0 do without graphs.
- **Out of memory**: an `OutOfMemory` with the bytes planned and free, from eager calls, compilation
  (the arena), preparation, runs and loading; nothing of the failed call is kept. Where there is
  memory to run a region but not to record it, its kernels run one by one from then on; where graphs
  are required, that is the error, and the next call tries again.
- **Promises** (`promises.py`): a kernel that was registered outside of this package is checked in
  the first run of each plan of an eager call, and of each program: what it returns, and that it
  fills its results and leaves its arguments as they were.
- **Verification** (META_VERIFY): `promises.py` checks each eager launch, `verify_values.py`
  the first call of a compiled program with arguments of new shapes. Rounding is told by the dtype
  and, where that does not do, by moving the arguments by one unit in the last place.
- **Indices** (`launch_checks.py`): on the CPU a kernel runs only after its indices were found in
  range; else the call raises IndexOutOfRange with operator, position, index, size of the dimension,
  and the user's line. A compiled program has an instruction for it (`emit_values.py`), except for
  indices that are known to be in range (`passes/index_ranges.py`) and for constants, which are
  checked at compilation. `fuse_operators` computes no other indices in the kernel that uses them. A
  check takes about 1 us for up to 32 indices, 2 us for some hundred, and 0.1 ms for 500,000
  (`gather` of as many elements takes 1.3 times as long with it). On CUDA, where a check waits for
  the device, there is none without META_CHECK_INDICES.
- **Pages** (`show/`): ``executable.show()`` writes all of this to a page of HTML; notebooks show
  parts of it as tables.
- **Observers** (`watch.py`): ``executable.profile``, ``.debug`` and META_CHECK_FINITE link the code
  once more with kernels that are watched, so that an ordinary run pays nothing.
"""

from meta.op.core.handler import Default
from meta.vm.compiler import compile
from meta.vm.convention import Program
from meta.vm.eager import eager, failed, recorded
from meta.vm.executable import Executable
from meta.vm.interpreter import interpret
from meta.vm.loading import load
from meta.vm.measure_roofline import measure_peaks
from meta.vm.pipeline import PassContext
from meta.vm.traces import merge_traces

Default.handler, Default.recorded, Default.failed = eager, recorded, failed

__all__ = [
    "Executable",
    "PassContext",
    "Program",
    "compile",
    "interpret",
    "load",
    "measure_peaks",
    "merge_traces",
]
