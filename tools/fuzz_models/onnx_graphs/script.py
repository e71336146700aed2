"""A graph as a script that stands alone."""

from __future__ import annotations

import base64
import pprint

import onnx

from tools.fuzz_models.face import Failure
from tools.fuzz_models.onnx_graphs.program import Program
from tools.fuzz_models.onnx_graphs.run import Way

HEAD = """import base64

import numpy as np
import onnx
from numpy import array, bool_, float16, float32, float64, int8, int32, int64, uint8  # noqa: F401
from onnx.reference import ReferenceEvaluator

import meta
from meta.frontend import from_onnx

"""


def text(program: Program) -> str:
    """Return the graph in ONNX's text form."""
    return str(onnx.printer.to_text(program.model()))


def script(program: Program, way: Way, failure: Failure) -> str:
    """Return Python that imports the graph and runs it at each size."""
    comments = "".join(f"# {line}\n" for line in (failure.text + "\n" + text(program)).splitlines())
    model = base64.b64encode(program.model().SerializeToString()).decode()
    runs = pprint.pformat([{n: (v.tolist(), v.dtype.name, v.shape) for n, v in r.items()}
                           for r in program.runs], width=96)  # fmt: skip
    call = "model(*given)"
    if way.executor != "eager":
        call = "meta.vm.compile(model, *given)(*given)"
    return f"""{comments}{HEAD}
proto = onnx.load_from_string(base64.b64decode("{model}"))
runs = {runs}
model = from_onnx(proto)
for run in runs:
    values = {{n: np.array(v, t).reshape(s) for n, (v, t, s) in run.items()}}
    print(ReferenceEvaluator(proto).run(None, values))
    with meta.dialect.prefer("{way.dialect}"):
        given = [meta.array(values[n], device="{way.device}") for n in model.input_names]
        print({call})
"""
