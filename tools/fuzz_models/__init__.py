"""Random models, run in every way that a model can be run, against references in float64.

``python -m tools.fuzz_models --cases 1000 --seed 0`` runs a thousand; docs/testing.md says what
they are made of and what counts as a failure. An operator with an `OpCase` record is drawn.
"""
