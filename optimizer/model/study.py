"""What the user asked for: pinned when the study is opened, never changed afterwards."""

from typing import Literal

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen
from optimizer.model.prior import EarlierStudy, PriorArt
from optimizer.model.target import Target
from optimizer.model.workload import Workload

# 2: a candidate's measurement ends early where its first windows show harm. 3: proposals of the sampler pass the rules that every other
# change passes, earlier studies of the same class of box are where it starts, and a version that lacks a parameter is not given it;
# a launch whose rate did not settle in two runs gets a third, longer one; a confirmation that misses the target by noise gets a second launch.
# 4: a percentile of the target is met where the requests prove it at 99 % confidence, not where it was measured; what a study says of
# what is out of reach and of prior art names its unit, its launches and its interval.
# 5: a measurement moves a belief by the error term and the degrees of freedom of its interval, and an undecided interval moves it little;
# of one launch with several causes each is credited with what the others leave open; what rules out an idea as too small for the target
# leaves the weight of its measurement alone.
# Each rule with its version: core/since.py.
POLICY_VERSION = 6
Sampler = Literal["gp", "tpe"]
Policy = Literal["evidence", "tpe", "random"]
Finish = Literal["best", "restore", "leave"]
Role = Literal["prefill", "decode", "server", "router"]
Ending = Literal[
    "met", "not_met", "unreachable_by_configuration", "nothing_to_tune", "unfit", "interrupted", "needs_operator", "guard_fired"
]


class Member(Frozen):
    """One process of a deployment: how it starts, which part it has, and the port on which it serves."""

    name: str  # its role, and a number where several have the same: decode-2
    role: Role
    port: int
    argv: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None


class LaunchSpec(Frozen):
    """How the user starts the server: the command line that every launch edits minimally. Of a deployment of several processes,
    that of its leading worker, and ``members`` has all of them in the order of their start; the last is where clients go."""

    argv: tuple[str, ...]
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    log: str | None = None
    members: tuple[Member, ...] = ()

    @property
    def leading(self) -> str | None:
        """Name of the member whose command line ``argv`` is; None for a single server."""
        return next((one.name for one in self.members if one.argv == self.argv and one.env == self.env), None)


class HostSpec(Frozen):
    """Where: an SSH alias, ``localhost`` or ``sim:NAME``. Never holds a secret."""

    name: str
    kind: Literal["ssh", "local", "sim"]
    prefix: tuple[str, ...] = ()  # container exec prefix


class BoxSpec(Frozen):
    """One of several boxes of a study: its name there, how it is reached, and how its server is started."""

    name: str
    host: HostSpec
    launch: LaunchSpec | None = None
    port: int | None = None


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
    earlier: tuple[EarlierStudy, ...] = ()  # launches of earlier studies that were there when the study opened
    sampler: Sampler = "gp"
    policy: Policy = "evidence"  # the others are control arms: every launch is a point of the whole space that the sampler asked for
    params: tuple[str, ...] = ()  # of a control arm: the parameters that it searches; none: all that this build offers
    tradeoff: str = ""  # a latency metric: the front of throughput against it is searched as well
    policy_version: int = POLICY_VERSION
    boxes: tuple[BoxSpec, ...] = ()  # of a study on several; ``host``, ``launch`` and ``port`` are the first one's

    def on(self, name: str) -> "StudySpec":
        """The same study as one of its boxes sees it. Each holds the box under an id of its own, so that a second name of the same
        machine is refused by the lock instead of measured beside the first."""
        at = next(index for index, one in enumerate(self.boxes) if one.name == name)
        one = self.boxes[at]
        return self.model_copy(update={"study": f"{self.study}.{at + 1}", "host": one.host, "launch": one.launch, "port": one.port})

    @property
    def finish_or_default(self) -> Literal["best", "restore", "leave", "default"]:
        return self.finish or "default"
