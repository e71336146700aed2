"""Kernels of `meta` on CUDA beside torch eager and torch.compile, in one run.

    python benchmarks/kernels_cuda.py [--filter softmax] [--group transposes] [--dialect tvm]
    python benchmarks/kernels_cuda.py --check --markdown   # --markdown replaces the table in
                                                           # docs/measurements.md

Each kernel of `kernel_list_cuda.py` is compiled by `meta.vm.compile` and run as the dispatcher
decides. What is timed is the device alone: calls of a contender are captured in a CUDA graph, with
the allocation of their results, and replays lie between CUDA events; a figure is the median over
the rounds, in which the contenders take turns. Results are compared before anything is timed.

A row in float32 is of float32 on all sides: torch's convolutions, too, are kept from
TensorFloat-32, which they use unless they are told not to. Products and convolutions have a row of
their own in tf32, in which META_TF32 and torch's two switches are on.

The share of a kernel is the least time in which its bytes could be moved, by the rate at which
torch copies 256 MB in the same run, over its own time. The goal, which ``--check`` holds: a share
of 0.85; for matrix products and convolutions 0.97 of the better torch time instead.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from command import add_outputs, parser_of
from cuda_kernel import Kernel, size
from kernel_list_cuda import KERNELS
from report import conditions_cuda, write
from turns import on_device

import meta
from meta.base import config

SHARE, PRODUCTS = 0.85, 0.97
COPIED = 256 << 20
CALLS, ROUNDS = 5, 9
BEGIN = "<!-- written by benchmarks/kernels_cuda.py --markdown -->"
Call = Callable[[], Any]
DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""The dtype of the inputs by the precision of a row."""
TOLERANCES = {"float32": 2e-3, "tf32": 1e-2, "float16": 2e-2, "bfloat16": 1e-1}


@contextmanager
def precise(precision: str) -> Iterator[None]:
    """Compute in float32 or in TensorFloat-32, as a row says, on all sides."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    with config.override(META_TF32=precision == "tf32"):
        yield


def ceiling() -> float:
    """Return the bytes per second of a copy, read and written ones."""
    source = torch.empty(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPIED / (1e-3 * timed({"copy": lambda: target.copy_(source)})["copy"])


def timed(calls: dict[str, Call]) -> dict[str, float]:
    """Return the median milliseconds of each call, by replays of CUDA graphs that take turns."""
    replays = {name: _captured(call).replay for name, call in calls.items()}
    return {name: ms / CALLS for name, ms in on_device(replays, ROUNDS).items()}


def _captured(call: Call) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            call()
    return graph


def contenders(
    kernel: Kernel, dtype: torch.dtype, dialect: str | None, compiler: bool
) -> tuple[dict[str, Call], str]:
    """Return calls without arguments by name, and the dialects that the first of them runs."""
    executable = _executable(kernel, dtype, dialect)
    ran = sorted({name.partition(".")[0] for name in executable.kernels()})
    arrays = [meta.array(t) for t in inputs_of(kernel, dtype)]
    calls = {"meta": lambda: executable(*arrays)}
    given = inputs_of(kernel, dtype)
    calls["eager"] = lambda: kernel.torch(*given)
    if compiler:
        torch._dynamo.reset()
        compiled = torch.compile(kernel.torch, dynamic=False)
        calls["compile"] = lambda: compiled(*given)
    return calls, " and ".join(ran)


def _executable(kernel: Kernel, dtype: torch.dtype, dialect: str | None) -> Any:
    def traced(*args: Any) -> Any:
        return kernel.meta(*args)

    arrays = [meta.array(t) for t in inputs_of(kernel, dtype)]
    with meta.dialect.prefer(dialect) if dialect else nullcontext():
        return meta.vm.compile(meta.model.trace(traced), *arrays, device="cuda", cuda_graph=False)


def inputs_of(kernel: Kernel, dtype: torch.dtype) -> list[torch.Tensor]:
    return kernel.inputs(torch.Generator("cuda").manual_seed(0), dtype)


def compare(kernel: Kernel, precision: str, calls: dict[str, Call]) -> list[torch.Tensor]:
    """Call each contender once; AssertionError if they do not agree. Return eager's results."""
    expected = [_tensor(calls["eager"]())]
    if "dropout" in kernel.name:  # random: another generator
        return expected
    tolerance = TOLERANCES[precision]
    for name, call in calls.items():
        found = _tensor(call())
        scale = max(1.0, expected[0].float().std().nan_to_num(1.0).item())
        torch.testing.assert_close(
            found.float() / scale, expected[0].float() / scale, rtol=tolerance, atol=tolerance,
            msg=lambda text, name=name: f"{kernel.name}, {precision}, {name}: {text}",
        )  # fmt: skip
    return expected


