"""What the user asked for: pinned when the study is opened, never changed afterwards."""

from typing import Literal

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen
from optimizer.model.prior import PriorArt
from optimizer.model.target import Target
from optimizer.model.workload import Workload

POLICY_VERSION = 1
Finish = Literal["best", "restore", "leave"]
Ending = Literal[
    "met", "not_met", "unreachable_by_configuration", "nothing_to_tune", "unfit", "interrupted", "needs_operator", "guard_fired"
]


class LaunchSpec(Frozen):
    """How the user starts the server: the command line that every launch edits minimally."""

    argv: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    log: str | None = None


class HostSpec(Frozen):
    """Where: an SSH alias, ``localhost`` or ``sim:NAME``. Never holds a secret."""

    name: str
    kind: Literal["ssh", "local", "sim"]
    prefix: tuple[str, ...] = ()  # container exec prefix


class Budget(Frozen):
    minutes: FiniteFloat = 120.0
    launches: int = 20


class StudySpec(Frozen):
    study: str
    host: HostSpec
    target: Target
    workload: Workload
    engine: str | None = None
    launch: LaunchSpec | None = None  # None: the server found on the box
    port: int | None = None  # which running server, where several answer
    budget: Budget = Budget()
    finish: Finish | None = None
    allow_lossy: bool = False
    probes: tuple[str, ...] = ()  # the user's own prompts that every launch answers; none: ``model.answers.PROBES``
    thorough: bool = False
    best_effort: bool = False
    consent: bool = False
    guard_minutes: FiniteFloat = 15.0
    ready_deadline_s: FiniteFloat = 1800.0
    time_scale: FiniteFloat = 1.0
    seed: int = 0
    prior_art: tuple[PriorArt, ...] = ()  # known-good results that were there when the study opened
    policy_version: int = POLICY_VERSION

    @property
    def finish_or_default(self) -> Literal["best", "restore", "leave", "default"]:
        return self.finish or "default"
