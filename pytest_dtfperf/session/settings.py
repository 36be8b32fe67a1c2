"""The settings of a session: how to measure and judge, as options or arguments set it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_dtfperf.baselines.verdict import FALSE_ALARMS

UpdateWord = Literal["all", "new"]
ExplainWord = Literal["always", "auto", "never"]


@dataclass(frozen=True)
class Settings:
    """The settings for measuring and judging. None: not set, so the test, the cluster or the model decides."""

    repeats: int | None = None  # most runs of a measurement
    all_repeats: bool = False  # make all runs, even if fewer decide
    margin: float | None = None  # largest loss of rate, as a part of the baseline
    min_efficiency: float | None = None  # least scaling efficiency, as a fraction
    false_alarms: float = FALSE_ALARMS
    steps: int | None = None
    warmup_steps: int | None = None
    batch_size: int | None = None
    update_baselines: UpdateWord | None = None  # accept the measurements at the session's end
    explain: ExplainWord = "auto"  # which steps are traced, to show where their time goes: see `session/post_analysis.py`
    diagnose: bool = False  # confirm causes of a measurement that is not green by experiments: see `session/post_analysis.py`
    history: Path | str | None = None  # a file, a URL or `never`; None: by the environment, or a file beside the results
    time_budget: float | Literal["none"] | None = None  # seconds for all measurements; None: as the cluster sets it
    allow_regression: str | None = None  # reason for accepting a slower rate as the baseline

    @property
    def makes_all_repeats(self) -> bool:
        """Whether all repeats are made, even if fewer decide."""
        return self.all_repeats or self.update_baselines is not None

    @property
    def overrides(self) -> dict[str, int]:
        """The parts of a spec for all trainings that do not set them."""
        found = {"steps": self.steps, "warmup_steps": self.warmup_steps, "batch_size": self.batch_size}
        return {name: value for name, value in found.items() if value is not None}
