"""Overloads, their names, and how their arguments are told apart."""

from __future__ import annotations

import pytest
import torch

from meta.dialect.torch.aten_calls import CALLS
from meta.dialect.torch.correspondence import AtenCall, schema_of
from meta.frontend.aten.registry import (
    REQUIRED,
    aten,
    bind_arguments,
    defaults_of,
    name_of,
    overload_of,
)
from meta.frontend.core import Unconvertible
from tests.frontend.aten.calls import GONE_FROM, NEW_IN, is_there


@pytest.mark.parametrize("name", ["add.Tensor", "relu", "_softmax", "max.dim", "sym_size.int"])
def test_names_lead_to_overloads_and_back(name: str) -> None:
    found = overload_of(name)
    assert found is not None and name_of(found) == name


@pytest.mark.parametrize("name", ["rellu", "add.Tensorr", "", ".", "nowhere.relu"])
def test_unknown_names_lead_nowhere(name: str) -> None:
    assert overload_of(name) is None and defaults_of(name) is None


def test_every_converter_is_of_an_overload_that_there_is() -> None:
    """Those of packages that are not installed may be registered, too."""
    packages = ("torchvision.", "transformers.")
    unknown = {n for n in aten if overload_of(n) is None and not n.startswith(packages)}
    assert unknown == {name for name in (*NEW_IN, *GONE_FROM) if not is_there(name)}


def test_operands_are_tensors_and_numbers_without_a_default() -> None:
    x, y = torch.ones(2), torch.zeros(2)
    assert bind_arguments(torch.ops.aten.add.Scalar, (x, 2), {}) == ((x, 2), {})
    assert bind_arguments(torch.ops.aten.add.Tensor, (x, y), {"alpha": 3}) == ((x, y), {"alpha": 3})
    convolution = (x, y, None, [1], [0], [1], False, [0], 1)
    operands, attributes = bind_arguments(torch.ops.aten.convolution.default, convolution, {})
    assert operands == (x, y, None)
    assert attributes["stride"] == [1] and attributes["groups"] == 1
    assert bind_arguments(torch.ops.aten.cat.default, ([x, y], 1), {}) == (((x, y),), {"dim": 1})


def test_defaults_are_those_of_the_schema() -> None:
    assert defaults_of("add.Tensor") == {"alpha": 1}
    assert defaults_of("cat") == {"dim": 0}
    stated = defaults_of("transpose.int")
    assert stated is not None and stated["dim0"] is REQUIRED


def test_an_overload_without_converter_names_its_neighbours() -> None:
    with pytest.raises(Unconvertible, match="there is no converter"):
        aten.require("rellu", {})


@pytest.mark.parametrize("call", [c for c in CALLS if c.promotion is not None], ids=str)
def test_a_record_of_an_overload_is_its_converter(call: AtenCall) -> None:
    assert call.overload is not None
    assert aten[call.overload].becomes == (call.op,)
    schema = [argument.name for argument in schema_of(call.overload)]
    assert len(call.arguments) <= len(schema) and call.keywords.keys() <= set(schema)
