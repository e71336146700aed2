"""What the converters of `meta/frontend/relay/converters/transform.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.array([[1.5, -2.0]], np.float32)


def same(x):
    return x


MARKS = ("bitpack_end", "bitpack_start", "cast_hint", "checkpoint", "compiler_begin",
         "compiler_end", "stop_fusion", "with_funcid")  # fmt: skip

CASES = [
    *[Case(f"annotation.{name}", (X,), same) for name in MARKS],
    *[Case(f"annotation.compiler_{n}", (X,), same, {"compiler": "dnnl"}) for n in ("begin", "end")],
    Case("copy", (X,), same),
    Case("debug", (X,), same, {"debug_func": "debugger"}),
    Case("on_device", (X,), same, {"constrain_result": True}),
    Case("on_device", (X,), same, {"device_type": 2, "is_fixed": True}, version=(0, 8)),
    Case("device_copy", (X,), same, {"src_dev_type": 1, "dst_dev_type": 2}, version=(0, 7)),
]
