"""torch's own samples of its operators under torch.compile(backend="meta", fullgraph=True), forward
and backward, beside eager PyTorch. What is not compared, or not compiled, is in a list.
"""

from __future__ import annotations

import pytest
import torch

from tests.frontend.dynamo.lists import CALLS_BACK, NOT_COMPARED
from tests.frontend.dynamo.samples import compiled_dtypes, outcomes
from tests.frontend.listed import check_listed, check_names
from tests.frontend.shared_lists import WITHOUT_DTYPE
from tools.torch_samples.entries import ENTRIES


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's samples are unusual, and Dynamo warns of much
@pytest.mark.parametrize("key", sorted(ENTRIES.keys() - WITHOUT_DTYPE))
def test_samples_are_as_in_eager_pytorch(key: str) -> None:
    found = [o for dtype in compiled_dtypes(key) for o in outcomes(key, dtype)]
    assert found, "torch has no sample"
    check_listed(key, [f"{o.what}: {o.why}" for o in found if o.what != "same"], NOT_COMPARED)
    check_listed(key, [text for o in found for text in o.calls_back], CALLS_BACK)


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the lists are of the entries of torch 2.13"
)
def test_the_lists_are_of_entries() -> None:
    check_names(NOT_COMPARED, ENTRIES)
    check_names(CALLS_BACK, ENTRIES)
    assert all(not compiled_dtypes(key) for key in WITHOUT_DTYPE)
