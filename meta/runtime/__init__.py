"""Floor 1: values at run time: `ndarray` on a torch buffer, and the random generator.

Add here what owns memory or talks to a device; what computes is an operator.
"""
