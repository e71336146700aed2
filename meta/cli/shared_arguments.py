"""Arguments that several commands have, and how their texts are read."""

from __future__ import annotations

import argparse
import re

TARGET = "module:Name, file.py:Name or file.meta"
"""How a model or a program is named."""


def seconds(text: str) -> float:
    """Return the seconds of a time such as ``5min``."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(s|min|h)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a time like 60s or 5min, found {text!r}")
    return float(match[1]) * {"s": 1, "min": 60, "h": 3600}[match[2] or "s"]


def positive(text: str) -> int:
    """Return a positive whole number."""
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, found {text!r}")
    return int(text)


def port(text: str) -> int:
    """Return the number of a port."""
    if not text.isascii() or not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 65535, found {text!r}")
    return int(text)


def seed(text: str) -> int:
    """Return a whole number below 2**63."""
    if not text.isascii() or not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"expected a whole number below 2**63, found {text!r}")
    return int(text)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that say what is compiled."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help=f"{TARGET}; Name is a meta.Model, a class of one that needs no arguments, or a "
        "function decorated with meta.model.trace",
    )
    add_input(parser, "the type of each argument, like 'float32[2,3]'; program text needs none")
    parser.add_argument(
        "--opt-level",
        type=int,
        metavar="LEVEL",
        help="how much is optimised, from 0, only what is needed to run; default as in meta.vm",
    )
    parser.add_argument(
        "--freeze",
        action="store_true",
        help="put the model in infer mode, and lay its weights out for the kernels of the CPU",
    )
    add_device(parser)
    add_json(parser)


def add_html(parser: argparse.ArgumentParser) -> None:
    """Declare the option ``--html``."""
    parser.add_argument(
        "--html",
        metavar="PAGE",
        help="write a page about the program: passes, kernels, memory (executable.show)",
    )


def add_input(parser: argparse.ArgumentParser, text: str) -> None:
    """Declare the option ``--input``, which takes types."""
    parser.add_argument(
        "--input", nargs="+", action="extend", default=[], metavar="TYPE", help=text
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare the option ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare the option ``--device``."""
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N; default cpu")
