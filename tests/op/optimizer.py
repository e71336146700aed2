"""Test records of optimizer steps, and of norm, average and cast of lists of tensors: one step of
torch.optim, or the papers' formulas in float64, one parameter at a time.
"""

from math import inf

import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample


def _numbers(value, count):
    """Return a hyperparameter for each of ``count`` parameters."""
    if not isinstance(value, torch.Tensor):
        return [value] * count
    values = value.flatten().tolist()
    return values if len(values) == count else values * count


STATE = ("m", "v", "velocity")


def _each(step):
    """Return the oracle of a list operator, from one that updates a single parameter.

    ``step(x, g, state, learning_rate, weight_decay, **numbers)`` returns the new x and state; of an
    empty list there is None.
    """

    def oracle(x, dx, *given, copies=(), factor=1.0, clip_value=inf, skip=None, **numbers):
        numbers = dict(zip((*step.names, "copies"), given, strict=False)) | numbers
        copies, count = numbers.pop("copies", copies), len(x)
        rates = _numbers(numbers.pop("learning_rate"), count)
        decays = _numbers(numbers.pop("weight_decay", step.decay), count)
        state = [numbers.pop(name) for name in step.names if name in STATE]
        numbers = {name: _numbers(value, 1)[0] for name, value in numbers.items()}
        (factor,) = _numbers(factor, 1)
        new = []
        for i in range(count):
            g = (factor * dx[i].double()).clamp(-clip_value, clip_value)
            new.append(
                step(x[i], g, [s[i] if s else None for s in state], rates[i], decays[i], **numbers)
            )
        if skip is not None and skip.item():
            return (*x, *(t for s in state for t in s), *copies)
        xs = [n[0] for n in new]
        states = [[n[1 + k] for n in new] for k, s in enumerate(state) if s]
        return (*xs, *(t for s in states for t in s), *(xs if copies else ()))

    return oracle


def _stated(decay, *names):
    """Say how a step's arguments are called, and which weight decay is the default."""

    def mark(function):
        function.decay, function.names = decay, names
        return function

    return mark


@_stated(0.0, "v", "learning_rate", "momentum", "weight_decay")
def _sgd(x, g, state, rate, decay, momentum=0.0, nesterov=False):
    g = g + decay * x
    if state[0] is None:
        return x - rate * g, None
    v = momentum * state[0] + g
    return x - rate * (g + momentum * v if nesterov else v), v


ADAPTIVE = "m", "v", "step", "learning_rate", "beta1", "beta2", "eps", "weight_decay"


def _moments(g, state, step, beta1, beta2, eps):
    m = beta1 * state[0] + (1 - beta1) * g
    v = beta2 * state[1] + (1 - beta2) * g**2
    return m, v, m / (1 - beta1**step), (v / (1 - beta2**step)).sqrt() + eps


@_stated(0.0, *ADAPTIVE)
def _adam(x, g, state, rate, decay, step, beta1=0.9, beta2=0.999, eps=1e-8):
    m, v, mhat, divisor = _moments(g + decay * x, state, step, beta1, beta2, eps)
    return x - rate * mhat / divisor, m, v


@_stated(0.01, *ADAPTIVE)
def _adamw(x, g, state, rate, decay, step, beta1=0.9, beta2=0.999, eps=1e-8):
    m, v, mhat, divisor = _moments(g, state, step, beta1, beta2, eps)
    return x * (1 - rate * decay) - rate * mhat / divisor, m, v


def _as_long(u, x):
    return u * (x.norm() / u.norm()) if x.norm() > 0 and u.norm() > 0 else u


@_stated(0.01, *ADAPTIVE)
def _lamb(x, g, state, rate, decay, step, beta1=0.9, beta2=0.999, eps=1e-6):
    m, v, mhat, divisor = _moments(g, state, step, beta1, beta2, eps)
    return x - rate * _as_long(mhat / divisor + decay * x, x), m, v


@_stated(0.01, *ADAPTIVE)
def _lans(x, g, state, rate, decay, step, beta1=0.9, beta2=0.999, eps=1e-6):
    g = g / g.norm() if g.norm() > 0 else g
    m, v, mhat, divisor = _moments(g, state, step, beta1, beta2, eps)
    along = [_as_long(part / divisor + decay * x, x) for part in (mhat, g)]
    return x - rate * (beta1 * along[0] + (1 - beta1) * along[1]), m, v


