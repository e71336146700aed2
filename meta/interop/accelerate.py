"""The backend "meta" in accelerate, and so in the `Trainer` of transformers.

    from meta.interop.accelerate import register_backend

    register_backend()
    arguments = TrainingArguments(output_dir, torch_compile=True, torch_compile_backend="meta")

torch.compile takes the name of any backend that is installed; accelerate hands it only those of an
enumeration, `DynamoBackend`, and raises ValueError for others (docs/howto/training_loops.md).
"""

from typing import Any

import meta.frontend.dynamo  # noqa: F401  the backend itself

NAME = "META"


def register_backend() -> None:
    """Let `DynamoBackend("META")` of accelerate be a value, beside those of its definition.

    ImportError where accelerate is not installed.
    """
    from accelerate.utils import DynamoBackend

    if NAME in DynamoBackend:
        return
    value: Any = str.__new__(DynamoBackend, NAME)
    value._name_ = value._value_ = NAME
    DynamoBackend._missing_ = classmethod(lambda cls, name: value if name == NAME else None)
