"""Which dialect's kernel of an operator is the fastest on CUDA; writes meta/dialect/levels.json.

    python benchmarks/levels.py [--filter pool]
    python benchmarks/levels.py --write     # replaces the measurements, and the levels they decide

Each case of `CASES` is compiled for one dialect at a time; what is timed is the device alone, as in
`kernels_cuda.py`. Levels of an operator are decided where all of `CONTENDERS` were measured, by the
geometric mean over its cases: cuDNN has the level of a library where it is the fastest, otherwise
it runs only where it is asked for; ATen is one below where it is faster than generated code. To
decide about another operator, add cases of it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from typing import Any

import torch
from command import parser_of
from kernels_cuda import timed
from report import plain

import meta
from meta.base.errors import DispatchError
from meta.dialect.core import LIBRARY, REFERENCE
from meta.dialect.core.plevel import TABLE

CONTENDERS = "cudnn", "torch", "tvm"
LAST = REFERENCE - 1
"""The level of what runs only where it is asked for by name."""
ALIKE = 0.95
"""What is slower by less than that is as fast."""
Levels = dict[str, dict[str, dict[str, int]]]
Normal = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A call that is measured: ``arguments`` makes them of a function of a shape and a dtype.

    of: other operators of which this one decides, too.
    """

    operator: str
    name: str
    arguments: Callable[[Normal], tuple[Any, ...]]
    of: tuple[str, ...] = ()


def ranks(name: str) -> tuple[str, ...]:
    """Return the operators over one and three axes."""
    return name.replace("2d", "1d"), name.replace("2d", "3d")


WINDOW, HOW = (3, 2, 1), (1, False, True)
"""Of pooling: kernel, stride and padding; dilation, whether to round up, whether padding counts."""
IMAGES, TOKENS = (64, 112, 112, 64), (8192, 1024)
CONV, LAYOUTS = (1, 1, 1, 1), ("NHWC", "OIHW", "NHWC")
HEADS = (32, 12, 128, 64)


def pooled(forward: Callable[..., Any], layout: str) -> Callable[[Normal], tuple[Any, ...]]:
    """Return what makes the arguments of the gradient of pooling."""

    def arguments(normal: Normal) -> tuple[Any, ...]:
        x = normal(IMAGES)
        y = _torch(forward(x, *WINDOW, *HOW, layout))
        return x, y, normal(tuple(y.shape)), *WINDOW, *HOW, layout

    return arguments


def attended(normal: Normal) -> tuple[Any, ...]:
    """Return the arguments of the gradient of attention."""
    given = [normal(HEADS) for _ in range(3)]
    y, logsumexp = map(_torch, meta.fused_attention(*given))
    return *given, None, y, logsumexp, normal(HEADS)


def _torch(array: Any) -> torch.Tensor:
    return array if isinstance(array, torch.Tensor) else array.torch()


CASES = [
    Case(
        "conv2d", "[64, 56, 56, 64] by 3x3, float16, channels last",
        lambda normal: (normal((64, 56, 56, 64)), normal((64, 64, 3, 3)), *CONV, *LAYOUTS),
        of=ranks("conv2d"),
    ),
    Case(
        "conv2d_dx", "[64, 56, 56, 64] by 3x3, float16, channels last",
        lambda normal: (
            normal((64, 64, 3, 3)), None, normal((64, 56, 56, 64)), (64, 56, 56, 64), *CONV,
            *LAYOUTS,
        ),
        of=ranks("conv2d_dx"),
    ),
    Case(
        "conv2d_dw", "[64, 56, 56, 64] by 3x3, float16, channels last",
        lambda normal: (
            normal((64, 56, 56, 64)), None, normal((64, 56, 56, 64)), (64, 64, 3, 3), *CONV,
            *LAYOUTS,
        ),
        of=ranks("conv2d_dw"),
    ),
    Case(
        "fused_attention", "32 x 12 x 128 x 64, float16",
        lambda normal: tuple(normal(HEADS) for _ in range(3)),
    ),
    Case("fused_attention_dx", "32 x 12 x 128 x 64, float16", attended),
    Case(
        "layer_norm_train", "[8192, 1024], float16",
        lambda normal: (normal(TOKENS), normal((1024,)), normal((1024,))),
        of=("layer_norm",),
    ),
    Case(
        "layer_norm_train_dx", "[8192, 1024], float16",
        lambda normal: (
            normal(TOKENS), normal((1024,)), normal(TOKENS),
            *(normal((8192,), torch.float32) for _ in range(2)),
        ),
    ),
    Case("rms_norm", "[8192, 1024], float16", lambda normal: (normal(TOKENS), normal((1024,)))),
    Case(
        "rms_norm_dx", "[8192, 1024], float16",
        lambda normal: (normal(TOKENS), normal((1024,)), normal(TOKENS)),
    ),
    *(
        Case(name, f"{shape}, float16", lambda normal, shape=shape: (normal(shape),))
        for name in ("softmax", "log_softmax")
        for shape in ((49152, 128), (4096, 1024), (8192, 8192))
    ),
    *(
        Case(f"{name}_dx", "[4096, 1024], float16", lambda normal: (
            normal((4096, 1024)), normal((4096, 1024)),
        ))
        for name in ("softmax", "log_softmax")
    ),
    *(
        Case(
            f"{name}_pool2d", f"[64, 112, 112, 64] by 3x3, stride 2, float16, {layout}",
            lambda normal, layout=layout: (normal(IMAGES), *WINDOW, *HOW, layout),
        )
        for name in ("max", "avg")
        for layout in ("NHWC", "NCHW")
    ),
    *(
        Case(
            f"{name}_pool2d_dx", f"[64, 112, 112, 64] by 3x3, stride 2, float16, {layout}",
            pooled(getattr(meta, f"{name}_pool2d"), layout),
        )
        for name in ("max", "avg")
        for layout in ("NHWC", "NCHW")
    ),
    *(
        Case(name, "32 Mi elements, float16", lambda normal: (normal((1 << 25,)),))
        for name in ("relu", "sigmoid", "tanh")
    ),
    *(
        Case(f"{name}_dx", "32 Mi elements, float16", lambda normal: (
            None, normal((1 << 25,)), normal((1 << 25,)),
        ))
        for name in ("relu", "sigmoid", "tanh")
    ),
]  # fmt: skip


