"""`meta`: every tensor operator on the best backend at hand.

Written by `python -m tools.stubs`.
"""

from . import amp as amp
from . import analysis as analysis
from . import array_api as array_api
from . import dialect as dialect
from . import distributed as distributed
from . import fft as fft
from . import frontend as frontend
from . import ir as ir
from . import language as language
from . import linalg as linalg
from . import model as model
from . import op as op
from . import optim as optim
from . import passes as passes
from . import random as random
from . import task as task
from . import train as train
from . import vm as vm
from collections.abc import Callable
from collections.abc import Sequence
from meta.base import errors as errors
from meta.base.device import Device
from meta.base.dtype import DType
from meta.base.dtype_info import can_cast as can_cast
from meta.base.dtype_info import finfo as finfo
from meta.base.dtype_info import iinfo as iinfo
from meta.base.dtype_info import isdtype as isdtype
from meta.base.dtype_info import result_type as result_type
from meta.base.errors import MetaError as MetaError
from meta.frontend import explain_compile as explain_compile
from meta.frontend import to_onnx as to_onnx
from meta.model.control_flow import cond as cond
from meta.model.control_flow import scan as scan
from meta.model.control_flow import while_loop as while_loop
from meta.model.custom_rule import custom_jvp as custom_jvp
from meta.model.custom_rule import custom_vjp as custom_vjp
from meta.model.model import Model as Model
from meta.model.vmap import vmap as vmap
from meta.op.core.promotion import strict_dtypes as strict_dtypes
from meta.runtime.array_types import ArrayLike
from meta.runtime.array_types import DTypeLike
from meta.runtime.array_types import DeviceLike
from meta.runtime.array_types import Frexp
from meta.runtime.array_types import Histogram
from meta.runtime.array_types import Number
from meta.runtime.array_types import TopK
from meta.runtime.array_types import UniqueAll
from meta.runtime.array_types import UniqueCounts
from meta.runtime.array_types import UniqueInverse
from meta.runtime.ndarray import ndarray as ndarray
from meta.runtime.no_gradient import no_grad as no_grad
from meta.runtime.num_threads import get_num_threads as get_num_threads
from meta.runtime.num_threads import set_num_threads as set_num_threads
from meta.vm.benchmark.measure import measure as measure
from meta.vm.compiler.pipeline import PassContext as PassContext
from meta.vm.eager.nan_checks import debug_nans as debug_nans
from meta.vm.inspect.explain import explain as explain
from meta.vm.modules.module import compile_model as compile_model
from meta.vm.modules.module import load_module as load_module
from typing import Any
import builtins
import meta.grad as _grad
import torch