RMSPROP = ("v", "m", "velocity", "learning_rate", "alpha", "eps", "momentum", "weight_decay")


@_stated(0.0, *RMSPROP)
def _rmsprop(x, g, state, rate, decay, alpha=0.99, eps=1e-8, momentum=0.0):
    v, m, velocity = state
    g = g + decay * x
    v = alpha * v + (1 - alpha) * g**2
    m = None if m is None else alpha * m + (1 - alpha) * g
    variance = v if m is None else (v - m**2).clamp(min=0)  # the operator says so, torch does not
    u = g / (variance.sqrt() + eps)
    velocity = None if velocity is None else momentum * velocity + u
    return x - rate * (u if velocity is None else velocity), v, m, velocity


ADAGRAD = ("v", "step", "learning_rate", "learning_rate_decay", "eps", "weight_decay")


@_stated(0.0, *ADAGRAD)
def _adagrad(x, g, state, rate, decay, step, learning_rate_decay=0.0, eps=1e-10):
    g = g + decay * x
    v = state[0] + g**2
    return x - rate / (1 + (step - 1) * learning_rate_decay) * g / (v.sqrt() + eps), v


@_stated(0.0, "m", "learning_rate", "beta1", "beta2", "weight_decay")
def _lion(x, g, state, rate, decay, beta1=0.9, beta2=0.99):
    u = (beta1 * state[0] + (1 - beta1) * g).sign() + decay * x
    return x - rate * u, beta2 * state[0] + (1 - beta2) * g


def _axpby(x, y, alpha, beta, skip=None):
    if skip is not None and skip.item():
        return tuple(y)
    (alpha,), (beta,) = _numbers(alpha, 1), _numbers(beta, 1)
    terms = [(a if alpha else 0 * b, b if beta else 0 * a) for a, b in zip(x, y, strict=True)]
    return tuple(alpha * torch.nan_to_num(a, 0.0) + beta * b for a, b in terms)


def _number(value):
    return value.item() if isinstance(value, torch.Tensor) else value


def _torch_step(optimizer, decay):
    """Return the oracle that lets an optimizer of torch take step number ``step``."""

    def oracle(
        x, dx, m, v, step, learning_rate, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=decay
    ):
        parameter = torch.nn.Parameter(x.clone())
        parameter.grad = dx
        own = optimizer(
            [parameter],
            lr=_number(learning_rate),
            betas=(float(beta1), float(beta2)),
            eps=eps,
            weight_decay=weight_decay,
        )
        steps_so_far = torch.tensor(float(_number(step) - 1))
        own.state[parameter] = {"step": steps_so_far, "exp_avg": m, "exp_avg_sq": v}
        own.step()
        return parameter.detach(), m, v

    return oracle


def _one(step):
    """Return the oracle of an operator for one parameter, from one of `_each`."""

    def oracle(x, dx, m, v, *given, **numbers):
        return _each(step)((x,), (dx,), (m,), (v,), *given, **numbers)

    return oracle


def _single_sgd(x, dx, v, learning_rate, mu):
    """The formulas, where a tensor with one element counts as its number."""
    learning_rate, mu = _number(learning_rate), _number(mu)
    v = mu * v + dx
    return x - learning_rate * v, v


