"""Object files of kernels: quack's product with an epilogue, compiled for tensors of any extents.

No device is needed: `Kernel.arch` says what is compiled for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cutlass
from cutlass import Float32, cute
from quack.compile_utils import fake_batched, make_fake_tensor
from quack.gemm_tvm_ffi_utils import make_fake_scheduler_args, make_fake_varlen_args
from quack.rounding import RoundingMode

from meta.dialect.cutlass.kernel import FORMS, LANES, Kernel
from meta.dialect.cutlass.source.epilogues import epilogue

DTYPES = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16, "float32": Float32}
KINDS = {"row": "row", "column": "col", "tile": "tile", "c": "c"}
"""What quack calls the ways in which operands are read."""
VECTOR = 4
"""Elements to which a vector's beginning is aligned."""
STAGES = 2
"""Pieces of the factors that are in shared memory at a time, at least."""


def write_object(kernel: Kernel, file: Path, symbol: str) -> None:
    """Compile a kernel and write its object file, with a function of this name.

    Raises ValueError if shared memory does not hold what the kernel is to have in it.
    """
    dtype, of, tiling = DTYPES[kernel.dtype], FORMS[kernel.form], kernel.tiling
    m, n, k, half, groups = (cute.sym_int() for _ in range(5))

    def matrix(rows: Any, columns: Any, batch: Any = None) -> Any:
        return fake_batched(dtype, rows, columns, batch, 1, LANES)

    x1 = matrix(*((k, m) if kernel.t1 else (m, k)))
    x2 = matrix(*((n, k) if kernel.t2 else (k, n)), groups if kernel.grouped else None)
    vectors = iter(kernel.vectors)
    given: dict[str, Any] = {}
    for name, kind in of.operands:
        if kind == "tile":
            given[name] = matrix(m, n)
        elif kind != "c":
            extent = n if kind == "row" else m
            given[name] = make_fake_tensor(DTYPES[next(vectors)], (extent,), VECTOR, 0)
    if of.kept or of.paired:
        given["kept"] = matrix(m, half if of.paired else n)
    kinds = tuple((name, KINDS[kind]) for name, kind in of.operands)
    mint = epilogue(kernel.form, kernel.activation)._mint
    made = mint(kinds, kernel.capability, of.paired, False, (), RoundingMode.RN, (), False)
    hopper = kernel.capability == 9
    gemm = made(
        Float32,
        dtype,
        (tiling.rows, tiling.columns),
        (tiling.down, tiling.across, 1),
        concat_layout=("B",) if of.paired else None,
        # Vectors and ends of groups are read without waiting for the kernel that writes them.
        use_pdl=False,
        **({"pingpong": tiling.pingpong} if hopper else {"use_clc_persistence": True}),
    )
    gemm.a_transposed, gemm.b_transposed = kernel.t1, not kernel.t2
    compiled = cute.compile(
        gemm,
        x1,
        x2,
        None if of.paired else matrix(m, n),
        matrix(m, n) if ("c", "c") in of.operands else None,
        made.EpilogueArguments(**given),
        make_fake_scheduler_args(False, False, groups),
        make_fake_varlen_args(kernel.grouped, False, False, None),
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
        None,
        None,
        options=f"--enable-tvm-ffi --gpu-arch {kernel.arch}",
    )
    if gemm.ab_stage < STAGES:
        raise ValueError(f"shared memory does not hold two pieces of the factors: {kernel}")
    compiled.export_to_c(object_file_path=str(file), function_name=symbol)
