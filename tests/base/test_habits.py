"""Names of other libraries are answered with the name here, and are no aliases."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import pytest

import meta
from meta.base import habits
from meta.base.errors import ArgumentError, MetaError, UnknownName
from meta.base.fitting import checked
from meta.op.core.tracing import Symbol


@pytest.mark.parametrize("name", sorted(habits.MODULE))
def test_a_name_of_the_module(name: str) -> None:
    with pytest.raises(UnknownName, match=re.escape(habits.MODULE[name])):
        getattr(meta, name)
    for path in re.findall(r"meta((?:\.\w+)+)", habits.MODULE[name]):
        found = meta
        for part in path[1:].split("."):
            found = getattr(found, part)


@pytest.mark.parametrize("name", sorted(habits.ARRAY))
def test_an_attribute_of_an_array(name: str) -> None:
    x = meta.array([1.0])
    with pytest.raises(UnknownName, match=re.escape(habits.ARRAY[name])):
        getattr(x, name)
    assert not hasattr(x, name)
    if not hasattr(Symbol, name):  # which has a trace and a type
        with pytest.raises(UnknownName):
            meta.model.trace(lambda t: getattr(t, name))(x)


@pytest.mark.parametrize(
    ("module", "name"), [(m, n) for m, names in habits.BY_MODULE.items() for n in sorted(names)]
)
def test_a_name_of_a_module_that_is_imported(module: str, name: str) -> None:
    hint = re.escape(habits.BY_MODULE[module][name])
    with pytest.raises(UnknownName, match=hint):
        getattr(import_module(module), name)
    if module != "meta.random":  # a file, so the import statement does not ask a finder
        with pytest.raises(ImportError, match=hint):
            import_module(f"{module}.{name}")
    for path in re.findall(r"(meta(?:\.\w+)+)", habits.BY_MODULE[module][name]):
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


@pytest.mark.parametrize("name", sorted(habits.MODEL))
def test_an_attribute_of_a_model(name: str) -> None:
    model = meta.model.Linear(1, 1)
    with pytest.raises(UnknownName, match=re.escape(habits.MODEL[name])):
        getattr(model, name)
    for attribute in re.findall(r"(?<!meta\.)\bmodel\.(\w+)", habits.MODEL[name]):
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
        checked(lambda x: x + "1")(1)


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


@pytest.mark.parametrize("name", sorted(set(habits.NO_ARGUMENT) - {"out"}))
def test_an_argument_that_there_is_not(name: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(habits.NO_ARGUMENT[name])):
        meta.relu(meta.array([1.0]), **{name: True})


def test_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        meta.array([1.0]).nonsense  # noqa: B018


@pytest.mark.parametrize("called", ["power", "tvm.power"])
def test_a_program_with_an_old_name(called: str) -> None:
    text = f"""
    func @main(%x: float32[2]) -> float32[2] {{
      %r: float32[2] = {called}(%x, 2.0)
      %r
    }}
    """
    with pytest.raises(MetaError, match=r"no operator .*'power'(.|\n)*it is called meta\.pow"):
        meta.ir.parse(text)
