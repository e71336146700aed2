"""What the command line accepts: each command's arguments, and where the function is that runs it.

Nothing here imports more than the standard library and `meta.base`, so that help and typing errors
come at once: torch alone takes a second.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import meta
from meta.base import caches
from meta.cli.shared_arguments import (
    add_device,
    add_html,
    add_input,
    add_json,
    add_target,
    port,
    positive,
    seconds,
    seed,
)

Commands = Any
"""What `argparse.ArgumentParser.add_subparsers` returns."""
ASPECTS = ("doc", "gradient", "cast_rule", "kernel")
"""What every operator must have; a kernel only if its value is not known from the types alone. The
package's own operators have the cast rule "infer" if none is stated.
"""
TIMEOUT = 300.0
"""Seconds that the selftest gives an operator on a backend."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; ``run`` of what it returns is "module:function"."""
    top = argparse.ArgumentParser(
        prog="python -m meta",
        description="Every tensor operator on the best backend at hand.",
        epilog="Exit status: 0 done, 1 something was found wrong, 2 bad input, 130 interrupted. "
        "META_* environment variables: see `python -m meta env`.",
    )
    top.add_argument("--version", action="version", version=f"meta {meta.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (
        *(_op, _ops, _compile, _profile, _traces, _tune, _costs, _import, _relay, _env, _cache),
        *(_selftest, _demo, _generate, _serve),
    ):
        add(commands)
    return top


def _op(commands: Commands) -> None:
    parser = commands.add_parser(
        "op",
        help="what is known of an operator: schema, gradient, backends, and where it is written",
        description="Show an operator's card. `ops` lists all operators.",
    )
    parser.add_argument("name", metavar="NAME", help="an operator, such as softmax")
    add_json(parser)
    for flag, what in (
        ("--prefer", "ask this backend first (may be repeated)"),
        ("--only", "use no backend but this (may be repeated)"),
        ("--exclude", "do not use this backend (may be repeated)"),
    ):
        parser.add_argument(flag, action="append", default=[], metavar="BACKEND", help=what)
    parser.set_defaults(run="meta.cli.operators:run_op")


