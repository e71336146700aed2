"""Names of other libraries are answered with the name here, and are no aliases."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base import aliases, argument_aliases, methods
from meta.base.errors import ArgumentError, MetaError, UnknownName
from meta.base.signature_check import check_signature
from meta.op.core.tracing import Symbol
from tests.together import together


@together(sorted(aliases.MODULE))
def test_a_name_of_the_module(name: str) -> None:
    with pytest.raises(UnknownName, match=re.escape(aliases.MODULE[name])):
        getattr(meta, name)
    for path in re.findall(r"meta((?:\.\w+)+)", aliases.MODULE[name]):
        found = meta
        for part in path[1:].split("."):
            found = getattr(found, part)


@together(sorted(methods.ARRAY_ALIASES))
def test_an_attribute_of_an_array(name: str) -> None:
    x = meta.array([1.0])
    with pytest.raises(UnknownName, match=re.escape(methods.ARRAY_ALIASES[name])):
        getattr(x, name)
    assert not hasattr(x, name)
    if not hasattr(Symbol, name):  # which has a trace and a type
        with pytest.raises(UnknownName):
            meta.model.trace(lambda t: getattr(t, name))(x)


@together([(m, n) for m, names in aliases.BY_MODULE.items() for n in sorted(names)])
def test_a_name_of_a_module_that_is_imported(module: str, name: str) -> None:
    hint = re.escape(aliases.BY_MODULE[module][name])
    with pytest.raises(UnknownName, match=hint):
        getattr(import_module(module), name)
    files = "meta.random", "meta.linalg"  # of which the import statement asks no finder
    if module not in files:
        with pytest.raises(ImportError, match=hint):
            import_module(f"{module}.{name}")
    for path in re.findall(r"(meta(?:\.\w+)+)", aliases.BY_MODULE[module][name]):
        found: object = meta
        for part in path.split(".")[1:]:
            found = getattr(found, part)


def test_the_import_statement() -> None:
    with pytest.raises(ImportError, match=r"meta\.model for layers"):
        from meta import nn  # noqa: F401
    with pytest.raises(ImportError, match=r"it is called meta\.Model"):
        from meta.model import Module  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'meta\.nonsense'"):
        import_module("meta.nonsense")
    with pytest.raises(UnknownName, match="did you mean 'Adam' or 'AdamW'"):
        meta.optim.Adamw  # noqa: B018


@pytest.mark.parametrize("name", sorted(aliases.MODEL))
def test_an_attribute_of_a_model(name: str) -> None:
    model = meta.model.Linear(1, 1)
    with pytest.raises(UnknownName, match=re.escape(aliases.MODEL[name])):
        getattr(model, name)
    for attribute in re.findall(r"(?<!meta\.)\bmodel\.(\w+)", aliases.MODEL[name]):
        assert hasattr(model, attribute)


def test_a_dtype_is_its_name() -> None:
    x = meta.ones((2,), dtype=meta.bfloat16)
    assert x.dtype == meta.bfloat16 and x.astype(meta.int64).dtype == "int64"


def test_an_argument() -> None:
    x = meta.array([[1.0]])
    with pytest.raises(ArgumentError, match="called 'axis'"):
        meta.sum(x, dim=0)
    with pytest.raises(ArgumentError, match="called 'keepdims'"):
        x.mean(keepdim=True)


def test_an_argument_of_a_composed_function() -> None:
    x = meta.array([[1.0]])
    with pytest.raises(ArgumentError, match=r"nansum: there is no argument 'dim'[^$]*'axis'"):
        meta.nansum(x, dim=0)
    with pytest.raises(ArgumentError, match=r"expected: allclose\(x1, x2"):
        meta.allclose(x)
    with pytest.raises(ArgumentError, match="called 'shape'"):
        meta.random.normal(size=(3,))
    with pytest.raises(ArgumentError, match=r"x\.requires_grad = True"):
        meta.zeros((2,), requires_grad=True)
    with pytest.raises(TypeError, match="unsupported operand"):  # within the function
        check_signature(lambda x: x + "1")(1)


def test_an_argument_of_a_method_and_of_a_layer() -> None:
    x = meta.ones((2, 2))
    x.requires_grad = True
    linear = meta.model.Linear
    optimizer = meta.optim.SGD(linear(2, 2).parameters(), lr=0.1)
    refused: list[tuple[Any, str]] = [
        (lambda: x.sum().backward(retain_graph=True), "a graph lives as long"),
        (lambda: optimizer.zero_grad(set_to_none=True), "gradients are set to None"),
        (lambda: optimizer.step(lambda: 1.0), "too many positional"),
        (lambda: meta.train.Batches(x, x, 1, num_workers=2), "need no processes"),
        (lambda: linear(2), r"Linear: missing a required argument: 'out_features'"),
        (lambda: linear(2, 2, biass=True), r"expected: Linear\(in_features.*\n.*\n.*did you mean"),
        (lambda: meta.model.init.ones_(x), r"meta\.model\.init\.ones"),
        (lambda: meta.model.Sequential(meta.relu), r"meta\.model\.ReLU\(\)"),
    ]
    for call, match in refused:
        with pytest.raises(MetaError, match=match):
            call()


@pytest.mark.parametrize("name", sorted(set(argument_aliases.NO_ARGUMENT) - {"out"}))
def test_an_argument_that_there_is_not(name: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(argument_aliases.NO_ARGUMENT[name])):
        meta.relu(meta.array([1.0]), **{name: True})


def test_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        meta.array([1.0]).nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("call", "here"),
    [
        ("power(%x, 2.0)", "pow"),
        ("tvm.power(%x, 2.0)", "pow"),
        ('cast(%x, dtype="float32")', "astype"),
        ('torch.cast(%x, dtype="float32")', "astype"),
    ],
)
def test_a_program_with_an_old_name(call: str, here: str) -> None:
    text = f"""
    func @main(%x: float32[2]) -> float32[2] {{
      %r: float32[2] = {call}
      %r
    }}
    """
    old = call.partition("(")[0].rpartition(".")[2]
    with pytest.raises(MetaError, match=rf"no operator .*'{old}'(.|\n)*it is called meta\.{here}"):
        meta.ir.parse(text)


# Functions of torch and numpy that there are not, and for which no short line says what to write:
# those of sparse and quantized tensors, of polynomials and texts, of special numbers, of files, and
# of torch's inside. Patterns first.
EXOTIC = re.compile(
    r".*(quant|cudnn|miopen|mkldnn|sparse|autocast|_copy|sym_|fbgemm|anomaly|deterministic).*|"
    r".*(batch_norm|native_|import_ir|parse_|interop|cell|window|unsafe_|poly|busday).*|"
    r"is_.*|q_.*|set_.*|get_.*|.*_$|[A-Z].*|"
    r"lu|lu_solve|lu_unpack|addbmm|addmv|addr|affine_grid_generator|align_tensors|"
    r"alpha_dropout|as_strided|read_vitals|vitals_enabled|"
    r"as_strided_scatter|bilinear|binomial|chain_matmul|channel_shuffle|cholesky_inverse|"
    r"cholesky_solve|choose_qparams_optimized|classproperty|combinations|"
    r"compiled_with_cxx11_abi|constant_pad_nd|conv_tbc|convolution|corrcoef|cov|cummax|"
    r"cummin|diagonal_scatter|dist|dsmm|dsplit|eig|empty_permuted|empty_strided|"
    r"feature_alpha_dropout|feature_dropout|fill|fork|frexp|from_file|gcd|geqrf|"
    r"grid_sampler_2d|grid_sampler_3d|hash_tensor|histc|histogramdd|hsmm|hspmm|igamma|"
    r"igammac|index_reduce|init_num_threads|int_repr|istft|lcm|lobpcg|logcumsumexp|"
    r"matrix_exp|max_pool1d_with_indices|merge_type_from_type_comment|mvlgamma|"
    r"nonzero_static|norm_except_dim|nuclear_norm|orgqr|ormqr|pca_lowrank|pdist|"
    r"poisson|prepare_multiprocessing_environment|"
    r"profiler_allow_cudagraph_cupti_lazy_reinit_cuda12|renorm|resolve_conj|resolve_neg|"
    r"rnn_relu|rnn_tanh|rrelu|rsub|saddmm|segment_reduce|slice_inverse|smm|solve|"
    r"spmm|sspaddmm|stft|svd_lowrank|symeig|thread_safe_generator|trapezoid|trapz|"
    r"typename|unify_type_list|unique_consecutive|unravel_index|vander|wait|"
    r"apply_over_axes|array_equiv|asarray_chkfinite|asmatrix|astype|bartlett|base_repr|"
    r"binary_repr|bitwise_count|blackman|block|bmat|choose|common_type|correlate|"
    r"datetime_as_string|datetime_data|diag_indices|diag_indices_from|einsum_path|"
    r"format_float_positional|format_float_scientific|fromiter|fromregex|fromstring|"
    r"getbufsize|geterr|geterrcall|hamming|hanning|histogram2d|histogram_bin_edges|"
    r"indices|info|interp|iscomplex|isfortran|isnat|isrealobj|iterable|kaiser|"
    r"lexsort|mask_indices|matvec|may_share_memory|min_scalar_type|mintypecode|modf|"
    r"nancumprod|nancumsum|nanpercentile|nested_iters|packbits|partition|piecewise|"
    r"printoptions|ravel_multi_index|real_if_close|require|roots|savetxt|"
    r"savez_compressed|setbufsize|seterr|seterrcall|setxor1d|shares_memory|show_config|"
    r"show_runtime|sort_complex|spacing|test|tril_indices_from|trim_zeros|"
    r"triu_indices_from|unpackbits|unwrap|vecmat"
)


@pytest.mark.parametrize("other", [torch, np], ids=["torch", "numpy"])
def test_every_usual_function_is_there_or_answered(other: Any) -> None:
    lost = []
    for name, value in vars(other).items():
        if name.startswith("_") or not callable(value) or isinstance(value, type):
            continue
        if not (hasattr(meta, name) or name in aliases.MODULE or EXOTIC.fullmatch(name)):
            lost.append(name)
    assert not lost
