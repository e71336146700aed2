"""onnx's own node tests through `meta.frontend.from_onnx`: ``python -m tools.onnx_node_tests``.

Each test is a model of one operator (or of those that define it) with inputs and expected outputs,
which onnx makes itself. A test runs in a worker process with a time limit. It passes if all outputs
have the expected shape, dtype and values, to the test's own tolerances.

Many tests give shapes, axes and other arguments as graph inputs, where a model would have
constants. Where a test is refused as it is, it is run once more with such inputs (vectors and
single numbers behind the first input) given as constants; these are counted by themselves.

Exit status: 0 done, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import meta
from meta.base.dtype import TO_NUMPY
from meta.base.progress import bar
from meta.frontend import from_onnx
from meta.frontend.onnx.values import CARRIER_DTYPES
from meta.testing.workers import Lost, answer_all, in_processes

BFLOAT16 = 2**-6
"""The relative tolerance of onnx's own runner for bfloat16, two units in the last place."""
KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")
AS_IT_IS, WITH_CONSTANTS, FAILED = "as it is", "with constants", "failed"


@dataclass(frozen=True)
class Outcome:
    """What became of a test.

    Attributes
    ----------
    name: of the test. operators: in its graph. result: `AS_IT_IS`, `WITH_CONSTANTS` or `FAILED`.
    stage: where it failed: "import", "run" or "compare". reason: why.
    """

    name: str
    operators: tuple[str, ...]
    result: str
    stage: str = ""
    reason: str = ""


class _Failed(Exception):
    """A stage that a test does not pass."""

    def __init__(self, stage: str, error: object) -> None:
        super().__init__(stage)
        self.stage, self.reason = stage, _first_line(error)


def _first_line(error: object) -> str:
    if not isinstance(error, BaseException):
        return str(error)
    text = str(error).strip()
    if isinstance(error, meta.MetaError) and "not supported" in text:
        # An error that lists calls: what is listed is the reason.
        listed = [line.strip(" -") for line in text.splitlines() if "  - " in line]
        text = re.sub(r", (once|\d+ times)(, first at [^:]+)?", "", listed[0]) if listed else text
    kind = "" if isinstance(error, meta.MetaError) else f"{type(error).__name__}: "
    return kind + (text.splitlines() or [""])[0]


def outcome(case: Any) -> Outcome:
    """Run one test."""
    operators = tuple(sorted({node.op_type for node in case.model.graph.node}))
    inputs, expected = case.data_sets[0]
    try:
        _check(case, inputs, expected, {})
        return Outcome(case.name, operators, AS_IT_IS)
    except _Failed as error:
        first = error
    if first.stage == "compare":
        # What is computed wrongly is no better for constants with which it is not.
        return Outcome(case.name, operators, FAILED, first.stage, first.reason)
    tried: list[list[str]] = []
    for behind in (1, 0):
        constants = _constants(case.model, inputs, behind)
        if not constants or list(constants) in tried:
            continue
        tried.append(list(constants))
        try:
            _check(case, inputs, expected, constants)
            return Outcome(case.name, operators, WITH_CONSTANTS)
        except _Failed as error:
            # With the constants there is one reason less.
            first = error
    return Outcome(case.name, operators, FAILED, first.stage, first.reason)


def _constants(model: Any, inputs: list[Any], behind: int) -> dict[str, Any]:
    """Return the inputs from a place on that are vectors, single numbers or text."""
    named = list(zip([i.name for i in model.graph.input], inputs, strict=False))
    return {
        n: np.asarray(v)
        for n, v in named[behind:]
        if isinstance(v, np.ndarray | np.generic) and (np.ndim(v) <= 1 or v.dtype.kind in "OUS")
    }


def _check(case: Any, inputs: list[Any], expected: list[Any], constants: dict[str, Any]) -> None:
    """Import, run and compare; raises _Failed."""
    try:
        model = from_onnx(case.model, constants)
    except Exception as error:
        raise _Failed("import", error) from error
    try:
        named = zip([i.name for i in case.model.graph.input], inputs, strict=False)
        given = [_array(v) for n, v in named if n not in constants]
        result = model(*given)
        found = list(result) if isinstance(result, tuple) else [result]
        values = [_numpy(r) for r in found]
    except Exception as error:
        raise _Failed("run", error) from error
    if len(values) != len(expected):
        raise _Failed("compare", f"{len(values)} outputs instead of {len(expected)}")
    for value, wanted in zip(values, expected, strict=True):
        _compare(value, _numpy(wanted), case.rtol, case.atol)


def _compare(found: Any, wanted: Any, rtol: float, atol: float) -> None:
    if isinstance(wanted, np.ndarray) and wanted.dtype.kind in "OUS":
        texts = found.tolist() if isinstance(found, np.ndarray) else found
        if texts != wanted.tolist():
            raise _Failed("compare", "another text")
        return
    if isinstance(wanted, list) or wanted is None or isinstance(found, list) or found is None:
        if type(found) is not type(wanted) or len(found or ()) != len(wanted or ()):
            raise _Failed("compare", "another structure")
        for one, other in zip(found or (), wanted or (), strict=True):
            _compare(one, other, rtol, atol)
        return
    if found.shape != wanted.shape:
        raise _Failed("compare", "another shape")
    if wanted.dtype.name in CARRIER_DTYPES:
        # What is held has to be a number of the dtype.
        if found.dtype != CARRIER_DTYPES[wanted.dtype.name] or not _is_in(found, wanted.dtype):
            raise _Failed("compare", f"{found.dtype} instead of {wanted.dtype}")
        found = found.astype(wanted.dtype)
    if found.dtype != wanted.dtype:
        raise _Failed("compare", f"{found.dtype} instead of {wanted.dtype}")
    if found.dtype.kind not in "biuf":
        rtol = max(rtol, BFLOAT16) if found.dtype.name == "bfloat16" else rtol
        found, wanted = (v.astype(np.float32) for v in (found, wanted))
    if not np.allclose(found, wanted, rtol, atol, equal_nan=True):
        raise _Failed("compare", "other values")


