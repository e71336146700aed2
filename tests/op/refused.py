"""What operators refuse: elementwise ones of one to three tensors, beside those of `arithmetic.py`;
those of lists of tensors (fused tensors, contractions, steps of optimizers), and of a random state;
and those of `meta/op/shapes.py` and `movement.py`.
"""

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
        "glu": [error(F(3), match="two halves")],
        "clip": [
            error(B(3), 0, match="no order"),
            error(B(3), match="clip has no bounds"),
        ],
        "leaky_relu": [error(B(3), match="floating point")],
        "atan2": [error(F(2), C([1.0, 2.0], "float64"), match="differ in dtype")],
        "bitwise_and": [error(F(2), 1, match="only integers")],
        "bitwise_left_shift": [error(B(2), 1, match="only integers")],
        "bitwise_or": [error(B(2), 1, match="does not fit")],
        "bitwise_xor": [error(_INTS, I(3, low=1, high=3, dtype="int32"), match="differ in dtype")],
        "pow": [error(B(2), True, match="bool"), error(10, 10**10, match="64 bits")],
        "silu_dx": [error(F(2), F(3), match="dy does not match")],
        "tanh_dx": [error(None, B(2), F(2), match="floating point")],
        "frac": [error(_INTS, match="x must be floating point")],
        "square": [error(B(3), match="bool has no square")],
        "addcmul": [*TRIPLES, error(B(3), B(3), B(3), match="bool has no product and sum")],
        "addcdiv lerp": [*TRIPLES, error(_INTS, _INTS, _INTS, match="x must be floating point")],
    }
)

# step, learning_rate, beta1, beta2, eps, bias_correction, weight_decay, grad_averaging
_NUMBERS = 1, 0.1, 0.9, 0.99, 1e-6, 1, 0.01, 1

CASES += refusals(
    {
        "fuse_tensor": [
            error((), match="data is empty"),
            error((F(2), I(2, low=0, high=3)), match="cast the int64 one"),
        ],
        "defuse_tensor": [
            error(F(2, 3), 6, (2, 3), 2, match="data must have 1 axes"),
            error(F(6), (6, 1), (2, 3), (2,), match="2 sizes and 1 shape_indices"),
            error(F(6), 6, (2, 3), 1, match="do not cut shapes into parts"),
            error(F(6), 6, (2, 4), 2, match="does not have 6 elements"),
            error(F(5), 6, (2, 3), 2, match="data has another number of elements"),
        ],
        "einsum": [
            error("->", (), match="operands is empty"),
            error("ij,j->i", (F(2, 3), I(3, low=0, high=3)), match="cast the int64 one"),
            error("i,i->i", (B(2), B(2)), match="bools have no product"),
        ],
        "threefry_generate": [
            error(F(10), 3, match="key is no state of the generator"),
            error(C([0] * 10, "uint64"), (2, -1), match="no negative extents"),
        ],
        "threefry_split": [error(I(10, low=0, high=3), match="key is no state of the generator")],
        "lans": [
            error((F(2), F(2), F(2)), *_NUMBERS, 1, True, match="tensor_list has the wrong length"),
            error(
                (F(2), F(2), F(2), F(3)),
                *_NUMBERS,
                1,
                True,
                match="and moments of block 0",
            ),
            error((F(2),) * 4, *_NUMBERS, 2, True, match="mode must be 0 or 1"),
        ],
    }
)

_X, _AT = F(2, 3), I(4, low=0, high=2)
OUT_OF_RANGE = "axis 2 is out of range for ndim 2"
TAKES = [
    error(_X, _AT, 2, match=OUT_OF_RANGE),
    error(_X, F(4), 0, match="indices must be integers"),
    error(_X, _AT, 0, "nearest", match="unknown mode"),
    error(F(0, 3), _AT, 0, match="nothing can be taken of an empty axis"),
]
PARTS = [
    error((), match="arrays is empty"),
    error((_X, F(2, 4)), match="the tensors differ"),
    error((_X, I(2, 3, low=0, high=2)), match="cast the int64 one"),
    error((_X, _X), -4, match="axis -4 is out of range"),
]
SLICES = [
    error(_X, (0, 0), (1,), match="one entry for each of the leading axes"),
    error(_X, (0, 0, 0), (1, 1, 1), match="at most 2"),
    error(_X, 0, 2, 0, match="a stride is 0"),
    error(_X, 0, 2, None, "length", match="slice_mode is unknown"),
    error(_X, 0, 2, 2, "size", match="takes no strides"),
]

CASES += refusals(
    {
        "reshape": [
            error(_X, (4, 2), match="the number of elements does not fit the shape"),
            error(_X, (-1, -1), match="-1 is given twice"),
            error(_X, (-2, 3), match="a negative extent"),
            error(_X, (2, 3, 0), match="the number of elements does not fit the shape"),
            error(_X, (0, -1), match="the number of elements does not fit the shape"),
            error(F(0, 3), (0, -1), match="the number of elements does not fit the shape"),
        ],
        "expand_dims": [
            error(_X, 3, match="axis 3 is out of range"),
            error(_X, 0, -1, match="no number of axes"),
        ],
        "squeeze": [
            error(_X, 0, match="the axis does not have extent 1"),
            error(F(2, 1), 2, match=OUT_OF_RANGE),
        ],
        "concat concat_dx stack": PARTS,
        "split": [
            error(_X, 2, 1, match="the axis cannot be split into equal parts"),
            error(_X, (2, 1), 1, match="the indices must ascend and lie within the axis"),
            error(_X, (-1,), 1, match="the indices must ascend and lie within the axis"),
            error(_X, None, 2, match=OUT_OF_RANGE),
        ],
        "strided_slice": SLICES,
        "strided_slice_dx": [
            error(F(2, 2), (4, 3), 0, 2, match="dy has another shape than the slice"),
            error(F(2, 3), (4, -3), 0, 2, match="no negative extents"),
        ],
        "take": TAKES,
        "take_dx": [error(_X, F(3, 3), _AT, 0, match="dy has another shape than the result of")],
        "embedding": [
            error(F(), _AT, match="x must have an axis of rows"),
            error(_X, F(4), match="indices must be integers"),
            error(_X, _AT, 2, match="there is no row padding_idx"),
            error(_X, _AT, -3, match="there is no row padding_idx"),
        ],
        "embedding_dx": [
            error(_X, _AT, 5, match="dy does not fit indices and num_weight"),
            error(F(4, 3), F(4), 5, match="indices must be integers"),
            error(F(4, 3), _AT, -5, match="no negative extents"),
        ],
        "broadcast_to": [
            error(_X, (2, 4), match="broadcast"),
            error(_X, (3,), match="x does not broadcast to the shape"),
            error(F(1, 3), (-1, 3), match="no negative extents"),
        ],
        "repeat": [
            error(_X, -1, match="repeats is negative"),
            error(_X, 2, 2, match=OUT_OF_RANGE),
        ],
        "repeat_dx": [error(_X, _X, 2, 0, match="dy has another shape than the result of repeat")],
        "swapaxes": [error(_X, 0, 2, match=OUT_OF_RANGE)],
        "permute_dims permute_dims_dx": [
            error(_X, (0, 0), match="axes must name every axis once"),
            error(_X, (0, 2), match=OUT_OF_RANGE),
        ],
    }
)
