"""How soon a fresh process is ready: imports, the first operator, calls that were not made before,
random numbers, models that appear, and models that are loaded.

    python benchmarks/startup.py [--processes 5] [--device cuda] [--json] [--check]

Each figure is the median over processes of their own, one after the other, with warm disk caches
and compiled bytecode, as an installed package has it; a first one, which writes both, is not
counted. *import of torch* comes first in a process, *import of meta* after it:
all that `meta` adds. *torch alone* is a process that imports torch, *a worker* one that loads a
saved program (two convolutions and a million parameters) and runs it once: seconds of CPU, and what
it has in memory (VmRSS). *new shape*: an addition of arrays of a shape not met before, the median
over 300 of them. *new integer*: ``x[i]`` with another ``i`` each time. *--help* is the whole
process ``python -m meta --help``.

The rows of random numbers and models are the shortest of several calls, by turns with torch's, with
one and two threads: a million numbers, a layer of a million parameters, BERT with one layer (31
million) beside transformers', and a model of 110 million parameters that is built without values
and loaded from a file, beside torch's on its device "meta" with ``assign=True``. With ``--device
cuda`` they are on the GPU, and each call is waited for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from command import add_outputs, parser_of
from worker_processes import records_of

USED = """
import json, re, resource
used = resource.getrusage(resource.RUSAGE_SELF)
size = int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
print(json.dumps({"CPU of NAME, s": used.ru_utime + used.ru_stime, "memory of NAME, MB": size}))
"""
PROGRAMS = {
    "torch alone": "import torch",
    "a worker": """
import numpy, sys, meta
meta.vm.load(sys.argv[1])(meta.asarray(numpy.ones((4, 3, 32, 32), "float32")))
""",
}
CALLS = 300
TURNS = 7
THREADS = (1, 2)
MILLION = 10**6
GOALS: dict[str, tuple[str, float]] = {
    "import of meta, s": ("", 0.5),
    "first operator, ms": ("", 50.0),
    "new shape, us": ("new shape of torch, us", 5.0),
    "new integer, us": ("new integer of torch, us", 5.0),
    "--help, s": ("", 0.3),
    "first draw, ms": ("", 50.0),
    "CPU of a worker, s": ("CPU of torch alone, s", 1.15),
    "memory of a worker, MB": ("memory of torch alone, MB", 1.15),
}
"""At most this value, or so many times the other figure that is named."""


def median_us(call: Callable[[int], Any]) -> float:
    """Return the median time of the calls, each with another number, in microseconds."""
    times = []
    for i in range(CALLS):
        start = time.perf_counter()
        call(i)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def drawn(folder: Path, device: str) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Return, by row, what draws or loads here, and what does in torch; a file is in ``folder``."""
    import safetensors.torch
    import torch
    import transformers

    import meta
    from meta import random
    from meta.model import empty_init, init, load_weights, save_weights, zoo

    x, y = meta.zeros((1000, 1000)), torch.zeros(1000, 1000)
    p, q = meta.full((MILLION,), 0.3), torch.full((MILLION,), 0.3)
    rows, weights = meta.array(torch.rand(1000, 1000)), torch.rand(1000, 1000)
    theirs = torch.nn.init
    small = transformers.BertConfig(num_hidden_layers=1)
    large = zoo.BertConfig()
    file = folder / "bert.safetensors"
    if not file.exists():
        save_weights(zoo.BertModel(large), file)

    def load() -> None:
        with empty_init():
            model = zoo.BertModel(large)
        load_weights(model, file)

    def load_in_torch() -> None:
        config = transformers.BertConfig()
        with torch.device("meta"):
            model = transformers.BertModel(config)
        read = safetensors.torch.load_file(file, device=device)
        state = {n: t.clone() for n, t in read.items()} if device == "cpu" else read
        model.load_state_dict(state, strict=False, assign=True)

    return {
        "normal": (lambda: random.normal(MILLION), lambda: torch.randn(MILLION)),
        "normal in float64": (
            lambda: random.normal(MILLION, dtype="float64"),
            lambda: torch.randn(MILLION, dtype=torch.float64),
        ),
        "normal in bfloat16": (
            lambda: random.normal(MILLION, dtype="bfloat16"),
            lambda: torch.randn(MILLION, dtype=torch.bfloat16),
        ),
        "uniform": (lambda: random.uniform(MILLION), lambda: torch.rand(MILLION)),
        "randint": (
            lambda: random.randint(MILLION, low=0, high=100),
            lambda: torch.randint(0, 100, (MILLION,)),
        ),
        "bernoulli": (lambda: random.bernoulli(p), lambda: torch.bernoulli(q)),
        "exponential": (
            lambda: random.exponential(MILLION),
            lambda: torch.empty(MILLION).exponential_(),
        ),
        "permutation": (lambda: random.permutation(MILLION), lambda: torch.randperm(MILLION)),
        "multinomial": (
            lambda: random.multinomial(rows, 10),
            lambda: torch.multinomial(weights, 10),
        ),
        "dropout": (lambda: meta.dropout(x), lambda: torch.nn.functional.dropout(y)),
        "truncated normal": (lambda: init.truncated_normal(x), lambda: theirs.trunc_normal_(y)),
        "xavier_uniform": (lambda: init.xavier_uniform(x), lambda: theirs.xavier_uniform_(y)),
        "kaiming_normal": (lambda: init.kaiming_normal(x), lambda: theirs.kaiming_normal_(y)),
        "orthogonal": (lambda: init.orthogonal(x), lambda: theirs.orthogonal_(y)),
        "Linear(1000, 1000)": (
            lambda: meta.model.Linear(1000, 1000),
            lambda: torch.nn.Linear(1000, 1000),
        ),
        "BertForMaskedLM, 1 layer": (
            lambda: zoo.BertForMaskedLM(zoo.BertConfig(num_hidden_layers=1)),
            lambda: transformers.BertForMaskedLM(small),
        ),
        "BertModel from a file": (load, load_in_torch),
    }


