"""Reading narrow tensors as they are: calls that take any dtype need no cast before them.

An operator belongs here if the dtypes of a list of tensors that it reads decide nothing: it
computes in float32 (of float64, in that), whatever they are. To add one, add it to `ANY_DTYPE`.
"""

from __future__ import annotations

from functools import partial

from meta import op
from meta.base.dtype import is_float
from meta.ir import Binding, Call, Expr, Module, TensorType, Tuple, type_of
from meta.passes.buffers import Buffers, Definitions, Summaries
from meta.passes.calls import base_op, called_op
from meta.passes.rewrite import rewrite_function, with_value
from meta.passes.rules.casts import holds
from meta.passes.split_updates import UPDATES

ANY_DTYPE = {
    **dict.fromkeys(UPDATES, "dx"),
    op.multi_tensor_axpby: "x",
    op.multi_tensor_norm: "x",
}
"""By operator, the list that it reads in any dtypes."""


def bypass_casts(module: Module) -> Module:
    """Give calls that read any dtype what a widening cast was made of.

    The gradients of half precision weights are half precision, and so read half the bytes; what is
    computed is the same, bit for bit. A cast that nobody else needs is left to `dead_code`.

    >>> from meta.ir import parse
    >>> from meta.passes import dead_code
    >>> print(dead_code(bypass_casts(parse('''
    ... func @main(%x: float16[2], %y: float32[3]) -> float32[] {
    ...   %a: float32[2] = cast(%x, dtype="float32")
    ...   %b: float32[] = multi_tensor_norm((%a, %y))
    ...   return %b
    ... }'''))))
    func @main(%x: float16[2], %y: float32[3]) -> float32[] {
      %b: float32[] = multi_tensor_norm((%x, %y))
      return %b
    }
    """
    functions, summaries = {}, Summaries(module)
    for name, function in module.functions.items():
        buffers = Buffers(function, summaries)
        rule = partial(_rule, buffers=buffers, known=Definitions(function, buffers))
        functions[name] = rewrite_function(function, rule)
    return module.with_functions(functions)


def _rule(binding: Binding, buffers: Buffers, known: Definitions) -> Binding:
    value = binding.value
    called = called_op(value)
    if isinstance(value, Call) and called in ANY_DTYPE:
        place = called.schema.index[ANY_DTYPE[called]]
        read = value.args[place]
        if isinstance(read, Tuple):
            written = buffers.written_by(binding)
            sources = ((field, _source(field, known)) for field in read.fields)
            fields = tuple(f if buffers.of(s) in written else s for f, s in sources)
            args = (*value.args[:place], Tuple(fields), *value.args[place + 1 :])
            binding = with_value(binding, Call(value.callee, args))
    known.add(binding)
    return binding


def _source(atom: Expr, known: Definitions) -> Expr:
    """Return what an exact cast was made of; an atom that is none, as it is."""
    value, type_ = known.get(atom), type_of(atom)
    if not isinstance(value, Call) or base_op(value.callee) is not op.cast:
        return atom
    source = value.args[0]
    found = type_of(source)
    assert isinstance(found, TensorType) and isinstance(type_, TensorType)
    if not is_float(found.dtype) or not holds(type_.dtype, found.dtype):
        return atom
    assert isinstance(source, Expr)
    return source
