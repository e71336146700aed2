"""Attention that is written out becomes one call: the pass `fuse_attention`.

`axes` says which dimension is which, `scores` reads the program, `masks` says what masks become,
`fused_call` puts it together; `known_operands` is about calls that are there. A further way to
write attention is a reader in `scores`, or an operator in `axes`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from math import isfinite
from types import MappingProxyType

from meta import op
from meta.base.device import Device
from meta.base.dtype import bits, is_float
from meta.dialect.core import dialects
from meta.dialect.core.ir_calls import new_call, op_call, tensor_type
from meta.dialect.core.preference import current
from meta.ir import (
    Binding,
    Call,
    DefUse,
    Expr,
    Function,
    GlobalVar,
    Module,
    TensorType,
    TupleGetItem,
    Var,
    bindings,
    operands,
)
from meta.ir.printer import first_line, variable_names
from meta.ir.visit import uses
from meta.op.core.tracing import Trace
from meta.passes.alias_analysis import AliasSets, AliasSummaries, Definitions
from meta.passes.attention.axes import Refused, extent
from meta.passes.attention.fused_call import AttentionMatch, attention_of
from meta.passes.rewrite import bound_to, map_functions, postorder_bindings, rewrite_function
from meta.passes.simplify import simplify


def dependent(module: Module, params: Iterable[int]) -> set[Expr]:
    """Return the variables that may depend on parameters of main by more than choices.

    Calls of functions are followed; whoever gets a closure may call it with anything.
    """
    found: set[Expr] = {module.main.params[i] for i in params}
    results: dict[str, bool] = {}
    size = -1
    while size != len(found) + sum(results.values()):
        size = len(found) + sum(results.values())
        for name, function in module.functions.items():
            _follow(module, function, found, results)
            results[name] = any(a in found for a in operands(function.body.result))
    return found


def _follow(module: Module, function: Function, found: set[Expr], results: dict[str, bool]) -> None:
    for binding in bindings(function):
        value = binding.value
        reached = not found.isdisjoint(uses(value))
        if isinstance(value, Call) and isinstance(value.callee, GlobalVar):
            callee = module.functions[value.callee.name]
            for param, argument in zip(callee.params, value.args, strict=True):
                if isinstance(argument, Expr) and set(operands(argument)) & found:
                    found.add(param)
            reached = results.get(value.callee.name, False)
        elif isinstance(value, Call) and isinstance(value.callee, Var):
            reached = True
        elif isinstance(value, Function):
            found.update(value.params)
        type_ = binding.var.type
        if reached and (not isinstance(type_, TensorType) or is_float(type_.dtype)):
            found.add(binding.var)


ALIGNED = 8
"""What the elements of a head are a multiple of, for kernels in half precision."""
HALVES = ("float16", "bfloat16")
# From how many keys on one kernel is faster: to compute a result, and together with its gradient.
LEAST_KEYS: Mapping[str, tuple[int, int]] = MappingProxyType({"cpu": (512, 1024), "cuda": (0, 0)})
# Fused kernels on CUDA read so many bits of a row at a time.
_ROW = 128


def fuse_attention(
    module: Module,
    *,
    device: Device,
    trained: Iterable[int] | None = None,
    least_keys: Mapping[str, tuple[int, int]] = LEAST_KEYS,
    sloped: Collection[str] | None = None,
    half: bool = False,
) -> Module:
    """Call `fused_attention` where a program writes attention out.

    That is a product of query and key, then in any order a scale and masks, softmax over the keys,
    and a product with value: on matrices, stacks of them or by `einsum`, with the reshapes and
    transpositions of heads around it, key and value repeated for several heads (grouped-query
    attention), casts to a wider dtype and back between the products, softmax as one operator or
    written out. The call is the same function up to rounding, for queries that may look nowhere
    too (`meta/passes/attention/masks.py`), with dropout of the probabilities too: the same are
    dropped. Attention stays as it is where something else reads scores or probabilities, and where
    one call gains nothing.

    It gains where a kernel does not write scores to memory. On CUDA that is always so if rows are
    of multiples of 16 bytes; on the CPU by measurement, as ATen's kernel beside two products: a
    forward pass from 512 keys on, one with a backward pass, which computes the probabilities
    twice, from 1024 on. ``least_keys`` has the two numbers by kind of device. ``sloped``: dtypes in
    which numbers that fall evenly with the distance (ALiBi) become slopes, by default those of half
    precision where Triton serves it on CUDA; other kernels want them as a mask.

    ``trained``: the parameters of main, by number, that gradients will be wanted of; None if the
    program is only run. To be run before `autodiff`, as `meta.model.value_and_grad` does: the
    gradient then is one call, too. A mask that is trained stays: its gradient would be a third
    pass over all scores, but in half precision on CUDA (`has_gradients`). ``half``: whether the
    program will be cast to half precision. `explain_attention` says what becomes a call, and why
    others do not.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> print(meta.passes.fuse_attention(parse('''
    ... func @main(%q: float32[6, 8, 4], %k: float32[6, 512, 4], %v: float32[6, 512, 4]) \
-> float32[6, 8, 4] {
    ...   %s: float32[6, 8, 512] = batch_matmul_nt(%q, %k)
    ...   %a: float32[6, 8, 512] = multiply(%s, 0.5)
    ...   %p: float32[6, 8, 512] = softmax(%a)
    ...   %y: float32[6, 8, 4] = batch_matmul(%p, %v)
    ...   return %y
    ... }'''), device=CPU))
    func @main(%q: float32[6, 8, 4], %k: float32[6, 512, 4], %v: float32[6, 512, 4]) \
