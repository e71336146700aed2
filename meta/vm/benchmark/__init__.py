"""What `meta.measure` is made of.

``workload``: a call of an operator, or a fused function, and what it is run on. ``contender``: a
kernel that takes part, and whether it is right; what may hang is tried in ``isolated``.
``interleave``: how long they take, and ``gradient`` the same of the gradient. ``benchmark``: all of
it, to a list of costs. ``roofline``: what a device can do at best.
"""
