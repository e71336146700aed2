"""The backend "meta" in accelerate, and so in transformers' `Trainer`: after `register_backend()`,
``TrainingArguments(folder, torch_compile_backend="meta")``. torch.compile takes the name of any
backend that is installed, accelerate only those of an enumeration (docs/howto/training_loops.md).
"""

from typing import Any

import meta.frontend.dynamo  # noqa: F401  the backend itself


def register_backend() -> None:
    """Let `DynamoBackend("META")` of accelerate be a value, beside those of its definition."""
    from accelerate.utils import DynamoBackend

    if (name := "META") not in DynamoBackend:
        value: Any = str.__new__(DynamoBackend, name)
        value._name_ = value._value_ = name
        DynamoBackend._missing_ = classmethod(lambda cls, given: value if given == name else None)