def on_cuda(shape: tuple[int, ...], dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Return random numbers."""
    return torch.randn(shape, device="cuda", dtype=dtype)


def prepared(case: Case, dialect: str, normal: Normal) -> Callable[[], Any] | None:
    """Return a call of a case without arguments, on one dialect; None if that declines it."""
    given = case.arguments(normal)
    tensors = [meta.array(v) for v in given if isinstance(v, torch.Tensor)]

    def traced(*values: Any) -> Any:
        left = iter(values)
        return getattr(meta.op, case.operator)(
            *(next(left) if isinstance(v, torch.Tensor) else v for v in given)
        )

    device = tensors[0].device
    try:
        with meta.dialect.only(dialect):
            model = meta.model.trace(traced)
            run = meta.vm.compile(model, *tensors, device=device, cuda_graph=False)
    except DispatchError:
        return None
    return lambda: run(*tensors)


def measure(case: Case) -> dict[str, Any]:
    """Return the record of a case: microseconds by dialect."""
    calls = {name: prepared(case, name, on_cuda) for name in CONTENDERS}
    times = timed({name: call for name, call in calls.items() if call is not None})
    us = {name: float(f"{1e3 * ms:.3g}") for name, ms in times.items()}
    return {"operator": case.operator, "case": case.name, "us": us}


def decided(levels: Levels, records: list[dict[str, Any]]) -> Levels:
    """Return levels with those that measurements decide; others stay as they are."""
    found = {name: dict(operators) for name, operators in levels.items()}
    measured: dict[str, list[dict[str, float]]] = {}
    for record in records:
        if record["us"].keys() >= set(CONTENDERS):
            measured.setdefault(record["operator"], []).append(record["us"])
    also = {case.operator: case.of for case in CASES}
    for operator, times in measured.items():
        cudnn, aten, generated = (
            math.prod(one[name] for one in times) ** (1 / len(times)) for name in CONTENDERS
        )
        first = cudnn * ALIKE <= min(aten, generated)
        for name in (operator, *also.get(operator, ())):
            found["cudnn"][name] = {"cuda": int(LIBRARY if first else LAST)}
            stated = {k: v for k, v in found["torch"].get(name, {}).items() if k != "cuda"}
            if first and aten < generated * ALIKE:
                stated["cuda"] = LIBRARY - 1
            found["torch"].pop(name, None)
            if stated:
                found["torch"][name] = stated
    return found


def as_text(table: dict[str, Any]) -> str:
    """Return the table as JSON with a line for each level and each measurement."""
    head = [f" {json.dumps(k)}: {json.dumps(table[k])}," for k in ("device", "date", "versions")]
    dialects = [
        f"  {json.dumps(name)}: {{\n{_lines(operators, '   ')}\n  }}"
        for name, operators in table["levels"].items()
    ]
    records = ",\n".join(f"  {json.dumps(record)}" for record in table["measurements"])
    body = ",\n".join(dialects)
    return "\n".join(
        ["{", *head, ' "levels": {', body, " },", ' "measurements": [', records, " ]", "}\n"]
    )


def _lines(values: dict[str, Any], indent: str) -> str:
    pairs = sorted(values.items())
    return ",\n".join(f"{indent}{json.dumps(k)}: {json.dumps(v)}" for k, v in pairs)


def main() -> int:
    """Measure, print, and write the file if asked to."""
    parser = parser_of(__doc__)
    parser.add_argument("--filter", default="", help="only operators whose name contains this")
    parser.add_argument("--write", action="store_true", help=f"replace {TABLE.name}")
    options = parser.parse_args()
    if options.write and options.filter:
        parser.error("--write is for all operators")
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    records = [measure(case) for case in CASES if options.filter in case.operator]
    table = [["operator", "case", *CONTENDERS]]
    for r in records:
        times = [str(r["us"].get(name, "")) for name in CONTENDERS]
        table.append([r["operator"], r["case"], *times])
    print(plain(table))
    before = json.loads(TABLE.read_text("utf-8"))
    levels = decided(before["levels"], records)
    for dialect in levels:
        for name in sorted({*levels[dialect], *before["levels"][dialect]}):
            old, new = (t[dialect].get(name) for t in (before["levels"], levels))
            if old != new:
                print(f"{dialect}.{name}: {old} becomes {new}")
    if options.write:
        versions = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
        made = {
            "device": torch.cuda.get_device_name(),
            "date": date.today().isoformat(),
            "versions": f"{versions}TVM {version('apache-tvm')}",
            "levels": levels,
            "measurements": records,
        }
        TABLE.write_text(as_text(made), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
