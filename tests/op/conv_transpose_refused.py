"""What transposed convolutions over one, two and three axes refuse."""

from meta.testing import F, I, error, refusals


def _refused(count):
    x, w, y = F(1, 4, *[3] * count), F(4, 2, *[3] * count), F(1, 4, *[5] * count)
    windows = (1, 0, 0, 1, 2)
    fits = {"groups": 2}
    extents = f"shape must have {count + 2} extents"
    return refusals(
        {
            f"conv{count}d_transpose": [
                error(F(4, *[3] * count), w, **fits, match=f"x must have {count + 2} axes"),
                error(x, I(4, 2, *[3] * count, low=0, high=2), match="differ in dtype"),
                error(x, F(3, 2, *[3] * count), match="the channels of x and w differ"),
                error(x, w, groups=3, match="groups must divide the channels"),
                error(x, w, stride=2, output_padding=2, match="output_padding does not fit"),
                error(x, w, padding=-1, match="padding does not fit"),
                error(x, w, padding=5, match="nothing is left inside the padding"),
                error(x, w, layout="NCHW8c", match="layout is not supported"),
            ],
            f"conv{count}d_transpose_dx": [
                error(w, None, y, (1, 4), *windows, match=extents),
                error(w, None, x, (1, 4, *[3] * count), *windows, match="dy has not the shape"),
            ],
            f"conv{count}d_transpose_dw": [
                error(x, None, y, (4, 2), *windows, match=extents),
                error(x, None, x, (4, 2, *[3] * count), *windows, match="dy has not the shape"),
            ],
        }
    )


CASES = [case for count in (1, 2, 3) for case in _refused(count)]