def abs(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Absolute value. ``x``: any shape and dtype; the result has its type, of complex numbers that
    of their parts. Integers wrap.
    """

def acos(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Inverse cosine, between 0 and pi; NaN for |x| > 1."""

def acosh(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Inverse hyperbolic cosine, not negative; NaN for x < 1."""

def adam(
    x: ndarray | torch.Tensor,
    dx: ArrayLike,
    m: ndarray | torch.Tensor,
    v: ndarray | torch.Tensor,
    step: ArrayLike,
    learning_rate: ArrayLike,
    beta1: Number = 0.9,
    beta2: Number = 0.999,
    eps: Number = 1e-08,
    weight_decay: Number = 0.0,
) -> tuple[ndarray, ndarray, ndarray]:
    """One step of Adam for one parameter, in place: `multi_tensor_adam` of lists with one tensor."""

def adamw(
    x: ndarray | torch.Tensor,
    dx: ArrayLike,
    m: ndarray | torch.Tensor,
    v: ndarray | torch.Tensor,
    step: ArrayLike,
    learning_rate: ArrayLike,
    beta1: Number = 0.9,
    beta2: Number = 0.999,
    eps: Number = 1e-08,
    weight_decay: Number = 0.01,
) -> tuple[ndarray, ndarray, ndarray]:
    """One step of Adam with decoupled weight decay for one parameter, in place: `multi_tensor_adamw` of lists with one tensor."""

def adaptive_avg_pool1d(
    x: ArrayLike,
    output_size: int | Sequence[int | None] | None,
    *,
    layout: str = 'NCW',
    out: ndarray | None = None,
) -> ndarray:
    """Mean over ``shape`` regions that cover the input evenly; see `adaptive_max_pool1d`."""

def adaptive_avg_pool1d_dx(
    x: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    layout: str = 'NCW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `adaptive_avg_pool1d`: dy is shared evenly by the elements of its region."""

def adaptive_avg_pool2d(
    x: ArrayLike,
    output_size: int | Sequence[int | None] | None,
    *,
    layout: str = 'NCHW',
    out: ndarray | None = None,
) -> ndarray:
    """Mean over ``shape`` regions that cover the input evenly; see `adaptive_max_pool2d`."""

def adaptive_avg_pool2d_dx(
    x: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    layout: str = 'NCHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `adaptive_avg_pool2d`: dy is shared evenly by the elements of its region."""

def adaptive_avg_pool3d(
    x: ArrayLike,
    output_size: int | Sequence[int | None] | None,
    *,
    layout: str = 'NCDHW',
    out: ndarray | None = None,
) -> ndarray:
    """Mean over ``shape`` regions that cover the input evenly; see `adaptive_max_pool3d`."""

def adaptive_avg_pool3d_dx(
    x: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    layout: str = 'NCDHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `adaptive_avg_pool3d`: dy is shared evenly by the elements of its region."""

def adaptive_max_pool1d(
    x: ArrayLike,
    output_size: int | Sequence[int | None] | None,
    return_indices: builtins.bool = False,
    *,
    layout: str = 'NCW',
) -> Any:
    """Maximum over ``shape`` regions that cover the input evenly."""

def adaptive_max_pool1d_dx(
    x: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    layout: str = 'NCW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `adaptive_max_pool1d`: dy goes to the first maximum of its region, in row
    order.
    """

def adaptive_max_pool2d(
    x: ArrayLike,
    output_size: int | Sequence[int | None] | None,
    return_indices: builtins.bool = False,
    *,
    layout: str = 'NCHW',
) -> Any:
    """Maximum over ``shape`` regions that cover the input evenly."""

def adaptive_max_pool2d_dx(
    x: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    layout: str = 'NCHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `adaptive_max_pool2d`: dy goes to the first maximum of its region, in row
    order.
    """

def adaptive_max_pool3d(
    x: ArrayLike,
    output_size: int | Sequence[int | None] | None,
    return_indices: builtins.bool = False,
    *,
    layout: str = 'NCDHW',
) -> Any:
    """Maximum over ``shape`` regions that cover the input evenly."""

def adaptive_max_pool3d_dx(
    x: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    layout: str = 'NCDHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `adaptive_max_pool3d`: dy goes to the first maximum of its region, in row
    order.
    """

def add(
    x1: ArrayLike,
    x2: ArrayLike,
    otherwise: ArrayLike | None = None,
    where: ArrayLike | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """x1 + x2; for two bool operands the logical or."""

def addcdiv(
    x: ArrayLike,
    tensor1: ArrayLike,
    tensor2: ArrayLike,
    value: Number = 1,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """x + value * tensor1 / tensor2."""

def addcmul(
    x: ArrayLike,
    tensor1: ArrayLike,
    tensor2: ArrayLike,
    value: Number = 1,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """x + value * tensor1 * tensor2."""

def adv_index(inputs: Sequence[ArrayLike], *, out: ndarray | None = None) -> ndarray:
    """``x[i0, i1, ...]`` with numpy's meaning, for inputs (x, i0, i1, ...)."""

def adv_index_dx(
    dy: ArrayLike,
    inputs: Sequence[ArrayLike],
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The gradient of `adv_index` at x: zeros of its type, plus ``dy`` at every index."""

def all(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Whether no element is 0 (bool); true if there are none."""

def all_gather(
    x: ArrayLike,
    over: str,
    size: int,
    axis: int = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The ``x`` of all ranks, one after the other along ``axis``; on every rank."""

def all_gather_start(
    x: ArrayLike,
    over: str,
    size: int,
    axis: int = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The beginning of `all_gather`; see `multi_tensor_all_reduce_start`."""

def all_reduce(
    x: ArrayLike,
    over: str,
    size: int,
    reduction: str = 'sum',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The sum over the ranks of their ``x``, elementwise; on every rank."""

def all_to_all(
    x: ArrayLike,
    over: str,
    size: int,
    split_axis: int = 0,
    concat_axis: int = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Cut ``x`` along ``split_axis``, give part i to rank i, and join what the ranks give along
    ``concat_axis``, in their order.
    """

def allclose(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: builtins.bool = False,
) -> ndarray:
    """Return whether all elements are close, as `isclose` says: a 0-d array of bool."""

def angle(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The angles of complex numbers from the positive real axis, from -pi to pi, as float32 or
    float64; 0 at 0, where the gradient is taken as 0, too. Raises TypeInferError for other dtypes.
    """

def any(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Whether an element is not 0 (bool); false if there are none."""

def arange(
    start: int | float,
    stop: int | float | None = None,
    step: int | float = 1,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = 'cpu',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The numbers ``start + i * step`` for i = 0, 1, ... before ``stop``."""

def argmax(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The index (int64) of the first largest one; a NaN counts as largest."""

def argmin(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The index (int64) of the first smallest element; a NaN counts as smallest."""

def argsort(
    x: ArrayLike,
    axis: int = -1,
    descending: builtins.bool = False,
    stable: builtins.bool = True,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The indices (int64) that sort ``x`` along ``axis``."""

def argwhere(condition: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The indices of the elements that are not 0, in row-major order: int64[?, ndim]."""

def array(
    obj: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    device: DeviceLike | None = None,
    name: str = '',
) -> ndarray:
    """Create an array from numbers, lists, an array, also of NumPy or torch, or a DLPack exporter."""

def array_split(x: ArrayLike, sections: int, axis: int = 0) -> tuple[ndarray, ...]:
    """Return ``sections`` parts along ``axis``, of which the first may be longer by 1."""

def asarray(
    obj: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    device: DeviceLike | None = None,
    copy: builtins.bool | None = None,
) -> ndarray:
    """Return an array of numbers, nested lists of them, an array, or a DLPack exporter."""

def asin(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Inverse sine, between -pi/2 and pi/2; NaN for |x| > 1."""

def asinh(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Inverse hyperbolic sine."""

def assign(x: ndarray | torch.Tensor, value: ArrayLike) -> tuple[ndarray]:
    """Overwrite ``x`` with ``value``, in place: what a model's array that traced code sets becomes."""

def assign_at(
    x: ndarray | torch.Tensor,
    indices: ArrayLike,
    value: ArrayLike,
    axis: int = 0,
) -> tuple[ndarray]:
    """Overwrite, in place, what coordinates name along the axes of ``x`` from ``axis`` on: for
    axis 1 and two coordinates, ``x[i, indices[0, j], indices[1, j], k] = value[i, j, k]``.
    """

def astype(x: ArrayLike, dtype: DTypeLike, *, out: ndarray | None = None) -> ndarray:
    """``x`` in another dtype. Floats are truncated to integers; a bool says whether not 0."""

def atan(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Inverse tangent, between -pi/2 and pi/2."""

def atan2(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The angle of the point (x2, x1) from the x axis, from -pi to pi; signed zeros count as in C."""

def atanh(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Inverse hyperbolic tangent; infinite at 1 and -1, NaN beyond."""

def avg_pool1d(
    x: ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: builtins.bool = False,
    count_include_pad: builtins.bool = True,
    *,
    divisor_override: int | None = None,
    layout: str = 'NCW',
    out: ndarray | None = None,
) -> ndarray:
    """Mean over each window."""

def avg_pool1d_dx(
    x: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike,
    kernel: int | tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int],
    padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    ceil_mode: builtins.bool = False,
    include_pad: builtins.bool = True,
    layout: str = 'NCW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `avg_pool1d`: dy is shared evenly by the elements of its window."""

def avg_pool2d(
    x: ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: builtins.bool = False,
    count_include_pad: builtins.bool = True,
    *,
    divisor_override: int | None = None,
    layout: str = 'NCHW',
    out: ndarray | None = None,
) -> ndarray:
    """Mean over each window."""

def avg_pool2d_dx(
    x: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike,
    kernel: int | tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int],
    padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    ceil_mode: builtins.bool = False,
    include_pad: builtins.bool = True,
    layout: str = 'NCHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `avg_pool2d`: dy is shared evenly by the elements of its window."""

def avg_pool3d(
    x: ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: builtins.bool = False,
    count_include_pad: builtins.bool = True,
    *,
    divisor_override: int | None = None,
    layout: str = 'NCDHW',
    out: ndarray | None = None,
) -> ndarray:
    """Mean over each window."""

def avg_pool3d_dx(
    x: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike,
    kernel: int | tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int],
    padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    ceil_mode: builtins.bool = False,
    include_pad: builtins.bool = True,
    layout: str = 'NCDHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `avg_pool3d`: dy is shared evenly by the elements of its window."""

def axis_index(
    over: str,
    size: int,
    device: DeviceLike | None = 'cpu',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """This rank's place along an axis of the mesh, as an int64 tensor without axes."""

def batch_flatten(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Merge all axes but the first: ``[n, ...]`` to ``[n, k]``. A view."""

def batch_matmul(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Matrix products ``x1[i] @ x2[i]`` for every i."""

def batch_matmul_nt(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """``x1 @ x2.T``: `batch_matmul` of matrices x1 (m, k), x2 (n, k), result (m, n)."""

def batch_matmul_tn(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """``x1.T @ x2``: `batch_matmul` of matrices x1 (k, m), x2 (k, n), result (m, n)."""

def batch_matmul_tt(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """``x1.T @ x2.T``: `batch_matmul` of matrices x1 (k, m), x2 (n, k), result (m, n)."""

def batch_norm(
    x: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    training: builtins.bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> ndarray:
    """Normalise each channel, axis 1 of x, as torch's function."""

def batch_norm_infer(
    x: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    w: ArrayLike | None = None,
    b: ArrayLike | None = None,
    momentum: float = 0.1,
    eps: float = 1e-05,
    axis: int = 1,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Normalise each channel by given statistics."""

def batch_norm_train(
    x: ArrayLike,
    running_mean: ndarray | torch.Tensor,
    running_var: ndarray | torch.Tensor,
    w: ArrayLike | None = None,
    b: ArrayLike | None = None,
    momentum: float = 0.1,
    eps: float = 1e-05,
    axis: int = 1,
) -> tuple[ndarray, ndarray, ndarray]:
    """Normalise each channel by the statistics of the batch, and update the running ones."""

def batch_norm_train_dxwb(
    dy: ArrayLike,
    x: ArrayLike,
    w: ArrayLike | None,
    b: ArrayLike | None,
    eps: float,
    axis: int = 1,
) -> tuple[ndarray, ndarray, ndarray]:
    """Gradients of `batch_norm_train` with respect to x, w and b."""

bfloat16: DType

def bias_add(
    x: ArrayLike,
    bias: ArrayLike,
    axis: int = 1,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """x plus a bias per index of one axis: ``x + reshape(bias, [1.. C ..1])``."""

def binary_cross_entropy(
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
    *,
    weight: ArrayLike | None = None,
    out: ndarray | None = None,
) -> ndarray:
    """``-(target * log(prediction) + (1 - target) * log(1 - prediction))``, reduced."""

def binary_cross_entropy_dpred(
    dy: ArrayLike,
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `binary_cross_entropy` by prediction: ``(prediction - target) / (prediction * (1 - prediction)) * dy``, the denominator at least 1e-12, as torch's, over the size for "mean"."""

def binary_cross_entropy_with_logits(
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
    *,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    out: ndarray | None = None,
) -> ndarray:
    """`binary_cross_entropy` of ``sigmoid(prediction)``, without overflow."""

def binary_cross_entropy_with_logits_dpred(
    dy: ArrayLike,
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `binary_cross_entropy_with_logits` by prediction: ``(sigmoid(prediction) - target) * dy``, over the size for "mean"."""

def bincount(
    x: ArrayLike,
    /,
    weights: ArrayLike | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
) -> ndarray:
    """Return how often each of 0, 1, 2, ... occurs in ``x``: int64, a vector."""

def bits_to_uniform(
    bits: ArrayLike,
    dtype: DTypeLike | None = 'float32',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Floats uniform on [0, 1), of random bits: multiples of 2**-23, or of 2**-52 in float64."""

def bitwise_and(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The bits that both have; of bools the logical and."""

def bitwise_invert(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """All bits inverted, -x - 1 for signed integers; of bools the logical not."""

def bitwise_left_shift(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x1 * 2**x2 modulo the dtype's range; 0 for an ``x2`` that is negative or beyond the bits."""

def bitwise_or(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The bits that one or both have; of bools the logical or. Arguments as of `bitwise_and`."""

def bitwise_right_shift(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """floor(x1 / 2**x2); for an ``x2`` that is negative or beyond the bits 0, or -1 if x1 < 0."""

def bitwise_xor(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The bits that exactly one has; of bools whether they differ. Arguments as `bitwise_and`."""

bool: DType

def broadcast_arrays(*arrays: ArrayLike) -> list[ndarray]:
    """Return arrays of any dtypes, each broadcast to the shape that all have in common."""

def broadcast_from(
    x: ArrayLike,
    over: str,
    size: int,
    root: int = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The ``x`` of the rank ``root``, on every rank. Gradient: `reduce_to`."""

def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which arrays of these shapes broadcast; TypeInferError for none."""

def broadcast_to(
    x: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` repeated along axes of extent 1, and along new leading axes, to have ``shape``."""

def broadcast_to_like(
    x: ArrayLike,
    like_type: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` repeated along axes of extent 1, and new leading ones, to the shape of ``like_type``."""

def cache_update(
    keys: ndarray | torch.Tensor,
    values: ndarray | torch.Tensor,
    key: ArrayLike,
    value: ArrayLike,
    positions: ArrayLike,
    block_table: ArrayLike | None = None,
) -> tuple[ndarray, ndarray]:
    """Write keys and values of tokens to their slots, in place."""

def cached_attention(
    query: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    positions: ArrayLike,
    block_table: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    scale: float | None = None,
    window: int | None = None,
    score_cap: float | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Attention of tokens to the slots of a cache up to their own, which `cache_update` wrote."""

def cast_like(x: ArrayLike, like_type: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """``x`` in the dtype of ``like_type``, converted as by `astype`."""

def cdist(x1: ArrayLike, x2: ArrayLike, p: float = 2.0) -> ndarray:
    """Return the p-norm distance of each row of ``x1`` from each row of ``x2``."""

def ceil(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The smallest whole number not below x."""

def celu(x: ArrayLike, alpha: Number = 1.0, *, out: ndarray | None = None) -> ndarray:
    """x where x > 0, else alpha * (exp(x / alpha) - 1). ``x``: floating point; ``alpha`` > 0."""

def clip(
    x: ArrayLike,
    min: Number | None = None,
    max: Number | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """x, but at least ``min`` and at most ``max``; a NaN stays, as does a bound that is one."""

def clip_dx(
    x: ArrayLike,
    dy: ArrayLike,
    min: Number,
    max: Number,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `clip`: dy where min <= x <= max, else 0."""

def collapse_sum_like(
    x: ArrayLike,
    like_type: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` summed over the axes along which ``like_type`` would be repeated to its shape."""

def collective_wait(
    x: Sequence[ndarray | torch.Tensor],
    over: str,
    size: int,
    given: Sequence[ArrayLike] = (),
) -> tuple[ndarray, ...]:
    """The end of a collective that was started: from here on its result ``x`` is there. On CUDA the
    device waits, and the host goes on. The pass `schedule_collectives` makes it.
    """

def complex(real: ArrayLike, imag: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """real + i * imag. Both float32 or both float64, broadcast against one another."""

complex128: DType

complex64: DType

def concat(
    arrays: Sequence[ArrayLike],
    axis: int | None = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Join tensors along an axis. They agree in dtype and in all other extents."""

def concat_dx(arrays: Sequence[ArrayLike], axis: int | None = 0) -> tuple[int, ...]:
    """Where to `split` the gradient of `concat`: a tuple of indices, known now."""

def conj(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The conjugates of complex numbers, a - ib for a + ib."""

def conv1d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    layout: str = 'NCW',
    kernel_layout: str = 'OIW',
    out_layout: str = 'NCW',
    out: ndarray | None = None,
) -> ndarray:
    """1-d cross-correlation. In two dimensions:"""

def conv1d_dw(
    x_or_w: ArrayLike,
    y: ArrayLike | None,
    dy: ArrayLike,
    shape: tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int] = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    groups: int = 1,
    layout: str = 'NCW',
    kernel_layout: str = 'OIW',
    out_layout: str = 'NCW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `conv1d` with respect to w."""

def conv1d_dx(
    x_or_w: ArrayLike,
    y: ArrayLike | None,
    dy: ArrayLike,
    shape: tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int] = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    groups: int = 1,
    layout: str = 'NCW',
    kernel_layout: str = 'OIW',
    out_layout: str = 'NCW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `conv1d` with respect to x."""

def conv2d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    layout: str = 'NCHW',
    kernel_layout: str = 'OIHW',
    out_layout: str = 'NCHW',
    out: ndarray | None = None,
) -> ndarray:
    """2-d cross-correlation. In two dimensions:"""

def conv2d_dw(
    x_or_w: ArrayLike,
    y: ArrayLike | None,
    dy: ArrayLike,
    shape: tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int] = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    groups: int = 1,
    layout: str = 'NCHW',
    kernel_layout: str = 'OIHW',
    out_layout: str = 'NCHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `conv2d` with respect to w."""

def conv2d_dx(
    x_or_w: ArrayLike,
    y: ArrayLike | None,
    dy: ArrayLike,
    shape: tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int] = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    groups: int = 1,
    layout: str = 'NCHW',
    kernel_layout: str = 'OIHW',
    out_layout: str = 'NCHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `conv2d` with respect to x."""

def conv3d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    layout: str = 'NCDHW',
    kernel_layout: str = 'OIDHW',
    out_layout: str = 'NCDHW',
    out: ndarray | None = None,
) -> ndarray:
    """3-d cross-correlation. In two dimensions:"""

def conv3d_dw(
    x_or_w: ArrayLike,
    y: ArrayLike | None,
    dy: ArrayLike,
    shape: tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int] = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    groups: int = 1,
    layout: str = 'NCDHW',
    kernel_layout: str = 'OIDHW',
    out_layout: str = 'NCDHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `conv3d` with respect to w."""

def conv3d_dx(
    x_or_w: ArrayLike,
    y: ArrayLike | None,
    dy: ArrayLike,
    shape: tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int] = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    groups: int = 1,
    layout: str = 'NCDHW',
    kernel_layout: str = 'OIDHW',
    out_layout: str = 'NCDHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `conv3d` with respect to x."""

def conv_transpose1d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    layout: str = 'NCW',
    kernel_layout: str = 'IOW',
    out_layout: str = 'NCW',
    out: ndarray | None = None,
) -> ndarray:
    """Transposed 1-d convolution: the gradient of `conv1d` with the same window and kernel."""

def conv_transpose1d_dw(
    x_or_w: ArrayLike,
    y: ArrayLike | None,
    dy: ArrayLike,
    shape: tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int] = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    output_padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    groups: int = 1,
    layout: str = 'NCW',
    kernel_layout: str = 'IOW',
    out_layout: str = 'NCW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `conv_transpose1d` with respect to w."""

def conv_transpose1d_dx(
    x_or_w: ArrayLike,
    y: ArrayLike | None,
    dy: ArrayLike,
    shape: tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int] = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    output_padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    groups: int = 1,
    layout: str = 'NCW',
    kernel_layout: str = 'IOW',
    out_layout: str = 'NCW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `conv_transpose1d` with respect to x."""

def conv_transpose2d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    layout: str = 'NCHW',
    kernel_layout: str = 'IOHW',
    out_layout: str = 'NCHW',
    out: ndarray | None = None,
) -> ndarray:
    """Transposed 2-d convolution: the gradient of `conv2d` with the same window and kernel."""

def conv_transpose2d_dw(
    x_or_w: ArrayLike,
    y: ArrayLike | None,
    dy: ArrayLike,
    shape: tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int] = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    output_padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    groups: int = 1,
    layout: str = 'NCHW',
    kernel_layout: str = 'IOHW',
    out_layout: str = 'NCHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `conv_transpose2d` with respect to w."""

def conv_transpose2d_dx(
    x_or_w: ArrayLike,
    y: ArrayLike | None,
    dy: ArrayLike,
    shape: tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int] = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    output_padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    groups: int = 1,
    layout: str = 'NCHW',
    kernel_layout: str = 'IOHW',
    out_layout: str = 'NCHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `conv_transpose2d` with respect to x."""

def conv_transpose3d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    layout: str = 'NCDHW',
    kernel_layout: str = 'IODHW',
    out_layout: str = 'NCDHW',
    out: ndarray | None = None,
) -> ndarray:
    """Transposed 3-d convolution: the gradient of `conv3d` with the same window and kernel."""

def conv_transpose3d_dw(
    x_or_w: ArrayLike,
    y: ArrayLike | None,
    dy: ArrayLike,
    shape: tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int] = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    output_padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    groups: int = 1,
    layout: str = 'NCDHW',
    kernel_layout: str = 'IODHW',
    out_layout: str = 'NCDHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `conv_transpose3d` with respect to w."""

def conv_transpose3d_dx(
    x_or_w: ArrayLike,
    y: ArrayLike | None,
    dy: ArrayLike,
    shape: tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int] = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    output_padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    groups: int = 1,
    layout: str = 'NCDHW',
    kernel_layout: str = 'IODHW',
    out_layout: str = 'NCDHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `conv_transpose3d` with respect to x."""

def copy(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The values of ``x`` in memory of their own. ``x``: any shape and dtype."""

def copy_to(x: ArrayLike, over: str, size: int, *, out: ndarray | None = None) -> ndarray:
    """``x`` itself, of which every rank computes something else: the gradient is their sum,
    `all_reduce`. Shoeybi et al., "Megatron-LM", arXiv:1909.08053, the function f.
    """

def copysign(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """|x1| with the sign of x2, zeros' included."""

def corrcoef(x: ArrayLike, /) -> ndarray:
    """Return the correlations, from -1 to 1, of variables, of which each row of ``x`` has the
    observations.
    """

def correlation(
    x1: ArrayLike,
    x2: ArrayLike,
    kernel_size: int = 1,
    max_displacement: int = 1,
    stride1: int = 1,
    stride2: int = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    is_multiply: builtins.bool = True,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Compare the patches of x1 with those of x2 around the same places:"""

def correlation_dx(
    x1: ArrayLike,
    x2: ArrayLike,
    dy: ArrayLike,
    kernel_size: int = 1,
    max_displacement: int = 1,
    stride1: int = 1,
    stride2: int = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    is_multiply: builtins.bool = True,
) -> tuple[ndarray, ndarray]:
    """Gradients of `correlation` with respect to x1 and x2; of |x1 - x2| it is 0 where they agree."""

def cos(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Cosine."""

def cosh(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Hyperbolic cosine."""

def cosine_embedding_loss(
    x1: ArrayLike,
    x2: ArrayLike,
    target: ArrayLike,
    margin: float = 0.0,
    reduction: str = 'mean',
) -> ndarray:
    """Return 1 - cos where the target is 1, and max(0, cos - margin) where it is -1, reduced; cos
    is the cosine of the angle of two vectors.
    """

def cosine_similarity(
    x1: ArrayLike,
    x2: ArrayLike,
    axis: int = 1,
    eps: float = 1e-08,
) -> ndarray:
    """Return the cosine of the angle of vectors along ``axis``; the others are broadcast."""

def count_nonzero(
    x: ArrayLike,
    /,
    axis: int | tuple[int, ...] | None = None,
    *,
    keepdims: builtins.bool = False,
) -> ndarray:
    """Return how many elements are not 0 along ``axis`` (None: all), as int64. A NaN is not 0."""

def cov(x: ArrayLike, /, *, correction: int = 1) -> ndarray:
    """Return the covariances of variables, of which each row of ``x`` has the observations."""

def cross_entropy(
    prediction: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = 'mean',
    label_smoothing: float = 0.0,
    out: ndarray | None = None,
) -> ndarray:
    """Cross entropy of a softmax: `nll_loss` of ``log_softmax(prediction, axis=1)``."""

def cross_entropy_dpred(
    dy: ArrayLike,
    prediction: ArrayLike,
    target: ArrayLike,
    classes: int | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `cross_entropy` by prediction: ``(softmax(prediction, 1) - hot) * dy / count``."""

def cross_entropy_dtarget(
    dy: ArrayLike,
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `cross_entropy` by the labels: zeros, type of target. See `nll_loss_dtarget`."""

def cross_entropy_train(
    prediction: ArrayLike,
    target: ArrayLike,
    classes: int | None = None,
) -> tuple[ndarray, ndarray, ndarray]:
    """`cross_entropy` of labels that also returns what its gradient needs: (loss, largest, total)."""

def cross_entropy_train_dpred(
    dy: ArrayLike,
    prediction: ArrayLike,
    target: ArrayLike,
    largest: ArrayLike,
    total: ArrayLike,
    classes: int | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """`cross_entropy_dpred` that is given what `cross_entropy_train` returned of the rows."""

def ctc_loss(
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    blank: int = 0,
    reduction: str = 'mean',
    zero_infinity: builtins.bool = False,
) -> ndarray:
    """Return -log of the probability that the classes of all time steps, repetitions removed and
    then blanks, are the targets.
    """

def ctc_losses(
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    blank: int = 0,
    zero_infinity: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The loss of `ctc_loss` for each sequence of a batch, not reduced."""

def ctc_losses_dx(
    dy: ArrayLike,
    log_probs: ArrayLike,
    targets: ArrayLike,
    input_lengths: ArrayLike,
    target_lengths: ArrayLike,
    blank: int = 0,
    zero_infinity: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `ctc_losses` by log_probs: ``-dy`` times the probability that the alignment is in
    this class at this step, given the targets. Of an infinite loss it is NaN, or 0 with
    zero_infinity.
    """

def cumprod(
    x: ArrayLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Products of the elements up to each along ``axis``, in ``dtype``; the shape of ``x`` stays."""

def cumsum(
    x: ArrayLike,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Sums of the elements up to each along ``axis``, in ``dtype``; the shape of ``x`` stays."""

def defuse_tensor(
    data: ArrayLike,
    sizes: int | tuple[int, ...] | list[int],
    shapes: int | tuple[int, ...] | list[int],
    shape_indices: int | tuple[int, ...] | list[int],
) -> tuple[ndarray, ...]:
    """Several tensors out of one vector, which lies in their order in it. Undoes `fuse_tensor`."""

def deg2rad(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Degrees in radians: x * pi / 180."""

def dense(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """A fully connected layer without bias, ``x1 @ x2.T``."""

def depth_to_space(
    x: ArrayLike,
    block_size: int,
    layout: str = 'NCHW',
    mode: str = 'DCR',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Spread channels over blocks of ``block_size`` * ``block_size`` places (pixel shuffle)."""

def dequantize_weight(
    weight: ArrayLike,
    scales: ArrayLike,
    zeros: ArrayLike | None = None,
    *,
    dtype: str | None = None,
) -> ndarray:
    """Return ``scales * (weight - zeros)``, (n, k), of a weight as `quantized_matmul` takes it."""

def detach(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The values of ``x``, any shape and dtype, which no gradient reaches through the result, and
    of which no tangent leaves: what JAX calls stop_gradient.
    """

device = Device

def device_copy(
    data: ArrayLike,
    src_device: DeviceLike | None = 'cpu',
    dst_device: DeviceLike | None = 'cpu',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """A copy of ``data`` on another device, or on the same one."""

def dft(
    re: ArrayLike,
    im: ArrayLike,
    inverse: builtins.bool = False,
) -> tuple[ndarray, ndarray]:
    """The discrete Fourier transform along the last axis: (real part, imaginary part) of
    ``y[j] = sum(x[k] * exp(-2i * pi * j * k / n))`` for x = re + i * im of n elements.
    """

def diag(x: ArrayLike, k: int = 0) -> ndarray:
    """Return diagonal ``k`` of a matrix, or the matrix with a vector on this diagonal, else 0."""

def diagonal(
    x: ArrayLike,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The elements whose index along ``axis2`` is that along ``axis1`` plus ``offset``."""

def diagonal_dx(
    dy: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Zeros of the given shape, with ``dy`` where `diagonal` of these arguments reads."""

def diff(
    x: ArrayLike,
    /,
    n: int = 1,
    axis: int = -1,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
) -> ndarray:
    """Return the ``n``-th difference of neighbours along ``axis``, which gets shorter by ``n``."""

def digamma(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The derivative of log(gamma(x)); infinite at 0, with the other sign, NaN at -1, -2, ..."""

def divide(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x1 / x2, true division: of integers and bools it is float32."""

def dot(x1: ArrayLike, x2: ArrayLike, /) -> ndarray:
    """Return the sums of products over the last axis of x1 and the last but one of x2, as NumPy's."""

def dropout(x: ArrayLike, p: float = 0.5, training: builtins.bool = True) -> ndarray:
    """Zero elements with probability ``p`` and scale the others by 1 / (1 - p), as torch's."""

def dropout_dx(
    dy: ArrayLike,
    mask: ArrayLike,
    reserve_space: ArrayLike,
    p: float = 0.5,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `dropout_train`: ``mask ? dy / (1 - p) : 0``."""

def dropout_mask(
    key: ArrayLike,
    shape: tuple[int, ...] | list[int],
    p: float = 0.5,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The elements that `dropout_train` keeps of an array of ``shape``: bool, True where kept."""

def dropout_train(
    x: ArrayLike,
    p: float = 0.5,
    in_states: ArrayLike | None = None,
) -> tuple[ndarray, ndarray, ndarray]:
    """`dropout` that also returns what it keeps: ``y = mask ? x / (1 - p) : 0``."""

def dstack(arrays: Sequence[ArrayLike]) -> ndarray:
    """Return arrays joined along their third axis: (n,) is (1, n, 1), (m, n) is (m, n, 1)."""

def dynamic_arange(
    start: ArrayLike,
    stop: ArrayLike,
    step: ArrayLike,
    dtype: DTypeLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """`arange` of three tensors of one element each, of integers or floats."""

def dynamic_broadcast_to(
    x: ArrayLike,
    shape: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """`broadcast_to` the extents that ``shape``, a vector of integers, holds at run time."""

def dynamic_expand_dims(
    x: ArrayLike,
    axis: ArrayLike,
    num_newaxis: int = 1,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """`expand_dims` before ``axis``, one integer; below 0 it counts from behind. A copy."""

def dynamic_full(
    fill_value: ArrayLike,
    shape: ArrayLike,
    dtype: DTypeLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """A tensor of ``fill_value``, one element, converted to ``dtype``; its extents are in
    ``shape``, a vector of integers.
    """

def dynamic_one_hot(
    indices: ArrayLike,
    on_value: ArrayLike,
    off_value: ArrayLike,
    depth: ArrayLike,
    axis: int = -1,
    dtype: DTypeLike | None = 'int32',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """`one_hot` of ``depth``, one integer of the run time."""

def dynamic_pad(
    x: ArrayLike,
    pad_width: ArrayLike,
    pad_value: ArrayLike = 0.0,
    pad_mode: str = 'constant',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """`pad` by ``pad_width``, integers [ndim, 2]; ``pad_value`` may be a tensor of one element."""

def dynamic_reshape(x: ArrayLike, shape: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """`reshape` to the extents that ``shape``, a vector of integers, holds at run time."""

def dynamic_resize2d(
    x: ArrayLike,
    size: ArrayLike,
    layout: str = 'NCHW',
    method: str = 'linear',
    coordinate_transformation_mode: str = 'half_pixel',
    rounding_method: str = '',
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    out_dtype: str = '',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """`resize2d` to ``size``, a vector of two integers: height and width."""

def dynamic_squeeze(x: ArrayLike, axes: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """`squeeze` of the axes that ``axes``, a vector of distinct integers, names. A copy."""

def dynamic_strided_slice(
    x: ArrayLike,
    begin: ArrayLike,
    end: ArrayLike,
    strides: ArrayLike,
    slice_mode: str = 'end',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """`strided_slice` with bounds and strides of the run time: vectors of integers, one entry for
    each of the leading axes.
    """

def dynamic_strided_slice_dx(
    x: ArrayLike,
    dy: ArrayLike,
    begin: ArrayLike,
    end: ArrayLike,
    strides: ArrayLike,
    slice_mode: str = 'end',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The gradient of `dynamic_strided_slice` at ``x``, of which only the type counts: zeros, with
    ``dy`` where it reads.
    """

def dynamic_tile(x: ArrayLike, reps: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """`tile` by ``reps``, a vector of integers."""

def dynamic_topk(
    x: ArrayLike,
    k: ArrayLike,
    axis: int = -1,
    largest: builtins.bool = True,
    ret_type: str = 'both',
    dtype: DTypeLike | None = 'int64',
) -> Any:
    """`topk` of ``k``, one integer of the run time; below 1 it stands for all."""

e: float

def einsum(
    equation: str,
    *operands: ArrayLike,
    out: ndarray | None = None,
    **named: ArrayLike,
) -> ndarray:
    """The sum, over the labels that the result lacks, of products of elements of the operands."""

def elu(x: ArrayLike, alpha: Number = 1.0, *, out: ndarray | None = None) -> ndarray:
    """x where x > 0, else alpha * (exp(x) - 1). ``x``: floating point of any shape."""

def elu_dx(
    x: ArrayLike,
    dy: ArrayLike,
    alpha: Number = 1.0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `elu`: dy where x > 0, else dy * alpha * exp(x)."""

def embedding(
    indices: ArrayLike,
    weight: ArrayLike,
    padding_idx: int | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Rows of a table: ``x[indices]`` of shape ``indices.shape + x.shape[1:]``."""

def embedding_bag(
    indices: ArrayLike,
    weight: ArrayLike,
    offsets: ArrayLike | None = None,
    *,
    mode: str = 'mean',
    per_sample_weights: ArrayLike | None = None,
    include_last_offset: builtins.bool = False,
    padding_idx: int | None = None,
) -> ndarray:
    """Return the sum, mean or maximum of the rows of a table in each bag of indices."""

def embedding_dx(
    dy: ArrayLike,
    indices: ArrayLike,
    num_weight: int | tuple[int, ...] | list[int],
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The gradient of `embedding` at the table: rows of ``dy`` added up by index."""

def empty(
    shape: int | tuple[int, ...],
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
) -> ndarray:
    """Return an array whose values do not matter: they are zeros. See `zeros`."""

def empty_like(
    x: ArrayLike,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
) -> ndarray:
    """Return an array of the shape, dtype and device of ``x`` whose values do not matter."""

def entr(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """-x * log(x), the entropy's term: 0 at 0, -inf below."""

def equal(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x1 == x2 for operands of one dtype; the result is bool, False for a NaN."""

def erf(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Error function: 2 / sqrt(pi) times the integral of exp(-t**2) for t from 0 to x."""

def erf_dx(
    x: ArrayLike | None,
    y: ArrayLike | None,
    dy: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `erf`: dy * 2 / sqrt(pi) * exp(-x**2)."""

def erfc(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """1 - erf(x), without loss for large x."""

def erfinv(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The inverse of `erf`: infinite at 1 and -1, NaN beyond."""

def exp(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """e**x."""

def exp2(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """2**x."""

def expand_dims(
    x: ArrayLike,
    axis: int,
    num_newaxis: int = 1,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Insert ``num_newaxis`` axes of extent 1 before ``axis``. A view."""

def expm1(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """exp(x) - 1 without loss for small x."""

def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
) -> ndarray:
    """Return a matrix with ones on the diagonal ``k`` (above the main one if positive), else zeros."""

def fft_c2c(
    x: ArrayLike,
    axes: int | tuple[int, ...] | list[int],
    inverse: builtins.bool = False,
    norm: str = 'backward',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The transform of complex numbers along axes, or the inverse one. The result has x's type."""

def fft_c2r(
    x: ArrayLike,
    axes: int | tuple[int, ...] | list[int],
    n: int,
    norm: str = 'backward',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The inverse of `fft_r2c`: real numbers whose transform's first half is x."""

def fft_r2c(
    x: ArrayLike,
    axes: int | tuple[int, ...] | list[int],
    norm: str = 'backward',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The transform of real numbers along axes, without what is conjugate to the rest."""

def fixed_point_multiply(
    x: ArrayLike,
    multiplier: ArrayLike,
    shift: ArrayLike,
    rounding: str = 'upward',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """x * multiplier * 2**(shift - 31), rounded to a whole number."""

def fixed_point_number(x: ArrayLike) -> tuple[ndarray, ndarray]:
    """The normalised fixed-point numbers nearest to x, halves away from 0: (multiplier, shift)."""

def flip(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` with the elements along each of the axes in reversed order."""

float16: DType

float32: DType

float64: DType

float8_e4m3fn: DType

float8_e5m2: DType

def floor(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The largest whole number not above x."""

def floor_divide(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """floor(x1 / x2) in the operands' dtype, rounded towards -inf as in Python."""

def fmax(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The larger of x1 and x2; the other one where one is NaN, unlike `maximum`."""

def fmin(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The smaller of x1 and x2; the other one where one is NaN, unlike `minimum`."""

def fmod(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The remainder x1 - x2 * trunc(x1 / x2); it has the sign of x1, unlike `remainder`."""

def frac(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x - trunc(x), the fraction, with the sign of x. ``x``: floating point of any shape."""

def frexp(x: ArrayLike, /) -> Frexp:
    """Return (mantissa, exponent) with x = mantissa * 2**exponent, 0.5 <= abs(mantissa) < 1."""

def from_dlpack(
    x: ArrayLike,
    /,
    *,
    device: DeviceLike | None = None,
    copy: builtins.bool | None = None,
) -> ndarray:
    """Return an array that shares memory with any DLPack exporter (NumPy, torch, JAX, TVM, ...)."""

def full(
    shape: int | tuple[int, ...] | list[int],
    fill_value: Number,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = 'cpu',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """A tensor of ``fill_value``. See `zeros`."""

def full_like(
    x: ArrayLike,
    fill_value: Number,
    dtype: DTypeLike | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """A tensor of ``fill_value`` of the shape and device of ``x``. See `full`, `zeros_like`."""

def fuse_tensor(data: Sequence[ArrayLike], *, out: ndarray | None = None) -> ndarray:
    """The elements of several tensors, one tensor after the other, in one vector."""

def fused_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
    causal: builtins.bool = False,
    scale: float | None = None,
    layout: str = 'BHSD',
    window: tuple[int, ...] | list[int] | None = None,
    slopes: ArrayLike | None = None,
    dropout_key: ArrayLike | None = None,
    dropout_p: float = 0.0,
) -> tuple[ndarray, ndarray]:
    """`scaled_dot_product_attention` of four axes that also returns the logsumexp of the scores."""

def fused_attention_dmask(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None,
    y: ArrayLike,
    logsumexp: ArrayLike,
    dy: ArrayLike,
    causal: builtins.bool = False,
    scale: float | None = None,
    layout: str = 'BHSD',
    window: tuple[int, ...] | list[int] | None = None,
    slopes: ArrayLike | None = None,
    dropout_key: ArrayLike | None = None,
    dropout_p: float = 0.0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `fused_attention` with respect to a mask that is added."""

def fused_attention_dslopes(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None,
    y: ArrayLike,
    logsumexp: ArrayLike,
    dy: ArrayLike,
    causal: builtins.bool = False,
    scale: float | None = None,
    layout: str = 'BHSD',
    window: tuple[int, ...] | list[int] | None = None,
    slopes: ArrayLike | None = None,
    dropout_key: ArrayLike | None = None,
    dropout_p: float = 0.0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `fused_attention` with respect to slopes."""

def fused_attention_dx(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None,
    y: ArrayLike,
    logsumexp: ArrayLike,
    dy: ArrayLike,
    causal: builtins.bool = False,
    scale: float | None = None,
    layout: str = 'BHSD',
    window: tuple[int, ...] | list[int] | None = None,
    slopes: ArrayLike | None = None,
    dropout_key: ArrayLike | None = None,
    dropout_p: float = 0.0,
) -> tuple[ndarray, ndarray, ndarray]:
    """Gradients of `fused_attention` with respect to query, key and value."""

def gather_from(
    x: ArrayLike,
    over: str,
    size: int,
    axis: int = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """`all_gather` from which all ranks compute the same: the gradient is this rank's part of that
    of the result, `scatter_to`, where that of `all_gather` is summed over the ranks.
    """

def gather_nd(data: ArrayLike, indices: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The slices of ``data`` at the coordinates ``indices[:, i, j, ...]``:
    ``y[i, j] = data[indices[0, i, j], indices[1, i, j], ...]``.
    """

def gather_nd_dx(
    data: ArrayLike,
    indices: ArrayLike,
    dy: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The gradient of `gather_nd` at ``data``: zeros of its type, plus ``dy`` at every index read."""

def gather_to(
    x: ArrayLike,
    over: str,
    size: int,
    axis: int = 0,
    root: int = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """`all_gather` on the rank ``root``, and zeros on the others. Gradient: `scatter_from`."""

def gaussian_nll_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    var: ArrayLike,
    full: builtins.bool = False,
    eps: float = 1e-06,
    reduction: str = 'mean',
) -> ndarray:
    """Return ``0.5 * (log(var) + (prediction - target)**2 / var)``, reduced: of a normal
    distribution.
    """

def gelu(x: ArrayLike, approximate: str = 'none', *, out: ndarray | None = None) -> ndarray:
    """Gaussian error linear unit: x * (1 + erf(x / sqrt(2))) / 2."""

def gelu_dx(
    x: ArrayLike | None,
    y: ArrayLike | None,
    dy: ArrayLike,
    approximate: str = 'none',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `gelu`: dy * (P(x) + x * p(x)), P and p the normal distribution and density."""

def get_kept_dims(x1: ArrayLike, x2: ArrayLike) -> tuple[int, ...]:
    """Whether each axis of `get_reduce_axis` stays with extent 1: the ``keepdims`` of `sum`."""

def get_reduce_axis(x1: ArrayLike, x2: ArrayLike) -> tuple[int, ...]:
    """The axes over which to sum ``x1`` to get the shape of ``x2``, a tuple known now."""

def get_valid_counts(
    data: ArrayLike,
    score_threshold: ArrayLike,
    id_index: int = 0,
    score_index: int = 1,
) -> tuple[ndarray, ndarray, ndarray]:
    """Move the boxes with a score above ``score_threshold`` to the front, in their order."""

def glu(x: ArrayLike, axis: int = -1, *, out: ndarray | None = None) -> ndarray:
    """a * sigmoid(b) with a and b the two halves of x along an axis."""

class _Grad:
    __call__ = staticmethod(_grad.grad)
    gauss_newton_product = staticmethod(_grad.gauss_newton_product)
    grad = staticmethod(_grad.grad)
    hessian = staticmethod(_grad.hessian)
    hvp = staticmethod(_grad.hvp)
    jacfwd = staticmethod(_grad.jacfwd)
    jacobian = staticmethod(_grad.jacobian)
    jacrev = staticmethod(_grad.jacrev)
    jvp = staticmethod(_grad.jvp)
    linearize = staticmethod(_grad.linearize)
    value_and_grad = staticmethod(_grad.value_and_grad)
    vjp = staticmethod(_grad.vjp)

grad: _Grad

def greater(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x1 > x2 for operands of one dtype; the result is bool, False for a NaN."""

def greater_equal(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x1 >= x2 for operands of one dtype; the result is bool, False for a NaN."""

def grid_sample(
    x: ArrayLike,
    grid: ArrayLike,
    mode: str = 'bilinear',
    padding_mode: str = 'zeros',
    align_corners: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Sample an image or a volume at the positions in ``grid`` (Jaderberg et al., Spatial
    Transformer Networks, 2015).
    """

def grid_sample_dx(
    x: ArrayLike,
    grid: ArrayLike,
    dy: ArrayLike,
    mode: str = 'bilinear',
    padding_mode: str = 'zeros',
    align_corners: builtins.bool = False,
) -> tuple[ndarray, ndarray]:
    """Gradients of `grid_sample`: (dx, dgrid), of the types of x and grid. dy: that of the result."""

def group_cast(tensor_list: Sequence[ArrayLike], dtype: DTypeLike) -> tuple[ndarray, ...]:
    """Every tensor of a list in another dtype, converted as by `astype`, in one kernel."""

def group_norm(
    x: ArrayLike,
    num_groups: int,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-05,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Normalise each group of adjacent channels: ``(x - mean) / sqrt(var + eps) * scale + bias``."""

def group_norm_dx(
    x: ArrayLike,
    num_groups: int,
    scale: ArrayLike | None,
    dy: ArrayLike,
    eps: float = 1e-05,
) -> Any:
    """Gradients of `group_norm`: dx alone if ``scale`` is None, else (dx, dscale, dbias)."""

def grouped_matmul(
    x1: ArrayLike,
    x2: ArrayLike,
    offs: ArrayLike | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Products of groups of rows with a matrix each, as a mixture of experts has them."""

def grouped_matmul_nt(
    x1: ArrayLike,
    x2: ArrayLike,
    offs: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x1 @ x2.mT`` in groups: `grouped_matmul` of matrices x1 (m, k) and x2 (n, k), one of them or none with an axis of groups before."""

def grouped_matmul_tn(
    x1: ArrayLike,
    x2: ArrayLike,
    offs: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x1.mT @ x2`` in groups: `grouped_matmul` of matrices x1 (k, m) and x2 (k, n), one of them or none with an axis of groups before."""

def grouped_matmul_tt(
    x1: ArrayLike,
    x2: ArrayLike,
    offs: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x1.mT @ x2.mT`` in groups: `grouped_matmul` of matrices x1 (k, m) and x2 (n, k), one of them or none with an axis of groups before."""

def hardshrink(x: ArrayLike, lambd: Number = 0.5, *, out: ndarray | None = None) -> ndarray:
    """x where |x| > lambd, else 0; a NaN stays. ``x``: floating point; ``lambd`` >= 0."""

def hardsigmoid(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """min(max(x + 3, 0), 6) / 6. Source: Howard et al., 2019."""

def hardswish(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x * min(max(x + 3, 0), 6) / 6. Source: Howard et al., MobileNetV3, 2019."""

def hardswish_dx(x: ArrayLike, dy: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Gradient of `hardswish`: 0 for x <= -3, dy for x >= 3, else dy * (x / 3 + 1/2), at both kinks the outer derivative."""

def heaviside(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The step of x1: 0 below 0 and of NaN, 1 above, x2 at 0."""

def hinge_embedding_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    margin: float = 1.0,
    reduction: str = 'mean',
) -> ndarray:
    """Return x where the target is 1, and max(0, margin - x) where it is -1, reduced."""

def histogram(
    x: ArrayLike,
    /,
    bins: ArrayLike = 10,
    range: tuple[float, float] | None = None,
    *,
    weights: ArrayLike | None = None,
    density: builtins.bool = False,
) -> Histogram:
    """Return how many elements of ``x`` lie in each bin, and the edges of the bins. As NumPy's."""

def hstack(arrays: Sequence[ArrayLike]) -> ndarray:
    """Return arrays joined along their second axis, vectors along their only one."""

def huber_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
    delta: float = 1.0,
    *,
    weight: ArrayLike | None = None,
    out: ndarray | None = None,
) -> ndarray:
    """``0.5 d**2`` where |d| <= delta, else ``delta * (|d| - 0.5 delta)``, reduced."""

def huber_loss_dpred(
    dy: ArrayLike,
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
    delta: float = 1.0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `huber_loss` by prediction: ``clip(prediction - target, -delta, delta) * dy``."""

def hypot(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """sqrt(x1**2 + x2**2), without overflow between."""

def i0(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The modified Bessel function of the first kind of order 0."""

def i0e(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """exp(-|x|) * i0(x), which does not overflow."""

def i1(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The modified Bessel function of the first kind of order 1."""

def i1e(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """exp(-|x|) * i1(x), which does not overflow."""

def imag(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The imaginary parts of complex numbers, as float32 or float64."""

def index_add(
    x: ArrayLike,
    axis: int,
    index: ArrayLike,
    source: ArrayLike,
    alpha: float = 1,
) -> ndarray:
    """Return ``x`` with ``alpha`` times the slices of ``source`` added to those along ``axis`` that
    ``index`` names.
    """

def index_copy(x: ArrayLike, axis: int, index: ArrayLike, source: ArrayLike) -> ndarray:
    """Return ``x`` with the slices of ``source`` in the place of those along ``axis`` that
    ``index`` names. Arguments and errors are those of `index_add`.
    """

def index_fill(x: ArrayLike, axis: int, index: ArrayLike, value: ArrayLike) -> ndarray:
    """Return ``x`` with ``value``, a number or a 0-d array, in the slices along ``axis`` that
    ``index`` names. Other arguments and errors are those of `index_add`.
    """

def index_reduce(
    x: ArrayLike,
    axis: int,
    index: ArrayLike,
    source: ArrayLike,
    reduce: str,
    include_self: builtins.bool = True,
) -> ndarray:
    """Return ``x`` with the slices along ``axis`` that ``index`` names reduced with those of
    ``source``. Reductions are those of `scatter_reduce`, other arguments those of `index_add`.
    """

def index_select(
    x: ArrayLike,
    axis: int,
    index: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The slices of ``x`` along ``axis`` that ``index``, a vector of integers, names."""

inf: float

def instance_norm(
    x: ArrayLike,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    use_input_stats: builtins.bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Normalise each channel of each example: `group_norm` with one channel per group."""

int16: DType

int32: DType

int64: DType

int8: DType

def interp(
    x: ArrayLike,
    xp: ArrayLike,
    fp: ArrayLike,
    /,
    left: ArrayLike | None = None,
    right: ArrayLike | None = None,
) -> ndarray:
    """Return the values at ``x`` of the straight lines between the points (xp, fp)."""

def interpolate(
    x: ArrayLike,
    size: int | tuple[int, ...] | None = None,
    scale_factor: float | tuple[float, ...] | None = None,
    mode: str = 'nearest',
    align_corners: builtins.bool = False,
) -> ndarray:
    """Resize the spatial axes of ``x``, as torch.nn.functional.interpolate does."""

def isclose(
    x1: ArrayLike,
    x2: ArrayLike,
    rtol: Number = 1e-05,
    atol: Number = 1e-08,
    equal_nan: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Whether |x1 - x2| <= atol + rtol * |x2|, or both are the same infinity."""

def isfinite(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Whether x is neither infinite nor NaN. ``x``: any shape and dtype; the result is bool."""

def isin(x1: ArrayLike, x2: ArrayLike, /, *, invert: builtins.bool = False) -> ndarray:
    """Return, in the shape of ``x1``, whether each element is one of ``x2`` (bool)."""

def isinf(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Whether x is infinite, of either sign. ``x``: any shape and dtype; the result is bool."""

def isnan(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Whether x is NaN. ``x``: any shape and dtype; the result is bool."""

def isneginf(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Whether x is -infinity. ``x``: any shape and dtype; the result is bool."""

def isposinf(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Whether x is +infinity. ``x``: any shape and dtype; the result is bool."""

def kl_div(
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
    log_target: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Kullback-Leibler divergence: ``target * (log(target) - prediction)``, reduced."""

def kl_div_dpred(
    dy: ArrayLike,
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
    log_target: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `kl_div` by prediction: ``-target * dy``; with log_target ``-exp(target) * dy``."""

def l1_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
    *,
    weight: ArrayLike | None = None,
    out: ndarray | None = None,
) -> ndarray:
    """Absolute error: ``|prediction - target|``, reduced."""

def l1_loss_dpred(
    dy: ArrayLike,
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `l1_loss` by prediction: ``sign(prediction - target) * dy``, where the sign of 0 and of NaN is 0, as torch's, over the size for "mean"."""

def l2_normalize(
    x: ArrayLike,
    eps: float = 1e-12,
    axis: int | tuple[int, ...] | list[int] | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Scale vectors to length 1: ``x / sqrt(max(sum(x²), eps))``."""

def l2norm(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The Euclidean length of all elements, sqrt(sum(x²)), as a 0-d array; 0 if there are none."""

def lamb(
    x: ndarray | torch.Tensor,
    dx: ArrayLike,
    m: ndarray | torch.Tensor,
    v: ndarray | torch.Tensor,
    step: ArrayLike,
    learning_rate: ArrayLike,
    beta1: Number = 0.9,
    beta2: Number = 0.999,
    eps: Number = 1e-06,
    weight_decay: Number = 0.01,
) -> tuple[ndarray, ndarray, ndarray]:
    """One step of LAMB for one parameter, in place: `multi_tensor_lamb` of lists with one tensor."""

def lans(
    tensor_list: Sequence[ndarray | torch.Tensor],
    step: ArrayLike,
    learning_rate: ArrayLike,
    beta1: Number,
    beta2: Number,
    eps: Number,
    bias_correction: builtins.bool | int,
    weight_decay: Number,
    grad_averaging: builtins.bool | int,
    mode: builtins.bool | int,
    normalize_grad: builtins.bool,
) -> tuple[ndarray, ...]:
    """One step of LANS for several parameters, in place: `multi_tensor_lans` of one list."""

def layer_norm(
    x: ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-05,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Normalise along one axis: ``y = (x - mean) / sqrt(var + eps) * scale + bias``."""

def layer_norm_dx(
    x: ArrayLike,
    scale: ArrayLike | None,
    dy: ArrayLike,
    axis: int = -1,
    eps: float = 1e-05,
) -> Any:
    """Gradients of `layer_norm`: dx alone if ``scale`` is None, else (dx, dscale, dbias)."""

def layer_norm_train(
    x: ArrayLike,
    scale: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    axis: int = -1,
    eps: float = 1e-05,
) -> tuple[ndarray, ndarray, ndarray]:
    """`layer_norm` that also returns what its gradient needs: y, mean and 1 / sqrt(var + eps)."""

def layer_norm_train_dx(
    x: ArrayLike,
    scale: ArrayLike | None,
    dy: ArrayLike,
    mean: ArrayLike,
    invvar: ArrayLike,
    axis: int = -1,
    eps: float = 1e-05,
) -> Any:
    """`layer_norm_dx` that is given mean and invvar, as `layer_norm_train` returned them."""

def ldexp(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x1 * 2**x2; the exponent may be broken."""

def leaky_relu(
    x: ArrayLike,
    negative_slope: Number = 0.01,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """x where x > 0, else negative_slope * x. ``x``: floating point of any shape."""

def leaky_relu_dx(
    x: ArrayLike,
    dy: ArrayLike,
    negative_slope: Number = 0.01,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `leaky_relu`: dy where x > 0, else negative_slope * dy."""

def lerp(
    x: ArrayLike,
    end: ArrayLike,
    weight: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """x + weight * (end - x): ``x`` for weight 0, ``end`` for weight 1, exactly."""

def less(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x1 < x2 for operands of one dtype; the result is bool, False for a NaN."""

def less_equal(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x1 <= x2 for operands of one dtype; the result is bool, False for a NaN."""

def lexsort(keys: ArrayLike, /, axis: int = -1) -> ndarray:
    """Return the indices (int64) that sort by several keys along ``axis``, by the last one first."""

def lgamma(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """log(|gamma(x)|); infinite at 0, -1, -2, ..."""

def linalg_cholesky(
    x: ArrayLike,
    upper: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The triangle l with ``x = l @ l.T`` of each symmetric positive definite matrix."""

def linalg_cofactor(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The cofactors of each square matrix, the gradient of `linalg_det`: det(x) * inv(x).T where
    x is regular, by singular values also where it is not.
    """

def linalg_det(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The determinant of each square matrix; 1 if it has no elements."""

def linalg_eig(x: ArrayLike) -> tuple[ndarray, ndarray]:
    """The eigenvalues and eigenvectors, in columns, of each square matrix; both are complex."""

def linalg_eigh(x: ArrayLike) -> tuple[ndarray, ndarray]:
    """The eigenvalues, in ascending order, and eigenvectors, in columns, of symmetric matrices."""

def linalg_eigvals(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The eigenvalues of each square matrix, complex, in the order of `linalg_eig`."""

def linalg_eigvalsh(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The eigenvalues of each symmetric matrix, in ascending order."""

def linalg_inv(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The inverse of each square matrix."""

def linalg_lu_factor(x: ArrayLike) -> tuple[ndarray, ndarray]:
    """The LU decomposition with exchanges of rows, as LAPACK packs it: (lu, pivots)."""

def linalg_lu_solve(
    lu: ArrayLike,
    pivots: ArrayLike,
    x2: ArrayLike,
    adjoint: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The solution y of ``x1 @ y = x2`` for the x1 of which `linalg_lu_factor` gave lu and pivots."""

def linalg_matrix_exp(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The exponential of each square matrix, the sum of x**k / k!."""

def linalg_pinv(
    x: ArrayLike,
    rtol: float | None = None,
    atol: float = 0.0,
    hermitian: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The Moore-Penrose inverse of each matrix, by its singular values."""

def linalg_qr(x: ArrayLike, mode: str = 'reduced') -> tuple[ndarray, ndarray]:
    """Matrices (q, r) with ``x = q @ r``, orthonormal columns in q and an upper triangle r."""

def linalg_slogdet(x: ArrayLike) -> tuple[ndarray, ndarray]:
    """The determinant of each square matrix as (sign, log(|det|)), which do not overflow."""

def linalg_solve(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The solution y of ``x1 @ y = x2``."""

def linalg_solve_triangular(
    x1: ArrayLike,
    x2: ArrayLike,
    upper: builtins.bool,
    unitriangular: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The solution y of ``x1 @ y = x2`` with a triangular x1, whose other triangle is not read."""

def linalg_svd(
    x: ArrayLike,
    full_matrices: builtins.bool = True,
) -> tuple[ndarray, ndarray, ndarray]:
    """The singular value decomposition: (u, s, vh) with ``x = u @ diag(s) @ vh``."""

def linalg_svdvals(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The singular values of each matrix, in descending order."""

def linear(x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None) -> ndarray:
    """Return ``x @ weight.T + bias``, a fully connected layer, as torch's."""

def linear_cross_entropies(
    x: ArrayLike,
    linear_weight: ArrayLike,
    target: ArrayLike,
    linear_bias: ArrayLike | None = None,
) -> tuple[ndarray, ndarray]:
    """The loss of `linear_cross_entropy` for each row, and the logsumexp of its scores."""

def linear_cross_entropies_dxwb(
    dloss: ArrayLike,
    dlogsumexp: ArrayLike,
    x: ArrayLike,
    linear_weight: ArrayLike,
    target: ArrayLike,
    logsumexp: ArrayLike,
    linear_bias: ArrayLike | None = None,
) -> tuple[ndarray, ...]:
    """Gradients of `linear_cross_entropies` by x, linear_weight and, if there is one, linear_bias."""

def linear_cross_entropy(
    x: ArrayLike,
    linear_weight: ArrayLike,
    target: ArrayLike,
    *,
    linear_bias: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    reduction: str = 'mean',
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> ndarray:
    """Return ``cross_entropy(linear(x, linear_weight, linear_bias), target)``, without all scores
    in memory.
    """

def linear_scan(
    a: ArrayLike,
    b: ArrayLike,
    axis: int,
    reverse: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The recurrence ``y[i] = a[i] * y[i - 1] + b[i]`` along ``axis``, from ``y[0] = b[0]``."""

def linspace(
    start: int | float,
    stop: int | float,
    /,
    num: int,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    endpoint: builtins.bool = True,
) -> ndarray:
    """Return ``num`` evenly spaced numbers from ``start`` to ``stop``, as a vector of ``dtype``."""

def log(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Natural logarithm; -inf at 0, NaN below."""

def log10(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Logarithm to base 10; -inf at 0, NaN below."""

def log1p(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """log(1 + x) without loss for small x; -inf at -1, NaN below."""

def log2(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Logarithm to base 2; -inf at 0, NaN below."""

def log_softmax(x: ArrayLike, axis: int = -1, *, out: ndarray | None = None) -> ndarray:
    """log(softmax(x)): x - max(x) - log(sum(exp(x - max(x)))) along ``axis``. As `softmax`."""

def log_softmax_dx(
    y: ArrayLike,
    dy: ArrayLike,
    axis: int = -1,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `log_softmax`: dy - exp(y) * sum(dy) along ``axis``."""

def logaddexp(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """log(exp(x1) + exp(x2)), without overflow."""

def logaddexp2(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """log2(2**x1 + 2**x2), without overflow."""

def logical_and(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Whether both are nonzero (a NaN is). Any dtypes; the result is bool."""

def logical_not(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """True where ``x`` is zero or False. ``x``: any shape and dtype; the result is bool."""

def logical_or(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Whether one or both are nonzero (a NaN is). Any dtypes; the result is bool."""

def logical_xor(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Whether exactly one is nonzero (a NaN is). Any dtypes; the result is bool."""

def logit(x: ArrayLike, eps: float | None = None, *, out: ndarray | None = None) -> ndarray:
    """log(x / (1 - x)), the inverse of `sigmoid`: infinite at 0 and 1, NaN beyond."""

def logsigmoid(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """log(sigmoid(x)) = -log(1 + exp(-x)), without overflow."""

def logsumexp(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """log(sum(exp(x))), computed on x - max(x) so that nothing overflows."""

def lrn(
    x: ArrayLike,
    size: int = 5,
    axis: int = 1,
    bias: float = 1.0,
    alpha: float = 0.0001,
    beta: float = 0.75,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Local response normalisation: ``x / (bias + alpha / size * sum(x²)) ** beta``."""

def lrn_dx(
    x: ArrayLike,
    dy: ArrayLike,
    size: int = 5,
    axis: int = 1,
    bias: float = 1.0,
    alpha: float = 0.0001,
    beta: float = 0.75,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `lrn`."""

def margin_ranking_loss(
    x1: ArrayLike,
    x2: ArrayLike,
    target: ArrayLike,
    margin: float = 0.0,
    reduction: str = 'mean',
) -> ndarray:
    """Return ``max(0, -target * (x1 - x2) + margin)``, reduced: 1 asks for x1 above x2, -1 for the
    opposite.
    """

def masked_fill(x: ArrayLike, mask: ArrayLike, value: ArrayLike) -> ndarray:
    """Return ``x`` with ``value`` where ``mask`` is true. Shapes broadcast; the dtype is x's."""

def masked_scatter(x: ArrayLike, mask: ArrayLike, source: ArrayLike) -> ndarray:
    """Return ``x`` with the elements of ``source``, one after the other, where ``mask`` is true."""

def masked_select(x: ArrayLike, mask: ArrayLike) -> ndarray:
    """Return the elements of ``x`` where ``mask``, bool, is true, as a vector."""

def matmul(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Matrix product ``x1 @ x2``."""

def matmul_nt(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """``x1 @ x2.T``: `matmul` of matrices x1 (m, k), x2 (n, k), result (m, n)."""

def matmul_tn(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """``x1.T @ x2``: `matmul` of matrices x1 (k, m), x2 (k, n), result (m, n)."""

def matmul_tt(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """``x1.T @ x2.T``: `matmul` of matrices x1 (k, m), x2 (n, k), result (m, n)."""

def matrix_transpose(x: ArrayLike, /) -> ndarray:
    """Return each matrix, (..., m, n), with its two axes exchanged."""

def max(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The largest element. NaN if one is NaN. Any dtype."""

def max_pool1d(
    x: ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: builtins.bool = False,
    return_indices: builtins.bool = False,
    *,
    layout: str = 'NCW',
) -> Any:
    """Maximum over each window; padding never wins."""

def max_pool1d_dx(
    x: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike,
    kernel: int | tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int],
    padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    ceil_mode: builtins.bool = False,
    include_pad: builtins.bool = True,
    layout: str = 'NCW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `max_pool1d`: dy goes to the first maximum of its window, in row order."""

def max_pool2d(
    x: ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: builtins.bool = False,
    return_indices: builtins.bool = False,
    *,
    layout: str = 'NCHW',
) -> Any:
    """Maximum over each window; padding never wins."""

def max_pool2d_dx(
    x: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike,
    kernel: int | tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int],
    padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    ceil_mode: builtins.bool = False,
    include_pad: builtins.bool = True,
    layout: str = 'NCHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `max_pool2d`: dy goes to the first maximum of its window, in row order."""

def max_pool3d(
    x: ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: builtins.bool = False,
    return_indices: builtins.bool = False,
    *,
    layout: str = 'NCDHW',
) -> Any:
    """Maximum over each window; padding never wins."""

def max_pool3d_dx(
    x: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike,
    kernel: int | tuple[int, ...] | list[int],
    stride: int | tuple[int, ...] | list[int],
    padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    ceil_mode: builtins.bool = False,
    include_pad: builtins.bool = True,
    layout: str = 'NCDHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `max_pool3d`: dy goes to the first maximum of its window, in row order."""

def max_unpool1d(
    x: ArrayLike,
    indices: ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: Sequence[int] | None = None,
) -> ndarray:
    """Return zeros with maxima where they were, the reverse of `max_pool1d`."""

def max_unpool2d(
    x: ArrayLike,
    indices: ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: Sequence[int] | None = None,
) -> ndarray:
    """Return zeros with maxima where they were, the reverse of `max_pool2d`."""

def max_unpool3d(
    x: ArrayLike,
    indices: ArrayLike,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: Sequence[int] | None = None,
) -> ndarray:
    """Return zeros with maxima where they were, the reverse of `max_pool3d`."""

def maximum(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The larger of x1 and x2; NaN if either is NaN."""

def mean(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The arithmetic mean; NaN if there are no elements."""

def mean_dx(
    dy: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The gradient of `mean` at an argument of ``shape``: dy / n, repeated along reduced axes."""

def median(
    x: ArrayLike,
    /,
    axis: int | None = None,
    *,
    keepdims: builtins.bool = False,
) -> ndarray:
    """Return the median along ``axis`` (None: of all): the mean of the middle two if even."""

def meshgrid(*arrays: ArrayLike, indexing: str = 'xy') -> tuple[ndarray, ...]:
    """Return the coordinates of the grid that vectors span, one array for each."""

def min(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The smallest element. NaN if one is NaN. Any dtype."""

def minimum(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The smaller of x1 and x2; NaN if either is NaN."""

def mish(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x * tanh(log(1 + exp(x))), without overflow. Source: Misra, 2019."""

def mish_dx(x: ArrayLike, dy: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Gradient of `mish`: dy * (w + x * (1 - w**2) * sigmoid(x)), w = tanh(log(1 + exp(x)))."""

def mode(x: ArrayLike, /, axis: int = -1) -> tuple[ndarray, ndarray]:
    """Return the most frequent element along ``axis``, and the index of its first occurrence."""

def moveaxis(
    x: ArrayLike,
    source: int | tuple[int, ...],
    destination: int | tuple[int, ...],
    /,
) -> ndarray:
    """Return ``x`` with the axes ``source`` at the places ``destination``; others keep their order."""

def mse_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
    *,
    weight: ArrayLike | None = None,
    out: ndarray | None = None,
) -> ndarray:
    """Squared error: ``(prediction - target)**2``, reduced."""

def mse_loss_dpred(
    dy: ArrayLike,
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `mse_loss` by prediction: ``2 * (prediction - target) * dy``, over the size for "mean"."""

def multi_margin_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    p: int = 1,
    margin: float = 1.0,
    weight: ArrayLike | None = None,
    reduction: str = 'mean',
) -> ndarray:
    """Return the sum over the other classes i of ``max(0, margin - x[target] + x[i]) ** p``, over
    the number of classes, reduced.
    """

def multi_tensor_adagrad(
    x: Sequence[ndarray | torch.Tensor],
    dx: Sequence[ArrayLike],
    v: Sequence[ndarray | torch.Tensor],
    step: ArrayLike,
    learning_rate: ArrayLike,
    learning_rate_decay: Number = 0.0,
    eps: Number = 1e-10,
    weight_decay: ArrayLike = 0.0,
    copies: Sequence[ndarray | torch.Tensor] = (),
    factor: ArrayLike = 1.0,
    clip_value: Number = ...,
    skip: ArrayLike | None = None,
) -> tuple[ndarray, ...]:
    """One step of Adagrad for several parameters, in place. With ``g = g + weight_decay * x``:"""

def multi_tensor_adam(
    x: Sequence[ndarray | torch.Tensor],
    dx: Sequence[ArrayLike],
    m: Sequence[ndarray | torch.Tensor],
    v: Sequence[ndarray | torch.Tensor],
    step: ArrayLike,
    learning_rate: ArrayLike,
    beta1: Number = 0.9,
    beta2: Number = 0.999,
    eps: Number = 1e-08,
    weight_decay: ArrayLike = 0.0,
    copies: Sequence[ndarray | torch.Tensor] = (),
    factor: ArrayLike = 1.0,
    clip_value: Number = ...,
    skip: ArrayLike | None = None,
) -> tuple[ndarray, ...]:
    """One step of Adam for several parameters, in place. With ``g = g + weight_decay * x``:"""

def multi_tensor_adamw(
    x: Sequence[ndarray | torch.Tensor],
    dx: Sequence[ArrayLike],
    m: Sequence[ndarray | torch.Tensor],
    v: Sequence[ndarray | torch.Tensor],
    step: ArrayLike,
    learning_rate: ArrayLike,
    beta1: Number = 0.9,
    beta2: Number = 0.999,
    eps: Number = 1e-08,
    weight_decay: ArrayLike = 0.01,
    copies: Sequence[ndarray | torch.Tensor] = (),
    factor: ArrayLike = 1.0,
    clip_value: Number = ...,
    skip: ArrayLike | None = None,
) -> tuple[ndarray, ...]:
    """One step of Adam with decoupled weight decay for several parameters, in place."""

def multi_tensor_all_gather(
    x: Sequence[ArrayLike],
    over: str,
    size: int,
) -> tuple[ndarray, ...]:
    """`all_gather` along the first axis of several tensors, by one exchange on NCCL."""

def multi_tensor_all_gather_in_place(
    x: Sequence[ndarray | torch.Tensor],
    over: str,
    size: int,
) -> tuple[ndarray, ...]:
    """Gather, where they lie, the parts of several tensors of which each rank has its own."""

def multi_tensor_all_gather_in_place_start(
    x: Sequence[ndarray | torch.Tensor],
    over: str,
    size: int,
) -> tuple[ndarray, ...]:
    """The beginning of `multi_tensor_all_gather_in_place`; see `multi_tensor_all_reduce_start`."""

def multi_tensor_all_gather_start(
    x: Sequence[ArrayLike],
    over: str,
    size: int,
) -> tuple[ndarray, ...]:
    """The beginning of `multi_tensor_all_gather`; see `multi_tensor_all_reduce_start`."""

def multi_tensor_all_reduce(
    x: Sequence[ndarray | torch.Tensor],
    over: str,
    size: int,
    reduction: str = 'sum',
    align: int = 1,
) -> tuple[ndarray, ...]:
    """`all_reduce` of several tensors by one exchange, in place: a bucket of gradients."""

def multi_tensor_all_reduce_start(
    x: Sequence[ndarray | torch.Tensor],
    over: str,
    size: int,
    reduction: str = 'sum',
    align: int = 1,
) -> tuple[ndarray, ...]:
    """The beginning of `multi_tensor_all_reduce`, behind which other work goes on. Nobody reads or
    writes x before `collective_wait`. The pass `schedule_collectives` makes it.
    """

def multi_tensor_axpby(
    x: Sequence[ArrayLike],
    y: Sequence[ndarray | torch.Tensor],
    alpha: ArrayLike,
    beta: ArrayLike,
    skip: ArrayLike | None = None,
) -> tuple[ndarray, ...]:
    """``y = alpha * x + beta * y`` for several tensors, in place: sums and running averages."""

def multi_tensor_cast(x: Sequence[ArrayLike], dtype: DTypeLike) -> tuple[ndarray, ...]:
    """Several tensors in another floating point dtype, each rounded as `astype` does."""

def multi_tensor_fold_batch_norm(
    w: Sequence[ArrayLike],
    mean: Sequence[ArrayLike],
    var: Sequence[ArrayLike],
    scale: Sequence[ArrayLike] = (),
    shift: Sequence[ArrayLike] = (),
    b: Sequence[ArrayLike] = (),
    eps: float = 1e-05,
    dtype: DTypeLike | None = None,
) -> tuple[ndarray, ...]:
    """Batch normalisation by given statistics, folded into the weights of several layers before it."""

def multi_tensor_increment(
    x: Sequence[ndarray | torch.Tensor],
    by: Number,
) -> tuple[ndarray, ...]:
    """``x += by`` for several tensors of integers, in place: counters of steps and batches."""

def multi_tensor_lamb(
    x: Sequence[ndarray | torch.Tensor],
    dx: Sequence[ArrayLike],
    m: Sequence[ndarray | torch.Tensor],
    v: Sequence[ndarray | torch.Tensor],
    step: ArrayLike,
    learning_rate: ArrayLike,
    beta1: Number = 0.9,
    beta2: Number = 0.999,
    eps: Number = 1e-06,
    weight_decay: ArrayLike = 0.01,
    copies: Sequence[ndarray | torch.Tensor] = (),
    factor: ArrayLike = 1.0,
    clip_value: Number = ...,
    skip: ArrayLike | None = None,
) -> tuple[ndarray, ...]:
    """One step of LAMB for several parameters, in place: Adam's direction, as long as a parameter."""

def multi_tensor_lans(
    x: Sequence[ndarray | torch.Tensor],
    dx: Sequence[ArrayLike],
    m: Sequence[ndarray | torch.Tensor],
    v: Sequence[ndarray | torch.Tensor],
    step: ArrayLike,
    learning_rate: ArrayLike,
    beta1: Number = 0.9,
    beta2: Number = 0.999,
    eps: Number = 1e-06,
    weight_decay: ArrayLike = 0.01,
    copies: Sequence[ndarray | torch.Tensor] = (),
    factor: ArrayLike = 1.0,
    clip_value: Number = ...,
    skip: ArrayLike | None = None,
    bias_correction: builtins.bool = True,
    grad_averaging: builtins.bool = True,
    decoupled: builtins.bool = True,
    normalize_grad: builtins.bool = True,
) -> tuple[ndarray, ...]:
    """One step of LANS for several parameters, in place. With ``g = g / |g|``, where 0 stays 0:"""

def multi_tensor_lion(
    x: Sequence[ndarray | torch.Tensor],
    dx: Sequence[ArrayLike],
    m: Sequence[ndarray | torch.Tensor],
    learning_rate: ArrayLike,
    beta1: Number = 0.9,
    beta2: Number = 0.99,
    weight_decay: ArrayLike = 0.0,
    copies: Sequence[ndarray | torch.Tensor] = (),
    factor: ArrayLike = 1.0,
    clip_value: Number = ...,
    skip: ArrayLike | None = None,
) -> tuple[ndarray, ...]:
    """One step of Lion for several parameters, in place."""

def multi_tensor_norm(x: Sequence[ArrayLike], *, out: ndarray | None = None) -> ndarray:
    """The Euclidean norm of all elements of several tensors together."""

def multi_tensor_reduce_scatter(
    x: Sequence[ArrayLike],
    over: str,
    size: int,
    reduction: str = 'sum',
) -> tuple[ndarray, ...]:
    """`reduce_scatter` along the first axis of several tensors, by one exchange on NCCL."""

def multi_tensor_reduce_scatter_start(
    x: Sequence[ArrayLike],
    over: str,
    size: int,
    reduction: str = 'sum',
) -> tuple[ndarray, ...]:
    """The beginning of `multi_tensor_reduce_scatter`; see `multi_tensor_all_reduce_start`."""

def multi_tensor_rmsprop(
    x: Sequence[ndarray | torch.Tensor],
    dx: Sequence[ArrayLike],
    v: Sequence[ndarray | torch.Tensor],
    m: Sequence[ndarray | torch.Tensor],
    velocity: Sequence[ndarray | torch.Tensor],
    learning_rate: ArrayLike,
    alpha: Number = 0.99,
    eps: Number = 1e-08,
    momentum: Number = 0.0,
    weight_decay: ArrayLike = 0.0,
    copies: Sequence[ndarray | torch.Tensor] = (),
    factor: ArrayLike = 1.0,
    clip_value: Number = ...,
    skip: ArrayLike | None = None,
) -> tuple[ndarray, ...]:
    """One step of RMSprop for several parameters, in place. With ``g = g + weight_decay * x``:"""

def multi_tensor_sgd(
    x: Sequence[ndarray | torch.Tensor],
    dx: Sequence[ArrayLike],
    v: Sequence[ndarray | torch.Tensor],
    learning_rate: ArrayLike,
    momentum: Number = 0.0,
    weight_decay: ArrayLike = 0.0,
    copies: Sequence[ndarray | torch.Tensor] = (),
    factor: ArrayLike = 1.0,
    clip_value: Number = ...,
    skip: ArrayLike | None = None,
    nesterov: builtins.bool = False,
) -> tuple[ndarray, ...]:
    """One step of gradient descent with momentum for several parameters, in place."""

def multilabel_margin_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
) -> ndarray:
    """Return the sum over labels j and other classes i of ``max(0, 1 - x[j] + x[i])``, over the
    number of classes, reduced.
    """

def multilabel_soft_margin_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    reduction: str = 'mean',
) -> ndarray:
    """Return the binary cross entropy of logits, its mean over the last axis, reduced."""

def multiply(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x1 * x2; for two bool operands the logical and. Integers wrap."""

nan: float

def nan_to_num(
    x: ArrayLike,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """x with ``nan`` in place of NaN, ``posinf`` and ``neginf`` in place of the infinities."""

def nanmean(
    x: ArrayLike,
    /,
    axis: int | tuple[int, ...] | None = None,
    *,
    keepdims: builtins.bool = False,
) -> ndarray:
    """Return the mean of the elements that are not NaN along ``axis`` (None: all); NaN of none."""

def nanmedian(
    x: ArrayLike,
    /,
    axis: int | None = None,
    *,
    keepdims: builtins.bool = False,
) -> ndarray:
    """Return the `median` of the elements that are not NaN; NaN where there is none."""

def nansum(
    x: ArrayLike,
    /,
    axis: int | tuple[int, ...] | None = None,
    *,
    keepdims: builtins.bool = False,
) -> ndarray:
    """Return the sum of the elements that are not NaN along ``axis`` (None: all); 0 of none."""

def ndtr(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The distribution function of the standard normal: (1 + erf(x / sqrt(2))) / 2."""

def negative(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """-x. ``x``: numbers of any shape and dtype; the result has its type."""

newaxis: None

def nextafter(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The number of the dtype that follows x1 on the way to x2; x2 where they are equal."""

def nll_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = 'mean',
    out: ndarray | None = None,
) -> ndarray:
    """Negative log-likelihood: mean over rows i of ``-prediction[i, target[i]]``."""

def nll_loss_dpred(
    dy: ArrayLike,
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `nll_loss` by prediction: ``-dy / count`` at each row's label, 0 elsewhere."""

def nll_loss_dtarget(
    dy: ArrayLike,
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `nll_loss` by the labels: zeros, type of target; they take whole numbers only."""

def non_max_suppression(
    data: ArrayLike,
    valid_count: ArrayLike,
    indices: ArrayLike,
    max_output_size: ArrayLike,
    iou_threshold: ArrayLike,
    force_suppress: builtins.bool = False,
    top_k: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = 0,
    return_indices: builtins.bool = True,
    invalid_to_bottom: builtins.bool = False,
) -> Any:
    """Drop every box that overlaps one of its class that is kept and has a higher score."""

def nonzero(x: ArrayLike) -> tuple[ndarray, ...]:
    """The columns of `argwhere` as a tuple: one vector of int64 per axis, all of one length."""

def normalize(x: ArrayLike, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> ndarray:
    """Return vectors along ``axis`` divided by their p-norm, or by ``eps`` if that is larger."""

def not_equal(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x1 != x2 for operands of one dtype; the result is bool, True for a NaN."""

def numel(x: ArrayLike) -> int:
    """The number of elements, an int. All extents must be static."""

def one_hot(
    indices: ArrayLike,
    depth: int,
    on_value: ArrayLike = 1,
    off_value: ArrayLike = 0,
    axis: int = -1,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = 'cpu',
    mode: str = 'raise',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``on_value`` where the position along a new axis is the index, ``off_value`` elsewhere."""

def ones(
    shape: int | tuple[int, ...] | list[int],
    dtype: DTypeLike | None = 'float32',
    device: DeviceLike | None = 'cpu',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """A tensor of ones. See `zeros`."""

def ones_like(
    x: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """A tensor of ones of the shape and device of ``x``. See `zeros_like`."""

def optimization_barrier(
    x: ArrayLike,
    after: Sequence[ArrayLike],
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` itself, which counts as known only when all of ``after`` are. A view."""

def outer(x1: ArrayLike, x2: ArrayLike, /) -> ndarray:
    """Return the products of each element of one vector with each of another."""

def own_shard(x: ArrayLike, over: str, size: int, *, out: ndarray | None = None) -> ndarray:
    """This rank's part of ``x``, one of ``size`` equal parts of its elements in a row. A view."""

def pack_weight(w: ArrayLike, lanes: int | None = None) -> ndarray:
    """Return a weight as `packed_matmul` takes it, of a matrix (n, k), or as `packed_conv2d` does,
    of the kernel of a convolution (O, I, kh, kw).
    """

def packed_conv2d(
    x: ArrayLike,
    weight: ArrayLike,
    stride: int | tuple[int, ...] | list[int] = 1,
    padding: int | tuple[int, ...] | list[int] = 0,
    dilation: int | tuple[int, ...] | list[int] = 1,
    groups: int = 1,
    layout: str = 'NHWC',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """`conv2d` by weights that `pack_weight` laid out, of images with the channels last."""

def packed_matmul(x: ArrayLike, weight: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """``x @ w.T`` of a matrix w, (n, k), that `pack_weight` laid out."""

def pad(
    x: ArrayLike,
    pad_width: int | Sequence[int] | Sequence[Sequence[int]],
    mode: str = 'constant',
    constant_values: ArrayLike = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` with elements before and after it along every axis."""

def pad_dx(
    dy: ArrayLike,
    pad_width: int | tuple[int, ...] | list[int],
    pad_mode: str = 'constant',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The gradient of `pad`: every element of x gets the sum of dy at the places that read it."""

def pairwise_distance(
    x1: ArrayLike,
    x2: ArrayLike,
    p: float = 2.0,
    eps: float = 1e-06,
    keepdims: builtins.bool = False,
) -> ndarray:
    """Return the p-norm distance of vectors along the last axis; the others are broadcast."""

def permute_dims(
    x: ArrayLike,
    axes: int | tuple[int, ...] | list[int] | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Permute axes: axis i of the result is axis ``axes[i]`` of ``x``. None reverses them."""

def permute_dims_dx(
    x: ArrayLike,
    axes: int | tuple[int, ...] | list[int] | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Undo `permute_dims`: axis ``axes[i]`` of the result is axis i of ``x``."""

pi: float

def poisson_nll_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    log_input: builtins.bool = True,
    full: builtins.bool = False,
    eps: float = 1e-08,
    reduction: str = 'mean',
) -> ndarray:
    """Return ``exp(prediction) - target * prediction``, reduced: of a Poisson distribution."""

def positive(x: ArrayLike, /) -> ndarray:
    """Return +x, a copy of ``x``. Source: Array API 2024.12."""

def pow(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x1 ** x2."""

def prelu(x: ArrayLike, weight: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x where x > 0, else weight * x."""

def prod(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool = False,
    dtype: DTypeLike | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The product of elements; 1 if there are none. Dtypes as of `sum`."""

def prod_dx(
    x: ArrayLike,
    dy: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The gradient of `prod` at ``x``: dy times the product of all other elements."""

def put_along_axis(
    x: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike,
    axis: int = -1,
) -> ndarray:
    """Return ``x`` with ``values`` in the places along ``axis`` that `take_along_axis` would read."""

def quantile(
    x: ArrayLike,
    q: float,
    /,
    axis: int | None = None,
    *,
    keepdims: builtins.bool = False,
) -> ndarray:
    """Return the ``q``-quantile along ``axis`` (None: of all), with linear interpolation."""

def quantize_weight(
    w: ArrayLike,
    kind: str = 'int8',
    *,
    group: int | None = None,
    symmetric: builtins.bool = True,
    scale_dtype: str | None = None,
) -> tuple[ndarray, ndarray, ndarray]:
    """Return a matrix as `quantized_matmul` takes it: ``(weight, scales, zeros)``."""

def quantized_matmul(
    x: ArrayLike,
    weight: ArrayLike,
    scales: ArrayLike,
    zeros: ArrayLike | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x @ w.T``, where ``w = scales * (weight - zeros)`` is stored in 8 or 4 bits."""

def rad2deg(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Radians in degrees: x * 180 / pi."""

def random_integers(
    key: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    low: int,
    last: int,
    dtype: DTypeLike | None = 'int64',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Integers uniform on [low, last], both included, a pure function of the key and the position."""

def random_key(device: DeviceLike | None = 'cpu', *, out: ndarray | None = None) -> ndarray:
    """A fresh key, for calls that are to draw the same numbers: int64[1], on ``device``."""

def random_normal(
    key: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    mean: Number = 0.0,
    std: Number = 1.0,
    dtype: DTypeLike | None = 'float32',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Numbers of a normal distribution, a pure function of the key and the position."""

def random_uniform(
    key: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    low: Number = 0.0,
    high: Number = 1.0,
    dtype: DTypeLike | None = 'float32',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Numbers uniform on [low, high), a pure function of the key and the position."""

def real(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The real parts of complex numbers, as float32 or float64."""

def reciprocal(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """1 / x; infinite at 0, with its sign."""

def reduce_from(x: ArrayLike, over: str, size: int, *, out: ndarray | None = None) -> ndarray:
    """The sum over the ranks of their ``x``, from which all ranks compute the same: the gradient is
    that of the result. Megatron's function g; see `copy_to`.
    """

def reduce_scatter(
    x: ArrayLike,
    over: str,
    size: int,
    reduction: str = 'sum',
    axis: int = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """This rank's part, along ``axis``, of what `all_reduce` returns."""

def reduce_scatter_start(
    x: ArrayLike,
    over: str,
    size: int,
    reduction: str = 'sum',
    axis: int = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The beginning of `reduce_scatter`; see `multi_tensor_all_reduce_start`."""

def reduce_to(
    x: ArrayLike,
    over: str,
    size: int,
    reduction: str = 'sum',
    root: int = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """`all_reduce` on the rank ``root``, and zeros on the others. Gradient: `broadcast_from`."""

def reinterpret(x: ArrayLike, dtype: DTypeLike, *, out: ndarray | None = None) -> ndarray:
    """The bits of every element of ``x`` read as ``dtype``: 1.0 in float32 is int32 0x3f800000."""

def relu(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """max(x, 0), elementwise."""

def relu6(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """min(max(x, 0), 6); a NaN stays."""

def relu_dx(
    x: ArrayLike | None,
    y: ArrayLike | None,
    dy: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `relu`: 0 where y <= 0 (equivalently x <= 0), else dy: also where y is NaN."""

def remainder(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The remainder x1 - x2 * floor(x1 / x2) in the operands' dtype; it has the sign of x2, but a zero that of x1, as torch's."""

def repeat(
    x: ArrayLike,
    repeats: int,
    axis: int | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Every element ``repeats`` times in a row along ``axis``; None flattens ``x`` first."""

def repeat_dx(
    x: ArrayLike,
    dy: ArrayLike,
    repeats: int,
    axis: int | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The gradient of `repeat` at ``x``, of which only the type counts: sums of repetitions."""

def reshape(
    x: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    copy: builtins.bool | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The elements of ``x`` in row-major order, in another shape."""

def reshape_like(x: ArrayLike, like_type: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The elements of ``x`` in row-major order, in the shape of ``like_type``. A view."""

def resize1d(
    x: ArrayLike,
    size: int | tuple[int, ...] | list[int],
    layout: str = 'NCW',
    method: str = 'linear',
    coordinate_transformation_mode: str = 'half_pixel',
    rounding_method: str = '',
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    out_dtype: str = '',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Resize the spatial axes by interpolation; what is read outside is the nearest edge."""

def resize1d_dx(
    x: ArrayLike,
    dy: ArrayLike,
    size: int | tuple[int, ...] | list[int],
    layout: str = 'NCW',
    method: str = 'linear',
    coordinate_transformation_mode: str = 'half_pixel',
    rounding_method: str = '',
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    out_dtype: str = '',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `resize1d`: every sample's dy, spread with its weights over what it read."""

def resize2d(
    x: ArrayLike,
    size: int | tuple[int, ...] | list[int],
    layout: str = 'NCHW',
    method: str = 'linear',
    coordinate_transformation_mode: str = 'half_pixel',
    rounding_method: str = '',
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    out_dtype: str = '',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Resize the spatial axes by interpolation; what is read outside is the nearest edge."""

def resize2d_dx(
    x: ArrayLike,
    dy: ArrayLike,
    size: int | tuple[int, ...] | list[int],
    layout: str = 'NCHW',
    method: str = 'linear',
    coordinate_transformation_mode: str = 'half_pixel',
    rounding_method: str = '',
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    out_dtype: str = '',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `resize2d`: every sample's dy, spread with its weights over what it read."""

def resize3d(
    x: ArrayLike,
    size: int | tuple[int, ...] | list[int],
    layout: str = 'NCDHW',
    method: str = 'linear',
    coordinate_transformation_mode: str = 'half_pixel',
    rounding_method: str = '',
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    out_dtype: str = '',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Resize the spatial axes by interpolation; what is read outside is the nearest edge."""

def resize3d_dx(
    x: ArrayLike,
    dy: ArrayLike,
    size: int | tuple[int, ...] | list[int],
    layout: str = 'NCDHW',
    method: str = 'linear',
    coordinate_transformation_mode: str = 'half_pixel',
    rounding_method: str = '',
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    out_dtype: str = '',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `resize3d`: every sample's dy, spread with its weights over what it read."""

def reverse_sequence(
    x: ArrayLike,
    sequence_length: ArrayLike,
    seq_axis: int = 1,
    batch_axis: int = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` with the first ``sequence_length[b]`` elements along ``seq_axis`` reversed."""

def rms_norm(
    x: ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: ArrayLike | None = None,
    eps: float | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Divide by the root mean square along one axis: ``x / sqrt(mean(x²) + eps) * scale + bias``."""

def rms_norm_dx(
    x: ArrayLike,
    scale: ArrayLike | None,
    dy: ArrayLike,
    axis: int = -1,
    eps: float = 1e-06,
) -> Any:
    """Gradients of `rms_norm`: dx alone if ``scale`` is None, else (dx, dscale)."""

def roi_align(
    data: ArrayLike,
    rois: ArrayLike,
    pooled_size: int | tuple[int, ...] | list[int],
    spatial_scale: float,
    sample_ratio: int = -1,
    layout: str = 'NCHW',
    mode: str = 'avg',
    aligned: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Cut regions of any size out of images and bring them to one size (He et al., Mask R-CNN)."""

def roi_align_ddy(
    data: ArrayLike,
    rois: ArrayLike,
    ddx: ArrayLike,
    pooled_size: int | tuple[int, ...] | list[int],
    spatial_scale: float,
    sample_ratio: int = -1,
    layout: str = 'NCHW',
    mode: str = 'avg',
    aligned: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `roi_align_dx` in ``dy``: `roi_align` of ``ddx``, in which ``data`` chooses."""

def roi_align_dx(
    data: ArrayLike,
    rois: ArrayLike,
    dy: ArrayLike,
    pooled_size: int | tuple[int, ...] | list[int],
    spatial_scale: float,
    sample_ratio: int = -1,
    layout: str = 'NCHW',
    mode: str = 'avg',
    aligned: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `roi_align` in ``data``: every bin's dy, spread over what its samples read."""

def roi_pool(
    data: ArrayLike,
    rois: ArrayLike,
    pooled_size: int | tuple[int, ...] | list[int],
    spatial_scale: float,
    layout: str = 'NCHW',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The greatest elements of the parts of regions (Girshick, Fast R-CNN, 2015)."""

def roll(
    x: ArrayLike,
    shift: int | tuple[int, ...] | list[int],
    axis: int | tuple[int, ...] | list[int] | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` shifted along axes; what leaves at one end comes back at the other."""

def rot90(x: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> ndarray:
    """Return ``x`` turned ``k`` times by 90 degrees in the plane of two axes, from the first
    towards the second. Raises TypeInferError for one axis named twice.
    """

def rotary_embedding(
    x: ArrayLike,
    cos: ArrayLike,
    sin: ArrayLike,
    interleaved: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Rotate pairs of features by the angles of their position."""

def rotary_embedding_dtable(
    x: ArrayLike,
    dy: ArrayLike,
    cos: ArrayLike,
    interleaved: builtins.bool = False,
) -> tuple[ndarray, ndarray]:
    """Gradients of `rotary_embedding` with respect to cos and sin."""

def round(x: ArrayLike, decimals: int = 0, *, out: ndarray | None = None) -> ndarray:
    """The nearest whole number, halves to the even one: 0.5 to 0, 1.5 to 2."""

def rsqrt(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """1 / sqrt(x); inf at 0, NaN below."""

def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    attn_mask: ArrayLike | None = None,
    dropout_p: float = 0.0,
    is_causal: builtins.bool = False,
    *,
    scale: float | None = None,
    enable_gqa: builtins.bool = False,
) -> ndarray:
    """Return ``softmax(query @ key.T * scale + attn_mask) @ value``, as torch's function."""

def scaled_matmul(
    x1: ArrayLike,
    x2: ArrayLike,
    scale1: ArrayLike,
    scale2: ArrayLike,
    dtype: DTypeLike | None = 'bfloat16',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The product of float8 matrices with their scales, ``(scale1 * x1) @ (scale2 * x2).T``."""

def scatter(
    x: ArrayLike,
    axis: int,
    index: ArrayLike,
    src: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` with elements of ``src`` in the places along ``axis`` that ``index`` names: for axis 1,
    ``y[i, index[i, j, k], k] = src[i, j, k]``.
    """

def scatter_add(
    x: ArrayLike,
    axis: int,
    index: ArrayLike,
    src: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` plus elements of ``src`` in the places along ``axis`` that ``index`` names: for axis 1,
    ``y[i, index[i, j, k], k] += src[i, j, k]``.
    """

def scatter_dx(
    x: ArrayLike,
    y: ArrayLike,
    dy: ArrayLike,
    index: ArrayLike,
    src: ArrayLike,
    axis: int,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The gradient of `scatter` at ``x``: ``dy``, but 0 where an element was written."""

def scatter_from(
    x: ArrayLike,
    over: str,
    size: int,
    axis: int = 0,
    root: int = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """This rank's part, along ``axis``, of the ``x`` of the rank ``root``. Gradient: `gather_to`."""

def scatter_nd(
    data: ArrayLike,
    indices: ArrayLike,
    updates: ArrayLike,
    mode: str = 'update',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``data`` with ``updates`` written to the coordinates ``indices[:, i, j, ...]``, or added."""

def scatter_reduce(
    x: ArrayLike,
    axis: int,
    index: ArrayLike,
    src: ArrayLike,
    reduce: str,
    include_self: builtins.bool = True,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` with each place along ``axis`` that ``index`` names reduced with the elements of
    ``src`` that belong to it: for axis 1 and "prod", ``y[i, index[i, j, k], k] *= src[i, j, k]``.
    """

def scatter_to(
    x: ArrayLike,
    over: str,
    size: int,
    axis: int = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """This rank's part, along ``axis``, of an ``x`` that all ranks have. Gradient: `gather_from`."""

def searchsorted(
    x1: ArrayLike,
    x2: ArrayLike,
    side: str = 'left',
    sorter: ArrayLike | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Where to insert ``x2`` so that the last axis of ``x1`` stays ascending: indices (int64) from
    0 to its extent.
    """

def selu(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """scale * x where x > 0, else scale * alpha * (exp(x) - 1), with scale = 1.0507... and alpha = 1.6732..."""

def send_recv(
    x: ArrayLike,
    over: str,
    size: int,
    sources: int | tuple[int, ...] | list[int],
    targets: int | tuple[int, ...] | list[int],
    *,
    out: ndarray | None = None,
) -> ndarray:
    """On rank targets[i] the ``x`` of rank sources[i], and zeros on ranks that are no target."""

def sequence_mask(
    x: ArrayLike,
    sequence_length: ArrayLike,
    mask_value: Number = 0.0,
    axis: int = 0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` with ``mask_value`` from position ``sequence_length[b]`` of ``axis`` on."""

def sgd(
    x: ndarray | torch.Tensor,
    dx: ArrayLike,
    v: ndarray | torch.Tensor,
    learning_rate: ArrayLike,
    mu: ArrayLike,
) -> tuple[ndarray, ndarray]:
    """One step of gradient descent with momentum, in place."""

def shape(x: ArrayLike) -> tuple[int, ...]:
    """The shape as a tuple of ints, known now. All extents must be static."""

def shape_as_tensor(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The shape as a vector: int64, one entry per axis, on the device of ``x``."""

def sigmoid(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """1 / (1 + exp(-x)), without overflow."""

def sigmoid_dx(
    x: ArrayLike | None,
    y: ArrayLike | None,
    dy: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `sigmoid`: dy * y * (1 - y)."""

def sign(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """1 where x is positive, -1 where it is negative, 0 where it is 0, NaN where it is NaN."""

def signbit(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Whether x has the sign of a negative number, as -0.0 has. ``x``: any shape and dtype; the result is bool."""

def silu(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x * sigmoid(x), also called swish. Source: Hendrycks and Gimpel, 2016."""

def silu_dx(x: ArrayLike, dy: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Gradient of `silu`: dy * s * (1 + x * (1 - s)) with s = sigmoid(x)."""

def sin(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Sine."""

def sinc(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """sin(pi * x) / (pi * x), 1 at 0."""

def sinh(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Hyperbolic sine."""

def smooth_l1_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
    beta: float = 1.0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Mean of ``0.5 d²`` where |d| < 1 and ``|d| - 0.5`` elsewhere, with d = prediction - target."""

def smooth_l1_loss_dpred(
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Derivative of `smooth_l1_loss` by prediction: ``clip(prediction - target, -1, 1) / size``."""

def smooth_l1_loss_dtarget(
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Derivative of `smooth_l1_loss` by target: ``clip(target - prediction, -1, 1) / size``."""

def soft_margin_loss(
    prediction: ArrayLike,
    target: ArrayLike,
    reduction: str = 'mean',
) -> ndarray:
    """Return ``log(1 + exp(-target * prediction))``, reduced, without overflow."""

def softmax(x: ArrayLike, axis: int = -1, *, out: ndarray | None = None) -> ndarray:
    """exp(x) / sum(exp(x)) along ``axis``, computed on x - max(x)."""

def softmax_dx(
    y: ArrayLike,
    dy: ArrayLike,
    axis: int = -1,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `softmax`: y * (dy - sum(dy * y)) along ``axis``."""

def softplus(
    x: ArrayLike,
    beta: Number = 1.0,
    threshold: Number = 20.0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """log(1 + exp(beta * x)) / beta, without overflow; x where beta * x > threshold."""

def softplus_dx(
    x: ArrayLike,
    dy: ArrayLike,
    beta: Number = 1.0,
    threshold: Number = 20.0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `softplus`: dy * sigmoid(beta * x); dy beyond the threshold."""

def softshrink(x: ArrayLike, lambd: Number = 0.5, *, out: ndarray | None = None) -> ndarray:
    """x - lambd where x > lambd, x + lambd where x < -lambd, else 0; a NaN stays."""

def softsign(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x / (1 + |x|). Source: Turian, Bergstra and Bengio, 2009."""

def sort(
    x: ArrayLike,
    axis: int = -1,
    descending: builtins.bool = False,
    stable: builtins.bool = True,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` sorted along ``axis``; the result has its type."""

def space_to_depth(
    x: ArrayLike,
    block_size: int,
    layout: str = 'NCHW',
    mode: str = 'DCR',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Undo `depth_to_space`: [N, C, H * b, W * b] to [N, C * b * b, H, W]."""

def sparse_fill_empty_rows(
    indices: ArrayLike,
    values: ArrayLike,
    shape: ArrayLike,
    default: ArrayLike,
) -> tuple[ndarray, ndarray, ndarray]:
    """A sparse tensor with an entry in every row: (indices, values, which rows had none)."""

def split(
    x: ArrayLike,
    indices_or_sections: int | tuple[int, ...] | list[int] | None = None,
    axis: int = 0,
) -> tuple[ndarray, ...]:
    """Cut ``x`` along an axis into several tensors."""

def sqrt(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Square root; NaN below zero."""

def sqrt_dx(
    x: ArrayLike | None,
    y: ArrayLike | None,
    dy: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `sqrt`: dy / (2 * y), infinite at 0."""

def square(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x * x. ``x``: numbers of any shape and dtype; the result has its type; integers wrap."""

def squeeze(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Remove axes of extent 1: those named, or all of them. A view."""

def stack(arrays: Sequence[ArrayLike], axis: int = 0, *, out: ndarray | None = None) -> ndarray:
    """Join tensors of equal shape and dtype along a new axis (-1: behind the last)."""

def std(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool = False,
    correction: int | float = 0.0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The standard deviation, sqrt(`var`). Its gradient where it is 0 is taken as 0."""

def strided_set(
    data: ArrayLike,
    v: ArrayLike,
    begin: int | tuple[int, ...] | list[int],
    end: int | tuple[int, ...] | list[int],
    strides: int | tuple[int, ...] | list[int] | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """A copy of ``data`` with ``v`` in place of its slice ``[begin:end:strides]``."""

def strided_slice(
    x: ArrayLike,
    begin: int | tuple[int, ...] | list[int],
    end: int | tuple[int, ...] | list[int],
    strides: int | tuple[int, ...] | list[int] | None = None,
    slice_mode: str = 'end',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x[begin:end:strides]`` on the leading axes, one entry per axis (an int: the first axis)."""

def strided_slice_dx(
    dy: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
    begin: int | tuple[int, ...] | list[int],
    end: int | tuple[int, ...] | list[int],
    strides: int | tuple[int, ...] | list[int] | None = None,
    slice_mode: str = 'end',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Zeros of the given shape, with ``dy`` where `strided_slice` of these arguments reads."""

def subtract(
    x1: ArrayLike,
    x2: ArrayLike,
    otherwise: ArrayLike | None = None,
    where: ArrayLike | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """x1 - x2, with ``otherwise`` and ``where`` as in `add`; integers wrap. Not for two bools."""

def sum(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool | int | tuple[int, ...] | list[int] = False,
    dtype: DTypeLike | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The sum of elements; 0 if there are none."""

def sum_dx(
    x: ArrayLike,
    dy: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool | int | tuple[int, ...] | list[int] = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The gradient of `sum` at ``x``: ``dy`` repeated along the summed axes."""

def swapaxes(x: ArrayLike, axis1: int, axis2: int, *, out: ndarray | None = None) -> ndarray:
    """``x`` with two axes exchanged."""

def take(
    x: ArrayLike,
    indices: ArrayLike,
    axis: int | None = None,
    mode: str = 'raise',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The slices of ``x`` along ``axis`` (None: of flattened ``x``) that ``indices`` name."""

def take_along_axis(
    x: ArrayLike,
    indices: ArrayLike,
    axis: int = -1,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Along ``axis``, the elements that ``indices`` name: for axis 1,
    ``y[i, j, k] = x[i, indices[i, j, k], k]``.
    """

def take_along_axis_dx(
    x: ArrayLike,
    dy: ArrayLike,
    indices: ArrayLike,
    axis: int = -1,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The gradient of `take_along_axis` at ``x``: zeros of its type, plus ``dy`` at every index."""

def take_dx(
    x: ArrayLike,
    dy: ArrayLike,
    indices: ArrayLike,
    axis: int | None = None,
    mode: str = 'raise',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The gradient of `take` at ``x``: zeros of its type, plus ``dy`` at every index taken."""

def tan(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Tangent."""

def tanh(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """Hyperbolic tangent."""

def tanh_dx(
    x: ArrayLike | None,
    y: ArrayLike | None,
    dy: ArrayLike,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `tanh`: dy * (1 - y**2)."""

def tanhshrink(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x - tanh(x)."""

def tensordot(
    x1: ArrayLike,
    x2: ArrayLike,
    /,
    axes: int | tuple[ArrayLike, ArrayLike] = 2,
) -> ndarray:
    """Return the sums of products over axes of both arrays; the others of x1 come first."""

def threefry_generate(
    key: ArrayLike,
    shape: int | tuple[int, ...] | list[int],
) -> tuple[ndarray, ndarray]:
    """Random numbers, uniform on all of uint64, and the state with which to draw the next ones."""

def threefry_split(key: ArrayLike) -> tuple[ndarray, ndarray]:
    """Two states that give independent sequences, in place of one, which is not used any more."""

def threshold(
    x: ArrayLike,
    threshold: Number = 0.0,
    value: Number = 0.0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """x where x > threshold, else value; a NaN stays."""

def threshold_dx(
    x: ArrayLike,
    dy: ArrayLike,
    threshold: Number = 0.0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """Gradient of `threshold`: 0 where x <= threshold, else dy. As `silu_dx`."""

def tile(
    x: ArrayLike,
    reps: int | tuple[int, ...] | list[int],
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` repeated as a whole ``reps[i]`` times along axis i."""

def topk(
    x: ArrayLike,
    k: int,
    axis: int = -1,
    largest: builtins.bool = True,
    sorted: builtins.bool = True,
) -> TopK:
    """The ``k`` largest elements along ``axis``, from the largest, and their indices (int64)."""

def torch_call(
    tensors: Sequence[ArrayLike],
    target: str,
    dtypes: str,
    shapes: int | tuple[int, ...] | list[int] = (),
    shape_indices: int | tuple[int, ...] | list[int] = (0,),
    extents: int | tuple[int, ...] | list[int] = (),
) -> tuple[ndarray, ...]:
    """What an operator of PyTorch returns, for which there is none of this package: a tuple."""

def trigamma(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """The derivative of `digamma`, torch's ``polygamma(1, x)``; infinite at 0, -1, -2, ..."""

def tril(x: ArrayLike, k: int = 0, *, out: ndarray | None = None) -> ndarray:
    """``x`` with 0 above diagonal k of its matrices, the last two axes. See `triu`."""

def triplet_margin_loss(
    anchor: ArrayLike,
    positive: ArrayLike,
    negative: ArrayLike,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-06,
    swap: builtins.bool = False,
    reduction: str = 'mean',
) -> ndarray:
    """Return ``max(0, |anchor - positive| - |anchor - negative| + margin)``, reduced."""

def triplet_margin_with_distance_loss(
    anchor: ArrayLike,
    positive: ArrayLike,
    negative: ArrayLike,
    *,
    distance_function: Callable[..., Any] | None = None,
    margin: float = 1.0,
    swap: builtins.bool = False,
    reduction: str = 'mean',
) -> ndarray:
    """Return `triplet_margin_loss` for a distance of one's own: a function of two arrays that is
    composed of operators. None is the Euclidean distance.
    """

def triu(x: ArrayLike, k: int = 0, *, out: ndarray | None = None) -> ndarray:
    """``x`` with 0 below diagonal k of its matrices, the last two axes."""

def trunc(x: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x without its fraction, rounded towards 0."""

uint16: DType

uint32: DType

uint64: DType

uint8: DType

def unique(
    x: ArrayLike,
    return_inverse: builtins.bool = False,
    return_counts: builtins.bool = False,
) -> Any:
    """The distinct elements of ``x``, ascending: a vector of its dtype."""

def unique_all(x: ArrayLike, /) -> UniqueAll:
    """Return the distinct elements of ``x``, where each occurs first, the place of each element
    among them, and how often each occurs.
    """

def unique_counts(x: ArrayLike, /) -> UniqueCounts:
    """Return the distinct elements of ``x``, ascending, and how often each occurs (int64)."""

def unique_inverse(x: ArrayLike, /) -> UniqueInverse:
    """Return the distinct elements of ``x``, ascending, and the place of each element among them."""

def unique_values(x: ArrayLike, /) -> ndarray:
    """Return the distinct elements of ``x``, ascending. Every NaN is distinct."""

def unpack_weight(weight: ArrayLike) -> ndarray:
    """Return the matrix (n, k), or the kernel (O, I, kh, kw), that `pack_weight` laid out; of int8
    with the zeros that fill the last four inputs.
    """

def unravel_index(indices: ArrayLike, shape: ArrayLike, /) -> tuple[ndarray, ...]:
    """Return the indices along each axis of ``shape`` of indices into its elements in row-major
    order.
    """

def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[ndarray, ...]:
    """Return the parts of ``x`` along ``axis``, which they do not have. The reverse of `stack`."""

def upper_bound_argwhere(condition: ArrayLike) -> tuple[ndarray, ndarray]:
    """`argwhere` without waiting for the count: (indices int64[size, ndim], shape int64[2])."""

def upsampling(
    x: ArrayLike,
    scale_h: float = 1.0,
    scale_w: float = 1.0,
    layout: str = 'NCHW',
    method: str = 'nearest_neighbor',
    align_corners: builtins.bool = False,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """`resize2d` to round(scale_h * H) by round(scale_w * W)."""

def var(
    x: ArrayLike,
    axis: int | tuple[int, ...] | list[int] | None = None,
    keepdims: builtins.bool = False,
    correction: int | float = 0.0,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """The variance: the sum of (x - mean)² over n elements, divided by n - ``correction``."""

def vecdot(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> ndarray:
    """Return the sums of products along an axis, counted from the end; the others are broadcast."""

def vstack(arrays: Sequence[ArrayLike]) -> ndarray:
    """Return arrays joined along their first axis; a vector is a row."""

def where(
    condition: ArrayLike,
    x: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """``x`` where ``condition`` is nonzero, else ``y``."""

def xlog1py(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x1 * log(1 + x2), and 0 where x1 is 0; NaN where x2 is. Arguments as of `xlogy`."""

def xlogy(x1: ArrayLike, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
    """x1 * log(x2), and 0 where x1 is 0; NaN where x2 is."""

def zeros(
    shape: int | tuple[int, ...] | list[int],
    dtype: DTypeLike | None = 'float32',
    device: DeviceLike | None = 'cpu',
    *,
    out: ndarray | None = None,
) -> ndarray:
    """A tensor of zeros. shape: extents; an int is one axis. dtype, device: of the result."""

def zeros_like(
    x: ArrayLike,
    dtype: DTypeLike | None = None,
    *,
    out: ndarray | None = None,
) -> ndarray:
    """A tensor of zeros of the shape and device of ``x``. dtype: None is that of ``x``."""

__version__: str
