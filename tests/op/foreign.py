"""What the operators of `meta/op/foreign.py` have to do."""

import torch

from meta.testing import C, F, OpCase, error, sample

ADD = '["aten.add.Tensor", [{"tensor": 0}, {"tensor": 1}], {"alpha": 2}]'
SORT = '["aten.sort.default", [{"tensor": 0}, 0, true], {}]'
VIEW = '["aten.view.default", [{"tensor": 0}, [{"extent": 0}, 2]], {}]'
CLAMP = '["aten.clamp.default", [{"tensor": 0}, null, 1.5], {}]'


def _called(tensors, target, *_):
    """Return what torch's functions of these texts return."""
    if target == ADD:
        return (tensors[0] + 2 * tensors[1],)
    if target == SORT:
        return tuple(torch.sort(tensors[0], dim=0, descending=True))
    if target == VIEW:
        return (tensors[0].reshape(-1, 2),)
    return (tensors[0].clamp(max=1.5),)


CASES = [
    OpCase(
        "torch_call",
        samples=[
            # Given numbers: the shapes of results are written out, and cannot follow others.
            sample((C([[1, 2, 3], [4, 5, 6]]), C([1, -1, 0.5])), ADD, "float32", (2, 3), (2,)),
            sample((C(1.0), C(2.5)), ADD, "float32", (), (0,)),
            sample((C([2, 5, 1, 3]),), SORT, "float32,int64", (4, 4), (1, 2)),
            sample((C([1, 2, 3, 4, 5, 6]),), VIEW, "float32", (3, 2), 2, 3),
            sample((F(0, 2),), CLAMP, "float32", (0, 2), 2),
        ],
        oracle=_called,
        dtypes=("float32",),
        dialects=("torch",),
        grad=False,
        errors=[
            error((F(2),), CLAMP, "", match="a call has no result"),
            error((F(2),), CLAMP, "float32", (2,), (2,), match="do not cut shapes"),
        ],
    )
]
