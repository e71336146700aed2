"""What is done with one file, in a process of its own: ``python -m tools.onnx_files.measure``.

The file is imported; for inputs of each size it is run by onnxruntime, called and compiled, and the
results are compared. An `Outcome` as JSON goes to stdout.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tools.onnx_files.table import FILES, File

EQUAL, DIFFERS, REFUSED, FAILS = "equal", "differs", "refused", "fails"
NOT_THERE, UNUSABLE = "not there", "onnxruntime refuses it"
LEAST = 1e-2
"""Numbers below are noise of those that they were made of, as probabilities of sigmoids."""
THREADS = 4
PASSED = (EQUAL, NOT_THERE, UNUSABLE)
STAGES = ("eager", "compiled")


@dataclass
class Outcome:
    """What became of a file.

    Attributes
    ----------
    file: its key in the table. result: one of the names above. reason: why. nodes: their number.
    operators: how many nodes of each. opset: of the default domain. sizes: of the inputs at each
    run. errors: the largest distance from onnxruntime's results by stage, over the largest number
    of a result. seconds: by stage.
    """

    file: str
    result: str = FAILS
    reason: str = ""
    nodes: int = 0
    operators: dict[str, int] = field(default_factory=dict)
    opset: int = 0
    sizes: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class _Stop(Exception):
    """The end of the measurement: (result, reason)."""


@contextlib.contextmanager
def _stage(outcome: Outcome, name: str) -> Iterator[None]:
    """Measure a stage of `meta`, whose errors end the measurement."""
    from meta import MetaError

    start = time.monotonic()
    try:
        yield
    except MetaError as error:
        raise _Stop(REFUSED, f"{name}: {error}") from error
    except _Stop:
        raise
    except Exception as error:  # what is no MetaError is a fault
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        raise _Stop(FAILS, f"{name}: {type(error).__name__}: {error} ({where})") from error
    finally:
        outcome.seconds[name] = outcome.seconds.get(name, 0.0) + time.monotonic() - start


def measured(file: File, path: Path, dialect: str) -> Outcome:
    """Return the outcome of a file of the table."""
    outcome = Outcome(file.key)
    try:
        _measure(outcome, file, path, dialect)
        outcome.result = EQUAL
    except _Stop as stop:
        outcome.result, outcome.reason = stop.args
    return outcome


def _measure(outcome: Outcome, file: File, path: Path, dialect: str) -> None:
    import onnx

    import meta
    from meta.frontend import from_onnx
    from meta.frontend.onnx.model import all_nodes
    from tools.onnx_files.inputs import is_batched, made

    proto = onnx.load(path)
    nodes = list(all_nodes(proto.graph.node))
    counts = Counter(n.op_type for n in nodes)
    outcome.nodes, outcome.operators = len(nodes), dict(counts.most_common())
    outcome.opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    runs = []
    for run in range(2 if is_batched(file, proto) else 1):
        inputs = made(file, proto, run)
        runs.append((inputs, _wanted(path, inputs)))
        outcome.sizes.append(", ".join("x".join(map(str, v.shape)) for v in inputs.values()))
    with meta.dialect.prefer(dialect):
        with _stage(outcome, "import"):
            model = from_onnx(path)
        for inputs, wanted in runs:
            given = [meta.array(inputs[n]) for n in model.input_names]
            with _stage(outcome, "eager"):
                _compare(outcome, file, "eager", model(*given), wanted)
            with _stage(outcome, "compiled"):
                found = meta.vm.compile(model, *given)(*given)
                _compare(outcome, file, "compiled", found, wanted)


def _wanted(path: Path, inputs: dict[str, Any]) -> list[Any]:
    """Return onnxruntime's results."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    # DynamicQuantizeLSTM rounds the states of the rows that a thread has together: with as many
    # threads as rows each by itself.
    options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
    try:
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        return list(session.run(None, inputs))
    except Exception as error:  # of many kinds
        raise _Stop(UNUSABLE, str(error).splitlines()[0]) from None


def _compare(outcome: Outcome, file: File, stage: str, found: Any, wanted: list[Any]) -> None:
    """Note the distance of results; `_Stop` if it is too large."""
    results = list(found) if isinstance(found, tuple) else [found]
    for place, (one, other) in enumerate(zip(results, wanted, strict=True)):
        values, other = one.numpy(), np.asarray(other)
        if file.rows is not None:
            values, other = values[:, : file.rows], other[:, : file.rows]
        error = distance(values, other)
        outcome.errors[stage] = max(outcome.errors.get(stage, 0.0), error)
        if not error <= file.tolerance:
            what = f"result {place}, {other.dtype}{list(other.shape)}"
            raise _Stop(DIFFERS, f"{stage}: {what}: {error:.1e} of its largest number")


def distance(found: Any, wanted: Any) -> float:
    """Return the largest difference over the largest number; infinite for other types and other
    places of what is not finite.
    """
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    if wanted.dtype.kind not in "fiub" and wanted.dtype.name != "bfloat16":
        return 0.0 if np.array_equal(found, wanted) else float("inf")
    a, b = (v.astype(np.float64) for v in (found, wanted))
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    a, b = a[finite], b[finite]
    if not b.size:
        return 0.0
    return float(np.abs(a - b).max() / max(np.abs(b).max(), LEAST))


def main(arguments: list[str]) -> int:
    """Measure the file of a key, whose path, dialect and limit of memory in GiB follow."""
    key, path, dialect, memory = arguments
    warnings.simplefilter("ignore")
    limit = int(float(memory) * (1 << 30))
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    file = next(f for f in FILES if f.key == key)
    print(json.dumps(asdict(measured(file, Path(path), dialect))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
