"""Whether a recorded measurement can be believed: rules over facts of its log, its metrics and the load that was declared. Pure.

Each rule rests on an argument that holds for every engine, not on a case; a fact that is missing accuses nobody. The load
generator judges itself (``bench/run.py``); this module judges everything around it."""

from collections.abc import Callable, Iterable

from optimizer.model.evidence import Evidence
from optimizer.model.measurement import Invalidity, ValidityCode

# A gauge may lag the client by one request, and an engine notices a client that hung up only after seconds (SGLang: four).
# Hence the tenth-highest share of the snapshots counts, not the highest, and 2 % plus one request are allowed.
IN_FLIGHT_SLACK = 1.02
IN_FLIGHT_MORE = 1
# The pool gets what is left of the engine's share of the memory after weights; activations and graphs take some, never half.
POOL_SHARE_LEAST = 0.5
# Equal settings give pools that differ by the profiler's rounding: 1.5 % over 30 recorded launches.
POOL_RATIO_LEAST = 0.8
POOL_CAPS = ("max_total_tokens", "num_gpu_blocks_override", "kv_cache_memory_bytes", "kv_cache_memory")
DEFAULT_SHARE = 0.9  # vLLM's gpu_memory_utilization where nothing is said; SGLang always prints its own
SERVING = ("ready", "listening")
# A request that failed took no time of the server: from one in a hundred on, the rates are not those of served requests.
FAILED_SHARE_MOST = 0.01


def invalidities(evidence: Evidence, *, gpu_memory_gib: float | None = None) -> tuple[Invalidity, ...]:
    """What makes the measurement behind ``evidence`` unusable, worst first; empty when nothing speaks against it.

    ``gpu_memory_gib``: the memory of one GPU by its data sheet, for evidence that does not say it.
    """
    found = (rule(evidence) for rule in _RULES)
    pool = _pool_shrunk(evidence, gpu_memory_gib)
    return tuple(item for item in (*found, pool) if item is not None)


def in_flight_limit(concurrency: float) -> float:
    """The most requests that a server can hold while one closed-loop client keeps ``concurrency`` of them open."""
    return concurrency * IN_FLIGHT_SLACK + IN_FLIGHT_MORE


def foreign_in_flight(samples: Iterable[float], concurrency: int) -> Invalidity | None:
    """The same rule for live samples of running plus waiting requests. None where it does not hold or nothing was sampled."""
    busy = sorted(value for value in samples if value > 0)
    if not busy:
        return None
    high = busy[max(0, -(-len(busy) * 9 // 10) - 1)]
    return _more_than_sent(high, concurrency)


def _more_than_sent(high: float, concurrency: float) -> Invalidity | None:
    if high <= in_flight_limit(concurrency):
        return None
    return Invalidity(
        code=ValidityCode.FOREIGN_TRAFFIC,
        detail=f"the server held {high:.0f} requests a tenth of the time or more, the client keeps at most {concurrency:.0f} open",
    )


def _errors(evidence: Evidence) -> Invalidity | None:
    """Rates and latencies of a benchmark are those of its requests that were served; failed ones end early and cost nothing."""
    failed, sent = evidence.number("client.failed_requests"), evidence.number("client.requests")
    if not failed or not sent or failed < FAILED_SHARE_MOST * sent:
        return None
    which = "all" if failed >= sent else f"{failed:.0f} of"
    return Invalidity(code=ValidityCode.ERRORS, detail=f"{which} {sent:.0f} requests of the benchmark failed")


def _two_servers(evidence: Evidence) -> Invalidity | None:
    """A launch has one server process and a log of its own. With lines of two, no line can be pinned to the one that was measured."""
    servers = evidence.number("validity.servers_in_log")
    if servers is None or servers < 2:
        return None
    return Invalidity(
        code=ValidityCode.TWO_SERVERS,
        detail=f"{servers:.0f} servers wrote into this log: what it says may be of one, what was measured of another",
    )


def _failed_start(evidence: Evidence) -> Invalidity | None:
    """A launch that answered requests cannot have failed to start: whoever answered is not the server of this log."""
    if evidence.value("startup.outcome") != "ok":
        return None  # recorded as failed: nothing was measured that could be believed
    failed = evidence.number("validity.failed_starts")
    if failed:
        return Invalidity(
            code=ValidityCode.START_FAILED,
            detail="an engine failed to start in this log although requests were answered: another server answered them",
        )
    stage = evidence.get("startup.last_stage")
    if stage is None or stage.value in SERVING or evidence.number("decode.lines"):
        return None  # a quiet log proves nothing
    return Invalidity(
        code=ValidityCode.START_FAILED,
        detail=f"the log ends its start at stage {stage.value!r} and never serves, although requests were answered: "
        "another server answered them",
    )


def _foreign_traffic(evidence: Evidence) -> Invalidity | None:
    """A closed loop of c clients never has more than c requests open, and a server counts each at most once."""
    concurrency, high = evidence.number("client.concurrency"), evidence.number("server.in_flight_p90")
    if concurrency is None or high is None or evidence.number("client.request_rate") is not None:
        return None  # an open loop may have any number open
    return _more_than_sent(high, concurrency)


def _pool_ratio(evidence: Evidence) -> Invalidity | None:
    """The pool is a function of the settings and of the GPU: the same settings on the same box give the same pool."""
    ratio = evidence.number("validity.kv_pool_ratio")
    if ratio is None or ratio >= POOL_RATIO_LEAST:
        return None
    return Invalidity(
        code=ValidityCode.KV_POOL_SHRUNK, detail=f"the KV pool is {ratio:.0%} of the one that the same settings gave before"
    )


def _pool_shrunk(evidence: Evidence, sheet_gib: float | None) -> Invalidity | None:
    """Engines size the pool from what their share of the GPU leaves after the weights. Far less means that somebody else held it."""
    pool, weights = evidence.number("memory.kv_gib"), evidence.number("memory.weights_gib")
    total = evidence.number("gpu.memory_total_gib") or sheet_gib
    if pool is None or weights is None or not total or evidence.value("model.hybrid_state") is True:
        return None  # a hybrid model's states take their part of the same memory
    share = evidence.number("memory.fraction_static")
    for name in ("settings.asked", "settings.resolved"):
        given = evidence.value(name)
        if isinstance(given, dict):
            if any(given.get(cap) is not None for cap in POOL_CAPS):
                return None  # the user chose the size
            asked = given.get("gpu_memory_utilization")
            share = float(asked) if isinstance(asked, int | float) and asked is not True else share
    expected = (DEFAULT_SHARE if share is None else share) * total - weights - (evidence.number("memory.draft_weights_gib") or 0.0)
    if expected <= 0 or pool >= POOL_SHARE_LEAST * expected:
        return None
    return Invalidity(
        code=ValidityCode.KV_POOL_SHRUNK,
        detail=f"the KV pool got {pool:.1f} GiB of a GPU where {expected:.0f} GiB are left after the weights: "
        "something else held memory at the start",
    )


_RULES: tuple[Callable[[Evidence], Invalidity | None], ...] = (
    _two_servers,
    _failed_start,
    _errors,
    _foreign_traffic,
    _pool_ratio,
)
