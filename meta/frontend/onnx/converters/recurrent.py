"""LSTM, GRU and RNN.

The products with the input are computed for all steps at once, what depends on the step before in
a `scan`, so that a program has one loop per direction. Behind the length of a sequence the state
stays and the outputs are zero; the reverse direction starts at the last step that counts.
"""

from __future__ import annotations

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.onnx.converters.indexing import positions
from meta.frontend.onnx.loops import scan_rows
from meta.frontend.onnx.registry import onnx
from meta.ir.dims import UnknownDim, product
from meta.op.core.check import shapes_compatible


def _affine(x, alpha, beta):
    return op.add(op.multiply(x, alpha), beta)


def _thresholded(x, alpha):
    return op.where(op.greater_equal(x, alpha), x, op.zeros_like(x))


def _hard_sigmoid(x, alpha, beta):
    return op.clip(_affine(x, alpha, beta), 0.0, 1.0)


ACTIVATIONS = {
    "relu": (op.relu, ()),
    "tanh": (op.tanh, ()),
    "sigmoid": (op.sigmoid, ()),
    "softsign": (op.softsign, ()),
    "softplus": (op.softplus, ()),
    "affine": (_affine, (1.0, 0.0)),
    "leakyrelu": (op.leaky_relu, (0.01,)),
    "thresholdedrelu": (_thresholded, (1.0,)),
    "scaledtanh": (lambda x, a, b: op.multiply(op.tanh(op.multiply(x, b)), a), (None, None)),
    "hardsigmoid": (_hard_sigmoid, (0.2, 0.5)),
    "elu": (op.elu, (1.0,)),
}
"""By the name in small letters: the function, and the defaults of alpha and beta that it takes."""


def _activations(names, alphas, betas, clip):
    """Return the functions of the names. Alphas and betas belong to those that take them, in order;
    what is missing at the end has its default.
    """
    left = [list(alphas or ()), list(betas or ())]
    found = []
    for name in names:
        if name.lower() not in ACTIVATIONS:
            raise Unconvertible(f"the activation {name!r} is unknown", hint=", ".join(ACTIVATIONS))
        function, defaults = ACTIVATIONS[name.lower()]
        numbers = [
            given.pop(0) if given else default
            for given, default in zip(left, defaults, strict=False)
        ]
        if None in numbers:
            raise Unconvertible(f"the activation {name!r} needs its alpha and beta")
        found.append(_clipped(function, numbers, clip))
    if any(left):
        raise Unconvertible("there are more alphas or betas than activations that take one")
    return found


def _clipped(function, numbers, clip):
    def activation(x):
        x = x if clip is None else op.clip(x, -clip, clip)
        return function(x, *numbers)

    return activation


