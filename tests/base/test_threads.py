"""Jobs on several threads: order, errors, the caller's knobs, a process that is forked later."""

from __future__ import annotations

import os
import threading
import warnings
from functools import partial

import pytest

from meta.base import config
from meta.base.threads import MAX_THREADS, compile_threads, run_in_threads


def test_as_many_as_cores_or_as_the_knob_says():
    assert 1 <= compile_threads() <= MAX_THREADS
    with config.override(META_COMPILE_THREADS=3):
        assert compile_threads() == 3


@pytest.mark.parametrize("threads", [1, 4])
def test_results_are_in_order_and_done_is_called_here(threads: int):
    called = []
    with config.override(META_COMPILE_THREADS=threads):
        made = run_in_threads(
            [partial(pow, i, 2) for i in range(9)],
            lambda job: called.append((job, threading.get_ident())),
        )
    assert made == [i * i for i in range(9)]
    assert sorted(called) == [(i, threading.get_ident()) for i in range(9)]
    assert run_in_threads([]) == []


def test_they_run_at_the_same_time_with_the_callers_knobs():
    both = threading.Barrier(2, timeout=30)

    def job() -> int:
        both.wait()
        return config.get("META_MAX_DEPTH")

    with config.override(META_COMPILE_THREADS=2, META_MAX_DEPTH=77):
        assert run_in_threads([job, job]) == [77, 77]


def test_the_first_error_in_order_is_raised_when_all_have_ended():
    late, ended = threading.Event(), []

    def fails(name: str, after: threading.Event | None) -> None:
        if after is not None:
            after.wait(30)
        ended.append(name)
        late.set()
        raise ValueError(name)

    jobs = [partial(fails, "first", late), partial(fails, "second", None), lambda: ended.append(3)]
    with config.override(META_COMPILE_THREADS=3), pytest.raises(ValueError, match="first"):
        run_in_threads(jobs)
    assert set(ended) == {"first", "second", 3}
    assert not [t for t in threading.enumerate() if t.name.startswith("meta-compile")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_is_forked_later_runs_jobs_of_its_own():
    with config.override(META_COMPILE_THREADS=2):
        assert run_in_threads([lambda: 1, lambda: 2]) == [1, 2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other libraries have threads
            child = os.fork()
        if child == 0:
            os._exit(run_in_threads([lambda: 3, lambda: 4]) != [3, 4])
        assert os.waitpid(child, 0)[1] == 0
