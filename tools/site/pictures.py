"""Pictures of the site, drawn while it is built: floors and imports of the package, the page of an
executable as a browser shows it, learning curves, and the roofline of a layer.

A page says where one goes: ``<!-- picture: NAME what it shows -->``, which GitHub does not show.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from matplotlib.figure import Figure

import meta
from meta.cost.roofline import CHIPS
from tests.vm.browser import Browser, find
from tools.imports import PACKAGE, imported_modules, sources

DOCS = PACKAGE.parent / "docs"
ROW = re.compile(r"^\| `meta/(\w+)/` \| (\w+) \|", re.MULTILINE)
WIDTH, HEIGHT, STEP = 116, 34, 92


def draw() -> dict[str, bytes]:
    """Return the pictures by file name. Without a Chromium there is none of the page."""
    torch.set_num_threads(1)  # threads that wait for each other take the time of others
    with TemporaryDirectory() as name:
        folder = Path(name)
        learning_curves(folder / "curves.svg")
        roofline(folder / "roofline.svg")
        executable(folder / "executable.html")
        (folder / "architecture.svg").write_text(architecture(), "utf-8")
        return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".jsonl"}


def learning_curves(path: Path) -> None:
    """Train a classifier of two spirals, and have `meta.train.Curves` draw it."""
    generator = np.random.default_rng(0)
    angle, label = generator.uniform(0.5, 6.0, 600), generator.integers(0, 2, 600)
    turned = angle + np.pi * label
    x = np.stack([angle * np.cos(turned), angle * np.sin(turned)], 1).astype("float32") / 6
    x += generator.normal(0, 0.02, x.shape).astype("float32")
    parts = [meta.train.Batches(x[:400], label[:400], 40, seed=0)]
    parts += [meta.train.Batches(x[400:], label[400:], 100, shuffle=False)]
    meta.random.seed(0)
    with meta.dialect.only("torch"):
        meta.train.fit(
            meta.model.Sequential(
                meta.model.Linear(2, 64), meta.model.ReLU(), meta.model.Linear(64, 2)
            ),
            meta.cross_entropy,
            parts[0],
            meta.optim.with_adamw(lr=1e-2),
            epochs=15,
            schedule=meta.optim.schedule.cosine(150),
            eval_data=parts[1],
            metrics={"accuracy": meta.train.Accuracy()},
            log=path,
        )


def roofline(path: Path) -> None:
    """Draw what the data sheet of a GPU lets the operators of a layer of BERT-base do."""
    layer = meta.model.TransformerEncoderLayer(768, 12, 3072).eval()
    program = layer.forward.program(meta.ir.parse_type("float32[32, 128, 768]"))
    work: dict[str, list[float]] = {}
    for row in meta.analysis.flops(program.module).rows:
        flops, moved = work.setdefault(row.operator, [0.0, 0.0])
        work[row.operator] = [flops + row.work.flops, moved + row.work.bytes]
    peaks = CHIPS[9, 0]
    axes = (figure := Figure((8, 4.5), layout="constrained")).add_subplot()
    intensity = np.geomspace(0.05, 1000, 100)
    for dtype in ("float32", "bfloat16"):
        roof = np.minimum(intensity * peaks.copy, peaks.rate(dtype)) / 1e6
        axes.loglog(intensity, roof, label=f"the roof of {dtype}")
    for i, (operator, (flops, moved)) in enumerate(work.items()):
        if flops:
            beside = (6, -14) if i % 2 else (-6, 8)
            height = min(flops / moved * peaks.copy, peaks.rate("float32")) / 1e6
            axes.plot(flops / moved, height, "o", color="black")
            axes.annotate(operator, (flops / moved, height), beside, textcoords="offset points")
    axes.set(xlabel="operations per byte", ylabel="10^12 operations per second")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def executable(path: Path) -> None:
    """Run the first program of docs/howto/seen.md, and show its page in a browser."""
    code = (DOCS / "howto" / "seen.md").read_text("utf-8").split("```python\n")[1]
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        exec(code.partition("```")[0], {"__name__": "__main__"})
    finally:
        os.chdir(before)
    path.with_name("net.html").rename(path)
    if (program := find()) is not None:
        with Browser(program) as browser:
            browser.open(path)
            shot = browser.call("Page.captureScreenshot", format="png")
        path.with_suffix(".png").write_bytes(b64decode(shot["data"]))


def architecture() -> str:
    """Return a drawing of the folders on their floors. A line is an import that does not follow
    from two others.
    """
    floors: dict[str, list[str]] = {}
    for folder, floor in ROW.findall((DOCS / "architecture.md").read_text("utf-8")):
        floors.setdefault(floor, []).append(folder)
    files = sources()
    imports: dict[str, set[str]] = {f: set() for found in floors.values() for f in found}
    for module, text in files.items():
        if (folder := f"{module}.".split(".")[1]) in imports:
            found = {m.split(".")[1] for m in imported_modules(text, module, files) if "." in m}
            imports[folder] |= found & imports.keys() - {folder}
    boxes, width = {}, 40 + max(map(len, floors.values())) * (WIDTH + 20)
    rows = [f for f in floors if not f.isdigit()] + sorted(filter(str.isdigit, floors))[::-1]
    for row, floor in enumerate(rows):
        left = (width - len(floors[floor]) * (WIDTH + 20) + 20) / 2
        for i, folder in enumerate(floors[floor]):
            boxes[folder] = left + i * (WIDTH + 20), 20 + row * STEP
    parts = []
    for folder, found in imports.items():
        for below in found - {f for between in found for f in imports[between]}:
            (x, y), (u, v) = boxes[folder], boxes[below]
            x, u, y, v = x + WIDTH / 2, u + WIDTH / 2, y + HEIGHT, v + (HEIGHT if v == y else 0)
            bend = f"C{x},{y + 35} {u},{v + 35 if v == y else v - 35}"
            parts.append(f'<path d="M{x},{y} {bend} {u},{v}" fill="none" stroke="#9fa8da"/>')
    for folder, (x, y) in boxes.items():
        box = f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#3f51b5"/>'
        label = f'<text x="{x + WIDTH / 2}" y="{y + 22}" fill="#fff">{escape(folder)}</text>'
        parts.append(box + label)
    size = f'viewBox="0 0 {width} {len(rows) * STEP}"'
    style = 'font-family="sans-serif" font-size="14" text-anchor="middle"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>'
