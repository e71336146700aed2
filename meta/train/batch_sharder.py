"""`BatchSharder`: how the batches of a run are shared out over its ranks; `data.py` has the
rule.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data.distributed import DistributedSampler

from meta.base.errors import ArgumentError, DistributedError, FormatError
from meta.train.batch import Batch
from meta.train.process_group import ProcessGroup


class BatchSharder:
    """This rank's share of ``data``.

    Parameters
    ----------
    group: the ranks. even: whether all get as many rows of each batch.

    Attributes
    ----------
    data: what this rank iterates over. own: whether these are its part already.
    """

    def __init__(self, data: Any, group: ProcessGroup, even: bool) -> None:
        self.group, self.even = group, even
        self.data, self.own = data, False
        self._checked = False
        if group.size == 1:
            return
        shard = getattr(data, "shard", None)
        # An evaluation has the rows of a batch that cannot be shared out equally, too.
        if callable(shard) and (even or not getattr(data, "shards_rows", False)):
            self.data, self.own = shard(group.rank, group.size), True
        for sampler in samplers(data):
            if isinstance(sampler, DistributedSampler):
                self.own = True
                wanted, found = (group.rank, group.size), (sampler.rank, sampler.num_replicas)
                if found != wanted:
                    raise ArgumentError(
                        "the sampler is of another rank than this one",
                        expected=f"rank {wanted[0]} of {wanted[1]}",
                        found=f"rank {found[0]} of {found[1]}",
                        hint="DistributedSampler(data, meta.distributed.size(axis), "
                        "meta.distributed.rank(axis))",
                    )

    def begin(self) -> None:
        """Say that an epoch is iterated over from its beginning."""
        self._checked = False

    def has_batch(self, batch: Batch, length: int | None) -> bool:
        """Check the first batch of an epoch against those of the other ranks, and return whether
        all have a batch; data whose length is known have as many.

        Raises DistributedError, on all ranks, if they iterate over other data, or other numbers of
        batches. Data that a rank reads by itself, and that do not say how long they are, end an
        epoch for all ranks where they end for the first one.
        """
        if self.group.alone:
            return True
        if not self._checked:
            self._checked = True
            self._compare(batch, length)
        return not self._open(length) or all(self.group.gather(True, "the end of an epoch"))

    def _compare(self, batch: Batch, length: int | None) -> None:
        place = self.group.rank if self.own else None
        given = self.group.gather((length, place, batch.digest()), "the data")
        kinds = {(its_length, its_place, digest) for its_length, its_place, digest in given}
        if (
            len(kinds) > len({its_place for _, its_place, _ in given})
            or len({its_length for its_length, _, _ in given}) > 1
        ):
            lines = (
                f"rank {i}: {'no known number of' if n is None else n} batches, the first one of "
                f"hash {digest[:8]}"
                for i, (n, _, digest) in enumerate(given)
            )
            raise DistributedError(
                "the ranks do not agree on the data",
                expected="as many batches in an epoch, and the same ones"
                + (" along the other axes of the mesh" if self.own else ""),
                found="".join(f"\n    {line}" for line in lines),
                hint=HINT,
            )

    def end(self, length: int | None) -> None:
        """Say that this rank's data have come to the end of an epoch."""
        if self._open(length):
            self.group.gather(False, "the end of an epoch")

    def _open(self, length: int | None) -> bool:
        return self.own and length is None and not self.group.alone

    def shard(self, batch: Batch) -> list[Batch]:
        """Return what this rank takes of a batch; ArgumentError if rows are left over."""
        count, place = self.group.size, self.group.rank
        if count == 1 or self.own:
            return [batch]
        size = batch.samples // count
        rest = size * count
        if self.even and (rest != batch.samples or not rest):
            raise ArgumentError(
                f"a batch is not shared out equally over {count} ranks",
                expected=f"a multiple of {count} rows",
                found=batch.samples,
                hint="leave the last, smaller batch of an epoch out: drop_last=True",
            )
        parts = [batch.rows(place * size, (place + 1) * size)] if size else []
        if rest != batch.samples:
            parts.append(batch.rows(rest, batch.samples, counts=place == 0))
        return parts

    def position(self, own: Any) -> Any:
        """Return what a checkpoint keeps of the position that data keep themselves."""
        if own is None or not self.own or self.group.size == 1:
            return own
        return {"ranks": self.group.gather(own, "the position in the data", along=True)}

    def rank_position(self, kept: Any) -> Any:
        """Return this rank's position from what a checkpoint kept."""
        if not self.own or self.group.size == 1:
            return kept
        ranks = kept.get("ranks") if isinstance(kept, dict) else None
        if not isinstance(ranks, list) or len(ranks) != self.group.size:
            raise FormatError(
                "the checkpoint has no position of each rank in its data",
                expected=f"positions of {self.group.size} ranks",
                found=len(ranks) if isinstance(ranks, list) else "one of all ranks",
                hint="go on with as many ranks, or with data that all ranks iterate over",
            )
        return ranks[self.group.rank]


HINT = (
    "on a mesh every rank iterates over the batches of all ranks, in the same order, and takes its "
    "rows; data that a rank reads by itself have a method shard(place, count)"
)


def samplers(data: Any) -> list[Any]:
    """Return what decides the order of data: themselves, and a DataLoader's samplers."""
    batches = getattr(data, "batch_sampler", None)
    found = (data, getattr(data, "sampler", None), batches, getattr(batches, "sampler", None))
    return list({id(one): one for one in found if one is not None}.values())
