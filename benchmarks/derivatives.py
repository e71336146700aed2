"""Composed derivatives beside torch.func, eager and under torch.compile, and JAX, in one run.

    python benchmarks/derivatives.py [--rows gradients-cnn,hvp] [--threads 1] [--check] [--json]
        [--markdown]    # also rewrite the table in docs/performance.md
    python benchmarks/derivatives.py --device cuda [--check] [--json] [--markdown]

Each row is a function of arrays, written three times: with `meta.grad` and `meta.vmap` (compiled by
`meta.vm.compile`), with torch.func, and with JAX (under ``jax.jit``; left out where JAX is not
installed). Results are compared before anything is timed. JAX takes as many threads as it has
cores, so all have as many cores as threads; with one, a call's time is that of the process. On CUDA
a call is waited for, all compute in float32 and not in TF32, and Inductor has CUDA graphs
(mode="reduce-overhead"). The goals, which ``--check`` holds: at least 1.3 times as fast as
torch.func under torch.compile, and as fast as JAX.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
import torch
from command import add_names, add_outputs, parser_of
from report import conditions, conditions_cuda, has_compiler, write
from torch import func
from torch.nn import functional
from turns import add_threads, in_turns, set_threads, synchronize

import meta

BEGIN = "<!-- written by benchmarks/derivatives.py --markdown -->"
BEGIN_CUDA = "<!-- written by benchmarks/derivatives.py --device cuda --markdown -->"
TO_COMPILE, TO_JAX = 1.3, 1.0
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Row:
    """A function of ``arrays``, in each library's words; ``by_jax`` is given the module."""

    what: str
    arrays: Callable[[], tuple[torch.Tensor, ...]]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    by_jax: Callable[[Any], Callable[..., Any]]


