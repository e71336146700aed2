"""`Record`: what `fit` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from meta.base.html import MAX_ROWS, fragment, table, tag
from meta.optim import TrainingStep
from meta.vm.executable import Executable


@dataclass(slots=True)
class Record:
    """What a run did, from where it began or was resumed.

    Attributes
    ----------
    training_step: model and optimizer as they are now; averages of the parameters, too.
    executables: the compiled steps, one per shape of a batch (profile, memory, explain, kernels).
    first_step: how many steps were done before (by the run that was resumed).
    losses: of the steps since, in order.
    evaluations: what each evaluation found: "step" and the metrics by name, "loss" among them; of
    a run that keeps an average "average": 1.0 if it was evaluated, 0.0 if the parameters were.
    epoch: how many epochs are complete. stopped: why the run ended.
    seconds: the time that the steps took. compile_seconds: and compiling them.
    samples: how many were trained on. checkpoint: the newest one's folder, if there is one.
    """

    training_step: TrainingStep
    executables: list[Executable] = field(default_factory=list)
    first_step: int = 0
    losses: list[float] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    epoch: int = 0
    stopped: str = ""
    seconds: float = 0.0
    compile_seconds: float = 0.0
    samples: int = 0
    checkpoint: Path | None = None

    @property
    def step(self) -> int:
        """How many steps are done in all."""
        return self.first_step + len(self.losses)

    @property
    def metrics(self) -> dict[str, float]:
        """What the last evaluation found."""
        return self.evaluations[-1] if self.evaluations else {}

    @property
    def steps_per_second(self) -> float:
        """The speed of the steps, compiling left out."""
        return len(self.losses) / self.seconds if self.seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """The speed of the samples, compiling left out."""
        return self.samples / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        loss = f"loss {self.losses[-1]:.4g}" if self.losses else "no step"
        found = ", ".join(f"{k} {v:.4g}" for k, v in self.metrics.items() if k != "step")
        return (
            f"{self.step} steps, {self.epoch} epochs, {loss}"
            f"{'; evaluation: ' + found if found else ''}; {self.steps_per_second:.1f} steps/s; "
            f"ended: {self.stopped}"
        )

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for found in self.evaluations for name in found))
        rows = [
            [f"{found[name]:.4g}" if name in found else "" for name in names]
            for found in self.evaluations[-MAX_ROWS:]
        ]
        shown = table(names, rows, numbers=range(len(names)))
        return fragment(tag("div", str(self), class_="title"), shown)
