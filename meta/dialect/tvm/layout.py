"""Tensors of any layout in tensor expressions: read and written at indices in one order of axes.

A kernel then is written once, and each tensor is accessed where it lies; none is transposed.
"""

from tvm import te

from meta.dialect.tvm.index import extent
from meta.op.core.window import layout_permutation


class Ordered:
    """A tensor of ``layout``, read at indices in ``canonical`` order; ``shape`` is in it, too."""

    def __init__(self, x, layout, canonical):
        self.x, self.layout, self.canonical = x, layout, canonical
        self.to = layout_permutation(layout, canonical, "layout")
        self.back = layout_permutation(canonical, layout, "layout")
        self.shape = tuple(extent(x.shape[a]) for a in self.to)

    def __call__(self, *i):
        return self.x(*[i[a] for a in self.back])

    def like(self, shape, element, name):
        """Return an `Ordered` of this shape and this tensor's layout: ``element(*i)`` at each i."""
        made = self.result([shape[a] for a in self.back], element, name)
        return Ordered(made, self.layout, self.canonical)

    def result(self, shape, element, name):
        """Return the tensor of ``shape``, which is in this tensor's layout, of ``element(*i)``."""
        return laid_out(shape, element, self.layout, self.canonical, name)


def laid_out(shape, element, layout, canonical, name, attrs=None):
    """Return a tensor of ``shape`` in ``layout``: ``element`` of indices in ``canonical`` order."""
    to = layout_permutation(layout, canonical, "layout")
    return te.compute(shape, lambda *i: element(*[i[a] for a in to]), name=name, attrs=attrs)
