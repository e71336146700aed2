"""What a backend is made of: the dialect, its operators, priority levels, preference and the
dispatcher.
"""

from meta.dialect.core.catalog import DIALECTS, dialects
from meta.dialect.core.dialect import IN_PLACE, Dialect
from meta.dialect.core.dialect_op import DialectOp
from meta.dialect.core.dispatch import Candidate, answers, candidates, dispatch
from meta.dialect.core.fused import (
    ADJACENT,
    ALLOCATES,
    ARGUMENTS,
    FUSED,
    KERNEL,
    LITERALS,
    FusedPattern,
)
from meta.dialect.core.kernel_signature import check_parameters
from meta.dialect.core.kernel_store import KernelStore, read_artifact
from meta.dialect.core.knobs import ask, tunable
from meta.dialect.core.launch import Launch
from meta.dialect.core.openv import (
    Artifact,
    CompiledKernel,
    Configs,
    Deferred,
    OpEnv,
    Unsupported,
    compile_together,
    decline_if,
    require_static,
)
from meta.dialect.core.plevel import (
    COMPILER,
    FUSED_ONLY,
    HANDWRITTEN,
    LIBRARY,
    REFERENCE,
    level_text,
)
from meta.dialect.core.preference import Config, exclude, only, prefer
from meta.dialect.core.warmup import compiling, warm_up

__all__ = [
    "ADJACENT",
    "ALLOCATES",
    "ARGUMENTS",
    "COMPILER",
    "DIALECTS",
    "FUSED",
    "FUSED_ONLY",
    "HANDWRITTEN",
    "IN_PLACE",
    "KERNEL",
    "LIBRARY",
    "LITERALS",
    "REFERENCE",
    "Artifact",
    "Candidate",
    "CompiledKernel",
    "Config",
    "Configs",
    "Deferred",
    "Dialect",
    "DialectOp",
    "FusedPattern",
    "KernelStore",
    "Launch",
    "OpEnv",
    "Unsupported",
    "answers",
    "ask",
    "candidates",
    "check_parameters",
    "compile_together",
    "compiling",
    "decline_if",
    "dialects",
    "dispatch",
    "exclude",
    "level_text",
    "only",
    "prefer",
    "read_artifact",
    "require_static",
    "tunable",
    "warm_up",
]
