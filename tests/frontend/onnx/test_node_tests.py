"""onnx's own tests through `from_onnx`: of every node, and of models in onnx's files.

Each is a model with inputs and expected outputs, which onnx makes itself. All outputs have to have
the expected shape, dtype and values, to the test's own tolerances. Many tests give shapes, axes and
other arguments as graph inputs, where a model would have constants: what is refused as it is runs
once more with such inputs (vectors and single numbers behind the first input) given as constants.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import meta
from meta.frontend import from_onnx
from tests.frontend.onnx.records import given, require_equal

PARTS = 8
KINDS = ("simple", "pytorch-operator", "pytorch-converted")
BFLOAT16 = 2**-6
"""The relative tolerance of onnx's own runner for bfloat16, two units in the last place."""
REFUSED = ("ImageDecoder", "RegexFullMatch")
"""Operators that have no converter: compressed images, and patterns of a file."""
OTHER_NUMBERS = re.compile(
    # Drawn; of half precision by one unit in the last place; by 1e-6 of 450.
    r"test_(bernoulli|training_dropout|attention_4d_(causal_)?fp16|dft_inverse)"
)
Run = Callable[..., Any]
"""What calls a model with its inputs."""


@cache
def cases(kind: str = "node") -> list[Any]:
    """Let onnx make its tests of nodes, which takes seconds, or read those of files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(load_model_tests(kind=kind))
    return [c if c.model is not None else read(c) for c in found]


def read(case: Any) -> Any:
    """Return a test of a file with its model and its data."""
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    (data, *_) = sorted(folder.glob("test_data_set_*"))
    inputs = tensors(data, "input", model.graph.input)
    return replace(
        case, model=model, data_sets=[(inputs, tensors(data, "output", model.graph.output))]
    )


def tensors(folder: Path, what: str, declared: Any) -> list[Any]:
    """Return the values of a test's inputs or outputs: arrays and sequences of arrays."""
    values = []
    for i in range(len(list(folder.glob(f"{what}_*.pb")))):
        is_sequence = declared[i].type.HasField("sequence_type")
        proto = onnx.SequenceProto() if is_sequence else onnx.TensorProto()
        proto.ParseFromString((folder / f"{what}_{i}.pb").read_bytes())
        values.append((numpy_helper.to_list if is_sequence else numpy_helper.to_array)(proto))
    return values


def as_numpy(value: Any) -> Any:
    """Return an array of NumPy, a list of them, or None."""
    if isinstance(value, list | tuple):
        texts = np.array(value, object).reshape(-1) if value else ()
        is_text = len(texts) > 0 and all(isinstance(v, str) for v in texts)
        return np.array(value, object) if is_text else [as_numpy(v) for v in value]
    if value is None:
        return None
    return numpy_helper.to_array(value) if hasattr(value, "data_type") else np.asarray(value)


def constants_of(case: Any, behind: int) -> dict[str, Any]:
    """Return the inputs from a place on that are vectors, single numbers or text."""
    named = list(zip([i.name for i in case.model.graph.input], case.data_sets[0][0], strict=False))
    return {
        n: np.asarray(v)
        for n, v in named[behind:]
        if isinstance(v, np.ndarray | np.generic) and (np.ndim(v) <= 1 or v.dtype.kind in "OUS")
    }


def check(case: Any, constants: Mapping[str, Any], run: Run) -> None:
    """Import, run and compare."""
    inputs, outputs = case.data_sets[0]
    model = from_onnx(case.model, constants)
    named = zip([i.name for i in case.model.graph.input], inputs, strict=False)
    result = run(model, *(given(as_numpy(v)) for n, v in named if n not in constants))
    found = list(result) if isinstance(result, tuple) else [result]
    for value, wanted in zip(found, map(as_numpy, outputs), strict=True):
        is_bfloat16 = getattr(wanted, "dtype", None) is not None and wanted.dtype.name == "bfloat16"
        relative = max(case.rtol, BFLOAT16) if is_bfloat16 else case.rtol
        require_equal(value, wanted, relative, case.atol)


def failure(case: Any, run: Run) -> str | None:
    """Return why a test does not pass, None if it does."""
    why, tried = "", []
    for constants in ({}, constants_of(case, 1), constants_of(case, 0)):
        if list(constants) in tried:
            continue
        tried.append(list(constants))
        try:
            check(case, constants, run)
        except AssertionError as error:
            # What is computed wrongly is no better for constants with which it is not.
            return f"other values: {error}"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        else:
            return None
    return why


@contextmanager
def as_onnx_runs_them() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"), meta.dialect.prefer("torch"):
        warnings.simplefilter("ignore")
        yield


def interpreted(model: Any, *inputs: Any) -> Any:
    return model(*inputs)


def compiled(model: Any, *inputs: Any) -> Any:
    return meta.vm.compile(model, *inputs)(*inputs)


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    "run", [interpreted, pytest.param(compiled, marks=pytest.mark.slow)], ids=lambda r: r.__name__
)
@pytest.mark.long
def test_nodes(part: int, run: Run) -> None:
    """All pass but for what is known; nothing is wrong without an error."""
    found = cases()
    assert len(found) > 1500
    with as_onnx_runs_them():
        failures = {c.name: failure(c, run) for c in found[part::PARTS]}
    unknown = {
        name: why
        for name, why in failures.items()
        if why is not None
        and not any(operator in why for operator in REFUSED)
        and not (why.startswith("other values") and OTHER_NUMBERS.match(name))
    }
    assert not unknown, "\n".join(f"{name}: {why}" for name, why in unknown.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_models_in_files(kind: str) -> None:
    with as_onnx_runs_them():
        failures = {c.name: failure(c, interpreted) for c in cases(kind)}
    # Of `Gradient` onnx's reference has no implementation either.
    failed = {name for name, why in failures.items() if why is not None}
    assert failed <= {"test_gradient_of_add", "test_gradient_of_add_and_mul"}


def test_a_wrong_result_is_a_failure() -> None:
    (case,) = (c for c in cases() if c.name == "test_elu")
    inputs, (expected,) = case.data_sets[0]
    with as_onnx_runs_them():
        assert failure(case, interpreted) is None
        wrong = replace(case, data_sets=[(inputs, [expected + 1])])
        assert str(failure(wrong, interpreted)).startswith("other values")
