"""`Vendor`: what is known of a maker of chips before any of its kernels is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from meta.base.dtype import DTYPES
from meta.base.errors import ArgumentError, RegistrationError
from meta.base.registry import nearest
from meta.base.source import Span, user_span
from meta.dialect.core.plevel import HANDWRITTEN
from meta.dialect.core.registration_checks import check_level
from meta.op.core.call import CallValues
from meta.op.core.registration import require_function

LIMITS = ("elements", "ndim")
"""What `Vendor.limits` may bound: elements of a tensor, its axes."""


@dataclass(frozen=True, eq=False)
class Vendor:
    """A maker of chips.

    Parameters
    ----------
    name: by which META_VENDOR chooses it.
    device: what torch calls its devices: "cpu", "cuda" (also of ROCm), "npu". On another device
        than the first two, calls run on functions of the vendor alone (`ops/__all__`).
    probe: returns None if the vendor's chip is here, else the reason why not. It is asked once; it
        is given `detect.SECONDS`.
    query_command: a command that ends with status 0 where the chip is, such as "nvidia-smi".
    dispatch_key: of torch.library, under which a PyTorch program finds kernels for the device, and
        under which `meta.interop.torch.enable` registers: "PrivateUse1" of most; "" for the
        device's name in capitals.
    triton_extra: the folder of ``triton.language.extra`` that has its ``libdevice``; "" for the
        device's name.
    dtypes: those that the chip has, None for all. Kernels decline calls with others.
    limits: the largest number of `LIMITS` that its kernels take.
    architectures: by what a device says of itself (see `architecture_of`), the subfolder with
        what is for that architecture.
    unused: names of ``ops/__all__`` that are not registered.
    dialect: the dialect whose operators its functions implement.
    plevel: their level.
    """

    name: str
    device: str
    probe: Callable[[], str | None] | None = None
    query_command: str = ""
    dispatch_key: str = ""
    triton_extra: str = ""
    dtypes: tuple[str, ...] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    architectures: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    dialect: str = "triton"
    plevel: int = HANDWRITTEN

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier() or self.name == "none":
            raise RegistrationError(
                "a vendor's name is a word", expected="such as acme", found=repr(self.name)
            )
        if not isinstance(self.device, str) or not self.device.isidentifier():
            raise RegistrationError(
                f"the vendor {self.name!r} states no device",
                expected="what torch calls it, such as cuda",
                found=repr(self.device),
            )
        what = f"the vendor {self.name!r}"
        if self.probe is not None:
            require_function(self.probe, f"probe= of {what}")
        check_level(self.plevel, what, user_span() or Span("?", 0))
        if isinstance(self.dtypes, str) or isinstance(self.unused, str):
            raise RegistrationError(
                f"{what} states names as one string", expected='a tuple, such as ("float16",)'
            )
        if not all(isinstance(m, Mapping) for m in (self.limits, self.architectures)):
            raise RegistrationError(f"limits= and architectures= of {what} are mappings")
        for what, names, known in (
            ("dtype", self.dtypes or (), DTYPES),
            ("limit", self.limits, LIMITS),
        ):
            for one in names:
                if one not in known:
                    raise ArgumentError(
                        f"the vendor {self.name!r} states an unknown {what}",
                        expected=f"some of {tuple(known)}",
                        found=repr(one),
                        hint=nearest(one, known),
                    )
        for attribute in ("dispatch_key", "triton_extra"):
            if not getattr(self, attribute):
                own = self.device.upper() if attribute == "dispatch_key" else self.device
                object.__setattr__(self, attribute, own)

    @property
    def vendor_name(self) -> str:
        """The name, in FlagGems' words."""
        return self.name

    @property
    def device_name(self) -> str:
        """The device, in FlagGems' words."""
        return self.device

    def declines(self, call: CallValues) -> str | None:
        """Return why the chip cannot run a call, by its dtypes and limits; None if it can."""
        for type_ in (*call.tensors(), *call.outputs):
            if self.dtypes is not None and type_.dtype not in self.dtypes:
                return f"{self.name} has no {type_.dtype}"
            if type_.ndim > self.limits.get("ndim", type_.ndim):
                return f"{self.name} takes at most {self.limits['ndim']} axes"
            most = self.limits.get("elements")
            if most is not None and (not type_.is_static or _count(type_.static_shape) > most):
                return f"{self.name} takes tensors of at most {most} elements"
        return None


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


ALL_DTYPES = tuple(DTYPES)
_LARGE = {"fp64": ("float64", "complex128"), "bf16": ("bfloat16",), "int64": ("int64", "uint64")}


def described(
    vendor_name: str,
    device_name: str,
    device_query_cmd: str = "",
    dispatch_key: str | None = None,
    triton_extra_name: str | None = None,
    trademark: str | None = None,
    fp64_enabled: bool = True,
    bf16_enabled: bool = True,
    int64_enabled: bool = True,
    tle_enabled: bool = False,
) -> Vendor:
    """Return the vendor that a folder in FlagGems' layout describes, in FlagGems' words.

    What has no meaning here (``trademark``, ``tle_enabled``) is taken and not used. Source of the
    names: FlagGems, src/flag_gems/runtime/backend/backend_utils.py.
    """
    stated = {"fp64": fp64_enabled, "bf16": bf16_enabled, "int64": int64_enabled}
    lacking = {one for word, has in stated.items() if not has for one in _LARGE[word]}
    return Vendor(
        vendor_name,
        device_name,
        query_command=device_query_cmd,
        dispatch_key=dispatch_key or "",
        triton_extra=triton_extra_name or "",
        dtypes=tuple(d for d in ALL_DTYPES if d not in lacking) if lacking else None,
    )
