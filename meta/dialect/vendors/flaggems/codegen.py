"""How large kernels of functions of elements may be, for a vendor's chips."""

from __future__ import annotations

from dataclasses import dataclass

from meta.dialect.vendors.flaggems.shapes import heuristics_for_num_warps

__all__ = ["CodeGenConfig", "get_codegen_config", "get_heuristics_for_num_warps", "vendors"]


class _Vendors:
    """Vendors by name in capitals, as `machine.device.vendor` is one of them."""

    def __getattr__(self, name: str) -> str:
        return name.lower()


vendors = _Vendors()


@dataclass
class CodeGenConfig:
    """Bounds of a kernel's grid and tile; what says how FlagGems writes its text is not used."""

    max_tile_size: int
    max_grid_size: tuple[int, int, int]
    max_num_warps_per_cta: int
    prefer_block_pointer: bool
    prefer_1d_tile: bool


def get_codegen_config() -> CodeGenConfig:
    """Return the bounds of a chip that states none."""
    return CodeGenConfig(1024, (65536, 65536, 65536), 32, False, False)


get_heuristics_for_num_warps = heuristics_for_num_warps
