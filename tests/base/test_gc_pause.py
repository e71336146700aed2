"""The garbage collector stands still in a block, and is afterwards as it was."""

from __future__ import annotations

import gc
import threading

import pytest

from meta.base.gc_pause import gc_paused


@pytest.fixture(autouse=True)
def as_it_was():
    was = gc.isenabled()
    yield
    (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("on", [True, False])
def test_is_afterwards_what_it_was(on):
    (gc.enable if on else gc.disable)()
    with pytest.raises(KeyError), gc_paused(), gc_paused():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled() is on


def test_stays_off_until_the_last_of_several_threads_is_done():
    gc.enable()
    inside, leave = threading.Event(), threading.Event()

    def other():
        with gc_paused():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with gc_paused():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
