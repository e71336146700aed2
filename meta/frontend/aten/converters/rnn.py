"""Recurrent layers and cells: as the layers of `meta.model.layers.recurrent`, a scan for each layer
and direction, behind one product with all steps of the input.
"""

from functools import partial

from meta import op
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.model.control_flow import scan
from meta.model.layers.recurrent import gru_step, lstm_step, project, rnn_step


def _along(step, x, state, arrays, reverse):
    """Run one layer in one direction; return the last state and h at each step."""
    weight_ih, weight_hh, bias_ih, bias_hh, weight_hr = arrays
    rows = project(op.reshape(x, (-1, x.shape[2])), weight_ih, bias_ih)
    rows = op.reshape(rows, (*x.shape[:2], weight_ih.shape[0]))

    def run(state, row):
        h, *rest = step(row, state, weight_hh, bias_hh)
        h = h if weight_hr is None else op.dense(h, weight_hr)
        return (h, *rest), h

    return scan(run, state, rows, reverse=reverse)


def _arrays(params, has_biases, projects):
    """Return the arrays of each layer and direction, None for those that it lacks."""
    size = 2 + 2 * has_biases + projects
    found = []
    for first in range(0, len(params), size):
        own = list(params[first : first + size])
        weight_hr = own.pop() if projects else None
        found.append((*own, *(None,) * (4 - len(own)), weight_hr))
    return found


def _layers(step, x, hx, params, has_biases, dropout, train, bidirectional, batch_first):
    """Return the outputs of the last layer, and each of the states at the end of all."""
    x = op.permute_dims(x, (1, 0, 2)) if batch_first else x
    if not isinstance(x.shape[0], int) or x.shape[0] < 1:
        raise Unconvertible(f"its number of steps is {x.shape[0]}", hint="at least one, and known")
    projects = len(hx) == 2 and hx[0].shape[2] != hx[1].shape[2]
    arrays, directions = _arrays(params, has_biases, projects), 1 + bidirectional
    ends = []
    for layer in range(len(arrays) // directions):
        if layer and dropout and train:
            x = op.dropout(x, dropout)
        results = []
        for direction in range(directions):
            state = tuple(h[len(ends)] for h in hx)
            state, result = _along(step, x, state, arrays[len(ends)], bool(direction))
            ends.append(state)
            results.append(result)
        x = op.concat(tuple(results), -1) if bidirectional else results[0]
    states = tuple(op.stack(s, 0) for s in zip(*ends, strict=True))
    return op.permute_dims(x, (1, 0, 2)) if batch_first else x, *states


def _register(name, step, states):
    @aten(f"{name}.input", op.dense, ignore=("num_layers",))
    def layers(x, hx, params, *, has_biases, dropout, train, bidirectional, batch_first):
        hx = hx if states == 2 else (hx,)
        options = (has_biases, dropout, train, bidirectional, batch_first)
        return _layers(step, x, hx, params, *options)

    @aten(f"{name}_cell", op.dense)
    def cell(x, hx, weight_ih, weight_hh, bias_ih, bias_hh):
        hx = hx if states == 2 else (hx,)
        new = step(project(x, weight_ih, bias_ih), hx, weight_hh, bias_hh)
        return new if states == 2 else new[0]

    aten.refuse(f"{name}.data", why="it takes sequences of several lengths in one tensor")


for _name, _step, _states in (
    ("lstm", lstm_step, 2),
    ("gru", gru_step, 1),
    ("rnn_tanh", partial(rnn_step, nonlinearity="tanh"), 1),
    ("rnn_relu", partial(rnn_step, nonlinearity="relu"), 1),
):
    _register(_name, _step, _states)


_MKLDNN_LSTM = 2


@aten(
    "mkldnn_rnn_layer",
    op.dense,
    ignore=("batch_sizes", "hidden_size", "num_layers", "bidirectional", "train"),
)
def mkldnn_rnn_layer(
    x,
    weight_ih,
    weight_hh,
    bias_ih,
    bias_hh,
    h,
    c,
    *,
    reverse,
    mode,
    has_biases,
    batch_first,
    call,
):
    """One direction of one layer of an LSTM on the CPU, as torch runs it for inference."""
    if mode != _MKLDNN_LSTM:
        raise Unconvertible(f"it is of mode {mode}, not of an LSTM")
    x = op.permute_dims(x, (1, 0, 2)) if batch_first else x
    biases = (bias_ih, bias_hh) if has_biases else (None, None)
    state = tuple(op.reshape(s, (x.shape[1], weight_hh.shape[1])) for s in (h, c))
    arrays = (weight_ih, weight_hh, *biases, None)
    ends, y = _along(lstm_step, x, state, arrays, reverse)
    ends = (op.reshape(s, tuple(t.shape)) for s, t in zip(ends, (h, c), strict=True))
    y = op.permute_dims(y, (1, 0, 2)) if batch_first else y
    return y, *ends, op.zeros((0,), "uint8", str(call.device))


aten.refuse(
    "mkldnn_rnn_layer_backward",
    "_cudnn_rnn",
    "_cudnn_rnn_backward",
    "miopen_rnn",
    why="it reads what a library has saved in a form of its own",
)
aten.refuse(
    "quantized_lstm.input",
    "quantized_lstm.data",
    "quantized_gru.input",
    "quantized_gru.data",
    "quantized_lstm_cell",
    "quantized_gru_cell",
    "quantized_rnn_relu_cell",
    "quantized_rnn_tanh_cell",
    why="its operands are quantised",
)
