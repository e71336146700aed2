"""TVM's lowering of scheduled functions for the CPU, with two steps of ours at its end."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import pipeline
from tvm.tirx import compilation_pipeline

from meta.dialect.tvm import llvm_code, masks

CPU = "meta_cpu"
"""The name under which TVM knows it."""


@tirx.transform.prim_func_pass(opt_level=0)
def _finished(function: tirx.PrimFunc, module: Any, context: Any) -> tirx.PrimFunc:
    return llvm_code.with_definitions(masks.hidden(function))


def _host_passes() -> Any:
    return tvm.ir.transform.Sequential(
        [tirx.transform.LowerTVMBuiltin(), _finished, tirx.transform.LowerIntrin()]
    )


def _for_cpu() -> tuple[Any, Any, Any]:
    lowering, _, device_passes = pipeline.default_s_tir_pipeline()
    return lowering, _host_passes, device_passes


compilation_pipeline.PIPELINE_MAP[CPU] = _for_cpu