class _Call:
    """The arguments of a call, of any of the three, and their checks.

    Attributes
    ----------
    counts: which steps count, bool (steps, batch, 1); None for all.
    """

    def __init__(self, tensors, states, gates, functions, call, how):
        """gates: blocks of rows of the weights. functions: the default activations of a direction.
        states: the initial state, an array or None each.
        """
        x, w, r, b, lengths = tensors
        self.batch_first = bool(how.get("layout"))
        if isinstance(x.shape[2], UnknownDim) and not any(
            isinstance(n, UnknownDim) for n in x.shape[:2]
        ):
            x = op.reshape(x, (*x.shape[:2], w.shape[2]))  # which the run time checks
        self.x = op.permute_dims(x, (1, 0, 2)) if self.batch_first else x
        self.w, self.r, self.b, self.gates, self.call = w, r, b, gates, call
        direction = how["direction"].lower()
        if direction == "foward":  # as GRU's first schema has it
            direction = "forward"
        reverses = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
        if direction not in reverses:
            raise Unconvertible(f"the direction {direction!r} is unknown", ", ".join(reverses))
        self.reverses = reverses[direction]
        count = len(self.reverses)
        self.hidden = r.shape[2]
        self._require_sizes(count, how["hidden_size"])
        names = how["activations"] or functions * count
        if len(names) != len(functions) * count:
            # RNN's oldest schemas have two defaults, whatever the direction.
            if how["activations"] and "activations" in call.given:
                raise Unconvertible(f"{len(names)} activations, not {len(functions) * count}")
            names = functions * count
        made = _activations(names, how["activation_alpha"], how["activation_beta"], how["clip"])
        size = len(functions)
        self.activations = [made[i * size : (i + 1) * size] for i in range(count)]
        self.starts = [self._start(s) for s in states]
        self.counts = None if lengths is None else self._counts(lengths)

    def _require_sizes(self, count, hidden_size):
        rows = self.gates * self.hidden
        if hidden_size not in (None, self.hidden):
            raise Unconvertible(f"hidden_size={hidden_size}, and R has {self.hidden} columns")
        inputs = self.x.shape[2]
        fits = shapes_compatible(self.w.shape, (count, rows, inputs))
        if not fits or tuple(self.r.shape) != (count, rows, self.hidden):
            raise Unconvertible(
                f"W and R are {list(self.w.shape)} and {list(self.r.shape)}, not "
                f"{[count, rows, inputs]} and {[count, rows, self.hidden]}"
            )
        if self.b is not None and tuple(self.b.shape) != (count, 2 * rows):
            raise Unconvertible(f"B is {list(self.b.shape)}, not {[count, 2 * rows]}")

    def _start(self, state):
        """Return an initial state per direction."""
        shape = (len(self.reverses), self.x.shape[1], self.hidden)
        if state is None and isinstance(shape[1], UnknownDim):
            batch = op.zeros_like(op.take(op.take(self.x, 0, 0, "fast"), 0, 1, "fast"))
            wide = op.zeros((shape[0], 1, shape[2]), self.x.dtype, str(self.call.device))
            return op.add(wide, op.reshape(batch, (1, -1, 1)))
        if state is None:
            return op.full(shape, 0.0, self.x.dtype, str(self.call.device))
        state = op.permute_dims(state, (1, 0, 2)) if self.batch_first else state
        if not shapes_compatible(state.shape, shape):
            raise Unconvertible(f"an initial state is {list(state.shape)}, not {list(shape)}")
        return state

    def _counts(self, lengths):
        # 0, 1, ..., also of steps whose number has a name, or none.
        first = op.take(op.take(self.x, 0, 2, "fast"), 0, 1, "fast")
        lengths = positions(lengths, self.x, 0, ends=True)
        ones = op.astype(op.ones_like(first), lengths.dtype)
        places = op.cumsum.plain(ones, 0, lengths.dtype, True)
        return op.less(op.reshape(places, (-1, 1, 1)), op.reshape(lengths, (1, -1, 1)))

    def biases(self, i):
        """Return the biases of the products with the input and with the state, or None."""
        if self.b is None:
            return None, None
        rows = self.gates * self.hidden
        return self.b[i][:rows], self.b[i][rows:]

    def results(self, step_of):
        """Return Y and the last states. ``step_of(i)``: of direction i, the function of a row of
        products with the input and the state that returns the next state, whose first part is
        the output, and the bias of the products.
        """
        outputs, lasts = [], []
        for i, reverse in enumerate(self.reverses):
            step, bias = step_of(i)
            rows = self._products(self.w[i])
            rows = rows if bias is None else op.add(rows, bias)
            last, (y,) = self._along(step, tuple(s[i] for s in self.starts), rows, reverse)
            outputs.append(y)
            lasts.append(last)
        y = op.stack(tuple(outputs), 1)
        ends = tuple(op.stack(parts, 0) for parts in zip(*lasts, strict=True))
        if self.batch_first:
            y = op.permute_dims(y, (2, 0, 1, 3))
            ends = tuple(op.permute_dims(e, (1, 0, 2)) for e in ends)
        return y, *ends

    def _products(self, w):
        """Return the products of the input at all steps with the rows of weights."""
        extents = [-1 if isinstance(d, UnknownDim) else d for d in self.x.shape[:2]]
        if extents.count(-1) > 1:
            return op.matmul(self.x, op.permute_dims(w, (1, 0)))
        count = -1 if -1 in extents else product(extents)
        rows = op.dense(op.reshape(self.x, (count, self.x.shape[2])), w)
        return op.reshape(rows, (*extents, w.shape[0]))

    def _along(self, step, start, rows, reverse):
        def plain(state, row):
            new = step(row[0], *state)
            return new, (new[0],)

        def counted(state, row):
            row, counts = row
            new = step(row, *state)
            kept = tuple(op.where(counts, a, b) for a, b in zip(new, state, strict=True))
            return kept, (op.where(counts, new[0], op.zeros_like(new[0])),)

        if self.counts is None:
            return scan_rows(plain, start, (rows,), self.call, reverse)
        return scan_rows(counted, start, (rows, self.counts), self.call, reverse)


