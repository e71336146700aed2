"""Adam and its relatives as TE computes: the new values of x, m and v.

What depends on the step only is two numbers, a stage of its own in float64: in float32
1 - beta2**step would be wrong in the fourth digit. Later stages read m_new and v_new, not m and v,
whose buffers may hold the new values already.
"""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm import c_math
from meta.dialect.tvm.broadcast import computing, constant
from meta.dialect.tvm.compute import INJECTIVE, OPAQUE, compute
from meta.dialect.tvm.optimizer import number


class Moments:
    """The new moments of a step, and the direction that follows from them."""

    def __init__(self, gradient, m, v, step, beta1, beta2, eps):
        """``gradient``: function from an index to the gradient, in the dtype to compute in."""
        dtype = str(m.dtype)
        self.wide = computing(dtype)
        self.eps = eps.astype(self.wide)
        betas = [beta.astype("float64") for beta in (beta1, beta2)]
        one = tirx.const(1.0, "float64")

        def correction(i):
            logarithm = te.log(tirx.Select(i == 0, betas[0], betas[1]))
            power = c_math.expm1(number(step, "float64") * logarithm)  # beta**step - 1
            # Reciprocals, so that an element costs one division.
            factor = one / (tirx.const(0.0, "float64") - power)
            return tirx.Select(i == 0, factor, te.sqrt(factor))

        self.corrections = te.compute((2,), correction, name="corrections")

        def mean(old, beta, new):
            stays, comes = beta.astype(self.wide), (one - beta).astype(self.wide)
            return lambda *i: (stays * old(*i).astype(self.wide) + comes * new(*i)).astype(dtype)

        def square(*i):
            return gradient(*i) * gradient(*i)

        self.m = te.compute(m.shape, mean(m, betas[0], gradient), name="m_new")
        self.v = te.compute(v.shape, mean(v, betas[1], square), name="v_new")

    def direction(self, *i):
        """Return mhat / (sqrt(vhat) + eps) at an index."""
        first, second = (self.corrections(k).astype(self.wide) for k in range(2))
        mhat = self.m(*i).astype(self.wide) * first
        return mhat / (te.sqrt(self.v(*i).astype(self.wide)) * second + self.eps)


def widened(x):
    """Return the function from an index to an element in the dtype to compute in."""
    return lambda *i: x(*i).astype(computing(str(x.dtype)))


def descend(x, rate, direction, moments):
    """Return x - rate * direction(index), m and v."""

    def parameter(*i):
        return (widened(x)(*i) - rate(*i) * direction(*i)).astype(x.dtype)

    return [te.compute(x.shape, parameter, name="x_new"), moments.m, moments.v]


@compute(op.adam, INJECTIVE)
def adam(x, dx, m, v, step, learning_rate, beta1, beta2, eps, weight_decay):
    old = widened(x)

    def gradient(*i):
        at = old(*i)
        return widened(dx)(*i) + weight_decay.astype(at.ty.dtype) * at

    moments = Moments(gradient, m, v, step, beta1, beta2, eps)
    return descend(x, lambda *_: number(learning_rate, moments.wide), moments.direction, moments)


@compute(op.adamw, INJECTIVE)
def adamw(x, dx, m, v, step, learning_rate, beta1, beta2, eps, weight_decay):
    moments, direction = decayed(x, dx, m, v, step, beta1, beta2, eps, weight_decay)
    return descend(x, lambda *_: number(learning_rate, moments.wide), direction, moments)


@compute(op.lamb, OPAQUE)
def lamb(x, dx, m, v, step, learning_rate, beta1, beta2, eps, weight_decay):
    moments, direction = decayed(x, dx, m, v, step, beta1, beta2, eps, weight_decay)
    u = te.compute(x.shape, direction, name="u")
    of_x, of_u = norm(widened(x), x.shape, "norm_x"), norm(u, x.shape, "norm_u")

    def rate(*_):
        zero, one = constant(0, of_x()), constant(1, of_x())
        defined = tirx.And(of_x() > zero, of_u() > zero)
        ratio = tirx.Select(defined, of_x() / tirx.Select(defined, of_u(), one), one)
        return number(learning_rate, moments.wide) * ratio

    return descend(x, rate, u, moments)


def decayed(x, dx, m, v, step, beta1, beta2, eps, weight_decay):
    """Return the moments, and the direction with the decay added."""
    moments = Moments(widened(dx), m, v, step, beta1, beta2, eps)

    def direction(*i):
        return moments.direction(*i) + weight_decay.astype(moments.wide) * widened(x)(*i)

    return moments, direction


def norm(element, shape, name):
    """Return the 0-d Euclidean norm of what ``element`` is over a shape."""
    axes = [te.reduce_axis((0, extent)) for extent in shape]

    def square(*i):
        return element(*i) * element(*i)

    if not axes:
        return te.compute((), lambda: te.abs(element()), name=name)
    total = te.compute((), lambda: te.sum(square(*axes), axis=axes), name=f"{name}_square")
    return te.compute((), lambda: te.sqrt(total()), name=name)
