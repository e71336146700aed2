"""Relay, the graph language that TVM had until 2025: its text, JSON and parameter files.

`load` makes a model of a program; `read` only reads it, into the tree of `ast`. Operators are
converted by the families in `converters/`, and programs by `convert/`.
"""

from meta.frontend.relay.errors import ParamsError, RelayError
from meta.frontend.relay.model import RelayModel, load
from meta.frontend.relay.params import read_params
from meta.frontend.relay.read import read
from meta.frontend.relay.text import parse_text

__all__ = ["ParamsError", "RelayError", "RelayModel", "load", "parse_text", "read", "read_params"]
