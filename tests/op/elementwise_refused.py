"""What elementwise operators of one to three tensors refuse, beside those of `arithmetic.py`."""

from meta.testing import B, C, F, I, error, refusals

_INTS = I(3, low=1, high=3)
PAIRS = [
    error(F(3), C([1.0], "float64"), match="cast the float32 one"),
    error(F(2), F(3), match="broadcast"),
]
TRIPLES = [
    error(F(3), F(3), C([1.0], "float64"), match="cast the float32 one"),
    error(F(3), F(2), F(3), match="broadcast"),
]

CASES = refusals(
    {
        "fmod": [
            *PAIRS,
            error(B(3), B(3), match="not defined for two bool operands"),
            error(7, 0, match="an integer is divided by 0"),
        ],
        "copysign fmax fmin heaviside hypot isclose ldexp": PAIRS,
        "logaddexp logaddexp2 nextafter xlogy": PAIRS,
        "frac": [error(_INTS, match="x must be floating point")],
        "square": [error(B(3), match="bool has no square")],
        "addcmul": [*TRIPLES, error(B(3), B(3), B(3), match="bool has no product and sum")],
        "addcdiv lerp": [*TRIPLES, error(_INTS, _INTS, _INTS, match="x must be floating point")],
    }
)