def _ops(commands: Commands) -> None:
    parser = commands.add_parser(
        "ops",
        help="all operators: gradient, cast rule and backends of each; what is missing",
        description="List operators by family, one row each. `op NAME` shows all of one.",
    )
    parser.add_argument("--family", metavar="FAMILY", help="only those of this family")
    parser.add_argument("--dialect", metavar="BACKEND", help="only those that it implements")
    parser.add_argument(
        "--missing",
        nargs="?",
        const="",
        metavar="ASPECT",
        help="only those that lack an aspect, with status 1 if there are any; "
        f"ASPECT: {', '.join(ASPECTS)} (these by default), or a backend",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON array")
    form.add_argument("--markdown", action="store_true", help="print docs/operators.md")
    parser.set_defaults(run="meta.cli.operators:run_ops")


def _compile(commands: Commands) -> None:
    parser = commands.add_parser(
        "compile",
        help="compile a model or program text: passes, kernels, memory",
        description="Compile a model or program text, and show what each pass took, which kernels "
        "run and how much memory intermediates need. META_DUMP_IR=DIR keeps the program after "
        "each pass.",
    )
    add_target(parser)
    parser.add_argument(
        "--output", metavar="DIR", help="save the compiled program; meta.vm.load reads it"
    )
    parser.add_argument(
        "--workdir",
        metavar="DIR",
        help="save it with the program after each pass, sources and a page in a folder of its name "
        "in DIR; meta.load_module reads it",
    )
    parser.add_argument(
        "--onnx",
        metavar="FILE",
        help="write the program, of a model in infer mode, as an ONNX file",
    )
    parser.add_argument(
        "--export", metavar="FILE", help="write a shared library for C, with its header beside it"
    )
    add_html(parser)
    parser.set_defaults(run="meta.cli.compile:run_compile")


def _profile(commands: Commands) -> None:
    parser = commands.add_parser(
        "profile",
        help="run a model or program text and measure each instruction",
        description="Compile a model or program text, run it on made-up arguments (normally "
        "distributed floats, zeros of other dtypes) and show the time of each instruction.",
    )
    add_target(parser)
    parser.add_argument("--repeat", type=int, default=10, help="measured runs; default 10")
    parser.add_argument(
        "--trace", metavar="FILE", help="write the last run for chrome://tracing or Perfetto"
    )
    add_html(parser)
    parser.set_defaults(run="meta.cli.compile:run_profile")


def _traces(commands: Commands) -> None:
    parser = commands.add_parser(
        "traces",
        help="make one trace of those of several ranks",
        description="Join the traces that the ranks of a distributed program wrote (profile(...)."
        "chrome_trace) into one for chrome://tracing or Perfetto, a process for each rank. Clocks "
        "are set by the ends of collectives.",
    )
    parser.add_argument("traces", nargs="+", metavar="FILE", help="the trace of a rank")
    parser.add_argument("--output", required=True, metavar="FILE", help="the trace of all")
    add_json(parser)
    parser.set_defaults(run="meta.cli.compile:run_traces")


def _tune(commands: Commands) -> None:
    parser = commands.add_parser(
        "tune",
        help="measure which kernels are fastest for a model, and keep that for all processes",
        description="Measure the candidates of each operator call of a model or program text that "
        "were never measured here, and keep the result: programs compiled from then on are made "
        "of what was fastest. Shows what changed, and the time of a run before and after.",
    )
    add_target(parser)
    parser.add_argument(
        "--budget",
        type=seconds,
        default=60.0,
        metavar="TIME",
        help="how long to measure, like 60s or 5min; default 60s",
    )
    parser.set_defaults(run="meta.cli.tune:run_tune")


def _costs(commands: Commands) -> None:
    parser = commands.add_parser(
        "costs",
        help="what was measured of kernels here, and moving it to other machines",
        description="Show what is kept of measured kernels for a device: of each call, the time of "
        "each candidate and which is chosen. What was measured elsewhere counts on machines with "
        "the same device, driver and versions.",
    )
    parser.add_argument("operator", nargs="?", metavar="OP", help="only those of this operator")
    parser.add_argument("--export", metavar="FILE", help="write all that is kept to a JSON file")
    parser.add_argument(
        "--import", dest="source", metavar="FILE", help="keep what --export wrote elsewhere"
    )
    add_device(parser)
    add_json(parser)
    parser.set_defaults(run="meta.cli.tune:run_costs")


def _import(commands: Commands) -> None:
    parser = commands.add_parser(
        "import",
        help="read a model of PyTorch (.pt2), ONNX or Relay: what is supported; run and time it",
        description="Say what of a file is supported, convert it, and run it compiled on inputs: "
        "those of --inputs, or those that a .pt2 file holds. Results are compared with those of "
        "the source's own runtime, where that is installed: torch, onnxruntime.",
        epilog="Exit status: 0 done, 1 something is not supported or results differ, 2 bad input.",
    )
    parser.add_argument("file", metavar="FILE", help="a .pt2 or .onnx file, or a Relay program")
    parser.add_argument("--check", action="store_true", help="only say what is supported")
    parser.add_argument("--inputs", metavar="FILE", help="inputs: .npz by name, .npy, or .pt")
    parser.add_argument("--out", metavar="NPZ", help="write the results: out0, out1, ...")
    parser.add_argument(
        "--time", action="store_true", help="time a run, beside the source's runtime"
    )
    parser.add_argument("--params", metavar="FILE", help="the file of parameters, for Relay")
    add_device(parser)
    parser.add_argument("--dialect", help="the dialect to prefer, such as torch")
    add_json(parser)
    parser.set_defaults(run="meta.cli.importing:run")


def _relay(commands: Commands) -> None:
    parser = commands.add_parser(
        "relay",
        help="read Relay programs of TVM: info, run, convert, operators",
        description="Read a Relay program (text, JSON, or a Model Library Format archive). "
        "All actions print JSON with --json.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    info = _action(actions, "info", "inputs, parameters, operators, and what is not supported")
    info.set_defaults(run="meta.cli.relay:run_info")

    run = _action(actions, "run", "run a program on the arrays of an npz file")
    run.add_argument("--inputs", required=True, metavar="NPZ", help="inputs by name")
    run.add_argument("--out", required=True, metavar="NPZ", help="results, out0, out1, ...")
    add_device(run)
    run.add_argument("--dialect", help="the dialect to prefer, such as torch")
    run.set_defaults(run="meta.cli.relay:run_program")

    convert = _action(actions, "convert", "compile a program into a folder for meta.vm.load")
    convert.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder")
    add_input(
        convert, "the type of each input, like 'float32[n,3]'; by default as the program declares"
    )
    add_device(convert)
    convert.set_defaults(run="meta.cli.relay:run_convert")

    form = actions.add_parser("operators", help="what becomes of every operator of Relay")
    shown = form.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print one JSON array")
    shown.add_argument("--markdown", action="store_true", help="print the tables of docs/relay.md")
    form.set_defaults(run="meta.cli.relay:run_operators")


def _action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    parser.add_argument("file", metavar="FILE", help="Relay text, JSON, or an archive of a model")
    parser.add_argument("--params", metavar="FILE", help="the file of parameters")
    add_json(parser)
    return parser


def _env(commands: Commands) -> None:
    parser = commands.add_parser(
        "env",
        help="versions, devices, backends, every META_* variable, the caches on disk",
        description="Show what is there on this machine and how meta is set up.",
    )
    add_json(parser)
    parser.set_defaults(run="meta.cli.env:run_env")


def _cache(commands: Commands) -> None:
    parser = commands.add_parser(
        "cache",
        help="what is kept on disk between processes; --clear removes it",
        description="Show the caches on disk: where they are, what is in them, and how much of "
        "META_CACHE_SIZE they take. They may be removed at any time, also while programs run: what "
        "is missing is compiled again.",
    )
    names = ", ".join(caches.CACHES)
    parser.add_argument(
        "--clear", nargs="*", metavar="NAME", help=f"remove these ({names}); all without a name"
    )
    add_json(parser)
    parser.set_defaults(run="meta.cli.env:run_cache")


def _selftest(commands: Commands) -> None:
    parser = commands.add_parser(
        "selftest",
        help="check every operator on every backend in every dtype on this machine",
        description="Run the operators' test cases on each backend alone, beside independent "
        "results, and print a table: passed, refused (with the reason), or FAIL. The exit status "
        "is 1 if something fails.",
    )
    parser.add_argument(
        "--device", help="cpu, cuda or cuda:N; default cuda where there is one, else cpu"
    )
    for flag, what in (("op", "operator"), ("dialect", "backend"), ("dtype", "dtype")):
        parser.add_argument(
            f"--{flag}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"this {what} only (may be repeated)",
        )
    parser.add_argument(
        "--samples",
        type=int,
        default=1,
        help="how many samples of each case and dtype; 0: all; default 1, which shows most",
    )
    parser.add_argument(
        "-j",
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="processes (default: one per core); 0: this one, which a kernel's crash ends",
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, help="seconds for an operator on a backend"
    )
    parser.add_argument("--cases", metavar="FOLDER", help="the cases; default: those of meta")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--markdown", action="store_true", help="print the page docs/dialects.md")
    parser.set_defaults(run="meta.cli.selftest:run")


def _demo(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="train a small network on handwritten digits, save it, load it, compare",
        description="Train a small convolutional network on handwritten digits. Exit status 1 if "
        "the saved and loaded network does not give exactly the same scores.",
    )
    parser.add_argument("--epochs", type=positive, default=12, metavar="N", help="default 12")
    parser.add_argument(
        "--batch-size", type=positive, default=64, metavar="N", help="images per step, default 64"
    )
    add_device(parser)
    parser.add_argument(
        "--executor", default="vm", help="what trains: vm or interpreter; default vm"
    )
    parser.add_argument(
        "--threads", type=positive, default=1, metavar="N",
        help="of PyTorch's CPU kernels; default 1: this network's are too small to share",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="of split, weights and order; default 0"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="keep the weights here, as safetensors; default: not kept"
    )
    parser.add_argument(
        "--data", metavar="FILE.npz",
        help="other images: arrays x of shape (n, h, w) or (n, c, h, w) and y, n labels 0, 1, ...",
    )  # fmt: skip
    add_json(parser)
    parser.set_defaults(run="meta.cli.demo:run")


def _generate(commands: Commands) -> None:
    parser = commands.add_parser(
        "generate",
        help="write on from a prompt by a language model in a folder",
        description="Write on from a prompt by a decoder that transformers wrote. The text goes to "
        "the standard output as it comes, times to the standard error.",
    )
    parser.add_argument("folder", help="with config.json, safetensors files and tokenizer.json")
    parser.add_argument("prompt", help="the text to go on from")
    parser.add_argument(
        "--max-new-tokens", type=positive, default=128, metavar="N", help="default 128"
    )
    for name, kind, metavar, text in (  # of `meta.language.Sampling`, whose defaults hold
        ("temperature", float, "T", "draw tokens; default 0: take the most probable one"),
        ("top-k", int, "K", "of the K most probable"),
        ("top-p", float, "P", "of the fewest that have P together"),
        ("min-p", float, "P", "of those P times as probable as the most probable one"),
        ("repetition-penalty", float, "X", "divide scores of tokens that were there by X"),
        ("presence-penalty", float, "X", "subtract X from scores of tokens that were written"),
        ("frequency-penalty", float, "X", "subtract X as often as they were"),
        ("seed", seed, "N", "of the draws"),
    ):
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=text)
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before it (may be repeated)",
    )
    parser.add_argument(
        "--draft", metavar="FOLDER",
        help="a smaller model that guesses tokens, or ngram, for what followed in the text before",
    )  # fmt: skip
    parser.add_argument(
        "--draft-tokens", type=positive, default=4, metavar="N", help="guess so many; default 4"
    )
    parser.add_argument(
        "--beams", type=positive, default=1, metavar="N", help="search with so many texts"
    )
    parser.add_argument(
        "--length-penalty", type=float, default=1.0, metavar="P",
        help="divide the scores of beams by their length to this power; default 1",
    )  # fmt: skip
    parser.add_argument("--dtype", help="of the weights; default: as they are stored")
    add_device(parser)
    add_json(parser)
    parser.set_defaults(run="meta.cli.generate:run")


