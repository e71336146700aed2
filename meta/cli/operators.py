"""``python -m meta op NAME``: the card of an operator. All operators: `meta.cli.listing`."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from meta.base.registry import OPERATORS
from meta.cli import card_text
from meta.cli.card import card
from meta.cli.table import show
from meta.dialect import exclude, only, prefer


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
