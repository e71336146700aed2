"""Relay programs and metadata in TVM's JSON form, of all versions from 0.6 on.

`document` reads the outer form, `resolve` goes from nodes to values, `values`, `nodes` and
`program` say what each kind of node is; `fields` has what earlier versions wrote otherwise.
"""

from __future__ import annotations

from meta.frontend.relay import ast
from meta.frontend.relay.graph_json.document import decode
from meta.frontend.relay.graph_json.program import read_program, read_table

__all__ = ["read_json", "read_table"]


def read_json(text: str | bytes, source: str = "<json>") -> ast.Module:
    """Read a program that was saved by ``tvm.ir.save_json``.

    A function or a bare expression becomes ``main``. Shared nodes are shared in the tree.

    Raises RelayError, with the node or with line and column, for what is damaged or no Relay.
    """
    return read_program(decode(text, source) if isinstance(text, bytes) else text, source)
