"""Where a call's time goes on the device: its operations, with the kernels of each, and where one
contender loses time to another.

Kernels within a CUDA graph have no operator. So a call is timed as it is, and traced without
graphs: programs of `meta` with a range of the profiler around each launch, Inductor's in the mode
that has the same kernels without graphs.

To compare two traces, products, convolutions and attention are *anchors*, aligned by their sizes in
order. What runs between two anchors computes the same in both, however it is fused, and stands side
by side. Pairs that are equal but for their time, those of a network's layers, are one *group*.
"""

from __future__ import annotations

import gc
import json
import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from meta.vm.compiler.launch_sites import LaunchSite
from meta.vm.run import compiled_program, observers
from meta.vm.run.observers import operands
from models.contenders import AUTOTUNED, CAPTURED, TUNED_KERNELS, Call, Contender
from models.task import Row

WITHOUT_GRAPHS = {"reduce-overhead": "compile", CAPTURED: "compile", AUTOTUNED: TUNED_KERNELS}
"""Contenders whose calls are CUDA graphs of torch, and who has the same kernels."""
TRACED, TOP, KERNELS, NAME = 3, 25, 8, 90
SIDES = ("inputs", "outputs")
RANGE = "meta "
OPERATORS = (RANGE, "triton_", "aten::")
"""How the names of ranges begin that say what a kernel computes; the outermost one counts."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
DTYPES = {
    "double": "float64", "float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "long": "int64", "long int": "int64", "int": "int32", "bool": "bool", "unsigned char": "uint8",
    "TensorList": "float32",
}  # fmt: skip
"""Types by their names in traces of torch's profiler, which does not say what a list is of."""
KINDS = (
    ("optimizer", r"adam|sgd|multi_tensor|_foreach|triton_for"),
    ("attention", r"fmha|flash|attention|sdpa|sdpf"),
    ("reduction", r"triton_red|triton_per"),
    ("elementwise", r"triton_poi"),
    ("convolution", r"conv(?!ert)|fprop|dgrad|wgrad|depthwise"),
    (
        "product",
        r"gemm|gemv|nvjet|cutlass|xmma|splitk|cublas|matmul|dense|triton_tem|\b\w*mm\b|linear",
    ),
    ("reduction", r"norm|softmax|sum|mean|max|min|var|entropy|reduce|embedding_dx|scan"),
)
"""Kinds of operations by what names of theirs and of their kernels have in common."""
COPY = re.compile(
    r"(?:triton_poi|\w+\.|aten::)?(?:_|\d|fused|to|copy|clone|cast|astype|transpose|permute|view"
    r"|dims|assign|reshape|cat|concat|concatenate|slice|split|fill|full|zeros?|expand|broadcast"
    r"|mem\w+ .*)+"
)
"""The names of what moves elements and computes nothing."""
ANCHORS = ("attention", "convolution", "product")
CLASSES = (*ANCHORS, "reduction", "elementwise", "copy", "optimizer", "idle")
BACKWARD = re.compile(r"backward|bwd|dgrad|wgrad|_d[xwqkv]")
Operation = dict[str, Any]
"""``what`` computes, with the names of its ``kernels``, the ``us`` that they take together, and
``inputs`` and ``outputs`` as pairs of dtype and shape, as far as they are known.
"""
Trace = dict[str, Any]
"""``row``, ``contender``, the ``ms`` of a call, and its ``operations`` in order."""
Sums = dict[str, list[float]]
"""Microseconds, kernels and bytes by name."""


def operations_of(call: Call, row: Row, contender: str, tiny: bool) -> list[Operation]:
    """Return the operations of a call in order. It is run a few times more, so state goes on."""
    if contender in WITHOUT_GRAPHS:
        torch._dynamo.reset()
        call = Contender(row, WITHOUT_GRAPHS[contender], "cuda", tiny).compiled()
    sites: list[dict[str, Any]] = []
    with _launches_in_ranges(sites):
        call()
        runs = [_traced(call, sites) for _ in range(TRACED)]
    equal = [run for run in runs if [o["what"] for o in run] == [o["what"] for o in runs[-1]]]
    return [{**one, "us": median(r[i]["us"] for r in equal)} for i, one in enumerate(runs[-1])]


