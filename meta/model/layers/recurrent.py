"""Recurrent layers: RNN, LSTM and GRU, with torch's gates, names of arrays and results.

The products with the input are computed for all steps at once, what depends on the step before in
a `scan`. So a traced program has one loop per layer and direction, whatever the number of steps.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from meta import op, random
from meta.base.dtype import is_float
from meta.base.errors import ArgumentError, TypeInferError
from meta.model import init
from meta.model.control_flow import scan
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core.function import device_of

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]

State = tuple[Any, ...]
ACTIVATIONS = {"tanh": op.tanh, "relu": op.relu}


def project(rows: Any, weight: Any, bias: Any) -> Any:
    """Return ``rows @ weight.T + bias``; bias may be None."""
    y = op.dense(rows, weight)
    return y if bias is None else op.add(y, bias)


def _split_columns(x: Any, count: int) -> list[Any]:
    """Return the blocks of the columns of x."""
    width = x.shape[1] // count
    return [x[:, i * width : (i + 1) * width] for i in range(count)]


def rnn_step(x: Any, state: State, weight: Any, bias: Any, nonlinearity: str) -> State:
    """h' = activation(W_ih x + b_ih + W_hh h + b_hh). x: what is of the input, (n, hidden_size)."""
    return (ACTIVATIONS[nonlinearity](op.add(x, project(state[0], weight, bias))),)


def lstm_step(x: Any, state: State, weight: Any, bias: Any) -> State:
    """c' = f c + i g, h' = o tanh(c'); the rows of the arrays are i, f, g, o."""
    h, c = state
    i, f, g, o = _split_columns(op.add(x, project(h, weight, bias)), 4)
    c = op.add(op.multiply(op.sigmoid(f), c), op.multiply(op.sigmoid(i), op.tanh(g)))
    return op.multiply(op.sigmoid(o), op.tanh(c)), c


def gru_step(x: Any, state: State, weight: Any, bias: Any) -> State:
    """h' = (1 - z) n + z h, n = tanh(x_n + r (W_hn h + b_hn)); the rows are r, z, n."""
    (h,) = state
    from_x, from_h = _split_columns(x, 3), _split_columns(project(h, weight, bias), 3)
    r, z = (op.sigmoid(op.add(a, b)) for a, b in zip(from_x[:2], from_h[:2], strict=True))
    n = op.tanh(op.add(from_x[2], op.multiply(r, from_h[2])))
    return (op.add(n, op.multiply(z, op.subtract(h, n))),)


class _Gates(Model):
    """Base of what makes steps: ``gates`` rows of blocks of weights, ``states`` arrays that are
    carried along.
    """

    gates: ClassVar[int]
    states: ClassVar[int] = 1

    def make(self, suffix: str, inputs: int, bias: bool) -> None:
        """Make the arrays of one layer and direction, uniform on +-1/sqrt(hidden_size)."""
        bound, rows = 1 / math.sqrt(self.hidden_size), self.gates * self.hidden_size
        shapes = {"weight_ih": (rows, inputs), "weight_hh": (rows, self.hidden_size)}
        for name, shape in (shapes | dict.fromkeys(("bias_ih", "bias_hh"), (rows,))).items():
            made = bias or len(shape) == 2
            options = {"low": -bound, "high": bound}
            value = init.drawn(random.uniform, shape, **options) if made else None
            setattr(self, name + suffix, value)

    def arrays(self, suffix: str) -> tuple[Any, Any, Any, Any]:
        """Return the weights and the biases of one layer and direction."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w, u, b, c = (getattr(self, name + suffix) for name in names)
        return w, u, b, c

    def step(self, x: Any, state: State, weight: Any, bias: Any) -> State:
        """Return the next state. ``x``: (n, gates * hidden_size), the products with the input."""
        raise ArgumentError(f"{type(self).__name__} has no step")

    def require_sizes(self, input_size: int, hidden_size: int) -> None:
        """Keep the sizes; ArgumentError unless both are at least 1."""
        if input_size < 1 or hidden_size < 1:
            raise ArgumentError(
                "a size is below 1", found=f"input_size={input_size}, hidden_size={hidden_size}"
            )
        self.input_size, self.hidden_size = input_size, hidden_size

    def checked_state(self, hx: Any, shape: tuple[Any, ...], like: Any) -> State:
        """Return the arrays of an initial state, zeros for None."""
        if hx is None:
            return (op.full(shape, 0.0, like.dtype, device_of(like)),) * self.states
        given = (hx,) if self.states == 1 else hx
        fits = isinstance(given, tuple | list) and len(given) == self.states
        if not fits or any(tuple(s.shape) != shape for s in given):
            one = "an array" if self.states == 1 else f"a tuple of {self.states} arrays"
            shapes = [tuple(s.shape) for s in given] if fits else type(hx).__name__
            raise TypeInferError(
                "the initial state does not fit", expected=f"{one} of shape {shape}", found=shapes
            )
        return tuple(given)

    def require_input(self, x: Any, axes: tuple[int, ...]) -> None:
        """Raise TypeInferError unless x has as many axes and the input's features."""
        if x.ndim not in axes or x.shape[-1] != self.input_size:
            raise TypeInferError(
                "the input does not fit",
                expected=f"{' or '.join(map(str, axes))} axes, the last of {self.input_size}",
                found=f"shape {tuple(x.shape)}",
            )