def normal(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Return arrays of numbers that grow no sum of products."""
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(s, generator=generator) / max(s[-1], 1) ** 0.5 for s in shapes)


def images() -> tuple[torch.Tensor, ...]:
    """Return weights of a small network, and 64 images with labels."""
    w1, w2, head = normal((16, 3, 3, 3), (32, 16, 3, 3), (32, 10))
    (x,) = normal((64, 3, 16, 16))
    return w1 * 0.3, w2 * 0.3, head, x, torch.arange(64) % 10


def cnn(w1: Any, w2: Any, head: Any, x: Any, label: Any) -> Any:
    """Return the loss of one image in `meta`."""
    y = meta.relu(meta.conv2d(meta.expand_dims(x, 0), w1, padding=1))
    y = meta.relu(meta.conv2d(y, w2, padding=1, stride=2))
    scores = meta.mean(y, (2, 3)) @ head
    return meta.cross_entropy(scores, meta.reshape(label, (1,)))


def torch_cnn(w1: Any, w2: Any, head: Any, x: Any, label: Any) -> Any:
    """Return the loss of one image in torch."""
    y = functional.conv2d(x[None], w1, padding=1).relu()
    y = functional.conv2d(y, w2, padding=1, stride=2).relu()
    return functional.cross_entropy(y.mean((2, 3)) @ head, label[None])


def jax_cnn(jax: Any) -> Callable[..., Any]:
    """Return the gradients of each image in JAX."""

    def loss(weights: Any, x: Any, label: Any) -> Any:
        w1, w2, head = weights
        y = jax.nn.relu(jax.lax.conv(x[None], w1, (1, 1), "SAME"))
        pads = [(1, 1), (1, 1)]
        y = jax.nn.relu(jax.lax.conv_general_dilated(y, w2, (2, 2), pads))
        scores = y.mean((2, 3)) @ head
        return -jax.nn.log_softmax(scores)[0, label]

    each = jax.vmap(jax.grad(loss), (None, 0, 0))
    return lambda w1, w2, head, x, label: each((w1, w2, head), x, label)


def block() -> tuple[torch.Tensor, ...]:
    """Return weights of a transformer's block of width 64, and 16 rows of 32 words."""
    weights = normal((64, 192), (64, 64), (64, 256), (256, 64))
    return (*weights, *normal((16, 32, 64)))


def transformer(qkv: Any, out: Any, up: Any, down: Any, x: Any) -> Any:
    """Return a number of one row in `meta`."""
    parts = meta.split(meta.reshape(x @ qkv, (32, 3, 4, 16)), 3, 1)
    q, k, v = (meta.permute_dims(meta.squeeze(p, 1), (1, 0, 2)) for p in parts)
    scores = meta.softmax(meta.matmul(q, meta.permute_dims(k, (0, 2, 1))) * 0.25, -1)
    y = meta.reshape(meta.permute_dims(meta.matmul(scores, v), (1, 0, 2)), (32, 64)) @ out + x
    return meta.mean((y + meta.gelu(y @ up, approximate="tanh") @ down) ** 2)


def torch_transformer(qkv: Any, out: Any, up: Any, down: Any, x: Any) -> Any:
    """Return a number of one row in torch."""
    q, k, v = ((x @ qkv).reshape(32, 3, 4, 16)[:, i].transpose(0, 1) for i in range(3))
    scores = ((q @ k.transpose(1, 2)) * 0.25).softmax(-1)
    y = (scores @ v).transpose(0, 1).reshape(32, 64) @ out + x
    return ((y + functional.gelu(y @ up, approximate="tanh") @ down) ** 2).mean()


def jax_transformer(jax: Any) -> Callable[..., Any]:
    """Return the gradients of each row in JAX."""

    def loss(weights: Any, x: Any) -> Any:
        qkv, out, up, down = weights
        heads = (x @ qkv).reshape(32, 3, 4, 16)
        q, k, v = (heads[:, i].transpose(1, 0, 2) for i in range(3))
        scores = jax.nn.softmax(q @ k.transpose(0, 2, 1) * 0.25)
        y = (scores @ v).transpose(1, 0, 2).reshape(32, 64) @ out + x
        return ((y + jax.nn.gelu(y @ up) @ down) ** 2).mean()

    each = jax.vmap(jax.grad(loss), (None, 0))
    return lambda qkv, out, up, down, x: each((qkv, out, up, down), x)


def perceptron(m: Any, w1: Any, w2: Any, x: Any) -> Any:
    """Return the results of a perceptron in any library."""
    return m.matmul(m.tanh(m.matmul(x, w1)), w2)


def energy(m: Any, w1: Any, w2: Any, x: Any) -> Any:
    """Return one number of a perceptron in any library."""
    return m.sum(perceptron(m, w1, w2, x) ** 2)


ROWS = {
    "gradients-cnn": Row(
        "gradients of each of 64 images, CNN",
        images,
        meta.vmap(meta.grad(cnn, (0, 1, 2)), (None, None, None, 0, 0)),
        func.vmap(func.grad(torch_cnn, (0, 1, 2)), (None, None, None, 0, 0)),
        jax_cnn,
    ),
    "gradients-transformer": Row(
        "gradients of each of 16 rows, a transformer's block",
        block,
        meta.vmap(meta.grad(transformer, (0, 1, 2, 3)), (None, None, None, None, 0)),
        func.vmap(func.grad(torch_transformer, (0, 1, 2, 3)), (None, None, None, None, 0)),
        jax_transformer,
    ),
    "hvp": Row(
        "a Hessian's product with a vector, perceptron of 256",
        lambda: normal((256, 256), (256, 256), (64, 256), (256, 256), (256, 256)),
        lambda w, v, x, dw, dv: meta.grad.hvp(lambda w, v: energy(meta, w, v, x), (w, v), (dw, dv)),
        lambda w, v, x, dw, dv: func.jvp(
            func.grad(lambda w, v: energy(torch, w, v, x), (0, 1)), (w, v), (dw, dv)
        )[1],
        lambda jax: (
            lambda w, v, x, dw, dv: jax.jvp(
                jax.grad(lambda w, v: energy(jax.numpy, w, v, x), (0, 1)), (w, v), (dw, dv)
            )[1]
        ),
    ),
    "jacobian": Row(
        "the Jacobian of a perceptron, 64 results of 128 arguments, 32 rows",
        lambda: normal((128, 256), (256, 64), (32, 128)),
        lambda w, v, x: meta.vmap(meta.grad.jacrev(lambda a: perceptron(meta, w, v, a[None])[0]))(
            x
        ),
        lambda w, v, x: func.vmap(func.jacrev(lambda a: perceptron(torch, w, v, a[None])[0]))(x),
        lambda jax: (
            lambda w, v, x: jax.vmap(jax.jacrev(lambda a: perceptron(jax.numpy, w, v, a[None])[0]))(
                x
            )
        ),
    ),
}


def contenders(row: Row, compiled: bool, device: str) -> dict[str, Callable[[], Any]]:
    """Return what is called, by name; each has been called before."""
    arrays = tuple(a.to(device) for a in row.arrays())
    given = list(map(meta.array, arrays))
    executable = meta.vm.compile(meta.model.trace(row.ours), *given)
    calls: dict[str, Callable[[], Any]] = {
        "meta": lambda: executable(*given),
        "torch.func": lambda: row.theirs(*arrays),
    }
    if compiled:
        mode = "reduce-overhead" if device == "cuda" else None
        by_inductor = torch.compile(row.theirs, mode=mode)
        calls["torch.compile"] = lambda: by_inductor(*arrays)
    try:
        import jax
    except ImportError:
        jax = None
    if jax is not None:
        jax.config.update("jax_default_matmul_precision", "highest")
        run = jax.jit(row.by_jax(jax))
        for_jax = [jax.numpy.asarray(a.cpu().numpy()) for a in arrays]
        calls["jax"] = lambda: jax.block_until_ready(run(*for_jax))
    return {name: partial(_waited_for, call, device) for name, call in calls.items()}


def _waited_for(call: Callable[[], Any], device: str) -> Any:
    found = call()
    synchronize(device)
    return found


def compare(name: str, results: dict[str, Any]) -> None:
    """Exit unless all contenders have computed the same."""
    expected = [torch.as_tensor(t).cpu() for t in _leaves(results["torch.func"])]
    for who, result in results.items():
        for found, wanted in zip(_leaves(result), expected, strict=True):
            values = found.cpu() if hasattr(found, "cpu") else found
            error = (
                torch.from_numpy(numpy.asarray(values).copy()) - wanted
            ).abs().max() / wanted.abs().max()
            if not error < TOLERANCE:
                raise SystemExit(f"{name}: {who} differs from torch.func by {error:.1e}")


def _leaves(value: Any) -> list[Any]:
    return [v for part in value for v in _leaves(part)] if isinstance(value, tuple) else [value]


def undisturbed(seconds: Sequence[float]) -> float:
    """Return what one call in twenty took at most: what else runs on a core adds to a median."""
    return statistics.quantiles(seconds, n=20)[0]


def measure(name: str, compiled: bool, rounds: int, threads: int, device: str) -> dict[str, Any]:
    """Return one record: milliseconds by contender, and how often `meta` is as fast."""
    row = ROWS[name]
    torch._dynamo.reset()
    calls = contenders(row, compiled, device)
    compare(name, {who: call() for who, call in calls.items()})
    alone = threads == 1 and device == "cpu"
    clock = time.process_time if alone else time.perf_counter
    ms = in_turns(calls, rounds, of=undisturbed, clock=clock)
    goals = {"torch.compile": TO_COMPILE, "jax": TO_JAX}
    speed = {who: ms[who] / ms["meta"] for who in calls if who != "meta"}
    missed = [who for who, goal in goals.items() if who in speed and speed[who] < goal]
    return {"row": name, "what": row.what, "ms": ms, "speed": speed, "missed": missed}


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds a goal missed."""
    parser = parser_of(__doc__)
    add_names(parser, "--rows", ROWS)
    add_threads(parser)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    add_outputs(parser)
    options = parser.parse_args()
    set_threads(options.threads)
    on_cpu = options.device == "cpu"
    if on_cpu and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    compiler = not options.no_compile and has_compiler()
    torch.backends.cudnn.allow_tf32 = False
    given = compiler, options.rounds, options.threads, options.device
    records = [measure(name, *given) for name in options.rows]
    names = list(dict.fromkeys(who for r in records for who in r["ms"]))
    table = [["row", "what", *(f"{n}, ms" for n in names), *(f"to {n}" for n in names[1:])]]
    for r in records:
        times = [f"{r['ms'][n]:.3f}" if n in r["ms"] else "" for n in names]
        speeds = [f"{r['speed'][n]:.2f}x" if n in r["speed"] else "" for n in names[1:]]
        table.append([r["row"], r["what"], *times, *speeds])
    figures = f"the fifth percentile of {options.rounds} turns"
    where = conditions(compiler, figures) if on_cpu else conditions_cuda(figures)
    write(options, where, {"rows": records}, table, begin=BEGIN if on_cpu else BEGIN_CUDA)
    return int(options.check and any(r["missed"] for r in records))


if __name__ == "__main__":
    sys.exit(main())
