"""What operators of lists of tensors refuse (fused tensors, contractions, steps of optimizers), and
those of a random state.
"""

from meta.testing import B, C, F, I, error, refusals

# step, learning_rate, beta1, beta2, eps, bias_correction, weight_decay, grad_averaging
_NUMBERS = 1, 0.1, 0.9, 0.99, 1e-6, 1, 0.01, 1

CASES = refusals(
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