@contextmanager
def _launches_in_ranges(sites: list[dict[str, Any]]) -> Iterator[None]:
    """Run programs of `meta` launch by launch, each in a range with its number in ``sites``."""

    def observer(site: LaunchSite, run: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        sites.append({"what": site.kernel.name})
        with record_function(f"{RANGE}{len(sites) - 1}"):
            result = run(*values)
        for side, of in zip(SIDES, operands(site, values, result), strict=True):
            tensors = [v for v in of if isinstance(v, torch.Tensor)]
            sites[-1][side] = [[str(t.dtype)[6:], list(t.shape)] for t in tensors]
        return result

    # Programs that are checked are linked with an observer, in whichever thread they are called.
    compiled = compiled_program.CompiledProgram
    programs = [o for o in gc.get_objects() if issubclass(type(o), compiled)]
    checks, observers.nan_observer = observers.nan_observer, lambda _: observer
    for program in programs:
        program._nans = "nan"
    try:
        yield
    finally:
        observers.nan_observer = checks
        for program in programs:
            program._nans = None
            vars(program).pop("_observed", None)


def _traced(call: Call, sites: list[dict[str, Any]]) -> list[Operation]:
    sites.clear()
    torch.cuda.synchronize()
    both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=both, record_shapes=True) as found:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        found.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(f"{folder}/trace.json").read_text())["traceEvents"]
    return operations(events, sites)


def operations(
    events: Sequence[dict[str, Any]], sites: Sequence[dict[str, Any]]
) -> list[Operation]:
    """Return the operations of a trace of torch's profiler, by their first kernels. events: as
    Chrome's traces have them. sites: what is known of the ranges of `meta`, by number.
    """
    by_kind = defaultdict(list)
    for event in events:
        by_kind[event.get("cat", "").partition("_")[0]].append(event)
    ranges = [r for r in (*by_kind["cpu"], *by_kind["user"]) if r["name"].startswith(OPERATORS)]
    launches = {e["args"].get("correlation"): e for e in by_kind["cuda"]}
    found: dict[Any, Operation] = {}
    kernels = [e for e in (*by_kind["kernel"], *by_kind["gpu"]) if e["cat"] in ON_DEVICE]
    for kernel in sorted(kernels, key=lambda e: e["ts"]):
        launch = launches.get(kernel["args"].get("correlation"), {"tid": None, "ts": 0})
        of, at = launch["tid"], launch["ts"]
        around = [r for r in ranges if r["tid"] == of and r["ts"] <= at <= r["ts"] + r["dur"]]
        outer = max(around, key=lambda r: r["dur"], default=kernel)
        key = (id(outer), "wgrad" in kernel["name"].lower())  # either gradient of a convolution
        one = found.setdefault(key, {**_described(outer, sites), "kernels": [], "us": 0.0})
        one["kernels"].append(kernel["name"])
        one["us"] += kernel["dur"]
    return list(found.values())


def _described(event: dict[str, Any], sites: Sequence[dict[str, Any]]) -> Operation:
    if event["name"].startswith(RANGE):
        return dict(sites[int(event["name"].removeprefix(RANGE))])
    inputs: list[Any] = []
    types, dims = (event["args"].get(f"Input {n}", ()) for n in ("type", "Dims"))
    for type_, shape in zip(types, dims, strict=False):
        if type_ in DTYPES:
            inputs += [[DTYPES[type_], s] for s in (shape if type_ == "TensorList" else [shape])]
    return {"what": event["name"], "inputs": inputs, "outputs": []}


def kind_of(operation: Operation) -> str:
    """Return the class of an operation."""
    if COPY.fullmatch(operation["what"].lower()):
        return "copy"
    found = (kind for kind, part in KINDS if re.search(part, _names(operation)))
    return next(found, "elementwise")


def _names(operation: Operation) -> str:
    return " ".join([operation["what"], *operation["kernels"]]).lower()


def signature(operation: Operation) -> tuple[Any, ...]:
    """Return what anchors have in common that compute the same: of a product the size of the
    result and how many multiplications, of a convolution the sizes of its operands.
    """
    kind, backward = kind_of(operation), bool(BACKWARD.search(_names(operation)))
    inputs, outputs = ([s for _, s in operation[side] if len(s) > 1] for side in SIDES)
    if kind == "convolution":
        sizes = [math.prod(s) for s in [*inputs, *outputs] if len(s) > 2]
        return (kind, backward, *sorted(sizes[: 3 if backward else 2]))
    if kind == "attention" or len(inputs) < 2:
        return (kind, backward)
    a, b = inputs[:2]
    third = (outputs or inputs[2:] or [[0]])[0]
    if not outputs and a[-1] == b[-2]:
        third = [*a[:-1], b[-1]]
    sizes, batch = [math.prod(s) for s in (a, b, third)], math.prod(a[:-2]) if len(b) > 2 else 1
    return (kind, sizes[2], round(math.sqrt(math.prod(sizes) / batch)))


