"""What is wrong with source text: the template, the host code, the launch. Errors name the line."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import BackendError, DispatchError, MetaError, RegistrationError
from meta.dialect.core import dispatch
from meta.dialect.template import template
from meta.dialect.template.check import check
from meta.dialect.template.host_parser import Frame, Reader
from meta.dialect.template.host_values import Extents, HostError, Pointer
from meta.dialect.template.program import Program
from meta.ir import parse_type
from meta.op.core import Tensor
from tests.dialect.template.conftest import ADD_ONE, LAUNCH, add_one

NewOp = Callable[..., Any]
X = parse_type("float32[4, 3]")
GOOD = LAUNCH.replace("KERNEL", "add_one")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"body": "\n{{ y.type }}"}, r"add_one, body, line 2: nothing is called 'y'"),
        ({"body": "{{ threds }}", "configs": [{"threads": 1}]}, r"did you mean 'threads'"),
        ({"body": "\n\n{% if x %}"}, r"body, line 3: Unexpected end of template"),
        ({"body": "int a[2][1] = {{0}, {1}};"}, r'braces of C are written with a space'),
        ({"launch": "add_one<<<1, {{ n }}>>>();"}, r"launch, line 1: nothing is called 'n'"),
        ({"call": "{{ nam }}();"}, r"call, line 1: nothing is called 'nam'"),
        ({"launch": None}, r"(?s)has no launch.*try: +launch='add_one<<<blocks, threads>>>"),
        ({"body": None}, r"template.add_one has no body"),
        ({"configs": [{"a": 1, "b": 2}, {"a": 1}]}, r"(?s)not have the same names.*\{'a': 1\}"),
        ({"configs": [{"x": 1}]}, r"name what templates have already"),
    ],
)  # fmt: skip
def test_what_is_found_at_once(given: Any, message: str, new_op: NewOp) -> None:
    made = new_op(add_one)
    options = {"body": ADD_ONE, "launch": GOOD} | given
    with pytest.raises(RegistrationError, match=message) as error:
        template.add(made, **options)
    assert error.value.span is not None and error.value.span.file == __file__
    assert "add_one" not in template.ops


def test_an_operator_has_one_text(new_op: NewOp) -> None:
    made = new_op(add_one, ADD_ONE)
    with pytest.raises(RegistrationError, match="implements 'add_one' twice"):
        template.add(made, ADD_ONE, GOOD)


def test_a_file_is_named(new_op: NewOp, tmp_path: Path) -> None:
    file = tmp_path / "add_one.cu"
    file.write_text("\n{{ y }}")
    with pytest.raises(RegistrationError, match=r"add_one\.cu, line 2: nothing is called 'y'"):
        template.add(new_op(add_one), file, GOOD)
    file.write_text(ADD_ONE)
    template.add(meta.op.add_one, file, GOOD)
    assert template.source(meta.op.add_one, X).function.count("__global__") == 1


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("\n{{ x.tpye }}", RegistrationError, r"(?s)no 'tpye'.*mean 'type'.*line 2: '\{\{ x.tpye"),
        ("{{ x.math.tahn }}", RegistrationError, r"(?s)mean 'tan'.*template.add_one, body, line 1"),
        ("{{ x.vector(3) }}", DispatchError, "no vector of 3 float32 elements"),
        ("{{ x.dims[2] }}", RegistrationError, "line 1"),
        ("{{ x.size + 1 }}", RegistrationError, "line 1"),
    ],
)  # fmt: skip
def test_what_a_call_finds(body: str, error: Any, message: str, new_op: NewOp) -> None:
    made = new_op(add_one, body + ADD_ONE)
    with pytest.raises(error, match=message):
        template.source(made, X)


def test_an_argument_that_is_absent(new_op: NewOp) -> None:
    def biased(x: Tensor, bias: Tensor | None = None) -> Tensor:
        return x

    made = new_op(biased, "// {{ bias }}", launch="biased<<<1, 1>>>();")
    with pytest.raises(DispatchError, match=r"an argument that this call does not have \(None\)"):
        template.source(made, X)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ("add_one<<<1>>>(out, x, 3);", "launch_add_one, line 8: a launch has a grid and a block"),
        ("add_too<<<1, 1>>>(out);", r"(?s)defines no kernel 'add_too'.*did you mean 'add_one'"),
        ("add_one<<<1, 1>>>(out, x);", r"(?s)2 arguments.*3: float\* out, const float\* x, int n"),
        ("add_one<<<1, 1>>>(x, out, 1);", r"(?s)'out' of 'add_one'.*found: +const float\*"),
        ("add_one<<<1, 1>>>(out, 1, x);", "argument 'x' of 'add_one': a pointer is wanted"),
        ("add_one<<<1, 1>>>(out, x, x);", "argument 'n' of 'add_one': a number is wanted"),
        ("add_one<<<1, 1>>>(out, x, 4294967296);", r"4294967296 does not fit into int"),
        ("int n = {{ x.size }} * 1000000000;", r"'n': \d+ does not fit into int"),
        ("add_one<<<0, 1>>>(out, x, 1);", r"with a grid of \(0, 1, 1\) thread blocks"),
        ("add_one<<<1, 2048>>>(out, x, 1);", r"with thread blocks of \(2048, 1, 1\) threads"),
        ("add_one<<<1, dim3(32, 32, 2)>>>(out, x, 1);", "with thread blocks of 2048 threads"),
        ("add_one<<<dim3(1, 65536), 1>>>(out, x, 1);", r"a grid of \(1, 65536, 1\)"),
        ("add_one<<<1, 1, 0, nullptr>>>(out, x, 1);", "launched on another stream"),
        ("add_one<<<1, n, 0>>>(out, x, 1);", r"(?s)nothing is called 'n'.*one of out, x"),
        ("int n = 3 / (x_dim_0 - 4);", "integer .*modulo by zero"),
        ("while (true) {}", r"(?s)host code cannot be read"),
        ("for (int i = 0; i < 3; i *= 2) {}", "a loop takes more than 4096 steps"),
        ("for (int i = 0; i < 3; ++i) {}\nint n = i;", "nothing is called 'i'"),
        ("int n = sqrt(3);", r"no function 'sqrt' that returns a value"),
        ("add_one(out, x, 1);", "(?s)the kernel 'add_one' is called, not launched"),
        ("other(out);", "no function of the host is called 'other'"),
        ("int n = 3", "(?s)expected: +';'.*found: +'the end'|cannot be read"),
        ("float* y = reinterpret_cast<float*>(3);", "a pointer is wanted"),
        ('const char* s = "text";', "host code has no '\"'"),
        ("std::vector<int> v = 3;", "cannot be read"),
        ("int n;", "'n' has no value"),
        ("int n = sizeof(dim3);", "the size of 'dim3' is not known"),
    ],
)  # fmt: skip
def test_host_code(launch: str, message: str, new_op: NewOp) -> None:
    text = "__global__ void add_one(float* out, const float* x, int n) { out[0] = x[0] + n; }"
    made, x = new_op(add_one, text, launch=launch), meta.ones((4, 3))
    with pytest.raises(HostError, match=message):
        made(x)


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("template <class T>\n__global__ void add_one(T* out)", "is a C[+][+] template"),
        ("struct Point { int x; };\n__global__ void add_one(Point p)", "cannot pass a 'Point'"),
        ("__global__ void __launch_bounds__(64) add_one(int n)", "thread blocks of 128 threads"),
        ("__global__ __launch_bounds__(64, 2) void add_one(int n)", "thread blocks of 128 threads"),
        ("namespace own {\n__global__ void add_one(int n)", "in a named namespace"),
    ],
)
def test_kernels_that_no_launch_fits(signature: str, message: str, new_op: NewOp) -> None:
    end = "}" * (1 + signature.startswith("namespace"))
    made = new_op(add_one, f"{signature} {{ {end}", launch="add_one<<<1, 128>>>(1);")
    source = template.source(made, X)
    program = Program(source.function, "launch_add_one(0);", source.title)
    with pytest.raises(HostError, match="with 1 arguments"):
        program.launches({}, {})
    program = Program(source.function, source.call, source.title)
    given = {"out": Pointer(1, "float", False), "x": Pointer(0, "float", True), "stream": "stream"}
    given |= {f"{t}_dim_{i}": 3 for t in ("out", "x") for i in range(2)}
    with pytest.raises(HostError, match=message):
        program.launches(given, {})


def test_functions_that_call_themselves(new_op: NewOp) -> None:
    text = "void again() { again(); }"
    with pytest.raises(HostError, match="'again' calls itself"):
        Program(text, "again();", "it").launches({}, {})


def test_nobody_else_is_asked_for_what_is_wrong(new_op: NewOp, on_cpu: None) -> None:
    """A fault of the text is no refusal: dispatch raises it, whatever others could do."""
    made = new_op(add_one, ADD_ONE, launch="add_one<<<1, 1>>>();")
    with pytest.raises(HostError, match="0 arguments"):
        dispatch(made.call_values((X,), meta.ones(1).device))


def test_the_compiler_refuses(new_op: NewOp, monkeypatch: Any) -> None:
    import shutil

    made = new_op(add_one, ADD_ONE.replace("+ 1", "+ nothing"))
    source = template.source(made, X)
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    with pytest.raises(BackendError, match=r"(?s)nvcc refuses.*nothing"):
        check(source)


def test_on_rocm_a_call_is_refused(new_op: NewOp, monkeypatch: Any) -> None:
    from meta.dialect.template import probe

    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert "on ROCm source text is generated and checked, not run" in str(probe())


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("7 / 2", 3), ("-7 / 2", -3), ("-7 % 2", -1), ("7.0 / 2", 3.5), ("1 + 2 * 3 - 4", 3),
        ("(1 + 2) * 3", 9), ("1 << 4 >> 1", 8), ("3 < 4 && 4 < 3", False), ("3 < 4 || 1 / 0", True),
        ("!(n == 5)", False), ("n > 3 ? 1 : 2", 1), ("n > 3 ? n > 4 ? 7 : 8 : 9", 7),
        ("0x10 + 010", 24), ("5ull", 5), ("1e3", 1000.0), ("2.5f", 2.5), ("min(n, 3)", 3),
        ("std::max(n, 9)", 9), ("ceil_div(n, 2)", 3), ("static_cast<int>(7.9)", 7), ("(long)n", 5),
        ("int64_t(n)", 5), ("dim3(2, n).y", 5), ("dim3(2).z", 1), ("true", True),
        ("x == nullptr", False), ("static_cast<bool>(n)", True), ("- -n", 5),
        ("n * sizeof(float)", 20), ("sizeof(const half)", 2), ("sizeof(float4)", 16),
        ("!x", False), ("x ? 1 : 2", 1), ("!nullptr && x", True),
    ],
)  # fmt: skip
def test_expressions(expression: str, value: Any) -> None:
    found: list[Any] = []
    frame = Frame({"n": 5, "x": Pointer(0, "half", True)}, lambda *a: None,
                  lambda name, values, where: found.extend(values))  # fmt: skip
    Reader(f"see({expression});", "text").block()(frame)
    assert found == [value] and type(found[0]) is type(value)


def test_statements() -> None:
    text = """
    /* all of the language */
    const int64_t rows = n * 2, columns = 3;  // two at once
    auto total = rows * columns;
    if (total > 20) { total -= 1; } else total = 7;
    int64_t steps = 0;
    for (int64_t n = total; n > 1; n = ceil_div(n, 2)) ++steps;
    for (int i = 0; i < 3; i++) { steps += i; }
    dim3 grid(total, columns), block = 64;
    const half* y = x;
    if (rows == 10) { int rows = 1; total += rows; const double inner = 2; }
    float tenth = 0.1;
    if (x) return;
    see(99);
    """
    from meta.dialect.template.device_code import blanked
    from meta.dialect.template.host_parser import Returned

    frame = Frame({"n": 5, "x": Pointer(0, "half", True)}, lambda *a: None, lambda *a: 1 / 0)
    with pytest.raises(Returned):
        Reader(blanked(text), "text").block()(frame)
    assert frame.variables["steps"] == 5 + 3 and frame.variables["n"] == 5
    assert frame.variables["rows"] == 10 and "inner" not in frame.variables
    assert frame.variables["tenth"] == torch.tensor(0.1).item()
    assert frame.variables["total"] == 30 and frame.variables["grid"] == Extents(29, 3, 1)
    assert frame.variables["block"] == Extents(64, 1, 1)
    assert frame.variables["y"] == Pointer(0, "half", True)


def test_all_errors_are_of_meta() -> None:
    assert issubclass(HostError, MetaError)


LOOPS = [
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(50000) %}{% for j in range(50000) %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% set s = namespace(v='xx') %}{% for i in range(60) %}{% set s.v = s.v + s.v %}{% endfor %}",
    "{% set s = namespace(v='xx') %}{% for i in range(60) %}{% set s.v = s.v ~ s.v %}{% endfor %}",
    "{{ 'x' * 10**10 }}",
    "{% for i in [1] * 10**10 %}x{% endfor %}",
    "{{ 10**10**9 ** 9 }}",
    "{{ '%1000000000d' % 3 }}",
    "{{ '{:>1000000000}'.format(3) }}",
    "{{ 'x'.center(10**10) }}",
    "{{ 1 / 0 }}",
    "{{ x.__class__.__mro__ }}",
    "{% include 'x' %}",
]


@pytest.mark.parametrize("text", LOOPS)
def test_a_template_that_computes_too_much(text: str, new_op: NewOp) -> None:
    start = time.perf_counter()
    with pytest.raises(RegistrationError, match=r"template\.add_one, body") as caught:
        template.source(new_op(add_one, ADD_ONE + text), X)
    assert "test_errors.py" in str(caught.value) or "conftest.py" in str(caught.value)
    assert time.perf_counter() - start < 20


def test_loops_of_a_template_see_their_lengths(new_op: NewOp) -> None:
    loop = "// {% for i in range(3) %}{{ loop.index }} of {{ loop.length }}, {% endfor %}"
    text = str(template.source(new_op(add_one, ADD_ONE + loop), X))
    assert "// 1 of 3, 2 of 3, 3 of 3," in text


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"configs": {"threads": 128}}, "no list of at most"),
    ({"configs": 128}, "no list of at most"),
    ({"configs": None}, "no list of at most"),
    ({"configs": ({"threads": t} for t in itertools.count(1))}, "no list of at most"),
    ({"configs": lambda call: ({"threads": t} for t in itertools.count(1))}, "no list of at most"),
    ({"configs": lambda call: None}, "no list of at most"),
    ({"configs": lambda call: call.nothing}, "raises AttributeError"),
    ({"configs": [{"threads": [64]}]}, r"has threads=\[64\]"),
    ({"configs": [{"threads": None}]}, "has threads=None"),
    ({"filter": True}, "no plain function"),
    ({"configs": [{"threads": 1}], "filter": lambda c, call: c["thread"]}, "raises KeyError"),
    ({"configs": [{"threads": 1}], "filter": lambda c: True}, "raises TypeError"),
    ({"signature": lambda names: names["nothing"]}, "its function raises KeyError"),
    ({"declaration": lambda names: None}, "returns no text"),
    ({"call": lambda names: 3}, "returns no text"),
    ({"when": True}, "no plain function"),
    ({"plevel": "high"}, "no level"),
]


@pytest.mark.parametrize(("how", "message"), CONFIGS)
def test_what_an_author_states_wrongly(
    how: dict[str, Any], message: str, new_op: NewOp, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(RegistrationError, match=message):
        template.source(new_op(add_one, ADD_ONE, **how), X)


def test_texts_that_are_none() -> None:
    for body in (3, Path("/nowhere/at_all.cu")):
        with pytest.raises(RegistrationError, match=r"template\.relu, body") as caught:
            template.add(meta.op.relu, body, "x")  # type: ignore[arg-type]
        assert "test_errors.py" in str(caught.value)
    with pytest.raises(RegistrationError, match="is of no operator"):
        template.add("relu", ADD_ONE, "x")  # type: ignore[arg-type]