def _tensor(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else torch.from_dlpack(result)


def measure(
    kernel: Kernel, precision: str, dialect: str | None, compiler: bool, limit: float
) -> dict[str, Any]:
    """Return one record: names, times, and the share of the ceiling or of torch's best."""
    dtype = DTYPES[precision]
    calls, ran = contenders(kernel, dtype, dialect, compiler)
    made = compare(kernel, precision, calls)
    given = inputs_of(kernel, dtype)
    moved = size(given) + size(made) if kernel.bytes is None else kernel.bytes(given, made)
    del given, made
    times = timed(calls)
    best = min(times[name] for name in ("eager", "compile") if name in times)
    least = 1e3 * moved / limit
    goal, share = (SHARE, least / times["meta"]) if kernel.flops is None else (PRODUCTS, None)
    reached = best / times["meta"] if share is None else share
    return {
        "group": kernel.group,
        "kernel": f"{kernel.name}, {precision}",
        "dialect": ran,
        "ms": times,
        "share": share,
        "rate": (kernel.flops or moved) / (1e-3 * times["meta"]),
        "unit": "TB/s" if kernel.flops is None else "Tflop/s",
        "to_eager": times["eager"] / times["meta"],
        "to_best": best / times["meta"],
        "missed": reached < goal,
    }


def rows(records: list[dict[str, Any]], compiler: bool) -> list[list[str]]:
    """Return the table as text, the head first."""
    names = {"meta": "meta", "eager": "torch eager"}
    if compiler:
        names["compile"] = "torch.compile"
    head = ["kernel", "runs on", *(f"{title}, ms" for title in names.values())]
    head += ["rate", "share of copy", "to eager", "to best"]
    lines = [
        [
            r["kernel"],
            r["dialect"],
            *(f"{r['ms'][n]:.3f}" for n in names),
            f"{r['rate'] / 1e12:.2f} {r['unit']}",
            "" if r["share"] is None else f"{r['share']:.2f}",
            f"{r['to_eager']:.2f}x",
            f"{r['to_best']:.2f}x" + (" !" if r["missed"] else ""),
        ]
        for r in records
    ]
    return [head, *lines]


def summary(records: list[dict[str, Any]], failed: list[str]) -> list[str]:
    """Return the mean, what misses its goal, and what has other results than torch."""
    wrong = [f"Wrong results, not timed: {', '.join(failed)}."] if failed else []
    if not records:
        return wrong
    mean = math.exp(sum(math.log(r["to_best"]) for r in records) / len(records))
    missed = [r["kernel"] for r in records if r["missed"]]
    return [
        *wrong,
        f"Geometric mean of {len(records)} kernels to the better of the torch times: {mean:.2f}x.",
        f"{len(missed)} of {len(records)} miss their goal (marked !): a share of {SHARE}, "
        f"or {PRODUCTS} to best for matrix products and convolutions.",
    ]


def main() -> int:
    """Measure and print; return 1 if a result is wrong or ``--check`` finds a goal missed."""
    parser = parser_of(__doc__)
    parser.add_argument("--filter", default="", help="only kernels whose name contains this")
    parser.add_argument("--group", help="only kernels of this group")
    parser.add_argument("--dtype", choices=list(DTYPES), help="only this precision")
    parser.add_argument("--dialect", help="prefer this dialect instead of the default")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    add_outputs(parser)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    chosen = [
        (kernel, precision)
        for kernel in KERNELS
        for precision in kernel.precisions
        if options.filter in kernel.name and options.group in (None, kernel.group)
        if options.dtype in (None, precision)
    ]
    if not chosen:
        parser.error("no kernel is left")
    every = sum(len(kernel.precisions) for kernel in KERNELS)
    if options.markdown and (len(chosen) < every or options.dialect):
        parser.error("--markdown is for all kernels and precisions, and the default dialects")
    compiler = not options.no_compile
    records: list[dict[str, Any]] = []
    failed: list[str] = []
    with torch.no_grad():
        limit = ceiling()
        for i, (kernel, precision) in enumerate(chosen):
            if sys.stderr.isatty():
                print(f"\r{i + 1}/{len(chosen)} {kernel.name:40s}", end="", file=sys.stderr)
            try:
                with precise(precision):
                    found = measure(kernel, precision, options.dialect, compiler, limit)
                records.append(found)
            except AssertionError as error:  # another result than torch's
                failed.append(f"{kernel.name}, {precision}")
                print(error, file=sys.stderr)
            torch.cuda.empty_cache()
    note = "" if compiler else "; torch.compile left out"
    measured = f"copy at {limit / 1e12:.2f} TB/s, medians of {ROUNDS} rounds{note}"
    where, notes = conditions_cuda(measured), summary(records, failed)
    table = rows(records, compiler)
    figures = {"kernels": records, "failed": failed, "summary": notes}
    write(options, where, figures, table, notes, BEGIN)
    return int(bool(failed) or (options.check and any(r["missed"] for r in records)))


if __name__ == "__main__":
    sys.exit(main())
