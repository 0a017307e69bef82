"""What load a measurement offers. Two measurements compare only within one workload."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from optimizer.errors import UsageError
from optimizer.model.base import FiniteFloat, Frozen
from optimizer.model.target import Bound, parse_target

MAX_TRACE = 50_000  # requests of a trace: the study's journal holds them all
MAX_TEXT = 8 << 20  # characters of conversations, for the same reason


class Lengths(Frozen):
    """How prompt or output lengths are distributed, in tokens. ``low`` and ``high`` also cut the other kinds."""

    kind: Literal["uniform", "normal", "lognormal", "choices"]
    mean: FiniteFloat | None = Field(default=None, gt=0)  # of normal and lognormal: of the lengths themselves, not of their logarithms
    sd: FiniteFloat | None = Field(default=None, gt=0)
    low: int = Field(default=1, ge=1, le=1_000_000)
    high: int = Field(default=1_000_000, ge=1, le=1_000_000)
    values: tuple[int, ...] = ()
    weights: tuple[FiniteFloat, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low {self.low} lies above high {self.high}")
        if self.kind == "choices":
            if not self.values or any(not 1 <= value <= 1_000_000 for value in self.values):
                raise ValueError("choices need values of at least 1 token")
            if self.weights and (len(self.weights) != len(self.values) or min(self.weights) < 0 or not math.fsum(self.weights) > 0):
                raise ValueError("give one weight, 0 or more, for each value, and not only zeros")
        elif self.kind == "uniform":
            if self.high == 1_000_000:
                raise ValueError("uniform lengths need low and high")
        elif self.mean is None or self.sd is None:
            raise ValueError(f"{self.kind} lengths need mean and sd")
        return self


class TraceRequest(Frozen):
    """One request of a recorded trace. ``at_s`` counts from the trace's start. Requests whose lists of ``blocks`` begin alike
    share so many blocks of their prompts."""

    at_s: FiniteFloat = Field(ge=0)
    prompt_tokens: int = Field(ge=1, le=1_000_000)
    output_tokens: int = Field(ge=1, le=1_000_000)
    blocks: tuple[int, ...] = ()


class Turn(Frozen):
    """What a user said in a recorded conversation, and what was answered."""

    asked: str
    answered: str
    output_tokens: int = Field(ge=1, le=1_000_000)


class Workload(Frozen):
    """Unique prompts, offered by users who wait for each other (closed loop) or by a clock that does not wait (open loop). Times are
    in the server's seconds (a simulated box may run faster)."""

    name: str = "default"
    concurrency: int = Field(default=16, ge=1, le=65536)
    side_levels: tuple[int, ...] = (1,)  # measured as well at every launch, reported beside the target level
    prompt_tokens: int = Field(default=512, ge=1, le=1_000_000)  # of every request, or on average
    output_tokens: int = Field(default=256, ge=1, le=1_000_000)
    prompt_lengths: Lengths | None = None
    output_lengths: Lengths | None = None
    shared_prefix_tokens: int = Field(default=0, ge=0)
    prefix_groups: int = Field(default=1, ge=1, le=4096)  # so many different prefixes, used in turn
    api: Literal["completions", "chat", "generate", "llamacpp"] = "completions"
    vocabulary: Literal["words", "ascii"] = "words"
    ignore_eos: bool = True
    arrival: Literal["closed", "poisson", "constant", "burst", "trace"] = "closed"
    rate_per_s: FiniteFloat | None = Field(default=None, gt=0)  # arrivals of the open loop, per second
    burst_size: int = Field(default=8, ge=1, le=65536)
    turns: int = Field(default=1, ge=1, le=1000)
    think_s: FiniteFloat = Field(default=0.0, ge=0)  # on average, before each next request of a user
    trace: tuple[TraceRequest, ...] = Field(default=(), max_length=MAX_TRACE)
    block_tokens: int = Field(default=512, ge=1)
    conversations: tuple[tuple[Turn, ...], ...] = ()
    slo: str = ""  # limits for each single request, such as ttft<500ms,tpot<30ms: what goodput counts
    percentiles: tuple[FiniteFloat, ...] = ()  # reported beside 50, 90, 95 and 99
    warmup_min_s: FiniteFloat = Field(default=30.0, ge=0)
    warmup_max_s: FiniteFloat = Field(default=300.0, ge=0)
    window_s: FiniteFloat = Field(default=60.0, gt=0)
    side_window_s: FiniteFloat = Field(default=20.0, gt=0)
    confirm_window_s: FiniteFloat = Field(default=600.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _one_level(cls, data: object) -> object:
        """An open loop has one level, its rate: users who wait, at another concurrency, would be another workload."""
        if isinstance(data, dict) and data.get("arrival", "closed") != "closed" and tuple(data.get("side_levels", (1,))) == (1,):
            return {**data, "side_levels": ()}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.arrival in ("poisson", "constant", "burst") and self.rate_per_s is None:
            raise ValueError(f"{self.arrival} arrivals need rate_per_s")
        if self.arrival in ("closed", "trace") and self.rate_per_s is not None:
            raise ValueError(f"rate_per_s is for poisson, constant and burst arrivals, not for {self.arrival}")
        if self.arrival != "closed" and self.side_levels:
            raise ValueError("side_levels are concurrencies; an open loop has its rate alone")
        if self.arrival == "trace" and not self.trace:
            raise ValueError("trace arrivals need a trace")
        if self.arrival == "trace" and not self.trace_period_s > 0:
            raise ValueError("the trace takes no time: its requests all come at once")
        if any(one.at_s > other.at_s for one, other in zip(self.trace, self.trace[1:], strict=False)):
            raise ValueError("the requests of a trace must be in order of time")
        if any(not conversation for conversation in self.conversations):
            raise ValueError("a conversation without a turn")
        kinds = [bool(self.trace), bool(self.conversations), bool(self.prompt_lengths or self.output_lengths)]
        if sum(kinds) > 1:
            raise ValueError("trace, conversations and length distributions exclude each other")
        if self.turns > 1 and (self.trace or self.conversations):
            raise ValueError("a trace and recorded conversations have turns of their own")
        if (self.turns > 1 or self.conversations) and self.api not in ("completions", "chat"):
            raise ValueError(f"conversations need the chat or completions API, not {self.api}")
        if any(not 0 < percentile < 100 for percentile in self.percentiles):
            raise ValueError("a percentile lies between 0 and 100")
        _ = self.limits
        return self

    @property
    def trace_period_s(self) -> float:
        """After so long the trace begins anew: its length and one average gap."""
        if len(self.trace) < 2:
            return 0.0
        span = self.trace[-1].at_s - self.trace[0].at_s
        return span + span / (len(self.trace) - 1)

    @property
    def limits(self) -> tuple[Bound, ...]:
        """What every single request must keep to count as good; metrics ``ttft``, ``tpot`` and ``e2e`` in ms."""
        if not self.slo:
            return ()
        try:
            bounds = parse_target([self.slo]).bounds
        except UsageError as error:
            raise ValueError(f"slo: {error.message}") from error
        wrong = [bound.metric for bound in bounds if not bound.metric.startswith(("ttft_p50", "tpot_p50", "e2e_p50"))]
        if wrong:
            raise ValueError(f"slo holds limits of single requests, such as ttft<500ms,tpot<30ms; not {', '.join(wrong)}")
        return tuple(bound.model_copy(update={"metric": bound.metric.partition("_")[0]}) for bound in bounds)

    @property
    def text(self) -> str:
        shared = f", {self.shared_prefix_tokens} of them shared" if self.shared_prefix_tokens else ", no shared prefix"
        load = f"concurrency {self.concurrency}"
        if self.arrival == "trace":
            load = f"arrivals of a trace ({len(self.trace)} requests in {self.trace_period_s:.0f} s)"
        elif self.arrival != "closed":
            load = f"{self.rate_per_s:g} requests/s ({self.arrival} arrivals)"
        think = f", {self.think_s:g} s to think" if self.think_s else ""
        if self.conversations:
            return f"{load}, {len(self.conversations)} recorded conversations{think}"
        turns = f", {self.turns} turns" if self.turns > 1 else ""
        varied = " on average" if self.trace or self.prompt_lengths or self.output_lengths else ""
        return f"{load}, {self.prompt_tokens} prompt tokens{shared}, {self.output_tokens} output tokens{varied}{turns}{think}"