def _is_text(value: Any) -> bool:
    """Whether a value is nested lists of text."""
    leaves = np.array(value, object).reshape(-1) if isinstance(value, list) and value else ()
    return len(leaves) > 0 and all(isinstance(v, str) for v in leaves)


def _is_in(values: Any, dtype: Any) -> bool:
    """Whether a dtype has all of these numbers."""
    wide = values.astype(np.float32)
    return np.array_equal(wide.astype(dtype).astype(np.float32), wide, equal_nan=True)


def _array(value: Any) -> Any:
    """Return the input of a model for that of a test."""
    if isinstance(value, list):
        return [_array(v) for v in value]
    if value is None:
        return None
    values = _numpy(value)
    name = values.dtype.name
    return meta.array(
        values.astype(TO_NUMPY[CARRIER_DTYPES[name]]) if name in CARRIER_DTYPES else values
    )


def _numpy(value: Any) -> Any:
    """Return an array of NumPy, a list of them, or None."""
    if isinstance(value, str) or _is_text(value):
        return np.array(value, object)
    if isinstance(value, list | tuple):
        return [_numpy(v) for v in value]
    if value is None:
        return None
    if isinstance(value, meta.ndarray):
        return value.numpy()
    if hasattr(value, "data_type"):
        return numpy_helper.to_array(value)
    return np.asarray(value)


def cases(pattern: str, kind: str = "node") -> list[Any]:
    """Return onnx's tests of a kind whose name contains the pattern."""
    return [c for c in _all_cases(kind) if pattern in c.name]


@cache
def _all_cases(kind: str) -> list[Any]:
    """Let onnx make its tests of nodes, which takes seconds, or read those of files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(load_model_tests(kind=kind))
    return [c if c.model is not None else _read(c) for c in found]


def _read(case: Any) -> Any:
    """Return a test that is kept in files with its model and its data."""
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        inputs = _tensors(data, "input", model.graph.input)
        sets.append((inputs, _tensors(data, "output", model.graph.output)))
    return replace(case, model=model, data_sets=sets)


def _tensors(folder: Path, what: str, declared: Any) -> list[Any]:
    """Return the values of a test's inputs or outputs."""
    count = len(list(folder.glob(f"{what}_*.pb")))
    return [_tensor(folder / f"{what}_{i}.pb", declared[i]) for i in range(count)]


def _tensor(path: Path, declared: Any) -> Any:
    """Return the array or the sequence of arrays in a file."""
    if declared.type.HasField("sequence_type"):
        sequence = onnx.SequenceProto()
        sequence.ParseFromString(path.read_bytes())
        return numpy_helper.to_list(sequence)
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(tensor)


def _serve(connection: Connection, kind: str, pattern: str, dialect: str) -> None:
    """Answer places in the list of tests by their outcomes; in a process of its own."""
    found = cases(pattern, kind)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    with meta.dialect.prefer(dialect):
        answer_all(connection, lambda place: (outcome(found[place]), True))


def outcomes(options: argparse.Namespace, found: list[Any]) -> Iterator[Outcome]:
    """Yield the outcome of every test, of one without an answer too, in order."""
    given = options.kind, options.filter, options.dialect
    answers = in_processes(range(len(found)), _serve, given, 1, options.limit)
    with bar(len(found), "tests") as progress:
        for place, answer in answers:
            if isinstance(answer, Lost):
                case = found[place]
                operators = tuple(sorted({node.op_type for node in case.model.graph.node}))
                answer = Outcome(case.name, operators, FAILED, "run", answer.why)
            yield answer
            progress.update()


def report(results: list[Outcome], names: bool) -> str:
    """Return the counts, and the reasons for what does not pass, most frequent first."""
    counts = Counter(r.result for r in results)
    passed = counts[AS_IT_IS] + counts[WITH_CONSTANTS]
    lines = [
        f"{passed} of {len(results)} tests pass: {counts[AS_IT_IS]} as they are, "
        f"{counts[WITH_CONSTANTS]} with inputs given as constants",
        "",
    ]
    reasons: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for result in results:
        if result.result == FAILED:
            reasons[result.stage, result.reason].append(result)
    for (stage, reason), failed in sorted(reasons.items(), key=lambda item: -len(item[1])):
        lines.append(f"{len(failed):5}  {stage}: {reason}")
        if names:
            lines += [f"         {r.name}" for r in failed]
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m tools.onnx_node_tests", description=__doc__)
    top.formatter_class = argparse.RawDescriptionHelpFormatter
    top.add_argument("--filter", default="", metavar="TEXT", help="tests whose name contains it")
    top.add_argument(
        "--kind", choices=KINDS, default="node", help="nodes (default), or models in onnx's files"
    )
    top.add_argument("--limit", type=float, default=30.0, metavar="S", help="seconds for a test")
    top.add_argument(
        "--dialect",
        default="torch",
        help='preferred: "torch" (default) compiles nothing, "tvm" compiles a kernel per shape',
    )
    top.add_argument("--names", action="store_true", help="name the tests that do not pass")
    top.add_argument("--json", action="store_true", help="print everything as JSON")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = parser().parse_args(arguments)
    found = cases(options.filter, options.kind)
    if not found:
        print(f"no test's name contains {options.filter!r}", file=sys.stderr)
        return 2
    results = list(outcomes(options, found))
    if options.json:
        print(json.dumps([asdict(r) for r in results], indent=1))
    else:
        print(report(results, options.names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
