"""One run of the load generator against one launch. The launch, not the run and not the window, is the unit of replication."""

from enum import StrEnum

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen


class ValidityCode(StrEnum):
    """Why a measurement may not be used. Closed: each has an advice in ``ADVICE``."""

    ERRORS = "errors"
    WRONG_SERVER = "wrong_server"
    FOREIGN_TRAFFIC = "foreign_traffic"
    CLIENT_BOUND = "client_bound"
    CACHED_PREFIX = "cached_prefix"
    OUTPUT_LENGTH = "output_length"
    NEVER_STEADY = "never_steady"
    TOO_FEW_REQUESTS = "too_few_requests"
    THROTTLED = "throttled"
    FOREIGN_PROCESS = "foreign_process"
    CLOCK_STEP = "clock_step"
    OVER_SATURATED = "over_saturated"
    USAGE_MISSING = "usage_missing"
    TWO_SERVERS = "two_servers"
    START_FAILED = "start_failed"
    KV_POOL_SHRUNK = "kv_pool_shrunk"
    MEMBER_LOST = "member_lost"
    INTERRUPTED = "interrupted"


ADVICE: dict[ValidityCode, str] = {
    ValidityCode.ERRORS: "Requests that failed say nothing about speed; the server's log, or what the tool said, has their cause.",
    ValidityCode.WRONG_SERVER: "Another server answers on this port; free the port.",
    ValidityCode.FOREIGN_TRAFFIC: "Someone else sends requests to this server; keep it to this study while it is measured.",
    ValidityCode.CLIENT_BOUND: "The load generator was the limit; give it its own cores or another host.",
    ValidityCode.CACHED_PREFIX: "Prompts hit the prefix cache more than the workload declares; salt the prompts or flush the cache.",
    ValidityCode.OUTPUT_LENGTH: "Requests ended early or late; make the server honour ignore_eos or compare fixed lengths.",
    ValidityCode.NEVER_STEADY: "Throughput never settled; lengthen the warm-up or look for another tenant of the box.",
    ValidityCode.TOO_FEW_REQUESTS: "Too few tokens were produced for a rate; lengthen the window.",
    ValidityCode.THROTTLED: "The GPU was throttled; check cooling and the power cap.",
    ValidityCode.FOREIGN_PROCESS: "A foreign process used the GPU; stop it.",
    ValidityCode.CLOCK_STEP: "The clock jumped or the machine was suspended during the window.",
    ValidityCode.OVER_SATURATED: "The queue grew all the time; latency at this load is no property of the setting.",
    ValidityCode.USAGE_MISSING: "The server did not report token usage; the tokens could not be counted.",
    ValidityCode.TWO_SERVERS: "Two servers shared one log or port; stop the other one and measure again.",
    ValidityCode.START_FAILED: "This launch did not start, so something else answered; find out what holds the port.",
    ValidityCode.MEMBER_LOST: "One process of the deployment did not serve to the end, or not as the others; read its log and start the whole again.",
    ValidityCode.INTERRUPTED: "It was stopped before its window was over; the figures are those until then. Let it run to its end.",
    ValidityCode.KV_POOL_SHRUNK: "Something else held GPU memory when the server started; free it and start again.",
}


STOPPED_EARLY = "the first windows decided: stopped after"  # how the note begins of a load point that its first windows ended


class Invalidity(Frozen):
    code: ValidityCode
    detail: str


class LoadPoint(Frozen):
    """One load level. ``metrics`` holds e.g. output_tokens_per_s, requests_per_s, ttft_p50_ms, tpot_p50_ms, error_rate.

    A percentile appears only where the number of requests supports it."""

    concurrency: int
    requests_ok: int
    requests_failed: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    warmup_s: FiniteFloat = 0.0
    window_s: FiniteFloat
    metrics: dict[str, FiniteFloat]
    windows_tokens_per_s: tuple[FiniteFloat, ...] = ()
    errors: dict[str, int] = Field(default_factory=dict)
    mean_output_tokens: FiniteFloat | None = None
    client_cpu_share: FiniteFloat | None = None
    invalid: tuple[Invalidity, ...] = ()
    notes: tuple[str, ...] = ()


class Measurement(Frozen):
    """All load points taken from one launch in one go; ``points[0]`` is the target level."""

    points: tuple[LoadPoint, ...]
    samples_digest: str = ""

    @property
    def invalid(self) -> tuple[Invalidity, ...]:
        """Only the target level decides: a side level that is invalid is merely not reported."""
        return self.points[0].invalid if self.points else ()

    def at(self, concurrency: int) -> LoadPoint | None:
        return next((point for point in self.points if point.concurrency == concurrency), None)
