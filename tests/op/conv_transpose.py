"""Cases of transposed convolutions. Gradients come from torch's autograd of the forward."""

import torch.nn.functional as F_

from meta.testing import F, sample
from tests.op.conv import arranged, cases, in_layout, sides


def transposed(x, w, stride=1, padding=0, output_padding=0, dilation=1, groups=1):
    """Torch's function without padding, from which the padding is cut."""
    count = x.ndim - 2
    run = (F_.conv_transpose1d, F_.conv_transpose2d, F_.conv_transpose3d)[count - 1]
    extra = (output_padding,) * count if isinstance(output_padding, int) else output_padding
    added = [e for more in reversed(extra) for e in (0, more)]
    if not w.numel() and len(x):  # torch refuses it
        x, w = x.new_zeros((len(x), groups, *x.shape[2:])), w.new_zeros((groups, *w.shape[1:]))
    y = run(x, w, None, stride, 0, 0, groups, dilation)
    return F_.pad(y, [a - s for a, s in zip(added, sides(padding, count), strict=True)])


conv_transpose = in_layout(transposed, "IO")

# x, w, stride, padding, output_padding, dilation, groups, and the shape of the result
WINDOWS = [
    ((1, 1, 2, 2), (1, 1, 2, 2), (1, 0, 0, 1, 1), (1, 1, 3, 3)),
    ((2, 3, 4, 3), (3, 4, 3, 3), (2, 1, 1, 1, 1), (2, 4, 8, 6)),
    ((1, 4, 3, 4), (4, 2, 2, 3), ((2, 3), (1, 0), (0, 2), 1, 2), (1, 4, 4, 14)),
    ((1, 2, 3, 3), (2, 3, 3, 2), (1, (0, 1, 2, 0), 0, (2, 1), 1), (1, 3, 5, 3)),
]
CASES = cases(
    "conv2d_transpose",
    conv_transpose,
    WINDOWS + arranged(2, conv_transpose, (2, 1, 1, 1), transposed=True),
    [sample(F(0, 2, 3, 3), F(2, 1, 2, 2))],
    [sample(F(1, 1, 2, 2), F(1, 1, 3, 3), F(1, 1, 3, 3), (1, 1, 2, 2), *WINDOWS[0][2])],
)

# x, w, stride, padding, output_padding, dilation, groups, and the shape of the result
WINDOWS_1D = [
    ((1, 1, 2), (1, 1, 2), (1, 0, 0, 1, 1), (1, 1, 3)),
    ((2, 3, 4), (3, 4, 3), (2, 1, 1, 1, 1), (2, 4, 8)),
    ((1, 4, 3), (4, 2, 2), ((3,), (1,), (2,), 1, 2), (1, 4, 8)),
    ((1, 2, 3), (2, 3, 3), (1, (0, 2), 0, 2, 1), (1, 3, 5)),
]
CASES += cases(
    "conv1d_transpose",
    conv_transpose,
    WINDOWS_1D + arranged(1, conv_transpose, (2, 1, 1, 1), transposed=True),
    [sample(F(0, 2, 3), F(2, 1, 2))],
)

# x, w, stride, padding, output_padding, dilation, groups, and the shape of the result
WINDOWS_3D = [
    ((1, 1, 2, 2, 2), (1, 1, 2, 2, 2), (1, 0, 0, 1, 1), (1, 1, 3, 3, 3)),
    ((1, 2, 2, 3, 2), (2, 2, 3, 2, 1), (2, (1, 0, 0), (1, 0, 1), 1, 2), (1, 4, 4, 6, 4)),
    (
        (1, 2, 2, 2, 3),
        (2, 1, 2, 2, 2),
        ((1, 2, 3), (0, 1, 2, 1, 0, 1), (0, 1, 0), (2, 1, 1), 1),
        (1, 1, 3, 4, 5),
    ),
]
CASES += cases(
    "conv3d_transpose",
    conv_transpose,
    WINDOWS_3D + arranged(3, conv_transpose, (2, 1, 1, 1), transposed=True),
    [sample(F(0, 1, 2, 2, 2), F(1, 1, 2, 2, 2))],
)
