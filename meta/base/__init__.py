"""Floor 0: what everything else may use and what uses nothing of `meta`: errors, knobs, names,
dtypes, devices.

Add a thing here only if it needs no tensor, no operator and no expression.
"""
