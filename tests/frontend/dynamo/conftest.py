"""What all tests of the backend share."""

import pytest
import torch

import meta.frontend.dynamo  # noqa: F401  (registers the backend)


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    """Let no test see what another one has compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