def _serve(commands: Commands) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve a language model in a folder by the routes of OpenAI's API",
        description="Serve a decoder that transformers wrote: /v1/completions, "
        "/v1/chat/completions, /v1/models, /metrics, /health. Nobody is asked who they are: let "
        "other machines in through a proxy that asks. Needs the extra serve.",
    )
    parser.add_argument("folder", help="with config.json, safetensors files and tokenizer.json")
    parser.add_argument("--host", default="127.0.0.1", help="address; default 127.0.0.1, this host")
    parser.add_argument("--port", type=port, default=8000, help="default 8000; 0: a free one")
    parser.add_argument("--name", help="of the model; default: the folder's")
    for flag, default, what in (
        ("--rows", 16, "texts that are written at once"),
        ("--queue", 64, "texts that may wait"),
        ("--body", 4 << 20, "bytes of a request's body"),
    ):
        parser.add_argument(
            flag, type=positive, default=default, metavar="N", help=f"{what}; default {default}"
        )
    parser.add_argument(
        "--length", type=positive, metavar="N",
        help="tokens of the longest text, with its prompt; default 2048 if the model has so many",
    )  # fmt: skip
    parser.add_argument(
        "--blocks", type=positive, metavar="N",
        help="of 16 tokens in the cache; default: enough for all rows at their longest",
    )  # fmt: skip
    parser.add_argument(
        "--time-limit", type=seconds, default=600.0, metavar="TIME",
        help="for a request, like 90s or 5min; default 10min",
    )  # fmt: skip
    parser.add_argument("--dtype", help="of the weights; default: as they are stored")
    parser.add_argument("--quantize", metavar="KIND", help="of the weights: int8, int4 or float8")
    parser.add_argument("--device", help="cpu, cuda or cuda:N; default: a GPU if there is one")
    parser.set_defaults(run="meta.cli.serve:run")
