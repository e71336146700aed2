"""Which vendor's chips are here, by a rule that gives the same answer each time.

On each kind of device at most one vendor is *in force*:

1. the one that META_VENDOR names, which rules out all others on its device (none: no vendor is);
2. of those whose `Vendor.probe` does not refuse, one whose probe says that the chip is here;
3. one whose device torch has, of itself ("cuda") or since a package was imported that brings it
   ("npu"). That there is a CPU says nothing of whose it is, so that of the CPU this does not count;
4. one whose query command succeeds;
5. among equals one whose query command succeeds, then the first by name.

Nobody answers: no vendor is in force, which is no error. Probes and commands are given `SECONDS`.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
from dataclasses import dataclass

import torch

from meta.base import config
from meta.base.bounded_cache import bounded_insert
from meta.base.device import has_name_in_torch, is_in_torch
from meta.base.errors import DeviceError, RegistrationError
from meta.dialect.core.backend_errors import summary
from meta.dialect.vendors.registry import Known, find, generation, known
from meta.dialect.vendors.vendor import Vendor
from meta.op.core.registration import reason_of

SECONDS = 5.0
"""In which a probe or a query command answers, or counts as refusing."""
NONE = "none"
SUCCEEDS = "its query command succeeds"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What detection says of a vendor.

    Attributes
    ----------
    known: the vendor. here: whether its chip is here. active: whether it is in force on its device.
    why: the reason, in words.
    """

    known: Known
    here: bool
    active: bool
    why: str


_verdicts: dict[tuple[str, int, str], list[Verdict]] = {}
_answers: dict[tuple[str, Vendor], str | None] = {}
_lock = threading.RLock()


def active(kind: str) -> Known | None:
    """Return the vendor in force on a kind of device, None if there is none.

    Raises UnknownName if META_VENDOR names none that is known, DeviceError if that vendor's device
    is none of torch's.
    """
    return next((v.known for v in verdicts() if v.active and _is_of(v.known, kind)), None)


def verdicts() -> list[Verdict]:
    """Return what is said of each vendor, by name; otherwise as `active`."""
    stated = config.get("META_VENDOR")
    chosen = None if stated in ("", NONE) else find(stated)
    # The one kind of device that a package may bring to torch while the process runs.
    key = stated, generation(), torch._C._get_privateuse1_backend_name()
    found = _verdicts.get(key)
    if found is None:
        with _lock:
            found = _verdicts.get(key) or bounded_insert(_verdicts, key, _all(stated, chosen), 64)
    return found


def _all(stated: str, chosen: Known | None) -> list[Verdict]:
    if chosen is not None:
        _require_usable(chosen)
    found = []
    for kind in {one.vendor.device: None for one in known() if one.vendor is not None}:
        of_kind = [one for one in known() if _is_of(one, kind)]
        if not has_name_in_torch(kind):
            why = f"torch has no device {kind}: import the package that brings it"
            found += [Verdict(one, False, False, why) for one in of_kind]
        elif stated == NONE:
            found += [Verdict(one, False, False, "META_VENDOR is none") for one in of_kind]
        elif chosen is not None and _is_of(chosen, kind):
            others = [one for one in of_kind if one is not chosen]
            found.append(Verdict(chosen, True, True, "named in META_VENDOR"))
            why = f"META_VENDOR is {stated}"
            found += [Verdict(one, False, False, why) for one in others]
        else:
            found += _ranked(of_kind, kind)
    broken = [one for one in known() if one.vendor is None]
    found += [Verdict(one, False, False, one.unavailable) for one in broken]
    return sorted(found, key=lambda verdict: verdict.known.name)


def _is_of(one: Known, kind: str) -> bool:
    return one.vendor is not None and one.vendor.device == kind


def _require_usable(chosen: Known) -> None:
    vendor = chosen.vendor
    if vendor is None:
        raise DeviceError(f"the vendor {chosen.name!r} is not usable: {chosen.unavailable}")
    if not has_name_in_torch(vendor.device):
        raise DeviceError(
            f"the vendor {vendor.name!r} has a device that torch does not have",
            found=vendor.device,
            hint="import the package that brings it to torch",
        )


def _ranked(vendors: list[Known], kind: str) -> list[Verdict]:
    """Return what is said of the vendors of a kind of device, of which the best is in force."""
    judged = [(one, *_evidence(one.vendor, kind)) for one in vendors if one.vendor is not None]
    here = [(rank, one) for one, rank, _ in judged if rank is not None]
    best = min((rank for rank, _ in here), default=None)
    equals = [one for rank, one in here if rank == best]
    said = {one.name: why for one, _, why in judged}
    if len(equals) > 1:
        answering = [one for one in equals if one.vendor and _queried(one.vendor) is None]
        for one in answering:
            said[one.name] += "" if SUCCEEDS in said[one.name] else f", and {SUCCEEDS}"
        equals = answering + [one for one in equals if one not in answering]
        others = ", ".join(one.name for one in equals[1:])
        said[equals[0].name] += f"; before {others}" + ("" if len(answering) == 1 else " by name")
    first = equals[0] if equals else None
    found = []
    for one, rank, _ in judged:
        why = said[one.name]
        if rank is not None and one is not first and first is not None:
            why += f"; {first.name} comes before it"
        found.append(Verdict(one, rank is not None, one is first, why))
    return found


def _evidence(vendor: Vendor, kind: str) -> tuple[int | None, str]:
    """Return how good the evidence for a chip is, the best 0 and None for none, and in words."""
    if vendor.probe is not None:
        refusal = _probed(vendor)
        return (0, "its probe says it is here") if refusal is None else (None, refusal)
    if kind != "cpu" and is_in_torch(kind):
        return 1, f"torch has the device {kind}"
    if not vendor.query_command:
        if kind == "cpu":
            return None, "it states no probe and no query command: name it in META_VENDOR"
        return None, f"torch has no device {kind}"
    refusal = _queried(vendor)
    return (2, SUCCEEDS) if refusal is None else (None, refusal)


def _probed(vendor: Vendor) -> str | None:
    """Return why a vendor's probe refuses, None if it accepts. It is asked once."""
    key = "probe", vendor
    if key not in _answers:
        bounded_insert(_answers, key, _in_time(vendor), 1024)
    return _answers[key]


def _in_time(vendor: Vendor) -> str | None:
    """Ask a probe on a thread, which is left behind if it hangs."""
    said: list[str | None] = []

    def ask() -> None:
        assert vendor.probe is not None
        try:
            said.append(reason_of(vendor.probe, vendor.probe(), "its probe"))
        except RegistrationError as error:
            said.append(f"{error.what}, not None or the reason why not ({error.span})")
        except (Exception, SystemExit) as error:
            said.append(f"its probe fails: {summary(error)}")

    thread = threading.Thread(target=ask, name=f"meta-probe-{vendor.name}", daemon=True)
    thread.start()
    thread.join(SECONDS)
    return said[0] if said else f"its probe did not answer within {SECONDS:g} s"


def _queried(vendor: Vendor) -> str | None:
    """Return why a vendor's query command does not say that its chip is here, None if it does. It
    is run once.
    """
    key = "query", vendor
    if key not in _answers:
        bounded_insert(_answers, key, _run(vendor.query_command), 1024)
    return _answers[key]


def _run(command: str) -> str | None:
    if not command:
        return "it states no query command"
    try:
        done = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"its query command {command!r} did not end within {SECONDS:g} s"
    except (OSError, ValueError) as error:
        return f"its query command {command!r} cannot be run: {summary(error)}"
    return None if done.returncode == 0 else f"{command!r} ends with status {done.returncode}"
