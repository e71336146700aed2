"""`OnnxCase`: a small ONNX graph as text and what it has to give, as data.

The families are in `converters/`, one list ``CASES`` per file, as the converters themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser


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
