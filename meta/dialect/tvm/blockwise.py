"""Optimizer steps of several parameters at once as TE computes: the new values, in the list's
order. As in `adaptive.py`, later stages read m_new and v_new, and the corrections are in float64.
"""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm import c_math
from meta.dialect.tvm.adaptive import norm, widened
from meta.dialect.tvm.broadcast import computing, constant
from meta.dialect.tvm.compute import OPAQUE, compute
from meta.dialect.tvm.optimizer import number


@compute(op.lans, OPAQUE)
def lans(
    tensor_list,
    step,
    learning_rate,
    beta1,
    beta2,
    eps,
    bias_correction,
    weight_decay,
    grad_averaging,
    mode,
    normalize_grad,
):
    wide = computing(str(tensor_list[0].dtype))
    one = tirx.const(1.0, "float64")
    first, second = (beta.astype("float64") for beta in (beta1, beta2))
    stays = [beta.astype(wide) for beta in (first, second)]
    comes = [(one - beta).astype(wide) for beta in (first, second)]
    unbias = corrections(step, first, second, wide) if bias_correction else lambda *_: one
    eps, rate = eps.astype(wide), number(learning_rate, wide)

    def block(dx, x, m, v):
        shape, dtype = x.shape, str(x.dtype)
        old, raw = widened(x), widened(dx)
        length = inverse_norm(raw, shape) if normalize_grad else None

        def decay(*i):
            return weight_decay.astype(wide) * old(*i)

        def gradient(*i):
            g = raw(*i) * length() if normalize_grad else raw(*i)
            return g if mode else g + decay(*i)

        def mean(*i):
            new = comes[0] * gradient(*i) if grad_averaging else gradient(*i)
            return (stays[0] * widened(m)(*i) + new).astype(dtype)

        def square_mean(*i):
            g = gradient(*i)
            return (stays[1] * widened(v)(*i) + comes[1] * g * g).astype(dtype)

        m_new = te.compute(shape, mean, name="m_new")
        v_new = te.compute(shape, square_mean, name="v_new")

        def direction(numerator):
            def element(*i):
                root = te.sqrt(widened(v_new)(*i) * unbias(1).astype(wide))
                u = numerator(*i) / (root + eps)
                return u + decay(*i) if mode else u

            return element

        r = direction(lambda *i: widened(m_new)(*i) * unbias(0).astype(wide))
        c = direction(gradient)
        of_x = norm(old, shape, "norm_x")
        ratios = [ratio(of_x, norm(u, shape, name)) for u, name in ((r, "norm_r"), (c, "norm_c"))]

        def parameter(*i):
            along = stays[0] * ratios[0]() * r(*i) + comes[0] * ratios[1]() * c(*i)
            return (old(*i) - rate * along).astype(dtype)

        return dx, te.compute(shape, parameter, name="x_new"), m_new, v_new

    count = len(tensor_list) // 4
    blocks = [block(*tensor_list[i::count]) for i in range(count)]
    return [tensor for kind in zip(*blocks, strict=True) for tensor in kind]


def corrections(step, beta1, beta2, wide):
    """Return a stage of 1 / (1 - beta**step) for both betas, in float64."""

    def element(i):
        logarithm = te.log(tirx.Select(i == 0, beta1, beta2))
        power = c_math.expm1(number(step, "float64") * logarithm)  # beta**step - 1
        return tirx.const(-1.0, "float64") / power

    return te.compute((2,), element, name="corrections")


def inverse_norm(element, shape):
    """Return a 0-d stage of 1 / norm, or 1 where the norm is 0."""
    length = norm(element, shape, "norm_g")

    def inverse():
        zero, one = constant(0, length()), constant(1, length())
        return one / tirx.Select(length() > zero, length(), one)

    return te.compute((), inverse, name="inverse_norm")


def ratio(length, other):
    """Return a 0-d stage of the quotient of two norms, 1 where either is 0."""

    def quotient():
        zero, one = constant(0, length()), constant(1, length())
        defined = tirx.And(length() > zero, other() > zero)
        return tirx.Select(defined, length() / tirx.Select(defined, other(), one), one)

    return te.compute((), quotient, name="ratio")
