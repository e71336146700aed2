"""The stubs are what the registry says, their types are those of calls, and checkers see them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import MetaError
from meta.testing.case import Spec
from tests.op.records import CASES
from tests.op.test_functions import ROWS
from tools import stubs

HEAD = ["import numpy as np", "import torch", "import meta", "a, t = np.ones(2), torch.ones(2)"]
HEAD.append("x = meta.ones((2, 2))")
RIGHT = """
q = x.sum(axis=(0, 1), dtype=meta.float64) + x.mean(1).reshape(2, 1) @ x[:1].T * 2 - a[0]
q = (x > 0) & (x != 1) | ~(x == 2)
q = x.at[0].set(1.0).astype("float16").to("cpu", dtype=torch.float32)
x[0] = 3.0
x += 1
n = x.size(0) + x.size + x.shape[0] + len(x) + int(x.sum()) + x.ndim + x.dtype.itemsize
q = next(iter(x)).clip(0, 1).permute(0).expand_dims(0)
s = meta.device("cpu").kind + x.dtype + str(x.device)
q = meta.zeros((2, 3), dtype=np.float32, device=meta.device("cpu"))
q = meta.concat([x, a, [1.0]], axis=0) + meta.random.normal((2,), mean=0.5, dtype=meta.float64)
u, v = meta.linalg.slogdet(x)
q = meta.linalg.svd(x).S * meta.fft.rfft(x, n=3).real
q = meta.unique_all(x).values
model = meta.model.Sequential(meta.model.Linear(2, 3), meta.model.ReLU())
optimizer = meta.optim.AdamW(model.parameters(), lr=0.1)
loss = meta.cross_entropy(model(x), meta.array([0, 1]), label_smoothing=0.1)
loss.backward(); optimizer.step(); optimizer.param_groups[0]["lr"] = 0.3
q = meta.grad.grad(meta.square(x).sum(), x) + meta.grad(lambda y: y.sum())(x)
q = meta.vm.compile(model, x)(x).numpy().mean()
with meta.no_grad(), meta.amp.autocast_scope("bfloat16"): q = meta.einsum("ij,kj->ik", x, x)
q = meta.array_api.add(x, x) ** 2
b = meta.isdtype(x.dtype, "real floating") and meta.bool == "bool"
"""
"""What scripts do."""
WRONG = {
    "meta.softmax(x, axes=3)": ("call-arg", "reportCallIssue"),
    'meta.softmax(x, axis="last")': ("arg-type", "reportArgumentType"),
    'meta.softmax("abc")': ("arg-type", "reportArgumentType"),
    "meta.nosuch(x)": ("attr-defined", "reportAttributeAccessIssue"),
    "meta.float33": ("attr-defined", "reportAttributeAccessIssue"),
    "meta.zeros(2, 3)": ("", "reportArgumentType"),  # mypy is run without torch's dtypes
    "meta.concat(x, x)": ("arg-type", "reportArgumentType"),
    "n: int = meta.softmax(x)": ("assignment", "reportAssignmentType"),
    "q: meta.ndarray = meta.linalg.qr(x)": ("assignment", "reportAssignmentType"),
    "meta.linalg.nosuch": ("attr-defined", "reportAttributeAccessIssue"),
    "meta.fft.rfft(x, d=3)": ("call-arg", "reportCallIssue"),
    "meta.random.normal(2, 3)": ("call-arg", "reportCallIssue"),
    "x.nosuch()": ("attr-defined", "reportAttributeAccessIssue"),
    "x.sum(dim=1)": ("call-arg", "reportCallIssue"),
    "x.reshape(4).T.nosuch": ("attr-defined", "reportAttributeAccessIssue"),
    "(x @ x + 1)[0].nosuch": ("attr-defined", "reportAttributeAccessIssue"),
    "meta.model.Liner": ("attr-defined", "reportAttributeAccessIssue"),
    "meta.optim.Adamm": ("attr-defined", "reportAttributeAccessIssue"),
    "meta.grad(lambda x: x.sum())(x).nosuch + meta.grad.vj": (
        "attr-defined",
        "reportAttributeAccessIssue",
    ),
    "x.dtype.nosuch": ("attr-defined", "reportAttributeAccessIssue"),
    "x.sum(0, dtype=3)": ("", "reportArgumentType"),
    "meta.train.fitt": ("attr-defined", "reportAttributeAccessIssue"),
}
"""By a wrong line: what mypy and pyright call the error."""
OWN = "print(meta.explain(meta.squareplus, meta.array([1.0, 2.0], device=device)))"
"""An operator of an example's own, which no stub knows."""
BACKEND = 'plugin = TorchDynamoPlugin(backend=backend or "no")'
"""A text, which accelerate takes, and does not say."""
OTHERS = ("torch", "accelerate", "pytorch_lightning")
"""What mypy does not look into: torch's own types take three quarters of its time."""