MOST_DRAWN = {"cpu": 1.2, "cuda": 1.1}
"""Of random numbers and models: at most so many times torch's figure, by device."""


def limits_of(figures: dict[str, float], device: str) -> dict[str, float]:
    """Return the most that figures may be, by name."""
    found = {name: (figures[of] if of else 1.0) * most for name, (of, most) in GOALS.items()}
    for name, value in figures.items():
        row, of_torch, _ = name.partition(" of torch, ms")
        if of_torch:
            found[f"{row}, ms"] = value * MOST_DRAWN[device]
    return found


def worker(folder: Path, device: str) -> dict[str, float]:
    """Return the figures of this process."""
    start = time.perf_counter()
    import torch

    with_torch = time.perf_counter()
    import meta

    dir(meta)  # imports the rest
    found = {
        "import of torch, s": with_torch - start,
        "import of meta, s": time.perf_counter() - with_torch,
    }
    torch.set_num_threads(1)
    x = meta.array([[1.0, 2.0], [3.0, 4.0]])
    start = time.perf_counter()
    meta.add(x, x)
    found["first operator, ms"] = (time.perf_counter() - start) * 1e3
    tensors = [torch.ones(i + 1, 3) for i in range(CALLS)]
    arrays = [meta.array(t) for t in tensors]
    found["new shape of torch, us"] = median_us(lambda i: torch.add(tensors[i], tensors[i]))
    found["new shape, us"] = median_us(lambda i: meta.add(arrays[i], arrays[i]))
    rows = torch.ones(CALLS, 8)
    array = meta.array(rows)
    found["new integer of torch, us"] = median_us(lambda i: rows[i])
    found["new integer, us"] = median_us(lambda i: array[i])
    start = time.perf_counter()
    meta.random.normal(3)
    found["first draw, ms"] = (time.perf_counter() - start) * 1e3
    with torch.device(device), meta.device(device):
        contenders = drawn(folder, device)
        for threads in THREADS if device == "cpu" else (1,):
            torch.set_num_threads(threads)
            for row, (ours, theirs) in contenders.items():
                name = f"{row}, {threads} threads" if threads > 1 else row
                pairs = [(waited(theirs, device), waited(ours, device)) for _ in range(TURNS)]
                best = map(min, zip(*pairs, strict=True))
                found[f"{name} of torch, ms"], found[f"{name}, ms"] = best
    save_program(folder / "program")
    return found


def save_program(folder: Path) -> None:
    """Save what workers load, if nobody has."""
    import meta
    from meta import model

    if folder.exists():
        return
    network = model.Sequential(
        *(model.Conv2d(3, 32, 3, padding=1), model.BatchNorm(32), model.ReLU()),
        *(model.Conv2d(32, 64, 3, padding=1), model.BatchNorm(64), model.ReLU()),
        *(model.MaxPool2d(2), model.Flatten(), model.Linear(64 * 16 * 16, 64)),
    )
    network.eval()
    meta.vm.compile(network, meta.ones((4, 3, 32, 32))).save(folder)


def waited(call: Callable[[], Any], device: str) -> float:
    """Return how many milliseconds a call takes until the device is done."""
    from turns import synchronize  # imports torch, whose import is a figure

    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return (time.perf_counter() - start) * 1e3


def measure(processes: int, device: str) -> dict[str, float]:
    """Return the median figures of so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [process_figures(folder, device) for _ in range(processes + 1)]
    return {name: statistics.median(run[name] for run in runs[1:]) for name in runs[0]}


def process_figures(folder: str, device: str) -> dict[str, float]:
    """Return the figures of one process, and how long another takes for ``--help``."""
    bytecode = {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
    given = "--worker", folder, "--device", device
    (found,) = records_of(folder, __file__, *given, **bytecode)
    for name, program in PROGRAMS.items():
        code = program + USED.replace("NAME", name)
        (record,) = records_of(folder, "-c", code, f"{folder}/program", **bytecode)
        found |= record
    start = time.perf_counter()
    list(records_of(folder, "-m", "meta", "--help", **bytecode))
    return {**found, "--help, s": time.perf_counter() - start}


def main() -> int:
    """Print the figures; return 1 if ``--check`` finds a goal missed."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--processes", type=int, default=5, help="default 5")
    add_outputs(parser, page=False)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(worker(options.worker, options.device)))
        return 0
    figures = measure(options.processes, options.device)
    limits = limits_of(figures, options.device)
    missed = [name for name, limit in limits.items() if figures[name] > limit]
    if options.json:
        print(json.dumps({"figures": figures, "limits": limits, "missed": missed}))
        return int(options.check and bool(missed))
    for name, value in figures.items():
        goal = f"  goal <= {limits[name]:.2f}" if name in limits else ""
        print(f"  {name:44s} {value:8.2f}{goal}{'  missed' if name in missed else ''}")
    return int(options.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
