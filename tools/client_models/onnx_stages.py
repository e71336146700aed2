"""The stages of an ONNX file: imported, called and compiled, for inputs of each size, and compared
with onnxruntime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import meta
from meta.frontend import from_onnx
from meta.frontend.onnx.model import all_nodes
from tools.client_models.measure import IMPORT, Missing, Outcome, Subject

LEAST = 1e-2
"""Numbers below are noise of those that they were made of, as probabilities of sigmoids."""
THREADS = 4


class OnnxSubject(Subject):
    """A file, the inputs of each run, and onnxruntime's results; Missing where it refuses the file.

    limits: the largest distance from these, and how many rows are compared, None for all.
    """

    stages = ("eager", "compiled")

    def __init__(
        self,
        path: Path,
        proto: Any,
        runs: Sequence[dict[str, Any]],
        limits: tuple[float, int | None],
        outcome: Outcome,
        dialect: str | None,
    ) -> None:
        self.path, self.runs, self.dialect = path, runs, dialect or "torch"
        self.tolerance, self.rows = limits
        nodes = list(all_nodes(proto.graph.node))
        outcome.facts = {
            "nodes": len(nodes),
            "operators": dict(Counter(n.op_type for n in nodes).most_common()),
            "opset": next(
                (o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0
            ),
            "sizes": [", ".join("x".join(map(str, v.shape)) for v in r.values()) for r in runs],
        }
        self.wanted = [_onnxruntime_results(path, inputs) for inputs in runs]

    @cached_property
    def model(self) -> Any:
        """What `from_onnx` makes of the file."""
        return from_onnx(self.path)

    def run(self, stage: str) -> Any:
        """Run a stage with the inputs of each run; return the results of each."""
        with meta.dialect.prefer(self.dialect):
            if stage == IMPORT:
                return self.model
            found = []
            for inputs in self.runs:
                given = [meta.array(inputs[n]) for n in self.model.input_names]
                called = meta.vm.compile(self.model, *given) if stage == "compiled" else self.model
                result = called(*given)
                found.append(list(result) if isinstance(result, tuple) else [result])
            return found

    def compare(self, stage: str, found: Any, outcome: Outcome) -> None:
        """Compare with onnxruntime."""
        largest = 0.0
        for results, expected in zip(found, self.wanted, strict=True):
            for i, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
                a, b = ours.numpy(), np.asarray(theirs)
                if self.rows is not None:
                    a, b = a[:, : self.rows], b[:, : self.rows]
                error = distance(a, b)
                largest = max(largest, error)
                if not error <= self.tolerance and stage not in outcome.failed:
                    text = (
                        f"result {i}, {b.dtype}{list(b.shape)}: {error:.1e} of its largest number"
                    )
                    outcome.failed[stage] = text
        outcome.errors[stage] = largest


def _onnxruntime_results(path: Path, inputs: dict[str, Any]) -> list[Any]:
    """Return onnxruntime's results."""
    import onnxruntime  # only here: no test of the tool itself needs it

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    # DynamicQuantizeLSTM rounds the states of the rows that a thread has together: with as many
    # threads as rows each by itself.
    options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
    try:
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        return list(session.run(None, inputs))
    except Exception as error:  # of many kinds
        raise Missing(f"onnxruntime refuses it: {str(error).splitlines()[0]}") from None


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
