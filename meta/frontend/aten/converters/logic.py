"""Comparisons, logical operators, operators on bits, and choosing by a condition."""

from meta import op
from meta.base.dtype import COMPLEX
from meta.frontend.aten.converters.elementwise import of_dtype
from meta.frontend.aten.operands import as_tensor, device_of, promote_operands
from meta.frontend.aten.promotion import is_number, result_dtype
from meta.frontend.aten.registry import aten

COMPARISONS = {
    "eq": op.equal,
    "ge": op.greater_equal,
    "gt": op.greater,
    "le": op.less_equal,
    "lt": op.less,
    "ne": op.not_equal,
    "greater": op.greater,
    "greater_equal": op.greater_equal,
    "less": op.less,
    "less_equal": op.less_equal,
    "not_equal": op.not_equal,
}


def comparison(base):
    def converted(x, y):
        of_dtype(base, x, y)
        return base(*promote_operands(x, y))

    return converted


for _name, _base in COMPARISONS.items():
    aten(f"{_name}.Tensor", f"{_name}.Scalar", _base)(comparison(_base))
for _base in (op.isfinite, op.isinf, op.isnan, op.logical_not):
    aten.same(_base.name, _base)
for _base in (op.logical_and, op.logical_or, op.logical_xor):
    aten.same(_base.name, _base)


def of_real(base):
    def converted(x):
        of_dtype(base, x)
        return base(x)

    return converted


for _base in (op.isneginf, op.isposinf, op.signbit):
    aten(_base.name, _base)(of_real(_base))


@aten("isreal", op.equal, op.imag, op.ones_like)
def isreal(x):
    return op.equal(op.imag(x), 0.0) if x.dtype in COMPLEX else op.ones_like(x, "bool")


@aten("isclose", op.isclose)
def isclose(x, y, *, rtol, atol, equal_nan):
    of_dtype(op.isclose, x, y)
    return op.isclose(*promote_operands(x, y), rtol, atol, equal_nan)


# Bits.

BITWISE = {"and": op.bitwise_and, "or": op.bitwise_or, "xor": op.bitwise_xor}


def binary(base):
    def converted(x, y):
        return base(*promote_operands(x, y))

    return converted


for _name, _base in BITWISE.items():
    _overloads = [f"bitwise_{_name}.{o}" for o in ("Tensor", "Scalar", "Scalar_Tensor")]
    aten(*_overloads, f"__{_name}__.Tensor", f"__{_name}__.Scalar", _base)(binary(_base))
aten.same("bitwise_not", op.bitwise_invert)


LEFT = ["bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar"]
LEFT += ["bitwise_left_shift.Scalar_Tensor", "__lshift__.Tensor", "__lshift__.Scalar"]
RIGHT = [n.replace("left", "right").replace("lshift", "rshift") for n in LEFT]


@aten(*LEFT, op.bitwise_left_shift)
def left_shift(x, count):
    return op.bitwise_left_shift(*promote_operands(x, count))


@aten(*RIGHT, op.bitwise_right_shift)
def right_shift(x, count):
    return op.bitwise_right_shift(*promote_operands(x, count))


# Choosing.


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", op.where)
def where(condition, x, y):
    if is_number(x) and is_number(y):
        dtype = result_dtype(x, y)
        x, y = (as_tensor(v, dtype, device_of(condition)) for v in (x, y))
    return op.where(condition, *promote_operands(x, y))


@aten("isin.Tensor_Tensor", op.isin, ignore=("assume_unique",))
def isin(x, values, *, invert):
    of_dtype(op.equal, x)
    return op.isin(*promote_operands(x, values), invert=invert)


@aten("isin.Tensor_Scalar", op.equal, op.not_equal, ignore=("assume_unique",))
def isin_number(x, value, *, invert):
    return comparison(op.not_equal if invert else op.equal)(x, value)


@aten("isin.Scalar_Tensor", op.equal, op.any, op.logical_not, ignore=("assume_unique",))
def number_isin(value, values, *, invert):
    found = op.any(op.equal(*promote_operands(values, value)))
    return op.logical_not(found) if invert else found


@aten("_is_all_true", op.all)
def is_all_true(x):
    return op.all(x)


@aten("_is_any_true", op.any)
def is_any_true(x):
    return op.any(x)


aten.refuse(
    *("allclose", "equal"),
    why="its result is a bool of Python's, which a program decides by before the values are there",
)
