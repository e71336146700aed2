"""The pieces of source text: what is derived of slots, what authors write instead, their keys."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import meta
from meta.base.errors import ArgumentError, DispatchError, RegistrationError, UnknownName
from meta.dialect.template import template
from meta.dialect.template.check import check
from meta.dialect.template.target import CUDA, TARGETS, TargetSpec, add_target
from meta.ir import parse_type
from meta.op.core import Tensor
from tests.dialect.template.conftest import (
    ADD_ONE,
    AXPY,
    CLIPPED,
    SCALE,
    SIN_AND_COS,
    SUM_OF_ALL,
    add_one,
    axpy,
    body,
    clipped,
    scale_,
    sin_and_cos,
    sum_of_all,
)

NewOp = Callable[..., Any]
HALF, SINGLE, DOUBLE = (parse_type(f"{d}[4, 3]") for d in ("float16", "float32", "float64"))
BRIEF = parse_type("bfloat16[5]")

GOLDEN = {
    "cuda": """\
#include <cstdint>
#include <cuda_fp16.h>

template <class A, class B>
constexpr auto ceil_div(A a, B b) { return (a + b - 1) / b; }

__global__ void add_one(half* out, const half* x, int64_t out_dim_0, int64_t out_dim_1, \
int64_t x_dim_0, int64_t x_dim_1, int32_t n) {
  int32_t i = (int32_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { out[i] = __float2half_rn(__half2float(x[i]) + 1); }
}

void launch_add_one(
    half* out, const half* x, int64_t out_dim_0, int64_t out_dim_1, int64_t x_dim_0,
    int64_t x_dim_1, cudaStream_t stream) {
  int64_t n = (out_dim_0 * out_dim_1);
  add_one<<<ceil_div(n, 128), 128, 0, stream>>>\
(out, x, out_dim_0, out_dim_1, x_dim_0, x_dim_1, n);
}""",
    "rocm": """\
#include <cstdint>
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>

template <class A, class B>
constexpr auto ceil_div(A a, B b) { return (a + b - 1) / b; }

__global__ void add_one(half* out, const half* x, int64_t out_dim_0, int64_t out_dim_1, \
int64_t x_dim_0, int64_t x_dim_1, int32_t n) {
  int32_t i = (int32_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { out[i] = __float2half_rn(__half2float(x[i]) + 1); }
}

void launch_add_one(
    half* out, const half* x, int64_t out_dim_0, int64_t out_dim_1, int64_t x_dim_0,
    int64_t x_dim_1, hipStream_t stream) {
  int64_t n = (out_dim_0 * out_dim_1);
  add_one<<<ceil_div(n, 128), 128, 0, stream>>>\
(out, x, out_dim_0, out_dim_1, x_dim_0, x_dim_1, n);
}""",
}


@pytest.mark.parametrize("target", GOLDEN)
def test_the_whole_source(target: str, new_op: NewOp) -> None:
    made = template.source(new_op(add_one, ADD_ONE), HALF, target=target)
    assert made.function == GOLDEN[target]
    assert made.declaration == f"{made.signature};"
    assert str(made).startswith(made.function) and made.call in str(made)


@pytest.mark.parametrize(
    ("function", "text", "args", "parameters"),
    [
        (axpy, AXPY, (BRIEF, BRIEF), "bfloat16* out, const bfloat16* x, const bfloat16* y, "
         "float alpha, int64_t out_dim_0, int64_t x_dim_0, int64_t y_dim_0"),
        (axpy, AXPY, (DOUBLE, DOUBLE, 2), "double* out, const double* x, const double* y, "
         "double alpha, int64_t out_dim_0, int64_t out_dim_1, int64_t x_dim_0, int64_t x_dim_1, "
         "int64_t y_dim_0, int64_t y_dim_1"),
        (sin_and_cos, SIN_AND_COS, (BRIEF,), "bfloat16* out_0, bfloat16* out_1, const bfloat16* x, "
         "int64_t out_0_dim_0, int64_t out_1_dim_0, int64_t x_dim_0"),
        (clipped, CLIPPED, (BRIEF, -1.5), "bfloat16* out, const bfloat16* x, int64_t out_dim_0, "
         "int64_t x_dim_0"),
        (clipped, CLIPPED, (BRIEF, 0.0, False, BRIEF), "bfloat16* out, const bfloat16* x, "
         "const bfloat16* bias, int64_t out_dim_0, int64_t x_dim_0, int64_t bias_dim_0"),
        (sum_of_all, SUM_OF_ALL, ([BRIEF] * 2,), "bfloat16* out, const bfloat16* xs_0, "
         "const bfloat16* xs_1, int64_t out_dim_0, int64_t xs_0_dim_0, int64_t xs_1_dim_0"),
        (scale_, SCALE, (parse_type("float32[]"), 3.0), "float* out, float* x, float by"),
    ],
)  # fmt: skip
def test_signature_and_call_follow_from_slots(
    function: Any, text: str, args: Any, parameters: str, new_op: NewOp
) -> None:
    made = template.source(new_op(function, text), *args)
    name = f"launch_{function.__name__}"
    signature = " ".join(made.signature.split()).replace("( ", "(")
    assert signature == f"void {name}({parameters}, cudaStream_t stream)"
    assert max(map(len, made.signature.splitlines())) <= 96
    given = ", ".join(p.split()[-1] for p in parameters.split(", "))
    assert " ".join(made.call.split()).replace("( ", "(") == f"{name}({given}, stream);"


def test_attributes_are_written_as_c_has_them(new_op: NewOp) -> None:
    made = new_op(clipped, CLIPPED)
    for value, text in ((-1.5, "-1.5"), (1e-7, "1e-07"), (float("inf"), "(INFINITY)"),
                        (-1e300, "(-INFINITY)")):  # fmt: skip
        assert f"(float){text} : 0" in template.source(made, BRIEF, value).function
    assert "false ?" in template.source(made, BRIEF, closed=False).function


@pytest.mark.parametrize("function, text, args", [
    (add_one, ADD_ONE, (HALF,)), (axpy, AXPY, (BRIEF, BRIEF)),
    (sum_of_all, SUM_OF_ALL, ([SINGLE],)), (sin_and_cos, SIN_AND_COS, (BRIEF,)),
    (clipped, CLIPPED, (HALF, 1.0, False, HALF)),
])  # fmt: skip
@pytest.mark.long
def test_nvcc_takes_the_whole_source(function: Any, text: str, args: Any, new_op: NewOp) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    found = check(template.source(new_op(function, text), *args))
    assert found.compiled and found.kernels == (function.__name__,)


def test_the_target_without_its_compiler_says_so(new_op: NewOp, monkeypatch: Any) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = check(template.source(new_op(add_one, ADD_ONE), HALF, target="rocm"))
    assert str(found) == "kernels add_one; not compiled: hipcc is not installed"


def test_slots_whose_names_mean_something_else(new_op: NewOp, on_cpu: None) -> None:
    def named(out: Tensor, index: Tensor, new: Tensor, name: int = 3) -> Tensor:
        """out + index + new + name"""
        return out

    line = "out_[i] = out[i] + index[i] + {{ new }}[i] + {{ name }};"
    made = new_op(named, body("named", line).replace("{{ index }}", "{{ index_ }}"))
    source = template.source(made, SINGLE, SINGLE, SINGLE)
    assert "out[i] + index[i] + new_[i] + 3;" in source.function
    assert (made(meta.ones(3), meta.ones(3), meta.ones(3)) == 6).all()


def test_names_that_are_the_same(new_op: NewOp) -> None:
    def clash(xs: tuple[Tensor, ...], xs_0: Tensor) -> Tensor:
        return xs_0

    made = new_op(clash, body("clash", "out[i] = 0;"))
    with pytest.raises(RegistrationError, match=r"(?s)names in source that are the same.*xs_0"):
        template.source(made, [SINGLE], SINGLE)


def test_large_tensors_have_wide_indices(new_op: NewOp) -> None:
    made = new_op(add_one, ADD_ONE)
    assert "int32_t i" in template.source(made, parse_type("int8[1073741824]")).function
    assert "int64_t i" in template.source(made, parse_type("int8[1073741825]")).function
    assert "int64_t i" in template.source(made, parse_type("int8[n]")).function


def test_extents_may_be_written_as_numbers(new_op: NewOp) -> None:
    text = ADD_ONE.replace("+ 1", "+ {{ x.shape[1] }}")
    made = new_op(add_one, text)
    assert "+ 3)" in template.source(made, HALF).function
    with pytest.raises(DispatchError, match="writes the extents of x as numbers"):
        template.source(made, parse_type("float16[n, 3]"))


def test_what_differs_between_targets(new_op: NewOp) -> None:
    text = (
        "// {{ target.name }} {{ target.warp }} {{ prefix }} {{ x.vector(2) }} {{ x.math.exp }}\n"
        + ADD_ONE
    )
    made = new_op(add_one, text)
    assert "// cuda 32 cuda bfloat162 hexp" in template.source(made, BRIEF).function
    found = template.source(made, BRIEF, target="rocm").function
    assert "// rocm 64 hip bfloat162 hexp" in found
    assert "using bfloat16 = __hip_bfloat16;" in found


def test_one_more_target(new_op: NewOp) -> None:
    made = new_op(add_one, ADD_ONE)
    headers = {"float32": "moon_float.h"}
    spec = TargetSpec("moon", "moon", "cc", (), ("moon.h",), headers, types={"float32": "float"})
    add_target(spec)
    try:
        text = template.pieces["moon.add_one.gen_function"](SINGLE)
        assert text.startswith("#include <moon.h>\n#include <moon_float.h>\n")
        assert "moonStream_t stream" in text
        with pytest.raises(DispatchError, match="source for moon has no type of float16 elements"):
            template.source(made, HALF, target="moon")
        with pytest.raises(RegistrationError, match="defined twice"):
            add_target(spec)
    finally:
        TARGETS.remove("moon")
    with pytest.raises(UnknownName, match="moon"):
        template.source(made, SINGLE, target="moon")


# What authors write instead.

SIGNATURE = """\
void {{ name }}({{ out.type }}* output, const {{ x.type }}* input, int64_t count,
                {{ target.stream }} stream)"""
CALL = """\
int64_t count = 1;
{% for dim in x.dims %}
count *= {{ dim }};
{% endfor %}
{{ name }}({{ out }}, reinterpret_cast<const {{ x.type }}*>({{ x }}), count, stream);"""
OWN_LAUNCH = """\
if (count < 4) {
  dim3 grid(1);
  dim3 block(count);
  add_one<<<grid, block, 0, stream>>>(output, input, count);
} else {
  dim3 grid((count + 4 - 1) / 4), block(4);
  add_one<<<grid, block, 0, stream>>>(output, input, count);
}"""
OWN_BODY = """\
__global__ void add_one({{ out.type }}* output, const {{ x.type }}* input, const int64_t n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) output[i] = input[i] + {{ x.type }}(1.0);
}"""


def plus_one(made: Any, *shape: int) -> None:
    x = meta.random.normal(shape)
    assert (made(x) == x + 1).all()


@pytest.mark.usefixtures("on_cpu")
def test_signature_and_call_are_what_runs(new_op: NewOp) -> None:
    made = new_op(add_one, OWN_BODY, launch=OWN_LAUNCH, signature=SIGNATURE, call=CALL)
    source = template.source(made, HALF)
    assert "count *= x_dim_1;\n" in source.call
    assert source.declaration.startswith("void launch_add_one(half* output, const half* input, int")
    for shape in ((1, 3), (3, 5), (), (0, 2)):
        plus_one(made, *shape)


@pytest.mark.usefixtures("on_cpu")
def test_the_whole_function_as_its_author_writes_it(new_op: NewOp) -> None:
    """With a function of the host that it calls, as those who know AITemplate write it."""
    text = f"""{{{{ headers }}}}
namespace {{
{OWN_BODY}
}}  // namespace
void invoke_add_one({{{{ out.type }}}}* output, const {{{{ x.type }}}}* input, int64_t count,
                    {{{{ prefix }}}}Stream_t stream) {{
{OWN_LAUNCH}
}}
{{{{ signature }}}} {{
  invoke_add_one(output, input, count, stream);
}}"""
    new_op(add_one)
    made = meta.op.add_one
    template.add(made, function=text, signature=SIGNATURE, call=CALL)
    for shape in ((2,), (3, 5)):
        plus_one(made, *shape)
    assert "hipStream_t stream) {" in template.source(made, SINGLE, target="rocm").function


def test_pieces_may_be_functions_of_the_names(new_op: NewOp) -> None:
    made = new_op(
        add_one, ADD_ONE,
        declaration=lambda names: f"extern {names['signature']};  // {names['x'].dtype}",
    )  # fmt: skip
    assert template.source(made, HALF).declaration.endswith("stream);  // float16")
    assert template.source(made, HALF).declaration.startswith("extern void launch_add_one(")


# Keys.


@pytest.fixture
def keyed(new_op: NewOp) -> Iterator[Any]:
    configs = [{"threads": 128}, {"threads": 256}]
    yield new_op(add_one, ADD_ONE, configs=configs)


def test_the_mapping_shows_the_kernels_of_the_dialect(keyed: Any) -> None:
    keys = list(template.pieces)
    assert len(keys) == len(template.pieces) == len(set(keys)) == 14
    assert "cuda.add_one.gen_function" in template.pieces
    assert "cuda.add_two.gen_function" not in template.pieces and None not in template.pieces
    source = template.source(keyed, HALF, target="rocm")
    for last, piece in (("gen_function", "function"), ("func_signature", "signature"),
                        ("func_decl", "declaration"), ("func_call", "call")):  # fmt: skip
        assert template.pieces[f"rocm.add_one.{last}"](HALF) == getattr(source, piece)
    assert template.pieces["cuda.add_one.config"] == [{"threads": 128}, {"threads": 256}]
    assert template.pieces["cuda.add_one.filter"] is None
    assert template.pieces.get("cuda.add_one.nothing", 3) == 3


def test_a_key_sets_a_piece_of_one_target(keyed: Any) -> None:
    derived = template.source(keyed, HALF).declaration
    template.pieces["rocm.add_one.func_decl"] = "// {{ prefix }}: {{ signature }};"
    assert template.source(keyed, HALF, target="rocm").declaration.startswith("// hip: void")
    assert template.source(keyed, HALF).declaration == derived
    template.pieces["cuda.add_one.func_decl"] = lambda names: f"// {names['x'].type}"
    assert template.pieces["cuda.add_one.func_decl"](HALF) == "// half"
    del template.pieces["cuda.add_one.func_decl"]
    assert template.source(keyed, HALF).declaration == derived
    with pytest.raises(KeyError, match="nothing was set"):
        del template.pieces["cuda.add_one.func_decl"]


def test_what_a_key_sets_runs(keyed: Any, on_cpu: None) -> None:
    x = meta.ones((2, 3))
    assert (keyed(x) == 2).all()
    text = template.pieces["cuda.add_one.gen_function"](x).replace("+ 1)", "+ 41)")
    template.pieces["cuda.add_one.gen_function"] = text
    assert (keyed(x) == 42).all()


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("cuda.add_one.gen_fuction", "did you mean 'cuda.add_one.gen_function'"),
        ("coda.add_one.config", "'cuda.add_one.config'"),
        ("add_one", "target.operator.piece"),
    ],
)
def test_an_unknown_key_has_the_nearest_ones(key: str, hint: str, keyed: Any) -> None:
    with pytest.raises(UnknownName, match=hint):
        template.pieces[key]
    with pytest.raises(KeyError, match=hint):
        template.pieces[key] = ""


def test_the_profiler_is_measuring(keyed: Any) -> None:
    with pytest.raises(ArgumentError, match=r"timed by meta\.measure"):
        template.pieces["cuda.add_one.gen_profiler"] = ""


def test_a_template_in_a_key_is_checked(keyed: Any) -> None:
    template.pieces["cuda.add_one.func_decl"] = "{{ signatur }}"
    with pytest.raises(RegistrationError, match=r"line 1: nothing is called 'signatur'"):
        template.source(keyed, HALF)


def test_names_of_intrinsics() -> None:
    assert CUDA.function_of("tanh", "float64") == "tanh"
    with pytest.raises(UnknownName, match="did you mean 'tan' or 'tanh'"):
        CUDA.function_of("tahn", "float32")
    with pytest.raises(UnknownName, match=r"convert with \{\{ x.up \}\}"):
        CUDA.function_of("tanh", "float16")
