"""Test records of optimizer steps: the oracles return the new values of what is written."""

from meta.testing import C, F, OpCase, error, refusals, sample


def _sgd(x, dx, v, learning_rate, mu):
    """The formulas, where a tensor with one element counts as its number."""
    learning_rate, mu = (
        n if isinstance(n, float | int) else n.reshape(()) for n in (learning_rate, mu)
    )
    v = mu * v + dx
    return x - learning_rate * v, v


# A rounded velocity is read again to update the parameter.
HALF = {"atol": {"float16": 5e-3, "bfloat16": 4e-2}}

CASES = [
    OpCase(
        "sgd",
        [
            sample(F(3, 4), F(3, 4), F(3, 4), 0.1, 0.9),
            sample(F(), F(), F(), 0.5, 0),
            sample(F(0, 2), F(0, 2), F(0, 2), 1, 0.5),
            sample(F(70), F(70), F(70), F(low=0.1, high=0.2), F(1, low=0.8, high=0.9)),
            sample(F(1, 5), F(1, 5), F(1, 5), F(1, 1, low=0.1, high=0.2), 0.9),
        ],
        _sgd,
        grad=False,
        **HALF,
    ),
]

CASES += refusals(
    {
        "sgd": [
            error(F(3), F(2), F(3), 0.1, 0.9, match="x, dx and v differ"),
            error(F(3), F(3), C([0.0] * 3, "float16"), 0.1, 0.9, match="cast the float16 one"),
            error(F(3), F(3), F(3), F(2), 0.9, match="learning_rate must be one number"),
            error(F(3), F(3), F(3), 0.1, C(1, "int64"), match="mu must be floating point"),
        ]
    }
)
