"""Programs leave as ONNX files: what writes them, the other way round from the importer.

`model.py` (`to_onnx`) takes a program, cleans it up and writes the file. `program.py` walks its
functions and calls what `registry.py` finds for every operator, from the importer's converters or
in `exporters/`, on a `graph.py`.
"""