def _with(x, bias):
    return x if bias is None else op.add(x, bias)


def _sum(a, b):
    """Return the sum of two biases, which are both None or both given."""
    return None if a is None else op.add(a, b)


def _blocks(x, count):
    """Return the blocks of the last axis."""
    width = x.shape[-1] // count
    return [x[..., i * width : (i + 1) * width] for i in range(count)]


BECOMES = (op.dense, op.add, op.multiply, op.where, op.stack)


@onnx("LSTM", *BECOMES, ignore=("output_sequence",))
def lstm(
    x,
    w,
    r,
    b=None,
    sequence_lens=None,
    initial_h=None,
    initial_c=None,
    p=None,
    *,
    input_forget,
    call,
    **how,
):
    """(Y, Y_h, Y_c). The rows of the weights are i, o, f, c; those of the peepholes i, o, f."""
    tensors, states = (x, w, r, b, sequence_lens), (initial_h, initial_c)
    return lstm_of(tensors, states, p, input_forget, call, how)


def lstm_of(tensors, states, p, input_forget, call, how, multiplied=lambda h: h):
    """Return the results of an LSTM. ``multiplied(h)``: what stands for the state in products."""
    r = tensors[2]
    args = _Call(tensors, states, 4, ("Sigmoid", "Tanh", "Tanh"), call, how)
    if p is not None and tuple(p.shape) != (len(args.reverses), 3 * args.hidden):
        raise Unconvertible(f"P is {list(p.shape)}, not {[len(args.reverses), 3 * args.hidden]}")

    def step_of(i):
        f_gate, f_cell, f_out = args.activations[i]
        weight = r[i]
        peepholes = None if p is None else _blocks(p[i], 3)

        def seen(gate, which, cell):
            if peepholes is None:
                return gate
            return op.add(gate, op.multiply(peepholes[which], cell))

        def step(row, h, c):
            i_gate, o_gate, f, g = _blocks(op.add(row, op.dense(multiplied(h), weight)), 4)
            enter = f_gate(seen(i_gate, 0, c))
            keep = op.subtract(1.0, enter) if input_forget else f_gate(seen(f, 2, c))
            cell = op.add(op.multiply(keep, c), op.multiply(enter, f_cell(g)))
            leave = f_gate(seen(o_gate, 1, cell))
            return op.multiply(leave, f_out(cell)), cell

        return step, _sum(*args.biases(i))

    return args.results(step_of)


@onnx("GRU", *BECOMES, ignore=("output_sequence",))
def gru(
    x,
    w,
    r,
    b=None,
    sequence_lens=None,
    initial_h=None,
    *,
    linear_before_reset,
    call,
    **how,
):
    """(Y, Y_h). The rows of the weights are z, r, h."""
    args = _Call((x, w, r, b, sequence_lens), (initial_h,), 3, ("Sigmoid", "Tanh"), call, how)
    n = args.hidden

    def step_of(i):
        f_gate, f_hidden = args.activations[i]
        bias, own = args.biases(i)
        linear = None
        if linear_before_reset and own is not None:
            # The bias of the hidden gate is multiplied with the reset gate.
            own, linear = op.concat((own[: 2 * n], op.zeros_like(own[2 * n :])), 0), own[2 * n :]
        gates, hidden = r[i][: 2 * n], r[i][2 * n :]

        def step(row, h):
            z, reset = _blocks(f_gate(op.add(row[:, : 2 * n], op.dense(h, gates))), 2)
            if linear_before_reset:
                inner = op.multiply(reset, _with(op.dense(h, hidden), linear))
            else:
                inner = op.dense(op.multiply(reset, h), hidden)
            new = f_hidden(op.add(row[:, 2 * n :], inner))
            return (op.add(op.multiply(op.subtract(1.0, z), new), op.multiply(z, h)),)

        return step, _sum(bias, own)

    return args.results(step_of)


@onnx("RNN", *BECOMES, ignore=("output_sequence",))
def rnn(
    x,
    w,
    r,
    b=None,
    sequence_lens=None,
    initial_h=None,
    *,
    call,
    **how,
):
    """(Y, Y_h)."""
    args = _Call((x, w, r, b, sequence_lens), (initial_h,), 1, ("Tanh",), call, how)

    def step_of(i):
        (f,) = args.activations[i]
        weight = r[i]

        def step(row, h):
            return (f(op.add(row, op.dense(h, weight))),)

        return step, _sum(*args.biases(i))

    return args.results(step_of)
