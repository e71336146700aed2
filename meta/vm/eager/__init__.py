"""Eager execution: `call.py` runs an operator's call now, by a `decided_call.py`.

- **Contracts** (`kernel_contracts.py`): a kernel that was registered outside of this package is
  checked in the first run of each plan of an eager call, and of each program: what it returns, and
  that it fills its results and leaves its arguments as they were. META_VERIFY checks each launch.
- **Indices** (`launch_checks.py`): on the CPU a kernel runs only after its indices were found in
  range; else the call raises IndexOutOfRange with operator, position, index, size of the dimension,
  and the user's line. A compiled program has an instruction for it (`compiler/emit_values.py`),
  except for indices that are known to be in range (`passes/index_ranges.py`) and for constants,
  which are checked at compilation. `fuse_operators` computes no other indices in the kernel that
  uses them. A check takes about 1 us for up to 32 indices, 2 us for some hundred, and 0.1 ms for
  500,000 (`gather` of as many elements takes 1.3 times as long with it). On CUDA, where a check
  waits for the device, there is none without META_CHECK_INDICES.
- **Example calls** (`example_calls.py`): calls that are explained or measured rather than run.
"""
