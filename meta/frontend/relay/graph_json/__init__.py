"""Relay programs and metadata in TVM's JSON form, of all versions from 0.6 on.

`document` reads the outer form and has what earlier versions wrote otherwise, `resolve` goes from
nodes to values, `nodes` and `program` say what each kind of node is.
"""

from meta.frontend.relay.graph_json.program import read_json, read_table

__all__ = ["read_json", "read_table"]
