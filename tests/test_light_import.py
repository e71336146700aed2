"""The package is light: what only some users need is imported when it is first needed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

HEAVY = {"cudnn", "cupy", "cutlass", "jinja2", "onnx", "sklearn", "triton", "tvm", "tvm_ffi"}

PROGRAM = """
import json, sys, time
import numpy, torch  # may be imported, and are not what is measured
before, start = set(sys.modules), time.perf_counter()
import meta
dir(meta)  # imports the rest of the package
seconds = time.perf_counter() - start
loaded = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
print(json.dumps({"seconds": seconds, "loaded": loaded}))
"""


def test_import_meta_is_light(record_property: Callable[[str, object], None]) -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    record_property("import_seconds", result["seconds"])
    print(f"import meta: {result['seconds']:.3f} s beyond numpy and torch")
    loaded = HEAVY.intersection(result["loaded"])
    assert not loaded, f"`import meta` imports {sorted(loaded)}"
