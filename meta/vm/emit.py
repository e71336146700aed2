"""From a dispatched module to `Code`.

The body of one function is `emit_function.py`'s, what functions share `emit_tables.py`'s; the
`plan_memory` pass has said where values lie, unless a function is recursive (`recursion.py`), and
`liveness.py` says when they die.
"""

from __future__ import annotations

from meta.base import config
from meta.base.device import Device
from meta.base.errors import IRError
from meta.ir import Module, TensorType, TupleType
from meta.vm.aliasing import require_writable_constants
from meta.vm.code import Code, FunctionCode
from meta.vm.convention import is_of_tensors
from meta.vm.emit_function import FunctionEmitter
from meta.vm.emit_tables import Tables
from meta.vm.extents import ranges_of
from meta.vm.liveness import with_releases
from meta.vm.preparation import preparation_of
from meta.vm.recursion import recursive, without_storage
from meta.vm.verify import verify_code

ENTRY = "main"


def emit(module: Module, device: Device) -> Code:
    """Return the code of a module's main, and of what it calls, on one device.

    Raises IRError for a main that takes anything but tensors or returns anything but tensors and
    tuples of them, and for a constant that is written.
    """
    main = module.main
    params = []
    for param in main.params:
        if not isinstance(param.type, TensorType):
            raise IRError(
                "a parameter of main must be a tensor", found=f"%{param.name}: {param.type}"
            )
        params.append((param.name, param.type))
    result = main.result_type
    if result is None or not is_of_tensors(result):
        raise IRError("the result of main must be made of tensors", found=result)
    tables = Tables(module, device)
    functions: dict[str, FunctionCode] = {}
    tables.use_global(ENTRY)
    while tables.waiting:
        name, function, captured = tables.waiting.pop()
        functions[name] = FunctionEmitter(tables, name, function, captured).code()
    for name in recursive(functions):
        functions[name] = without_storage(functions[name])
    for name, made in functions.items():
        # Whoever calls the program holds its arguments.
        functions[name] = with_releases(made, keep=range(made.params) if name == ENTRY else ())
    code = Code(
        functions,
        ENTRY,
        tuple(params),
        result,
        tuple(tables.constants),
        tuple(tables.kernels),
        tuple((name, r.least, r.largest) for name, r in ranges_of(main).items()),
        _prepared(module),
    )
    require_writable_constants(code)
    if config.get("META_VERIFY"):
        verify_code(code)
    return code


def _prepared(module: Module) -> int:
    """Return how many of main's parameters are prepared."""
    function = preparation_of(module)
    result = None if function is None else function.result_type
    return len(result.fields) if isinstance(result, TupleType) else 0
