"""Gradients of products of matrices.

For y = a b, da = dy bᵀ and db = aᵀ dy; the other forms follow by transposing. Complex factors are
conjugated.
"""

from typing import Any

from meta import op
from meta.grad.core import (
    collapse,
    conjugated,
    gradient,
    gradients,
    holomorphic,
    not_differentiable,
)
from meta.op.core.subscripts import Labels, equation_of, subscripts


def _products(nn, nt, tn, tt, batched):
    """Register the gradients of the four products of matrices, or of batches of them."""

    def of(dx1, dx2, x1, x2):
        # Summed over the batch where one matrix was used with every matrix of the other operand.
        return (collapse(dx1, x1), collapse(dx2, x2)) if batched else (dx1, dx2)

    gradients(
        {
            nn: holomorphic(lambda x1, x2, dy: of(nt(dy, x2), tn(x1, dy), x1, x2)),
            nt: holomorphic(lambda x1, x2, dy: of(nn(dy, x2), tn(dy, x1), x1, x2)),
            tn: holomorphic(lambda x1, x2, dy: of(nt(x2, dy), nn(x1, dy), x1, x2)),
            tt: holomorphic(lambda x1, x2, dy: of(tt(x2, dy), tt(dy, x1), x1, x2)),
        }
    )


_products(op.matmul, op.matmul_nt, op.matmul_tn, op.matmul_tt, False)
_products(op.batch_matmul, op.batch_matmul_nt, op.batch_matmul_tn, op.batch_matmul_tt, True)


def _grouped_products(nn, nt, tn, tt):
    """Register the gradients of products in groups: by both operands these are such again, in the
    same groups. Which axis is divided follows from the axes that the operands have.
    """
    gradients(
        {
            nn: lambda x1, x2, offs, dy: (nt(dy, x2, offs), tn(x1, dy, offs), None),
            nt: lambda x1, x2, offs, dy: (nn(dy, x2, offs), tn(dy, x1, offs), None),
            tn: lambda x1, x2, offs, dy: (nt(x2, dy, offs), nn(x1, dy, offs), None),
            tt: lambda x1, x2, offs, dy: (tt(x2, dy, offs), tt(dy, x1, offs), None),
        }
    )


_grouped_products(
    op.grouped_matmul, op.grouped_matmul_nt, op.grouped_matmul_tn, op.grouped_matmul_tt
)
gradients({op.dense: holomorphic(lambda x1, x2, dy: (op.matmul(dy, x2), op.matmul_tn(dy, x1)))})
not_differentiable(op.scaled_matmul, why="its factors are float8, which has no gradient")


@gradient(op.einsum)
def einsum(operands: Any, dy: Any, equation: str) -> Any:
    """The gradient of an operand is dy times the conjugated others, summed over the labels that it
    lacks.
    """
    read = subscripts(equation, [x.shape for x in operands])

    def of(i: int) -> Any:
        labels, shape = read.operands[i], operands[i].shape
        others = [conjugated(x) for x in (*operands[:i], *operands[i + 1 :])]
        terms = [read.result, *read.operands[:i], *read.operands[i + 1 :]]
        # An axis that was broadcast is summed over, one that was only summed is repeated.
        own = tuple(dict.fromkeys(labels))
        extent = dict(zip(labels, shape, strict=True))
        kept = [
            label
            for label in own
            if any(label in term for term in terms)
            and (extent[label] != 1 or read.extents[label] == 1)
        ]
        product = op.einsum(equation_of(terms, tuple(kept)), dy, *others)
        extents = dict(zip(kept, product.shape, strict=True))
        spread = op.reshape(product, tuple(extents.get(label, 1) for label in own))
        whole = op.broadcast_to(spread, tuple(extent[label] for label in own))
        return _on_diagonals(whole, own, labels)

    return tuple(of(i) for i in range(len(operands)))


def _on_diagonals(x: Any, own: Labels, labels: Labels) -> Any:
    """Return zeros with an axis for each of ``labels`` and ``x``, with distinct ones, where the
    indices of equal labels are equal.
    """
    for label in own:
        times = labels.count(label)
        if times == 1:
            continue
        # In row-major order the diagonal of n * n * ... elements is every (1 + n + ...)th.
        at = own.index(label)
        extent = x.shape[at]
        last = op.permute_dims(x, (*range(at), *range(at + 1, x.ndim), at))
        stride = sum(extent**power for power in range(times))
        flat = (*last.shape[:-1], extent**times)
        begin, strides = (0,) * x.ndim, (*(1,) * (x.ndim - 1), max(stride, 1))
        placed = op.strided_slice_dx(last, flat, begin, flat, strides)
        x = op.reshape(placed, (*last.shape[:-1], *(extent,) * times))
        own = (*own[:at], *own[at + 1 :], *(label,) * times)
    return x if own == labels else op.permute_dims(x, _order(own, labels))


def _order(own: Labels, labels: Labels) -> tuple[int, ...]:
    """Return the axes of ``own`` in the order of ``labels``; equal ones are interchangeable."""
    free = {label: [i for i, o in enumerate(own) if o == label] for label in own}
    return tuple(free[label].pop(0) for label in labels)
