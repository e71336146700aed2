"""`OnnxCase`: a small ONNX graph as text and what it has to give, as data; and how values of NumPy
become inputs and are compared with results.

The families are in `converters/`, one list ``CASES`` per file, as the converters themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser

import meta
from meta.base.dtype import TO_NUMPY
from meta.frontend.onnx.values import CARRIER_DTYPES


def data(*shape: int, low: float = -2.0, high: float = 2.0, dtype: str = "float32") -> Any:
    """Return numbers of a shape, always the same."""
    values = np.random.default_rng(sum(shape) + len(shape)).uniform(low, high, shape)
    return values.astype(dtype)


@dataclass(frozen=True)
class OnnxCase:
    """One graph and its results.

    Attributes
    ----------
    name: the operator that it is about. graph: the text that `onnx.parser` reads, without the name
    and the opset: "(float[2] x) => (float[2] y) { y = Relu(x) }".
    inputs: numpy arrays, of ml_dtypes too, lists of these and None, in order. opset: the version of
    the default domain; opsets: those of others.
    expected: a function of the inputs that computes the result independently, or a tuple of them;
    None: onnx's reference evaluator computes it.
    constants: names of inputs that are given as constants.
    tolerance: relative and absolute; integers are always compared exactly.
    refused: instead of a result, a pattern that the error matches.
    label: added to the test's name.
    """

    name: str
    graph: str
    inputs: tuple[Any, ...] = ()
    opset: int = 23
    opsets: tuple[tuple[str, int], ...] = ()
    expected: Callable[..., Any] | None = None
    constants: tuple[str, ...] = ()
    tolerance: float = 1e-5
    refused: str | None = None
    label: str = ""

    @property
    def id(self) -> str:
        """The name of its test."""
        return "-".join(p for p in (self.name, self.label, f"{self.opset}") if p)

    def model(self) -> onnx.ModelProto:
        """Return the model."""
        versions = [("", self.opset), *self.opsets]
        imports = ", ".join(f'"{domain}" : {version}' for domain, version in versions)
        text = f"<ir_version: 10, opset_import: [{imports}]> g {self.graph}"
        return onnx.parser.parse_model(text)


KINDS = {"float32": "float", "float64": "double"}
"""What ONNX's text calls dtypes that have another name there."""


def calls(
    name: str,
    *inputs: Any,
    opsets: tuple[int, ...] = (23,),
    results: int = 1,
    domain: str = "",
    domain_version: int = 1,
    constants: str = "",
    label: str = "",
    expected: Callable[..., Any] | None = None,
    tolerance: float = 1e-5,
    refused: str | None = None,
    **attributes: Any,
) -> list[OnnxCase]:
    """Return cases of one node, for several opsets. Its inputs are called a, b, c, ...;
    ``constants`` has the letters of those that are given as constants.
    """
    letters = "abcdefgh"
    given = [(n, v) for n, v in zip(letters, inputs, strict=False) if v is not None]
    declared = ", ".join(f"{_kind(v)} {n}" for n, v in given)
    names = ", ".join(n if v is not None else "" for n, v in zip(letters, inputs, strict=False))
    outputs = "yzuv"[:results]
    stated = ", ".join(f"{n} = {_text(v)}" for n, v in attributes.items())
    stated = f"<{stated}>" if stated else ""
    operator = f"{domain}.{name}" if domain else name
    graph = (
        f"({declared}) => ({', '.join(f'float {o}' for o in outputs)}) "
        f"{{ {', '.join(outputs)} = {operator}{stated}({names}) }}"
    )
    return [
        OnnxCase(
            operator,
            graph,
            tuple(v for _, v in given),
            opset,
            ((domain, domain_version),) if domain else (),
            expected,
            tuple(constants),
            tolerance,
            refused,
            label or ",".join(f"{n}={v}" for n, v in attributes.items()),
        )
        for opset in opsets
    ]


def _kind(value: Any) -> str:
    name = value.dtype.name
    extents = f"[{', '.join(map(str, value.shape))}]" if value.ndim else ""
    return KINDS.get(name, name) + extents


def _text(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)


def given(value: Any) -> Any:
    """Return an input for the model: a dtype that arrays do not have is held in another."""
    if isinstance(value, list):
        return [given(v) for v in value]
    if value is None:
        return None
    name = value.dtype.name
    return meta.array(
        value.astype(TO_NUMPY[CARRIER_DTYPES[name]]) if name in CARRIER_DTYPES else value
    )


def require_equal(found: Any, wanted: Any, relative: float, absolute: float) -> None:
    """Compare arrays, lists of them, text and None. Integers are compared exactly, dtypes of a few
    bits as numbers of the dtype that holds them.
    """
    if isinstance(wanted, list | tuple) or wanted is None:
        assert isinstance(found, list | tuple) == isinstance(wanted, list | tuple)
        assert (found is None) == (wanted is None)
        for result, expected in zip(found or (), wanted or (), strict=True):
            require_equal(result, expected, relative, absolute)
        return
    wanted = np.asarray(wanted)
    if wanted.dtype.kind in "OUS":
        assert found == wanted.tolist()
        return
    values, name = found.numpy(), wanted.dtype.name
    assert values.dtype == (
        TO_NUMPY[CARRIER_DTYPES[name]] if name in CARRIER_DTYPES else wanted.dtype
    )
    assert values.shape == wanted.shape
    if wanted.dtype.kind not in "biuf":
        values = values.astype(np.float32)
        if name in CARRIER_DTYPES:
            held = values.astype(wanted.dtype).astype(np.float32)
            assert np.array_equal(held, values, equal_nan=True), f"not in {name}"
        wanted = wanted.astype(np.float32)
    rounds = wanted.dtype.kind == "f"
    np.testing.assert_allclose(values, wanted, relative if rounds else 0, absolute if rounds else 0)