def pairs(ours: list[Operation], theirs: list[Operation]) -> Iterator[tuple[Any, ...]]:
    """Iterate over signatures of anchors, () for what is between, and operations of both that
    compute the same. Anchors that are not in the same order pair in any.
    """
    both = (ours, theirs)
    anchors = [{i: signature(o) for i, o in enumerate(of) if kind_of(o) in ANCHORS} for of in both]
    at, keys = [list(of) for of in anchors], [list(of.values()) for of in anchors]
    blocks = SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks()
    aligned = [(at[0][i + k], at[1][j + k]) for i, j, size in blocks for k in range(size)]
    spare: dict[Any, list[int]] = defaultdict(list)
    for j in sorted(set(at[1]).difference(j for _, j in aligned)):
        spare[anchors[1][j]].append(j)
    first = sorted(set(at[0]).difference(i for i, _ in aligned))
    apart = [(i, spare[anchors[0][i]].pop(0)) for i in first if spare[anchors[0][i]]]
    for i, j in (*aligned, *apart):
        yield anchors[0][i], [ours[i]], [theirs[j]]
    between: list[list[list[Operation]]] = [[[]], [[]]]
    for side, of in enumerate(both):
        ends, moved = ({pair[side] for pair in found} for found in (aligned, apart))
        for i, one in enumerate(of):
            if i in ends:
                between[side].append([])
            elif i not in moved:
                between[side][-1].append(one)
    yield from (((), left, right) for left, right in zip(*between, strict=True))


def label(operation: Operation) -> str:
    """Return what an operation computes, without the number of its kernel."""
    return re.sub(r"(_\d+)+$", "", operation["what"])


def sums(operations: list[Operation], key: Callable[[Operation], str]) -> Sums:
    """Return the sums of operations; their bytes are those of inputs and outputs."""
    found: Sums = defaultdict(lambda: [0.0, 0.0, 0.0])
    for one in operations:
        tensors = [*one["inputs"], *one["outputs"]]
        moved = sum(math.prod(shape) * getattr(torch, dtype).itemsize for dtype, shape in tensors)
        for i, value in enumerate((one["us"], len(one["kernels"]), moved)):
            found[key(one)][i] += value
    return dict(found)


def by_class(trace: Trace) -> Sums:
    """Return the sums of a trace by class; *idle*: of the call's time, what no kernel takes."""
    found = sums(trace["operations"], kind_of)
    return found | {"idle": [1e3 * trace["ms"] - sum(us for us, _, _ in found.values()), 0.0, 0.0]}


def gap(ours: Trace, theirs: Trace) -> dict[str, Any]:
    """Return what is compared of two traces of a row: classes, and groups, that with the largest
    difference first.
    """
    groups: dict[Any, list[Any]] = defaultdict(lambda: [0, [], []])
    for anchor, left, right in pairs(ours["operations"], theirs["operations"]):
        equal = groups[anchor, tuple(sorted(map(label, left))), tuple(sorted(map(label, right)))]
        equal[0] += bool(left or right)
        equal[1] += left
        equal[2] += right
    found = []
    for (anchor, *_), (times, left, right) in groups.items():
        lost = sum(o["us"] for o in left) - sum(o["us"] for o in right)
        one = {"times": times, "anchor": list(anchor), "lost": lost}
        found.append({**one, "ours": sums(left, label), "theirs": sums(right, label)})
    both = {n: [t[n] for t in (ours, theirs)] for n in ("row", "contender", "ms")}
    classes = [by_class(t) for t in (ours, theirs)]
    return {**both, "classes": classes, "groups": sorted(found, key=lambda g: -abs(g["lost"]))}


def gap_text(found: dict[str, Any]) -> str:
    """Return a gap as text: the sums by class, then the groups."""
    names, nothing = found["contender"], [0.0, 0.0, 0.0]
    lines = [f"{found['row'][0]}: {names[0]} beside {names[1]}, {found['ms']} ms"]
    for kind in CLASSES:
        left, right = (classes.get(kind, nothing) for classes in found["classes"])
        lines.append(f"{kind:12s}{_line(left)}{_line(right)}{left[0] - right[0]:+11.1f} us")
    for group in found["groups"][:TOP]:
        anchor = " ".join(map(str, group["anchor"])) or "between anchors"
        lines.append(f"\n{group['lost']:+.1f} us in {group['times']} places, {anchor}")
        for name, side in zip(names, ("ours", "theirs"), strict=True):
            lines += [f"  {name}:", *_by_time(group[side], KERNELS)]
    rest = sum(group["lost"] for group in found["groups"][TOP:])
    return "\n".join([*lines, f"\n{rest:+.1f} us in {len(found['groups'][TOP:])} more groups"])


def profile_text(trace: Trace) -> str:
    """Return one trace as text: the sums by class, then by operation."""
    head = f"{trace['row']}, {trace['contender']}: {trace['ms']:.3f} ms"
    tables = (by_class(trace), sums(trace["operations"], label))
    return "\n".join([head, *(line for table in tables for line in _by_time(table, TOP))])


def _line(found: list[float]) -> str:
    return f"{found[0]:11.1f} us {found[1]:5.0f}x {found[2] / 1e6:8.1f} MB"


def _by_time(found: Sums, most: int) -> list[str]:
    rows = sorted(found.items(), key=lambda item: -item[1][0])
    lines = [f"{_line(one)}  {name[:NAME]}" for name, one in rows[:most]]
    return lines + ([f"... and {len(rows) - most} more"] if len(rows) > most else [])
