"""What `meta.measure` is made of.

In the order of use: ``subject`` (a call of an operator, or a fused function), ``contenders`` (who
takes part, each a ``contender``; what may hang is tried in ``isolated``), ``arguments`` (what they
are run on), ``reference`` and ``results`` (whether they are right), ``clocks`` and ``racing`` (how
long they take), ``gradients`` and ``backward`` (the same of the gradient), ``contest`` (all of it,
to a list of costs), ``listing`` (which prints as a table).
"""
