"""``python -m meta import``: say what of a file is supported, convert it, run and time it."""

from __future__ import annotations

import argparse
import statistics
import time
import zipfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import meta
from meta.base.device import Device, require
from meta.base.errors import ArgumentError
from meta.base.files import open_file, writing
from meta.cli.table import section, show
from meta.frontend.core import ImportedModel
from meta.frontend.report import check, kind_of
from meta.op.core import tree

RUNS = 20
"""Measured runs of a program, after two that are not."""
TOLERANCE = 1e-3
"""How far results may be from those of the source's runtime, in parts of the largest number."""


@dataclass(frozen=True)
class Source:
    """A file, and what runs it besides meta.

    Attributes
    ----------
    model: the imported model. examples: inputs that the file holds; None if it holds none.
    runtime: the name of what else runs it here, None if nothing does, and ``run``: that, from
    inputs in the model's order to arrays.
    """

    model: ImportedModel
    examples: tuple[Any, ...] | None = None
    runtime: str | None = None
    run: Callable[..., list[np.ndarray]] | None = None


def run(options: argparse.Namespace) -> int:
    """Print what a file is and what became of it; 1 if something is not supported, or results are
    not those of the source's runtime.
    """
    report = check(options.file)
    record: dict[str, Any] = {
        "file": options.file,
        "source": report.source,
        "operators": dict(report.operators),
        "unsupported": [
            dict(zip(("name", "count", "place", "why", "hint"), row, strict=True))
            for row in report.unsupported()
        ],
    }
    if report.supported and not options.check:
        record |= _import_and_run(options)
    show(options, record, _text)
    return 1 if report.failures or record.get("differs") else 0


def _import_and_run(options: argparse.Namespace) -> dict[str, Any]:
    """Convert a file, and run it on inputs if there are some."""
    device, preference = require(options.device), preferred(options.dialect)
    source = _source(options.file, options.params)
    model = source.model
    model.to(device=device)
    found: dict[str, Any] = {
        "inputs": list(model.input_names),
        "parameters": {n: f"{a.dtype}{list(a.shape)}" for n, a in model.state().items()},
    }
    given = read_inputs(options.inputs, model) if options.inputs else source.examples
    if given is None:
        if options.time or options.out:
            raise ArgumentError("the file holds no inputs", hint="give them: --inputs FILE.npz")
        return found
    executable, arrays = compiled(model, given, device, preference)
    results = [a.numpy() for a in tree.flatten(executable(*arrays))[0]]
    found["results"] = write_results(results, options.out)
    if source.run is not None:
        found["runtime"] = source.runtime
        found["difference"] = _difference(results, source.run(*given))
        found["differs"] = not found["difference"] <= TOLERANCE
    if options.time:
        found["seconds"] = {"meta": _seconds(lambda: executable(*arrays))}
        if source.run is not None:
            run = source.run
            found["seconds"][str(source.runtime)] = _seconds(lambda: run(*given))
    return found


def preferred(dialect: str | None) -> Any:
    """Return a block that prefers a dialect, if there is one; UnknownName for one that is not."""
    return meta.dialect.prefer(dialect) if dialect else nullcontext()


def compiled(
    model: ImportedModel, given: tuple[Any, ...], device: Device, preference: Any
) -> tuple[meta.vm.Executable, list[Any]]:
    """Return a model that is compiled for inputs, in a block that prefers dialects, and these
    inputs on a device.
    """
    leaves, structure = tree.flatten(given)
    arrays = tree.unflatten(structure, [meta.array(a, device=device) for a in leaves])
    with preference:
        return meta.vm.compile(model, *arrays, device=device), arrays


def write_results(results: list[np.ndarray], path: str | None) -> dict[str, str]:
    """Write results to an .npz file, if there is a path; return their types by name."""
    named: dict[str, Any] = {f"out{i}": a for i, a in enumerate(results)}
    if path:
        with writing(path):
            np.savez(path, **named)
    return {name: f"{a.dtype}{list(a.shape)}" for name, a in named.items()}


def _source(file: str, params: str | None) -> Source:
    """Convert a file."""
    kind = kind_of(file)
    if params is not None and kind != "relay":
        raise ArgumentError("--params is of Relay programs", found=file)
    if kind == "torch":
        return _of_torch(file)
    if kind == "onnx":
        return _of_onnx(file)
    from meta.frontend import relay

    return Source(relay.load(file, params))


