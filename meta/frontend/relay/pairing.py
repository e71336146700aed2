"""Which parameter of ``main`` is which array of a parameter file.

By name. In JSON names are exact. In text they are as TVM's printer made them unique: a name that
begins with no letter has a "v" in front, and a name met before has a number behind. So there the
exact name counts first, then the name without that "v", then the name without the number, if only
one parameter comes into question and its type fits. Nothing is paired by position.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from meta.frontend.relay import ast
from meta.frontend.relay.errors import ParamsError, RelayError
from meta.frontend.relay.ndarray_record import dtype_name

_EXECUTOR_NAME = re.compile(r"p\d+")
_DIGITS = re.compile(r"[0-9]{1,9}\Z")  # a longer number is no printer's

Params = Mapping[str, torch.Tensor]


@dataclass
class Pairing:
    """What fits what.

    Attributes
    ----------
    bound: the array's name, by variable of ``main``. unused: names of arrays that fit no variable,
    which is normal for an optimised program. free: variables without an array, the inputs.
    """

    bound: dict[ast.Var, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    free: list[ast.Var] = field(default_factory=list)


def _dtype_fits(declared: str, tensor: torch.Tensor) -> bool:
    return {"uint1": "bool"}.get(declared, declared) == dtype_name(tensor.dtype)


def _misfit(var: ast.Var, tensor: torch.Tensor) -> tuple[str, str] | None:
    """Return what a variable's type asks for and what the array is, if they disagree."""
    declared = var.type if var.type is not None else var.checked_type
    if declared is None:
        return None
    found = f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
    if not isinstance(declared, ast.TensorType):
        return f"a {type(declared).__name__}", found
    fits = len(declared.shape) == tensor.ndim and all(
        not isinstance(d, int) or d == n for d, n in zip(declared.shape, tensor.shape, strict=True)
    )
    if fits and _dtype_fits(declared.dtype, tensor):
        return None
    dims = ", ".join(
        str(d) if isinstance(d, int) else d.name if isinstance(d, ast.SymbolDim) else "?"
        for d in declared.shape
    )
    return f"{declared.dtype}[{dims}]", found


def _is_printed(var: ast.Var) -> bool:
    """Whether a name may be the printer's: nodes of a JSON graph have the real ones."""
    return var.place is None or var.place.node is None


def _without_v(name: str) -> Iterator[str]:
    if name.startswith("v") and not name[1:2].isalpha():
        yield name[1:]


def _without_number(name: str) -> Iterator[str]:
    """Yield the names that the printer may have put a number to, the longest first."""
    for form in (name, *_without_v(name)):
        digits = _DIGITS.search(form)
        for end in range(len(form) - 1, digits.start() - 1 if digits else len(form), -1):
            if form[end] != "0":  # its numbers begin at 1
                yield form[:end]


def _pair_exactly(pairing: Pairing, variables: list[ast.Var], params: Params) -> None:
    twice = [n for n, k in Counter(v.name for v in variables).items() if k > 1 and n in params]
    if twice:
        raise ParamsError(
            f"several parameters of main are called {twice[0]!r}, and so is an array of the file",
            hint="rename them in the program: it cannot be told which one is meant",
        )
    for var in variables:
        if var.name in params:
            pairing.bound[var] = var.name


def _pair_by(
    pairing: Pairing,
    variables: list[ast.Var],
    params: Params,
    forms: Callable[[str], Iterator[str]],
) -> None:
    """Pair the variables that are left with arrays that are left, where there is no choice."""
    taken = set(pairing.bound.values())
    wanted: dict[str, list[ast.Var]] = {}
    for var in variables:
        if var in pairing.bound or not _is_printed(var):
            continue
        for name in forms(var.name):
            if name in params and name not in taken and _misfit(var, params[name]) is None:
                wanted.setdefault(name, []).append(var)
                break
    for name, candidates in wanted.items():
        if len(candidates) > 1:
            names = ", ".join(f"%{v.name}" for v in candidates)
            raise ParamsError(
                f"the array {name!r} may belong to any of {names}",
                hint="the text does not tell; use the program's JSON, or rename them",
            )
        pairing.bound[candidates[0]] = name


def _check_types(pairing: Pairing, params: Params) -> None:
    for var, name in pairing.bound.items():
        misfit = _misfit(var, params[name])
        if misfit is not None:
            raise ParamsError(
                f"the array {name!r} does not fit the parameter %{var.name} of main",
                expected=misfit[0],
                found=misfit[1],
            )


def pair(module: ast.Module, params: Params) -> Pairing:
    """Pair the parameters of ``main`` with arrays, by name.

    Raises ParamsError for an array of another shape or dtype than declared, for names that are
    ambiguous, and for the parameters of a compiled graph ("p0", "p1"); RelayError for a module that
    has no ``main``.
    """
    main = module.functions.get("main")
    if main is None:
        raise RelayError(
            "the module has no function main",
            found=", ".join(f"@{n}" for n in list(module.functions)[:5]) or "no functions",
            place=module.source,
        )
    pairing, variables = Pairing(), list(main.params)
    _pair_exactly(pairing, variables, params)
    _pair_by(pairing, variables, params, _without_v)
    _pair_by(pairing, variables, params, _without_number)
    if params and not pairing.bound and all(_EXECUTOR_NAME.fullmatch(n) for n in params):
        raise ParamsError(
            "these parameters belong to a compiled graph, which numbers them p0, p1 and so on",
            expected=", ".join(v.name for v in variables)[:200] or "none",
            found=", ".join(params)[:200],
            hint="give the parameters that came with the Relay program",
        )
    _check_types(pairing, params)
    used = set(pairing.bound.values())
    pairing.unused = [n for n in params if n not in used]
    pairing.free = [v for v in variables if v not in pairing.bound]
    return pairing
