"""What runs programs: the interpreter, and the machine for compiled ones.

`link.py` binds `Code` to kernels and memory. A program without control flow becomes one function;
others run on the machine (`machine.py`).

- **Preparation** (`preparation.py`): what depends on a model's arrays alone is computed before the
  first call, and again after an array was written or exchanged. torch's counters of writes are
  compared before each call; on CUDA after the launch, while the device works, and the call is then
  made again. Arrays whose memory another library holds have no reliable counter: a program compiled
  then prepares nothing, and one compiled before prepares at each call, as it does while somebody
  else records a CUDA graph. A saved program holds the arrays, and prepares when it is loaded and
  called.
- **Signature** (`signature.py`): the names of a program's inputs and results, for those who pass
  tensors by name or number.
- **Observers** (`observers.py`): ``executable.profile``, ``.debug`` and META_DEBUG_NANS link the
  code once more with kernels that are observed, so that an ordinary run pays nothing.
- **Verification** (META_VERIFY, `verify_values.py`): of the first call of a compiled program with
  arguments of new shapes. Rounding is told by the dtype and, where that does not do, by moving the
  arguments by one unit in the last place.
"""
