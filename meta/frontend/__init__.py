"""Importers: programs of other systems become models of `meta`.

One folder per source; `core` holds what they share. A new source is a folder with a `load` or
`from_...` function and its converters.
"""
