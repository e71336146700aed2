"""``python -m meta op NAME``: the card of an operator. All operators: `meta.cli.listing`."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from meta.base.registry import OPERATORS
from meta.cli import card_text
from meta.cli.card import card
from meta.cli.table import add_json, show
from meta.dialect import exclude, only, prefer


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the arguments."""
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
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the card."""
    op = OPERATORS[options.name]
    with ExitStack() as choice:
        if options.prefer:
            choice.enter_context(prefer(*options.prefer))
        if options.only:
            choice.enter_context(only(*options.only))
        if options.exclude:
            choice.enter_context(exclude(*options.exclude))
        record = card(op)
    show(options, record, card_text.text)
    return 0