def _switched_lans(
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
    """Zheng et al., algorithm 2, line by line, with the switches of the public implementation."""
    step, learning_rate = _number(step), _number(learning_rate)
    count = len(tensor_list) // 4
    new = []
    for dx, x, m, v in zip(
        *(tensor_list[k * count : (k + 1) * count] for k in range(4)), strict=True
    ):
        g = dx / dx.norm() if normalize_grad and dx.norm() > 0 else dx
        if mode == 0:
            g = g + weight_decay * x
        m = beta1 * m + ((1 - beta1) if grad_averaging else 1) * g
        v = beta2 * v + (1 - beta2) * g**2
        mhat = m / (1 - beta1**step) if bias_correction else m
        vhat = v / (1 - beta2**step) if bias_correction else v
        d = torch.zeros_like(x)
        for weight, part in ((beta1, mhat), (1 - beta1, g)):
            u = part / (vhat.sqrt() + eps) + (weight_decay * x if mode else 0)
            longer = x.norm() / u.norm() if x.norm() > 0 and u.norm() > 0 else 1.0
            d = d + weight * longer * u
        new.append((dx, x - learning_rate * d, m, v))
    return tuple(tensor for kind in zip(*new, strict=True) for tensor in kind)


def _blocks(*shapes):
    """Return gradients, parameters and moments, of which the second are positive."""
    return (
        *(F(*s) for s in shapes * 3),
        *(F(*s, low=0.5, high=2.0) for s in shapes),
    )


def _settings(
    step=3,
    learning_rate=0.1,
    beta1=0.9,
    beta2=0.999,
    eps=1e-6,
    bias_correction=1,
    weight_decay=0.01,
    grad_averaging=1,
    mode=1,
    normalize_grad=True,
):
    return (
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
    )


SHAPES = (3, 4), (), (70,), (0, 2), (5, 33)


def _tensors(*shapes, **limits):
    return tuple(F(*s, **limits) for s in shapes)


def _lists(*shapes):
    """Return parameters, gradients and moments, of which the second are positive."""
    return *(_tensors(*shapes) for _ in range(3)), _tensors(*shapes, low=0.5, high=2.0)


TWO, ONE = ((3, 4), (7,)), ((6,),)
ZEROS = C([0.0, 0.0])
OF_EACH = C([0.1, 0.05]), C([0.0, 0.3])
SGD = [
    sample(*_lists(*SHAPES)[:3], 0.1, 0.9),
    sample(*_lists(*SHAPES)[:2], (), 0.1),
    sample(*_lists(*TWO)[:3], OF_EACH[0], 0.9, OF_EACH[1], nesterov=True),
    sample(*_lists(*TWO)[:3], C(0.1), 0.5, C([[0.2]]), _tensors(*TWO), factor=C([0.5])),
    sample(*_lists(*TWO)[:3], 0.1, 0.9, factor=-2.0, clip_value=1.5, skip=C(False, "bool")),
    sample(*_lists(*TWO)[:3], 0.1, 0.9, 0.1, _tensors(*TWO), skip=C([True], "bool")),
    sample(_tensors(*TWO), (C([[1.0] * 4] * 3, "float16"), F(7)), (), 0.1),
    sample(*_lists((9000,), (40, 300))[:3], 0.1, 0.9),
]
FEW = [
    sample(*_lists(*SHAPES), 3, 0.1),
    sample(*_lists(*TWO), C(2, "int64"), *OF_EACH[:1], 0.8, 0.99, 1e-3, OF_EACH[1]),
    sample(*_lists(*TWO), C([7.0], "float32"), C(0.1), copies=_tensors(*TWO), factor=C(0.25)),
    sample(*_lists(*ONE), 1000, 0.001, 0.5, clip_value=0.5, skip=C(False, "bool")),
    sample(*_lists(*TWO), 1, 0.1, copies=_tensors(*TWO), skip=C(True, "bool")),
    sample(_tensors(*TWO), (C([[1.0] * 4] * 3, "float16"), F(7)), *_lists(*TWO)[2:], 2, 0.1),
    sample(*_lists((9000,), (40, 300)), 12, 0.1),
]


def _positive(*shapes):
    return _tensors(*shapes, low=0.5, high=2.0)


def _small(*shapes):
    """Return means whose squares are below `_positive`: a variance is not negative."""
    return _tensors(*shapes, low=-0.5, high=0.5)


RMSPROP_SAMPLES = [
    sample(*_lists(*SHAPES)[:2], _positive(*SHAPES), (), (), 0.1),
    sample(*_lists(*TWO)[:2], _positive(*TWO), _small(*TWO), (), 0.1, 0.9, 1e-3),
    sample(*_lists(*TWO)[:2], _positive(*TWO), (), _tensors(*TWO), OF_EACH[0], 0.9, 0.1, 0.8),
    sample(
        *(*_lists(*TWO)[:2], _positive(*TWO), _small(*TWO), _tensors(*TWO), 0.1, 0.5, 0.01, 0.9),
        *(OF_EACH[1], _tensors(*TWO)),
        factor=C([0.5]),
    ),
    sample(
        *(*_lists(*TWO)[:2], _positive(*TWO), (), (), C(0.1)),
        factor=-2.0,
        clip_value=1.5,
        skip=C(False, "bool"),
    ),
    sample(*_lists(*TWO)[:2], _positive(*TWO), (), _tensors(*TWO), 0.1, skip=C(True, "bool")),
    # A gradient that never changed has no variance.
    sample((C([1.0, 2.0]),), (ZEROS,), (ZEROS,), (ZEROS,), (), 0.1, 0.9, 1e-3),
    sample(*_lists((9000,), (40, 300))[:2], _positive((9000,), (40, 300)), (), (), 0.1),
]
ADAGRAD_SAMPLES = [
    sample(*_lists(*SHAPES)[:2], _positive(*SHAPES), 3, 0.1),
    sample(*_lists(*TWO)[:2], _positive(*TWO), C(5, "int64"), OF_EACH[0], 0.2, 1e-3, OF_EACH[1]),
    sample(*_lists(*TWO)[:2], _positive(*TWO), C([7.0]), C(0.1), 0.5, copies=_tensors(*TWO)),
    sample(*_lists(*ONE)[:2], _positive(*ONE), 1, 0.1, clip_value=0.5, skip=C(False, "bool")),
    sample(*_lists(*TWO)[:2], _positive(*TWO), 1, 0.1, factor=-0.5, skip=C(True, "bool")),
    sample((C([1.0, 2.0]),), (ZEROS,), (ZEROS,), 1, 0.1),
    sample(*_lists((9000,), (40, 300))[:2], _positive((9000,), (40, 300)), 12, 0.1),
]
LION_SAMPLES = [
    sample(*_lists(*SHAPES)[:3], 0.002),
    sample(*_lists(*TWO)[:3], OF_EACH[0], 0.8, 0.9, OF_EACH[1]),
    sample(*_lists(*TWO)[:3], C(0.002), 0.8, 0.9, 0.3, _tensors(*TWO), factor=0.5),
    sample(*_lists(*ONE)[:3], 0.1, factor=-2.0, clip_value=0.5, skip=C(False, "bool")),
    sample(*_lists(*TWO)[:3], 0.1, skip=C([True], "bool")),
    sample((C([1.0, 2.0]),), (ZEROS,), (ZEROS,), 0.1),
    sample(*_lists((9000,), (40, 300))[:3], 0.01),
]
NO_LENGTH = [
    sample((ZEROS, ZEROS), (C([1.0, -1.0]), ZEROS), (ZEROS, ZEROS), (ZEROS, ZEROS), 1, 0.1),
    sample((C([1.0, 2.0]),), (ZEROS,), (ZEROS,), (ZEROS,), 1, 0.1, weight_decay=0.0),
]


def _state(*shape):
    """Return a parameter, its gradient and moments, of which the second is positive."""
    return F(*shape), F(*shape), F(*shape), F(*shape, low=0.5, high=2.0)


FIRST = (C([1.0, -2.0, 0.0]), C([0.5, 0.0, -3.0]), C([0.0] * 3), C([0.0] * 3))
ADAPTIVE_SAMPLES = [
    sample(*_state(3, 4), 3, 0.1),
    sample(*FIRST, 1, 0.01),
    sample(*_state(), 7, 0.5, 0.8, 0.99, 1e-3, 0.1),
    sample(*_state(0, 2), 1, 0.1),
    sample(*_state(70), C(12, "int64"), C(0.05)),
    sample(*_state(1, 5), C([2.0], "float32"), C([[0.1]]), weight_decay=0.3),
    sample(*_state(40, 33), 1000, 0.001, 0.5),
    sample(*_state(5), 2, 0.1, 0, 0.5, weight_decay=0),
]
# Nothing to follow, or nothing to compare its length with: the ratio of the norms is 1.
NO_LENGTH_OF_ONE = [
    sample(C([0.0, 0.0]), C([1.0, -1.0]), C([0.0, 0.0]), C([0.0, 0.0]), 1, 0.1),
    sample(C([1.0, 2.0]), C([0.0, 0.0]), C([0.0, 0.0]), C([0.0, 0.0]), 1, 0.1, weight_decay=0.0),
]
# Rounded moments are read again to update the parameter.
HALF = {"atol": {"float16": 5e-3, "bfloat16": 4e-2}, "grad": False}

CASES = [
    OpCase("multi_tensor_sgd", SGD, _each(_sgd), **HALF),
    OpCase("multi_tensor_adam", FEW, _each(_adam), **HALF),
    OpCase("multi_tensor_adamw", FEW, _each(_adamw), **HALF),
    OpCase("multi_tensor_lamb", [*FEW, *NO_LENGTH], _each(_lamb), **HALF),
    OpCase("multi_tensor_lans", [*FEW, *NO_LENGTH], _each(_lans), **HALF),
    OpCase("multi_tensor_rmsprop", RMSPROP_SAMPLES, _each(_rmsprop), **HALF),
    OpCase("multi_tensor_adagrad", ADAGRAD_SAMPLES, _each(_adagrad), **HALF),
    OpCase("multi_tensor_lion", LION_SAMPLES, _each(_lion), **HALF),
    OpCase(
        "multi_tensor_axpby",
        [
            sample(_tensors(*SHAPES), _tensors(*SHAPES), 0.1, 0.9),
            sample((F(3), C([1.0, 2.0], "float16")), (F(3), F(2)), C([0.5]), C(1.0)),
            sample((F(2),), (C([inf, 1.0]),), 1.0, 0.0),
            sample((F(2),), (C([inf, 1.0]),), C(1.0), C(0.0)),
            sample((F(2),), (F(2),), 1.0, 0.5, C(True, "bool")),
            sample((F(9001),), (F(9001),), 1.0, 0.5, C(False, "bool")),
        ],
        _axpby,
        grad=False,
    ),
    OpCase(
        "multi_tensor_norm",
        [
            sample(_tensors(*SHAPES)),
            sample((F(2), C([3.0, 4.0], "float16"))),
            sample((C([0.0, -0.0]),)),
            sample((C([1.0, inf]), F(3))),
            sample((F(9000), F(40, 300))),
        ],
        lambda x: torch.cat([t.double().flatten() for t in x]).norm(),
        grad=False,
        rtol={"float64": 1e-6},  # the result is a float32
    ),
    OpCase(
        "multi_tensor_increment",
        [
            sample((C(41, "int64"), C([1, 2], "int64"), C([], "int64")), 1),
            sample((C(127, "int8"), C([[-128], [5]], "int8")), 3),
            sample((C(7, "int32"),), -(2**31)),
            sample(tuple(C(i, "int16") for i in range(200)), 9),
        ],
        lambda x, by: tuple(t + by for t in x),
        dialects=("torch",),
        grad=False,
    ),
    OpCase(
        "multi_tensor_cast",
        [
            sample(_tensors(*SHAPES), "float32"),
            sample((F(2, 3), F(4)), "float64"),
            sample((F(2), C([3.0, 4.0], "float64"), F(9001)), "float64"),
            sample((F(2), F(0, 3), C([65504.0, -0.0, inf], "float32")), "float16"),
            sample((F(7), C(2.5, "float16")), "bfloat16"),
        ],
        lambda x, dtype: tuple(t.to(getattr(torch, dtype)) for t in x),
    ),
    # One parameter, or lists with settings of their own.
    OpCase(
        "sgd",
        [
            sample(F(3, 4), F(3, 4), F(3, 4), 0.1, 0.9),
            sample(F(), F(), F(), 0.5, 0),
            sample(F(0, 2), F(0, 2), F(0, 2), 1, 0.5),
            sample(F(70), F(70), F(70), F(low=0.1, high=0.2), F(1, low=0.8, high=0.9)),
            sample(F(1, 5), F(1, 5), F(1, 5), F(1, 1, low=0.1, high=0.2), 0.9),
        ],
        _single_sgd,
        **HALF,
    ),
    OpCase("adam", ADAPTIVE_SAMPLES, _torch_step(torch.optim.Adam, 0.0), **HALF),
    OpCase("adamw", ADAPTIVE_SAMPLES, _torch_step(torch.optim.AdamW, 0.01), **HALF),
    OpCase("lamb", [*ADAPTIVE_SAMPLES, *NO_LENGTH_OF_ONE], _one(_lamb), **HALF),
    OpCase(
        "lans",
        samples=[
            sample(_blocks((3, 4)), *_settings()),
            sample(_blocks((3, 4), (5,), ()), *_settings(7, 0.5, 0.8, 0.99, 1e-3)),
            sample(_blocks((2, 3), (0, 2)), *_settings(bias_correction=0)),
            sample(_blocks((6,), (1, 5)), *_settings(grad_averaging=0)),
            sample(_blocks((6,), (2, 2)), *_settings(mode=0, weight_decay=0.3)),
            sample(_blocks((6,), (2, 2)), *_settings(normalize_grad=False)),
            sample(_blocks((6,)), *_settings(C(12, "int64"), C(0.05))),
            sample(_blocks((6,)), *_settings(C([2.0], "float32"), C([[0.1]]), weight_decay=0)),
            sample(_blocks((40, 33), (70,)), *_settings(1000, 0.001, 0.5, mode=True)),
            # The first step; no gradient; nothing to compare the length of a step with.
            sample((C([1.0, -2.0]), C([0.5, 3.0]), ZEROS, ZEROS), *_settings(1)),
            sample((ZEROS, C([1.0, 2.0]), ZEROS, ZEROS), *_settings(1, weight_decay=0.0)),
            sample((C([1.0, -1.0]), ZEROS, ZEROS, ZEROS), *_settings(1)),
        ],
        oracle=_switched_lans,
        **HALF,
    ),
]

STEPS = [
    error(F(3), F(2), F(3), F(3), 1, 0.1, match="x, dx, m and v differ"),
    error(F(3), F(3), F(3), C([0.0] * 3, "float64"), 1, 0.1, match="differ in dtype"),
    error(F(3), F(3), F(3), F(3), F(2), 0.1, match="step must be one number"),
    error(F(3), F(3), F(3), F(3), 1, C(1, "int64"), match="learning_rate must be floating point"),
]

NUMBERS = 1, 0.1
FITS = (F(3),)
CASES += refusals(
    {
        "multi_tensor_sgd": [
            error((), (), (), 0.1, match="lists differ in length"),
            error(FITS, (F(3), F(3)), (), 0.1, match="lists differ in length"),
            error(FITS, (F(2),), (), 0.1, match="the tensors of parameter 0 differ"),
            error(FITS, (I(3, low=0, high=2),), (), 0.1, match="must be floating point"),
        ],
        "multi_tensor_adam multi_tensor_adamw multi_tensor_lamb multi_tensor_lans": [
            error(FITS, FITS, FITS, (F(2),), *NUMBERS, match="the tensors of parameter 0 differ"),
            error(
                *((F(3), C([1.0], "float16")), (F(3), F(1)), (F(3), F(1)), (F(3), F(1)), *NUMBERS),
                match="a list has several dtypes",
            ),
            error(*[FITS] * 4, F(2), 0.1, match="step must be one number"),
            error(*[FITS] * 4, 1, F(2), match="learning_rate has another shape"),
            error(*[FITS] * 4, 1, 0.1, weight_decay=I(low=0, high=2), match="weight_decay must be"),
            error(*[FITS] * 4, 1, 0.1, factor=F(2), match="factor has another shape"),
            error(*[FITS] * 4, 1, 0.1, skip=B(2), match="skip must be one bool"),
        ],
        "multi_tensor_rmsprop": [
            error(FITS, FITS, (), (), (), 0.1, match="lists differ in length"),
            error(FITS, FITS, FITS, (F(2),), (), 0.1, match="the tensors of parameter 0 differ"),
        ],
        "multi_tensor_adagrad": [
            error(FITS, FITS, (F(2),), *NUMBERS, match="the tensors of parameter 0 differ"),
            error(FITS, FITS, FITS, F(2), 0.1, match="step must be one number"),
        ],
        "multi_tensor_lion": [
            error(FITS, FITS, (), 0.1, match="lists differ in length"),
            error(FITS, FITS, FITS, F(2), match="learning_rate has another shape"),
        ],
        "multi_tensor_axpby": [
            error(FITS, (F(2),), 1.0, 1.0, match="the tensors of parameter 0 differ"),
            error(FITS, FITS, F(2), 1.0, match="alpha has another shape"),
        ],
        "multi_tensor_increment": [
            error((), 1, match="there are no tensors"),
            error(FITS, 1, match="x must be signed integers"),
            error((C(1, "int64"), C(1, "int8")), 1, match="x must be signed integers"),
            error((C(1, "int64"),), 1.5, match="by must be an int"),
        ],
        "multi_tensor_norm": [
            error((), match="there are no tensors"),
            error((I(2, low=0, high=3),), match="x must be"),
        ],
        "multi_tensor_cast": [
            error((), "float16", match="there are no tensors"),
            error((I(2, low=0, high=3),), "float16", match="x must be"),
            error(FITS, "int32", match="dtype must be floating point"),
        ],
        "sgd": [
            error(F(3), F(2), F(3), 0.1, 0.9, match="x, dx and v differ"),
            error(F(3), F(3), C([0.0] * 3, "float16"), 0.1, 0.9, match="cast the float16 one"),
            error(F(3), F(3), F(3), F(2), 0.9, match="learning_rate must be one number"),
            error(F(3), F(3), F(3), 0.1, C(1, "int64"), match="mu must be floating point"),
        ],
        "adam adamw lamb": STEPS,
    }
)
