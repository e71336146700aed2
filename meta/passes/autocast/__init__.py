"""Mixed precision of a program: casts by the cast rules of `meta.amp`, as few as will do.

A function is instantiated once per choice of dtypes that it is called with. Functions that call
themselves or are handed on as values, closures, data values and references keep their types. What
is written in place keeps its dtype, and its cast is made again after a write.

`FunctionCasts` rewrites one function: every call gets its arguments in the dtypes that its cast
rule says. ``casts`` has the casts that are known in it, and what `explain_autocast` tells of them.
``move`` moves casts of a function's parameters to its callers, so that a loop casts its weights
once, and lets sums read what is rounded for others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from meta import op
from meta.amp.cast_rule import cast_dtypes, require_half, require_rules, rule_of, too_large
from meta.base.dtype import canonical, is_float
from meta.base.errors import IRError, MetaError
from meta.dialect.core.ir_calls import arg_types, atom_type, base_op, called_op
from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Effect,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    If,
    Module,
    Primitive,
    Tuple,
    TupleGetItem,
    Type,
    Var,
    bindings,
    type_of,
    with_operands,
)
from meta.ir.names import Names
from meta.ir.types import call_type
from meta.ir.visit import used_atoms
from meta.op.core import Op
from meta.passes.alias_analysis import AliasSummaries
from meta.passes.autocast.casts import (
    Cast,
    CastEmitter,
    CastReason,
    CastReport,
    Dtypes,
    common_dtypes,
    dtypes_of,
    with_dtypes,
    with_floats,
)
from meta.passes.autocast.hoist import hoist, narrow
from meta.passes.call_graph import reached_from, recursive, used_as_values
from meta.passes.dead_code import dead_code
from meta.passes.infer_type import infer_type
from meta.passes.lambda_lift import lambda_lift
from meta.passes.promote_refs import promote_refs

__all__ = ["Cast", "CastReason", "CastReport", "autocast", "explain_autocast"]


def autocast(
    module: Module,
    *,
    dtype: str = "float16",
    out_dtype: str | None = None,
    trained: Collection[int] = (),
) -> Module:
    """Compute in half precision what may be, by the cast rules of the operators.

    dtype: "float16" or "bfloat16". out_dtype: of main's floating point results; None keeps theirs.
    trained: the numbers of main's parameters that are trained. Others, and what is computed, may be
    masks, whose finite numbers stay finite where they are added (`meta.amp.cast_rule.Finite`).

    What main takes keeps its type, and so does what is written in place. A function is made once
    for each choice of dtypes that it is called with; one that calls itself, or is handed on as a
    value, keeps its signature, as do closures, fields of data values and references. A value is
    cast once, where it is first needed, for all who need it from there on, and a cast back is left
    out where the first one was exact (from half to float32, not the other way). What a function,
    a loop for one, needs in half precision only is cast by its caller. A float32 result that is
    read in half precision and by sums (the gradient of a layer with a bias) is rounded for both.

    Raises AutocastError if operators of the program have no cast rule: all of them are listed.

    >>> from meta.ir import parse
    >>> print(meta.passes.autocast(parse('''
    ... func @main(%x: float32[2, 3], %w: float32[4, 3]) -> float32[2, 4] {
    ...   %h: float32[2, 4] = dense(%x, %w)
    ...   %r: float32[2, 4] = relu(%h)
    ...   %y: float32[2, 4] = softmax(%r, axis=-1)
    ...   return %y
    ... }''')))
    func @main(%x: float32[2, 3], %w: float32[4, 3]) -> float32[2, 4] {
      %0: float16[2, 3] = astype(%x, dtype="float16")
      %1: float16[4, 3] = astype(%w, dtype="float16")
      %h: float16[2, 4] = dense(%0, %1)
      %r: float16[2, 4] = relu(%h)
      %2: float32[2, 4] = astype(%r, dtype="float32")
      %y: float32[2, 4] = softmax(%2)
      return %y
    }
    """
    return _Autocast(module, dtype, out_dtype, trained).module()


def explain_autocast(
    module: Module,
    *,
    dtype: str = "float16",
    out_dtype: str | None = None,
    trained: Collection[int] = (),
) -> CastReport:
    """Return which casts `autocast` puts into a module, where, for whom, and by which rule.

    >>> module = meta.model.Linear(3, 2).program(meta.ones((4, 3))).module
    >>> print(str(meta.passes.explain_autocast(module, dtype="bfloat16")).splitlines()[0])
    4 casts: 3 float32 -> bfloat16, 1 bfloat16 -> float32
    """
    made = _Autocast(module, dtype, out_dtype, trained)
    return made.report(made.module())


class _Autocast:
    def __init__(
        self, module: Module, dtype: str, out_dtype: str | None, trained: Collection[int]
    ) -> None:
        self.half, self.trained = require_half(dtype), trained
        self.out_dtype = None if out_dtype is None else canonical(out_dtype)
        module = infer_type(lambda_lift(promote_refs(module)))
        used = (a for f in module.functions.values() if not f.attrs for a in used_atoms(f))
        require_rules([called for a in used if (called := base_op(a)) is not None])
        self.source = module
        self.summaries = AliasSummaries(module)
        self.fixed = _fixed_signatures(module)
        self.names = Names(module.functions)
        self.functions: dict[str, Function] = {}
        self.instances: dict[tuple[str, tuple[Dtypes, ...]], tuple[str, FuncType]] = {}
        self.made: dict[Expr, Cast] = {}

    def module(self) -> Module:
        """Return the program in mixed precision."""
        for name in self.source.functions if "main" not in self.source.functions else ["main"]:
            function = self.source.functions[name]
            self.instance(name, tuple(p.type for p in function.params))
        order = {n: self.functions[n] for n in self.source.functions if n in self.functions}
        module = self.source.with_functions({**order, **self.functions})
        module = narrow(hoist(module, self.made), self.made)
        return dead_code(module)

    def instance(self, name: str, given: tuple[Type | None, ...]) -> tuple[str, FuncType]:
        """Return the function to call for arguments of these types; it is made if it is new."""
        function = self.source.functions[name]
        types = []
        for param, found in zip(function.params, given, strict=True):
            assert param.type is not None
            if name in self.fixed or found is None:
                types.append(param.type)
            else:
                types.append(with_dtypes(param.type, dtypes_of(found)))
        key = name, tuple(map(dtypes_of, types))
        if key in self.instances:
            return self.instances[key]
        new = self.names.unique(name) if name in self.functions else name
        assert function.result_type is not None
        if name in self.fixed:  # known before its body, in which it may be called
            result = function.result_type
            if name == "main" and self.out_dtype is not None:
                result = with_floats(result, self.out_dtype)
            self.instances[key] = new, FuncType(tuple(types), result)
        self.functions[new] = function
        made = function if function.attrs else self._rewritten(name, new, types)
        for other in reached_from(self.source, name) if function.attrs else ():
            self.functions.setdefault(other, self.source.functions[other])
        assert made.result_type is not None
        self.functions[new] = made
        self.instances[key] = new, FuncType(tuple(types), made.result_type)
        return self.instances[key]

    def _rewritten(self, name: str, new: str, types: list[Type]) -> Function:
        function = self.source.functions[name]
        casts = CastEmitter(new, function, self.summaries)
        body = FunctionCasts(self.source, self.half, casts, self.instance)
        params = tuple(Var(p.name, t) for p, t in zip(function.params, types, strict=True))
        for i, (old, param) in enumerate(zip(function.params, params, strict=True)):
            body.bind(old, param)
            if name != "main" or i in self.trained:  # what functions are given is not followed
                casts.trained.add(param)
        body.bindings(function.body)
        result = body.atom(function.body.result)
        result_type = type_of(result)
        if name in self.fixed:
            result_type = self.instances[name, tuple(map(dtypes_of, types))][1].result
            why = CastReason(f"the result of @{name}", _signature_reason(name, self.out_dtype))
            result = casts.coerce(result, result_type, why, None)
        self.made.update(casts.made)
        block = Block(tuple(casts.out), result)
        return replace(function, params=params, body=block, result_type=result_type)

    def report(self, module: Module) -> CastReport:
        """Return what there is to tell about the program that was made."""
        found, calls = [], Counter[str]()
        for function in module.functions.values():
            for binding in bindings(function):
                if binding.var in self.made:
                    found.append(self.made[binding.var])
                elif called_op(binding.value) is not None and binding.var.type is not None:
                    dtypes = set(dtypes_of(binding.var.type))
                    calls.update(d for d in dtypes if d is not None and is_float(d))
        return CastReport(self.half, tuple(found), dict(calls))


def _signature_reason(name: str, out_dtype: str | None) -> str:
    if name != "main":
        return "a function that calls itself, or is handed on as a value, keeps its signature"
    return "results keep their dtypes" if out_dtype is None else f"out_dtype is {out_dtype}"


def _fixed_signatures(module: Module) -> set[str]:
    """Return the names of the functions that keep their signatures."""
    fixed = {"main"} | recursive(module) | used_as_values(module)
    return fixed | {name for name, function in module.functions.items() if function.attrs}


Instance = Callable[[str, tuple[Type | None, ...]], tuple[str, FuncType]]
"""From a function and the types of arguments to what is called for them; its parameters' dtypes
are those of the arguments, or fixed."""


class FunctionCasts:
    """A function under rewriting: by variable of the original program, what stands for it now."""

    def __init__(self, module: Module, half: str, casts: CastEmitter, instance: Instance) -> None:
        self.module, self.half, self.casts, self.instance = module, half, casts, instance
        self._now: dict[Var, Expr] = {}

    def bind(self, old: Var, new: Expr) -> None:
        """Let an atom stand for a variable of the original program."""
        self._now[old] = new
        self.casts.stands_for(new, old)

    def atom(self, old: Expr) -> Expr:
        """Return what stands for an atom of the original program."""
        return with_operands(old, self._now)

    def bindings(self, block: Block) -> None:
        """Rewrite a block's bindings into the block under construction."""
        for binding in block.bindings:
            self._binding(binding)
            self.casts.wrote(binding)

    def _binding(self, binding: Binding) -> None:
        value = with_operands(binding.value, self._now)
        match value:
            case Var() | Constant() | Tuple():
                self.bind(binding.var, value)
            case TupleGetItem(Tuple() as owner, index):
                self.bind(binding.var, owner.fields[index])
            case Call():
                self._call(binding, value)
            case If():
                self._if(binding, value)
            case Function():
                self._emit(binding, self._closure(value))
            case Primitive() if value.stored:
                is_ref = value.effect is not Effect.NONE
                where = "a reference" if is_ref else f"a field of {value.details[0]}"
                reason = _REFERENCE if is_ref else _FIELD
                why = CastReason(where, reason, None, binding.span)
                wanted = value.wanted(self.module.types, binding.var.type)
                operands = tuple(
                    atom if type_ is None else self.casts.coerce(atom, type_, why, binding)
                    for atom, type_ in zip(value.operands, wanted, strict=True)
                )
                made = replace(value, operands=operands)
                self._emit(binding, made, binding.var.type if is_ref else None)
            case _:  # no tensor is made, or of a type that stands there
                self._emit(binding, value)

    def _emit(self, binding: Binding, value: Expr, type_: Type | None = None) -> None:
        """Emit a new value of a variable. What is written in place keeps its dtype."""
        made = type_ if type_ is not None else type_of(value)
        new: Expr = self.casts.emit(value, made, binding, binding.var.name)
        old = binding.var.type
        if old is not None and self.casts.is_written(binding.var):
            reason = "what is written keeps its dtype"
            why = CastReason("a write in place", reason, None, binding.span)
            new = self.casts.coerce(new, old, why, binding)
        self.bind(binding.var, new)

    def _call(self, binding: Binding, call: Call) -> None:
        called, callee = base_op(call.callee), call.callee
        if called is not None:
            self._operator(binding, call, called)
            return
        if isinstance(callee, GlobalVar):
            shown, types = f"@{callee.name}", tuple(map(atom_type, call.args))
            name, type_ = self.instance(callee.name, types)
            callee = GlobalVar(name, type_)
        else:
            assert isinstance(binding.value, Call)
            shown = f"%{getattr(binding.value.callee, 'name', callee)}"
        function_type = type_of(callee)
        if not isinstance(function_type, FuncType):
            raise IRError("a function has no type; run infer_type first", span=binding.span)
        why = CastReason(f"an argument of {shown}", _SIGNATURE, None, binding.span)
        pairs = zip(call.args, function_type.params, strict=True)
        args = tuple(
            self.casts.coerce(a, t, why, binding) if isinstance(a, Expr) else a for a, t in pairs
        )
        found = [atom_type(a) for a in args]
        self._emit(binding, Call(callee, args), call_type(function_type, found))

    def _operator(self, binding: Binding, call: Call, called: Op) -> None:
        types = arg_types(called, call)
        wanted = cast_dtypes(called, types, self.half)
        rule = rule_of(called)
        assert rule is not None
        # A view of a cast would be a view of other memory: writes to it would be lost.
        stays = self.casts.is_shared_view(binding.var)
        large = too_large(called, types, self.half)
        args = []
        for slot, argument, dtype in zip(called.schema.slots, call.args, wanted, strict=True):
            if dtype is not None and not stays:
                reason = _REASONS["large" if large else rule.word].format(
                    dtype=dtype, half=self.half, numbers=", ".join(map(str, large))
                )
                why = CastReason(f"{called.name}.{slot.name}", reason, rule.site, binding.span)
                change = self.casts.tuple_atom if slot.kind == "tensors" else self.casts.cast
                argument = change(argument, dtype, why, binding)
            args.append(argument)
        new = Call(call.callee, tuple(args))
        try:
            type_ = called.infer(arg_types(called, new))
        except MetaError as error:
            error.span = binding.span or error.span
            error.note(
                f"in mixed precision: {called.name} has the cast rule {rule}, from {rule.site}"
            )
            raise
        self._emit(binding, new, type_)
        if called is op.astype and isinstance(args[0], Expr):
            self.casts.is_cast_of(self.atom(binding.var), args[0])

    def _if(self, binding: Binding, value: If) -> None:
        opened, results = [], []
        for block in (value.then_block, value.else_block):
            with self.casts.block() as inner:
                self.bindings(block)
            opened.append(inner)
            results.append(self.atom(block.result))
        type_ = self._meeting(binding, value, results)
        reason = "its branches meet in the wider dtype"
        why = CastReason("the result of an If", reason, None, binding.span)
        blocks = []
        for inner, result in zip(opened, results, strict=True):
            with self.casts.reopened(inner):
                result = self.casts.coerce(
                    _retype_error(inner.bindings, result, type_), type_, why, binding
                )
            blocks.append(Block(tuple(inner.bindings), result))
        self._emit(binding, If(value.condition, *blocks), type_)

    def _meeting(self, binding: Binding, value: If, results: list[Expr]) -> Type:
        """Return the type of both branches; one that fails fits any."""
        declared = binding.var.type
        assert declared is not None
        if self.casts.is_written(binding.var):
            return declared
        blocks = (value.then_block, value.else_block)
        types = [
            type_of(result)
            for result, block in zip(results, blocks, strict=True)
            if not _ends_in_error(block)
        ]
        found = [dtypes_of(t) for t in types if t is not None]
        return with_dtypes(declared, common_dtypes(found[0], found[-1])) if found else declared

    def _closure(self, function: Function) -> Function:
        """A closure keeps its signature: who calls it may not be known."""
        params = tuple(Var(p.name, p.type) for p in function.params)
        for old, new in zip(function.params, params, strict=True):
            self.bind(old, new)
        with self.casts.block(closure=True) as inner:
            self.bindings(function.body)
            result = self.atom(function.body.result)
            if function.result_type is not None:
                why = CastReason("the result of a closure", _SIGNATURE)
                result = self.casts.coerce(result, function.result_type, why, None)
        body = Block(tuple(inner.bindings), result)
        return Function(params, body, function.result_type, dict(function.attrs))


_FIELD = "data values keep the types of their fields"
_REFERENCE = "a reference keeps the type of what it holds"
_SIGNATURE = "functions that call themselves, or are handed on as values, keep their signatures"
_REASONS = {
    "always": "always: computed in {dtype}, where it is fastest",
    "never": "never: in 16 bits it would overflow, or lose small terms; computed in {dtype}",
    "infer": "infer: its arguments meet in the wider dtype, {dtype}",
    "custom": "custom: its own rule says {dtype}",
    "large": "{numbers} would be infinite in {half}; computed in {dtype}",
}


def _ends_in_error(block: Block) -> bool:
    """Whether a block ends in an error, so that its value is never there."""
    last = block.bindings[-1] if block.bindings else None
    return last is not None and last.value.effect is Effect.FAIL and block.result is last.var


def _retype_error(bindings: list[Binding], result: Expr, type_: Type) -> Expr:
    """Give a block that ends in an error the type of the other one."""
    last = bindings[-1] if bindings else None
    if last is None or last.value.effect is not Effect.FAIL or result is not last.var:
        return result
    assert isinstance(last.value, Primitive)
    value = replace(last.value, type=type_)
    bindings[-1] = Binding(Var(last.var.name, type_), value, last.span)
    return bindings[-1].var