class _RNN(_Gates):
    gates = 1

    def step(self, x: Any, state: State, weight: Any, bias: Any) -> State:
        """See `rnn_step`."""
        return rnn_step(x, state, weight, bias, self.nonlinearity)

    def require_activation(self, name: str) -> None:
        """Keep the name of an activation; ArgumentError for an unknown one."""
        if name not in ACTIVATIONS:
            raise ArgumentError("unknown nonlinearity", expected="tanh or relu", found=repr(name))
        self.nonlinearity = name


class _LSTM(_Gates):
    gates, states = 4, 2

    def step(self, x: Any, state: State, weight: Any, bias: Any) -> State:
        """See `lstm_step`."""
        return lstm_step(x, state, weight, bias)


class _GRU(_Gates):
    gates = 3

    def step(self, x: Any, state: State, weight: Any, bias: Any) -> State:
        """See `gru_step`."""
        return gru_step(x, state, weight, bias)


class Recurrent(_Gates):
    """Base of recurrent layers over sequences.

    ``weight_ih_l{k}``: (gates * hidden_size, inputs), ``weight_hh_l{k}``: (gates * hidden_size,
    hidden_size), ``bias_ih_l{k}`` and ``bias_hh_l{k}``: (gates * hidden_size,) or None, of layer k;
    those of the other direction end in "_reverse".
    """

    def build(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        """Make the arrays, uniform on +-1/sqrt(hidden_size).

        num_layers: each takes what the one before returns, of which ``dropout`` is the probability
        to drop an element in train mode. batch_first: arrays are (n, steps, features) instead of
        (steps, n, features). bidirectional: each layer also runs from the last step to the first,
        and returns both results along the last axis.
        """
        self.require_sizes(input_size, hidden_size)
        if num_layers < 1:
            raise ArgumentError("there is no layer", expected="num_layers >= 1", found=num_layers)
        if not 0 <= dropout < 1:
            raise ArgumentError(
                "dropout is no probability of dropping", expected="0 <= dropout < 1", found=dropout
            )
        self.num_layers, self.batch_first, self.dropout = num_layers, batch_first, dropout
        self.bidirectional = bidirectional
        for layer in range(num_layers):
            inputs = hidden_size * len(self._directions()) if layer else input_size
            for suffix in self._directions():
                self.make(f"_l{layer}{suffix}", inputs, bias)

    def _directions(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    @trace
    def forward(self, x: Any, hx: Any = None, lengths: Any = None) -> Any:
        """Return (output, last state).

        x: (steps, n, input_size), at least one step; (n, steps, input_size) if ``batch_first``; or
        (steps, input_size), whose results have no axis n either. hx: the initial state (num_layers
        * directions, n, hidden_size), zeros unless given; of an LSTM a tuple (h, c) of such.
        lengths: integers (n,), how many steps of each sequence count, from 0 to all, which larger
        numbers stand for; all unless given. What is behind is not looked at.

        output: (steps, n, directions * hidden_size) in x's layout, h of the last layer at each
        step, 0 behind the lengths. last state: of hx's structure; at the last step that counts, in
        reverse direction at the first.
        Raises TypeInferError for arrays that do not fit.
        """
        self.require_input(x, (2, 3))
        one = x.ndim == 2
        if one:
            y = op.reshape(x, (x.shape[0], 1, x.shape[1]))
        else:
            y = op.permute_dims(x, (1, 0, 2)) if self.batch_first else x
        steps, n = y.shape[:2]
        places = self.num_layers * len(self._directions())
        shape = (places, self.hidden_size) if one else (places, n, self.hidden_size)
        start = self.checked_state(hx, shape, self.weight_ih_l0)
        if one:
            start = tuple(op.reshape(s, (places, 1, self.hidden_size)) for s in start)
        counts = None if lengths is None else _within(lengths, steps, n, one)
        last: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                y = op.dropout(y, self.dropout)
            results = []
            for suffix in self._directions():
                state = tuple(s[len(last)] for s in start)
                arrays = self.arrays(f"_l{layer}{suffix}")
                state, result = self._along(y, state, counts, arrays, bool(suffix))
                last.append(state)
                results.append(result)
            y = op.concat(tuple(results), -1) if len(results) > 1 else results[0]
        ends = tuple(op.stack(s, 0) for s in zip(*last, strict=True))
        if one:
            y = op.reshape(y, (steps, y.shape[2]))
            ends = tuple(op.reshape(s, shape) for s in ends)
        elif self.batch_first:
            y = op.permute_dims(y, (1, 0, 2))
        return y, ends if self.states > 1 else ends[0]

    def _along(
        self, x: Any, state: State, counts: Any, arrays: tuple[Any, ...], reverse: bool
    ) -> tuple[State, Any]:
        """Run one layer in one direction; return the last state and h at each step."""
        weight_ih, weight_hh, bias_ih, bias_hh = arrays
        rows = project(op.reshape(x, (-1, x.shape[2])), weight_ih, bias_ih)
        xs = op.reshape(rows, (*x.shape[:2], weight_ih.shape[0]))

        def plain(state: State, row: Any) -> tuple[State, Any]:
            new = self.step(row, state, weight_hh, bias_hh)
            return new, new[0]

        def counted(state: State, row: Any) -> tuple[State, Any]:
            row, counts = row
            new = self.step(row, state, weight_hh, bias_hh)
            kept = tuple(op.where(counts, a, b) for a, b in zip(new, state, strict=True))
            return kept, op.where(counts, new[0], op.zeros_like(new[0]))

        if counts is None:
            return scan(plain, state, xs, reverse=reverse)
        return scan(counted, state, (xs, counts), reverse=reverse)


class RNN(_RNN, Recurrent):
    """Elman's recurrent network: h' = tanh(W_ih x + b_ih + W_hh h + b_hh); see `Recurrent`.

    >>> outputs, state = meta.model.RNN(3, 5)(meta.ones((7, 2, 3)))
    >>> outputs.shape, state.shape
    ((7, 2, 5), (1, 2, 5))
    """

    def build(  # type: ignore[override]  # torch's order of arguments
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        """Make the arrays; nonlinearity: "tanh" or "relu", the rest as in `Recurrent.build`."""
        self.require_activation(nonlinearity)
        super().build(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )


class LSTM(_LSTM, Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997, with forget gates): c' = f c + i g,
    h' = o tanh(c'), where i, f, o = sigmoid and g = tanh of the four blocks of W_ih x + b_ih +
    W_hh h + b_hh, in the order i, f, g, o; see `Recurrent`. The state is (h, c).

    >>> outputs, (h, c) = meta.model.LSTM(3, 5)(meta.ones((7, 2, 3)))
    >>> outputs.shape, h.shape, c.shape
    ((7, 2, 5), (1, 2, 5), (1, 2, 5))
    """


class GRU(_GRU, Recurrent):
    """Gated recurrent unit (Cho et al., arXiv:1406.1078): h' = (1 - z) n + z h, where r, z =
    sigmoid of the first two blocks of W_ih x + b_ih + W_hh h + b_hh, and n = tanh(W_in x + b_in +
    r (W_hn h + b_hn)); see `Recurrent`.

    >>> outputs, state = meta.model.GRU(3, 5)(meta.ones((7, 2, 3)))
    >>> outputs.shape, state.shape
    ((7, 2, 5), (1, 2, 5))
    """


class Cell(_Gates):
    """Base of one step of a recurrent layer, with arrays ``weight_ih``, ``weight_hh``, ``bias_ih``
    and ``bias_hh`` as in `Recurrent`.
    """

    def build(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        """Make the arrays, uniform on +-1/sqrt(hidden_size)."""
        self.require_sizes(input_size, hidden_size)
        self.make("", input_size, bias)

    @trace
    def forward(self, x: Any, hx: Any = None) -> Any:
        """Return the next state, of hx's structure.

        x: (n, input_size), or (input_size,). hx: (n, hidden_size), or (hidden_size,), zeros unless
        given; of an `LSTMCell` a tuple (h, c) of such. TypeInferError for arrays that do not fit.
        """
        self.require_input(x, (1, 2))
        shape = (*x.shape[:-1], self.hidden_size)
        state = self.checked_state(hx, shape, self.weight_ih)
        weight_ih, weight_hh, bias_ih, bias_hh = self.arrays("")
        if x.ndim == 1:
            x = op.reshape(x, (1, self.input_size))
            state = tuple(op.reshape(s, (1, self.hidden_size)) for s in state)
        new = self.step(project(x, weight_ih, bias_ih), state, weight_hh, bias_hh)
        if len(shape) == 1:
            new = tuple(op.reshape(s, shape) for s in new)
        return new if self.states > 1 else new[0]


class RNNCell(_RNN, Cell):
    """One step of an `RNN`.

    >>> meta.model.RNNCell(3, 5)(meta.ones((2, 3))).shape
    (2, 5)
    """

    def build(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh"
    ) -> None:
        """Make the arrays; nonlinearity: "tanh" or "relu"."""
        self.require_activation(nonlinearity)
        super().build(input_size, hidden_size, bias)


class LSTMCell(_LSTM, Cell):
    """One step of an `LSTM`; returns (h, c).

    >>> h, c = meta.model.LSTMCell(3, 5)(meta.ones((2, 3)))
    >>> h.shape, c.shape
    ((2, 5), (2, 5))
    """


class GRUCell(_GRU, Cell):
    """One step of a `GRU`.

    >>> meta.model.GRUCell(3, 5)(meta.ones((2, 3))).shape
    (2, 5)
    """


def _within(lengths: Any, steps: int, n: Any, one: bool) -> Any:
    """Return which steps count: bool (steps, n, 1)."""
    shape = getattr(lengths, "shape", None)
    dtype = getattr(lengths, "dtype", "bool")
    if one or shape is None or tuple(shape) != (n,) or dtype == "bool" or is_float(dtype):
        raise TypeInferError(
            "the lengths do not fit",
            expected=f"an array of integers of shape ({n},), beside an input of three axes",
            found=f"{type(lengths).__name__}" if shape is None else f"{dtype}{list(shape)}",
            hint="meta.array([3, 1]) for a list",
        )
    places = op.reshape(op.arange(0, steps, 1, dtype, device_of(lengths)), (steps, 1, 1))
    return op.less(places, op.reshape(lengths, (1, n, 1)))