def _of_torch(file: str) -> Source:
    from meta.frontend.torch.model import from_torch, load

    program = load(file)
    module = program.module()
    examples: tuple[Any, ...] | None = None
    if program.example_inputs is not None:
        args, kwargs = program.example_inputs
        examples = (*args, *kwargs.values())
    model = from_torch(program)
    positional = len(program.example_inputs[0]) if program.example_inputs is not None else None

    def run(*inputs: Any) -> list[np.ndarray]:
        count = len(inputs) if positional is None else positional
        named = dict(zip(model.input_names[count:], inputs[count:], strict=True))
        with torch.no_grad():
            found = module(*inputs[:count], **named)
        return [x.numpy() for x in tree.flatten(found)[0]]

    return Source(model, examples, f"torch {torch.__version__}", run)


def _of_onnx(file: str) -> Source:
    from meta.frontend import from_onnx

    model = from_onnx(file)
    try:
        onnxruntime = import_module("onnxruntime")
    except ImportError:
        return Source(model)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])

    def run(*inputs: Any) -> list[np.ndarray]:
        feeds = {n: np.asarray(x) for n, x in zip(model.input_names, inputs, strict=True)}
        found: list[np.ndarray] = session.run(None, feeds)
        return found

    return Source(model, None, f"onnxruntime {onnxruntime.__version__}", run)


def read_inputs(path: str, model: ImportedModel) -> tuple[Any, ...]:
    """Read inputs in the model's order; ArgumentError for a file that holds none, or others."""
    suffix = Path(path).suffix
    try:
        with open_file(path) as file:
            if suffix in (".pt", ".pth"):
                found = torch.load(file, weights_only=True)
            else:
                loaded = np.load(file, allow_pickle=False)
                found = loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise ArgumentError(
            "the inputs cannot be read",
            expected="a file .npz, .npy or .pt",
            found=f"{path}: {error}",
        ) from error
    if isinstance(found, Mapping):
        return tuple(map(_tensor, model.arguments(found)))
    inputs = tuple(found) if isinstance(found, tuple | list) else (found,)
    if len(inputs) != len(model.input_names):
        raise ArgumentError(
            f"the model takes {len(model.input_names)} inputs",
            expected=", ".join(model.input_names),
            found=f"{path} with {len(inputs)}",
        )
    return tuple(map(_tensor, inputs))


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _difference(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """Return the largest difference, in parts of the largest number of each array."""
    if [a.shape for a in found] != [np.asarray(a).shape for a in wanted]:
        return float("inf")
    errors = [0.0]
    for ours, other in zip(found, wanted, strict=True):
        a, b = np.asarray(ours, "complex128"), np.asarray(other, "complex128")
        differ = (a != b) & ~(np.isnan(a) & np.isnan(b))
        if differ.any():
            errors.append(float(abs(a - b)[differ].max() / max(abs(b).max(), 1e-30)))
    return max(errors)


def _seconds(call: Callable[[], Any]) -> float:
    """Return the median time of a call."""
    times = []
    for i in range(RUNS + 2):
        start = time.perf_counter()
        call()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # of torch
            torch.cuda.synchronize()
        if i >= 2:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def _text(record: dict[str, Any]) -> str:
    """Return the record for a terminal."""
    what = "not supported" if record["unsupported"] else "supported"
    calls = sum(record["operators"].values())
    lines = [f"{record['file']}: {record['source']}, {what}, {calls} calls of operators"]
    if record["unsupported"] or "inputs" not in record:
        lines += section("operators", list(record["operators"].items()))
    rows = [[u["name"], u["count"], u["why"], u["hint"]] for u in record["unsupported"]]
    lines += section("not supported", rows)
    if "inputs" in record:
        lines += section("inputs", [[n] for n in record["inputs"]])
        lines += section("state", list(record["parameters"].items()))
    lines += section("results", list(record.get("results", {}).items()))
    if "difference" in record:
        lines += [
            "",
            f"beside {record['runtime']}: the largest difference is {record['difference']:.1e} of "
            "the largest number",
        ]
    lines += section(
        "time of a run", [[n, f"{s * 1e3:.3f} ms"] for n, s in record.get("seconds", {}).items()]
    )
    return "\n".join(lines)
