"""The closed list of effects. Every step is journalled as an intent before it happens, and is idempotent under its key."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, TypeAdapter, model_serializer

from optimizer.model.base import FiniteFloat, Frozen, Value
from optimizer.model.settings import Settings
from optimizer.model.space import Trial

Purpose = Literal["baseline", "candidate", "confirm", "final"]
ORIGINAL = "original"  # the launch "key" of the server that was there before us


class Observe(Frozen):
    """Read the box and, where one runs, the server. Changes nothing."""

    kind: Literal["observe"] = "observe"
    key: str


class Secure(Frozen):
    """``arm``: lock the box and start the dead-man's switch. ``disarm``: end it, remove what we wrote, unlock."""

    kind: Literal["secure"] = "secure"
    key: str
    op: Literal["arm", "disarm"]
    minutes: FiniteFloat = 15.0
    keep: str | None = None  # launch key that stays running on purpose


class Calibrate(Frozen):
    """The load generator against the null server: it must sustain three times what it is going to measure."""

    kind: Literal["calibrate"] = "calibrate"
    key: str
    tokens_per_s: FiniteFloat
    concurrency: int


class Launch(Frozen):
    """Start the server with these settings over the original command line."""

    kind: Literal["launch"] = "launch"
    key: str
    settings: Settings
    purpose: Purpose
    port: int
    served_name: str | None  # None: as the original names it (only for a launch that stays)
    attempt: int = 0


class AwaitReady(Frozen):
    """Wait until the launched server answers, prove that it is ours and that it obeyed the settings."""

    kind: Literal["await_ready"] = "await_ready"
    key: str
    launch: str
    deadline_s: FiniteFloat


class Level(Frozen):
    concurrency: int
    warmup_min_s: FiniteFloat
    warmup_max_s: FiniteFloat
    window_s: FiniteFloat


class Measure(Frozen):
    """Load the server at every level, target level first; read all evidence before anything is stopped."""

    kind: Literal["measure"] = "measure"
    key: str
    launch: str
    purpose: Purpose
    levels: tuple[Level, ...]
    run_index: int  # salts the prompts: no two runs of a study send the same ones
    stop_below: FiniteFloat | None = None  # output tokens/s: a rate below it after the first windows ends the measurement

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Written only where something may be stopped, so that intents of older journals are recomputed byte for byte."""
        data: dict[str, Any] = handler(self)
        return {name: value for name, value in data.items() if name != "stop_below" or value is not None}


class Check(Frozen):
    """A cheap test on the server that runs: nothing is relaunched and no setting changes. What it sees becomes evidence about it.

    ``test`` is a name of ``core.checks.CATALOGUE``; ``around`` the load where a step is looked for."""

    kind: Literal["check"] = "check"
    key: str
    launch: str
    test: str
    levels: tuple[Level, ...] = ()  # loads offered one after the other, or (second_client) at the same time
    around: int | None = None
    width: Literal["one", "double"] = "one"
    seconds: FiniteFloat = 0.0  # how long the server's processes are watched
    run_index: int = 0
    reference_tokens_per_s: FiniteFloat | None = None  # what the measured run gave, where a test repeats it
    hypothesis: str = ""  # whose playbook names the test
    about: tuple[str, ...] = ()  # every cause that the answer speaks about
    bits: FiniteFloat = 0.0  # information that is expected of it
    minutes: FiniteFloat = 0.0  # what it is expected to cost
    saves_minutes: FiniteFloat = 0.0  # launch minutes that it is expected to save


class Stop(Frozen):
    """Stop a launch of ours (sweep until empty twice) or, with consent, the original server."""

    kind: Literal["stop"] = "stop"
    key: str
    launch: str


class Propose(Frozen):
    """Ask the sampler for one point. A pure function of its arguments, journalled so that an upgrade cannot change a resume."""

    kind: Literal["propose"] = "propose"
    key: str
    hypothesis: str
    space: str
    params: tuple[str, ...]
    fixed: dict[str, Value]
    history: tuple[Trial, ...]
    seed: int
    pending: tuple[dict[str, Value], ...] = ()  # points that other boxes of the study are measuring
    sampler: Literal["tpe", "gp", "random"] = "tpe"
    grids: dict[str, list[Value]] = Field(default_factory=dict)  # what is left of a parameter's values on this build
    try_first: tuple[dict[str, Value], ...] = ()  # points that did well in earlier studies
    rejected: tuple[dict[str, Value], ...] = ()  # proposals that a rule refused before a launch
    tradeoff: bool = False  # of ``value`` against ``second`` of the trials

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Written only where it says something, so that intents of older journals are recomputed byte for byte."""
        data: dict[str, Any] = handler(self)
        optional = ("pending", "grids", "try_first", "rejected", "tradeoff")
        return {name: value for name, value in data.items() if not (name in optional and not value) and not (name == "sampler" and value == "tpe")}


class Restore(Frozen):
    """Bring the original server back."""

    kind: Literal["restore"] = "restore"
    key: str


Step = Annotated[
    Observe | Secure | Calibrate | Launch | AwaitReady | Measure | Check | Stop | Propose | Restore, Field(discriminator="kind")
]
STEP: TypeAdapter[Step] = TypeAdapter(Step)


def server_seconds(step: Step, took_s: float, time_scale: float) -> float:
    """What ``took_s`` of our clock were on the server's: its start and its load run ``time_scale`` times as fast on a simulated box,
    and so cost that much of the budget; everything else is our own handling."""
    return round(took_s * (time_scale if isinstance(step, Launch | AwaitReady | Measure) else 1.0), 3)
