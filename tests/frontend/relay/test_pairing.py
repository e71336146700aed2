"""Which array of a parameter file belongs to which parameter of main."""

from __future__ import annotations

import time

import pytest
import torch

from meta.frontend.relay import ast
from meta.frontend.relay.errors import ParamsError, RelayError
from meta.frontend.relay.params import pair

F32 = "float32"


def module(*params: tuple[str, ast.Type | None], json: bool = False) -> ast.Module:
    place = ast.Location("m", node=1) if json else ast.Location("m", 1, 1)
    variables = tuple(ast.Var(name, type_, place=place) for name, type_ in params)
    return ast.Module({"main": ast.Function(variables, ast.Tuple(variables))}, source="m")


def tensor(*shape: int, dtype: str = F32) -> ast.TensorType:
    return ast.TensorType(shape, dtype)


def by_name(m: ast.Module, params: dict[str, torch.Tensor]) -> tuple[dict[str, str], list, list]:
    found = pair(m, params)
    bound = {v.name: n for v, n in found.bound.items()}
    return bound, found.unused, [v.name for v in found.free]


def test_exact_names() -> None:
    m = module(("data", tensor(1, 2)), ("w", tensor(2)), json=True)
    params = {"w": torch.zeros(2), "other": torch.zeros(1)}
    assert by_name(m, params) == ({"w": "w"}, ["other"], ["data"])


PRINTED = [
    ("v1", "1"),
    ("v_p", "_p"),
    ("v", ""),
    ("w1", "w"),
    ("conv21", "conv2"),
    ("conv21", "conv"),
    ("v11", "1"),
    ("input.12", "input.1"),
]


@pytest.mark.parametrize(("printed", "real"), PRINTED)
def test_printed_names(printed: str, real: str) -> None:
    params = {real: torch.zeros(3)}
    assert by_name(module((printed, tensor(3))), params) == ({printed: real}, [], [])
    assert by_name(module((printed, tensor(3)), json=True), params) == ({}, [real], [printed])


def test_a_number_is_dropped_only_where_the_type_fits() -> None:
    assert by_name(module(("w1", tensor(4))), {"w": torch.zeros(3)}) == ({}, ["w"], ["w1"])


def test_names_of_many_digits_take_no_time() -> None:
    names = ("x" + "1" * 200_000, "1" * 200_000 + "x")
    began = time.process_time()
    pair(module(*((name, tensor(1)) for name in names)), {"y": torch.zeros(1)})
    assert time.process_time() - began < 2


def test_the_exact_name_comes_first() -> None:
    m = module(("w", tensor(3)), ("w1", tensor(3)))
    assert by_name(m, {"w": torch.zeros(3)}) == ({"w": "w"}, [], ["w1"])


def test_what_is_ambiguous() -> None:
    m = module(("w1", tensor(3)), ("w2", tensor(3)))
    with pytest.raises(ParamsError, match="'w' may belong to any of %w1, %w2"):
        pair(m, {"w": torch.zeros(3)})
    m = module(("w", tensor(3)), ("w", tensor(3)), json=True)
    with pytest.raises(ParamsError, match="several parameters of main are called 'w'"):
        pair(m, {"w": torch.zeros(3)})
    assert by_name(m, {}) == ({}, [], ["w", "w"])


@pytest.mark.parametrize(
    ("declared", "value", "message"),
    [
        (tensor(3), torch.zeros(4), r"float32\[3\]"),
        (tensor(3, 1), torch.zeros(3), r"float32\[3, 1\]"),
        (tensor(3, dtype="int8"), torch.zeros(3), r"int8\[3\]"),
        (ast.TensorType((ast.AnyDim(), 2), F32), torch.zeros(5, 3), r"float32\[\?, 2\]"),
        (ast.TupleType(()), torch.zeros(1), "a TupleType"),
    ],
)
def test_what_does_not_fit(declared: ast.Type, value: torch.Tensor, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        pair(module(("w", declared)), {"w": value})


def test_unknown_dimensions_and_types_fit() -> None:
    open_type = ast.TensorType((ast.AnyDim(), ast.SymbolDim("n")), "uint1")
    m = module(("a", open_type), ("b", None))
    params = {"a": torch.zeros(2, 2, dtype=torch.bool), "b": torch.zeros(7)}
    assert by_name(m, params)[0] == {"a": "a", "b": "b"}


def test_parameters_of_a_compiled_graph() -> None:
    m = module(("data", tensor(1)), ("w", tensor(1)))
    with pytest.raises(ParamsError, match="compiled graph"):
        pair(m, {"p0": torch.zeros(1), "p1": torch.zeros(1)})
    assert by_name(module(("p0", tensor(1))), {"p0": torch.zeros(1)})[0] == {"p0": "p0"}


def test_no_main() -> None:
    with pytest.raises(RelayError, match="no function main"):
        pair(ast.Module({}), {})
