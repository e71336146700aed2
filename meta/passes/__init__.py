"""Floor 4: passes, functions from a Module to a Module.

To add one (docs/howto/pass.md), write a function in a file ``passes/<name>.py``, or in the file of
its subject. Its first docstring line is an imperative sentence, and its docstring shows a program
before and after. Options are keyword arguments. `Pipeline` (`manager.py`) adds verification,
timing, history, printing (META_DEBUG), a file per pass (META_DUMP_IR) and fuel (META_FUEL).
`meta.vm.compiler.pipeline` has the passes of the compiler in order; put it there.

What passes share:

- **Memory**: `alias_analysis.py` says which variables may share memory, by views, by what an `If`
  yields and by what a function returns of its arguments. A value that a data value or a reference
  holds has left the function: nothing is written over it, and what comes out again may be any such
  value. `effects.py` says what each binding reads and writes; writes to references keep their
  order with reads and calls, and nothing moves past a `Fail`. `Definitions` (`alias_analysis.py`)
  tells a rule that looks through an earlier call only of those calls whose arguments nobody has
  written since.
- **Lifetimes**: `rematerialize`, `memory_schedule`, `inplace_update` and `plan_memory` all read
  `liveness.py`: which results are one buffer, and between which bindings each is in use.
- **Run-invariant values** (`run_invariant` in `prepare.py`): the arrays of a model in infer mode,
  which others write rarely and only between calls. `fold_batch_norm` and `prepare` move what
  depends on them alone out of the program. Within a memory budget nothing is kept and nothing
  folded.
- **Fused functions**: `fuse_dialect` and `fuse_operators` make functions whose attributes name the
  dialect; `Dialect.fused_kernel` finds or compiles the kernel.

A random call, a call with an effect, and a call of a function that may write are never merged or
repeated. A gradient that would flow through a reference that `promote_refs` leaves is an error of
`autodiff`; the eager tape follows it.
"""

from meta.passes.attention import explain_attention, fuse_attention
from meta.passes.attention.few_keys import write_out_attention
from meta.passes.attention.known_operands import simplify_attention
from meta.passes.attention.layout import attention_layout
from meta.passes.attention.shared_heads import repeat_shared_heads
from meta.passes.attention.visible_slots import read_visible_slots
from meta.passes.autocast import CastReport, autocast, explain_autocast
from meta.passes.autodiff import autodiff, jvp
from meta.passes.canonicalize import canonicalize
from meta.passes.casts import bypass_casts, join_casts, narrow_before_views
from meta.passes.channels_last import channels_last
from meta.passes.composites import fuse_composites
from meta.passes.dead_code import dead_code
from meta.passes.deduplicate import deduplicate, eliminate_common_subexpressions
from meta.passes.defunctionalize import defunctionalize
from meta.passes.dispatch import dispatch
from meta.passes.distributed import (
    bucket_collectives,
    gather_rows,
    narrow_gathers,
    schedule_collectives,
)
from meta.passes.fold_batch_norm import fold_batch_norm
from meta.passes.fold_constant import fold_constant
from meta.passes.fuse_cross_entropy import fuse_cross_entropy
from meta.passes.fuse_dialect import explain_fusion, fuse_dialect
from meta.passes.fuse_operators import fuse_operators
from meta.passes.infer_type import infer_type
from meta.passes.inline import inline
from meta.passes.inplace_update import inplace_update
from meta.passes.integer_products import integer_products
from meta.passes.join_increments import join_increments
from meta.passes.join_products import join_products
from meta.passes.lambda_lift import lambda_lift
from meta.passes.manager import PassRecord, Pipeline
from meta.passes.memory_schedule import memory_schedule
from meta.passes.pack_weights import pack_weights
from meta.passes.pad_products import align_products, carry_padding
from meta.passes.plan_dialects import plan_dialects
from meta.passes.plan_memory import plan_memory
from meta.passes.prepare import prepare
from meta.passes.promote_refs import promote_refs
from meta.passes.quantized_products import fuse_quantized_products
from meta.passes.random_calls import explicit_keys, split_dropout
from meta.passes.reinplace import reinplace
from meta.passes.rematerialize import rematerialize
from meta.passes.simplify import simplify
from meta.passes.split_updates import split_updates
from meta.passes.tune import configure, split_patterns, tune
from meta.passes.unslice_scores import unslice_scores

__all__ = [
    "CastReport",
    "PassRecord",
    "Pipeline",
    "align_products",
    "attention_layout",
    "autocast",
    "autodiff",
    "bucket_collectives",
    "bypass_casts",
    "canonicalize",
    "carry_padding",
    "channels_last",
    "configure",
    "dead_code",
    "deduplicate",
    "defunctionalize",
    "dispatch",
    "eliminate_common_subexpressions",
    "explain_attention",
    "explain_autocast",
    "explain_fusion",
    "explicit_keys",
    "fold_batch_norm",
    "fold_constant",
    "fuse_attention",
    "fuse_composites",
    "fuse_cross_entropy",
    "fuse_dialect",
    "fuse_operators",
    "fuse_quantized_products",
    "gather_rows",
    "infer_type",
    "inline",
    "inplace_update",
    "integer_products",
    "join_casts",
    "join_increments",
    "join_products",
    "jvp",
    "lambda_lift",
    "memory_schedule",
    "narrow_before_views",
    "narrow_gathers",
    "pack_weights",
    "plan_dialects",
    "plan_memory",
    "prepare",
    "promote_refs",
    "read_visible_slots",
    "reinplace",
    "rematerialize",
    "repeat_shared_heads",
    "schedule_collectives",
    "simplify",
    "simplify_attention",
    "split_dropout",
    "split_patterns",
    "split_updates",
    "tune",
    "unslice_scores",
    "write_out_attention",
]