-> float32[6, 8, 4] {
      %0: float32[1, 6, 8, 4] = reshape(%q, shape=(1, 6, 8, 4))
      %1: float32[1, 6, 512, 4] = reshape(%k, shape=(1, 6, 512, 4))
      %2: float32[1, 6, 512, 4] = reshape(%v, shape=(1, 6, 512, 4))
      %3: (float32[1, 6, 8, 4], float32[1, 6, 8]) = \
fused_attention(%0, %1, %2, scale=0.5)
      %4: float32[1, 6, 8, 4] = %3.0
      %5: float32[1, 6, 8] = %3.1
      %y: float32[6, 8, 4] = reshape(%4, shape=(6, 8, 4))
      return %y
    }
    """
    search = _Search(module, device, trained, least_keys, sloped, half)
    made = map_functions(module, search.rewritten)
    # What makes its arguments and its result meets the views and transposes that were there.
    changed = any(made.functions[n] is not f for n, f in module.functions.items())
    return simplify(made) if changed else made


def explain_attention(
    module: Module,
    *,
    device: Device,
    trained: Iterable[int] | None = None,
    least_keys: Mapping[str, tuple[int, int]] = LEAST_KEYS,
    sloped: Collection[str] | None = None,
    half: bool = False,
) -> str:
    """Return what `fuse_attention` makes one call of, and what it leaves and why, as text.

    >>> module = meta.model.MultiheadAttention(8, 2).program(*[meta.ones((1, 3, 8))] * 3).module
    >>> print(meta.passes.explain_attention(module, device=meta.device("cpu")).splitlines()[0])
    attention: 0 rewritten, 1 refused
    """
    search = _Search(module, device, trained, least_keys, sloped, half)
    lines = []
    for name, function in module.functions.items():
        found, refused = search.found(function)
        lines += [
            f"  rewritten  @{name} {first_line(function, b)}\n    {len(a.members) + 1} operators"
            for b, a in found.items()
        ]
        lines += [
            f"  refused  @{name} {first_line(function, b)}\n    {r}" for b, r in refused.items()
        ]
    count = sum(line.startswith("  rewritten") for line in lines)
    return "\n".join([f"attention: {count} rewritten, {len(lines) - count} refused", *lines])


def _sloped_on(device: Device) -> tuple[str, ...]:
    """Return the dtypes in which a kernel for slopes is there that is not slower than a mask."""
    if device.kind != "cuda" or current().refusal("triton") is not None:
        return ()
    served = any(d.name == "triton" and d.refusal(device) is None for d in dialects())
    return ("bfloat16", "float16") if served else ()


class _Search:
    """The search through one module."""

    def __init__(
        self,
        module: Module,
        device: Device,
        trained: Iterable[int] | None,
        least_keys: Mapping[str, tuple[int, int]],
        sloped: Collection[str] | None,
        half: bool,
    ) -> None:
        self.kind, self.device, self.summaries = device.kind, str(device), AliasSummaries(module)
        self.least = least_keys.get(device.kind, (0, 0))[trained is not None]
        self.sloped = _sloped_on(device) if sloped is None else sloped
        self.half = half
        self.trained = set() if trained is None else dependent(module, trained)

    def rewritten(self, function: Function) -> Function:
        """Return a function with calls in the place of what was found."""
        found, _ = self.found(function)
        if not found:
            return function
        gone = {v for one in found.values() for v in one.members}
        keys: dict[Expr, Var] = {}
        calls = {}
        for binding, one in found.items():
            key = None
            if one.dropped is not None:
                key = one.dropped.value[1]
                if key is None:
                    key = keys[one.dropped.var] = Var("key", TensorType((1,), "int64"))
            if self.is_trained(one):
                one = replace(one, masking=replace(one.masking, trained=True))
            calls[binding.var] = _emitted(one, binding, key)

        def rule(binding: Binding) -> list[Binding]:
            if binding.var in keys:  # in its place: what is drawn stays the same
                drawn = new_call(op.random_key, self.device)
                return [Binding(keys[binding.var], drawn, binding.span)]
            return calls.get(binding.var, [] if binding.var in gone else [binding])

        return rewrite_function(function, rule)

    def found(self, function: Function) -> tuple[dict[Binding, AttentionMatch], dict[Binding, str]]:
        """Return the attentions of a function by their last products, and why others are none."""
        buffers = AliasSets(function, self.summaries)
        return attentions(function, buffers, self.sloped, self.require_gain)

    def is_trained(self, one: AttentionMatch) -> bool:
        """Whether the gradient of a mask is wanted."""
        return any(m.atom in self.trained for m in one.masking.masks)

    def require_gain(self, one: AttentionMatch, _: Binding) -> None:
        """Raise Refused where one call gains nothing."""
        is_half = self.half or one.dtype in HALVES
        if self.is_trained(one) and not (self.kind == "cuda" and is_half and has_gradients(one)):
            raise Refused("a mask is trained: its gradient would compute all scores once more")
        keys = one.keys[0].extent
        if keys < self.least:
            raise Refused(
                f"{keys} keys are fewer than {self.least}, from which on a kernel is faster"
            )
        own, other = map(extent, one.widths)
        if own != other:
            raise Refused(f"values are {other} wide and keys {own}: kernels want one width")
        if self.kind == "cuda" and (one.dtype == "float64" or own * bits(one.dtype) % _ROW):
            raise Refused(f"kernels on CUDA want rows of 16 bytes, not {own} times {one.dtype}")


def has_gradients(one: AttentionMatch) -> bool:
    """Whether CUDA has kernels for an attention in half precision and for its gradients, those of a
    mask that is added among them.
    """
    width, other = map(extent, one.widths)
    plain = one.dropped is None and isfinite(one.scale) and one.scale != 0
    return plain and other == width and width % ALIGNED == 0


def attentions(
    function: Function,
    buffers: AliasSets,
    sloped: Collection[str],
    require: Callable[[AttentionMatch, Binding], None],
) -> tuple[dict[Binding, AttentionMatch], dict[Binding, str]]:
    """Return the attentions of a function by their last products, and why others are none.

    ``sloped``: see `fuse_attention`. ``require`` raises Refused for one that is not wanted.
    """
    known = Definitions(function, buffers)
    found: dict[Binding, AttentionMatch] = {}
    refused: dict[Binding, str] = {}
    uses, names = DefUse(function), variable_names(function)
    for binding in postorder_bindings(function.body):
        made = op_call(binding.value)
        if made is not None and tensor_type(binding.var) is not None:
            try:
                one = attention_of(binding.var, made, known, sloped)
                if one is not None:
                    one = _with_unread(one, uses)
                    _require_own(one, binding, uses, names)
                    require(one, binding)
                    found[binding] = one
            except Refused as refusal:
                refused[binding] = str(refusal)
        known.add(binding)
    return found, refused


def _require_own(
    one: AttentionMatch, binding: Binding, uses: DefUse, names: Mapping[Var, str]
) -> None:
    """Raise Refused for an attention of which others read a step."""
    for var in one.members:
        for user in uses.users(var):
            if user is not binding and getattr(user, "var", None) not in one.members:
                raise Refused(f"{names[var]} of the attention is also used elsewhere")


def _with_unread(one: AttentionMatch, uses: DefUse) -> AttentionMatch:
    """Return an attention to which results of dropout belong that nobody reads."""
    if one.dropped is None:
        return one
    users = [u for u in uses.users(one.dropped.var) if isinstance(u, Binding)]
    unread = {u.var for u in users if isinstance(u.value, TupleGetItem) and not uses.users(u.var)}
    return replace(one, members=one.members | unread)


def _emitted(one: AttentionMatch, binding: Binding, dropout_key: Expr | None) -> list[Binding]:
    """Return the bindings that take the last product's place; it keeps its variable."""
    trace = Trace()
    trace.site = lambda: binding.span
    return bound_to(binding.var, trace.finish(trace.run(one.emit, trace, dropout_key)))