def test_stubs_are_up_to_date() -> None:
    old = [p for p, text in stubs.files().items() if p.read_text("utf-8") != text]
    assert not old, "python -m tools.stubs"


def text(value: Any) -> str:
    """Return an argument as source: arrays by the name of one of their kind."""
    if isinstance(value, Spec | torch.Tensor):
        return "t"
    if isinstance(value, np.ndarray):
        return "a"
    if isinstance(value, tuple | list):
        items = "".join(f"{text(v)}, " for v in value)
        return f"({items})" if isinstance(value, tuple) else f"[{items}]"
    source = repr(value)
    return f'float("{source}")' if source in ("nan", "inf", "-inf") else source


def type_of(value: Any) -> str:
    """Return the annotation that a result fits."""
    if isinstance(value, tuple):
        members = {type_of(v) for v in value}
        return f"tuple[{' | '.join(sorted(members)) or 'object'}, ...]"
    if isinstance(value, list):
        return f"list[{type_of(value[0])}]"
    return {meta.ndarray: "meta.ndarray", type(None): "object"}.get(
        type(value), type(value).__name__
    )


def calls() -> Iterator[str]:
    """Yield the calls of all records, as assignments to the type of what they return."""
    rows = [(c.op, s.args, s.kwargs, s.make("float32")) for c in CASES for s in c.samples]
    rows += [(name, args, named, (args, named)) for name, args, named, _ in ROWS]
    for name, args, named, (values, options) in rows:
        parts = [*map(text, args), *(f"{k}={text(v)}" for k, v in named.items())]
        if any("<" in part for part in parts):
            continue  # a function, a type
        try:
            result = getattr(meta, name)(*values, **options)
        except MetaError:
            continue  # of another dtype
        yield f"{type_of(result)} = meta.{name}({', '.join(parts)})"
        if args and parts[0] in ("t", "a") and callable(getattr(meta.ndarray, name, None)):
            yield f"{type_of(result)} = x.{name}({', '.join(parts[1:])})"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a script of right calls and one of wrong ones."""
    found = tmp_path_factory.mktemp("scripts")
    right = [f"r{i}: {line}" for i, line in enumerate(dict.fromkeys(calls()))]
    assert len(right) > 2000
    (found / "right.py").write_text("\n".join([*HEAD, *right, RIGHT]), "utf-8")
    (found / "wrong.py").write_text("\n".join([*HEAD, *WRONG]), "utf-8")
    return found


def errors(folder: Path, *command: str) -> str:
    """Return what a checker prints of the scripts and the examples."""
    pytest.importorskip(command[0])
    examples = (stubs.ROOT / "examples").glob("*.py")
    # To infer a Trainer takes 20 seconds.
    files = [*folder.glob("*.py"), *(f for f in examples if f.stem != "train_with_trainer")]
    run = subprocess.run(
        [sys.executable, "-m", *command, *map(str, files)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(stubs.ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    return run.stdout


def described(folder: Path, rows: Iterable[tuple[str, int, str]]) -> set[tuple[str, str, str]]:
    """Return file, text of the line, and kind of errors."""
    found = [(folder / path, line, kind) for path, line, kind in rows]
    return {(f.name, f.read_text("utf-8").splitlines()[n - 1].strip(), k) for f, n, k in found}


def test_mypy_finds_the_wrong_calls_alone(folder: Path) -> None:
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in OTHERS)
    own = "[mypy]\nignore_missing_imports = True\nfollow_imports = silent\n"
    (folder / "mypy.ini").write_text(own + skipped, "utf-8")
    output = errors(folder, "mypy", "--config-file=mypy.ini", "--cache-dir=cache")
    rows = re.findall(r"^(.+?):(\d+): error: .* \[([\w-]+)\]$", output, re.M)
    assert described(folder, [(path, int(line), kind) for path, line, kind in rows]) == {
        *(("wrong.py", line, mypy) for line, (mypy, _) in WRONG.items() if mypy),
        ("one_file_op.py", OWN, "attr-defined"),
    }


@pytest.mark.long
def test_pyright_finds_the_wrong_calls_alone(folder: Path) -> None:
    # As of torch's, the type of a gradient says that there may be none.
    (folder / "pyrightconfig.json").write_text('{"reportOptionalMemberAccess": "none"}', "utf-8")
    found = json.loads(errors(folder, "pyright", "--outputjson", "--pythonpath", sys.executable))
    rows = [e for e in found["generalDiagnostics"] if e["severity"] == "error"]
    lines = [(e["file"], e["range"]["start"]["line"] + 1, e["rule"]) for e in rows]
    assert described(folder, lines) == {
        *(("wrong.py", line, pyright) for line, (_, pyright) in WRONG.items()),
        ("one_file_op.py", OWN, "reportAttributeAccessIssue"),
        ("train_with_accelerate.py", BACKEND, "reportArgumentType"),
    }
