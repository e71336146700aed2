"""The backend "meta" among those of accelerate. Loops that use it: tests/test_examples.py."""

from __future__ import annotations

import copy
import pickle

import pytest

from meta.interop.accelerate import register_backend


def test_the_backend_is_one_of_accelerates() -> None:
    utils = pytest.importorskip("accelerate.utils")
    for _ in range(2):
        register_backend()
        backend = utils.DynamoBackend("META")
    plugin = utils.TorchDynamoPlugin(backend="meta", mode="max-autotune")
    assert plugin.backend is backend and plugin.backend != utils.DynamoBackend.NO
    assert plugin.to_kwargs() == {"backend": "meta", "mode": "max-autotune"}
    assert plugin.to_dict()["backend"] == "meta"
    assert copy.deepcopy(plugin).backend is pickle.loads(pickle.dumps(backend)) is backend
    assert isinstance(backend, utils.DynamoBackend) and backend.name == str(backend) == "META"
    with pytest.raises(ValueError, match="'METAL' is not a valid DynamoBackend"):
        utils.TorchDynamoPlugin(backend="metal")
