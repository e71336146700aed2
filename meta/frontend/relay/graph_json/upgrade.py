"""What earlier versions of TVM named or encoded otherwise, as tables.

Missing fields need no entry: they are null, or the default of the operator table. To read another
old form, add a row.
"""

from __future__ import annotations

# Until v0.6; TVM's tensor expressions had no prefix, and what it shares with Relay had Relay's.
_RELAY_NO_MORE = (
    "Op TypeVar GlobalTypeVar TupleType FuncType IncompleteType TypeRelation TypeCall SourceName "
    "Span GlobalVar"
)
_COMPUTED = (
    "Add Sub Mul Div Mod FloorDiv FloorMod Min Max Cast Select Let Call EQ NE LT LE GT GE And Or "
    "Not"
)
COMPUTED = tuple(f"tir.{name}" for name in _COMPUTED.split())
"""TVM's tensor expressions that compute a number."""

_TENSOR_EXPRESSIONS = f"Any SizeVar StringImm {_COMPUTED}"
_RENAMED = {
    **{f"relay.{name}": name for name in _RELAY_NO_MORE.split()},
    **{name: f"tir.{name}" for name in _TENSOR_EXPRESSIONS.split()},
    "relay.Module": "IRModule",
    "Variable": "tir.Var",
    "StrMap": "Map",
    "UIntImm": "IntImm",
    "SEScope": "VirtualDevice",  # v0.8
}

_TYPES_BEFORE = {
    ("relay.attrs.TopkAttrs", "k"): ((0, 7), "int"),
    ("relay.attrs.NonMaximumSuppressionAttrs", "max_output_size"): ((0, 7), "int"),
    ("relay.attrs.GetValidCountsAttrs", "score_threshold"): ((0, 8), "double"),
}
SETTLED = max(version for version, _ in _TYPES_BEFORE.values())
"""The first version in which all attributes have their present types."""


def type_key(key: str) -> str:
    """Return the present type key of a node."""
    return _RENAMED.get(key, key)


def field_type(key: str, name: str, version: tuple[int, int] | None, present: str) -> str:
    """Return the C++ type that an operator's attribute had in a version of TVM.

    Only changes between an object and a number are told here: a string is read by its looks.
    """
    until, former = _TYPES_BEFORE.get((key, name), ((0, 0), present))
    return former if version is not None and version < until else present
