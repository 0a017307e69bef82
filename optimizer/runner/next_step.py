"""What to do next where no cause stands, or where the numbers behind one must not be believed: the cheapest observation that
decides. Text for people; it looks at facts and starts nothing."""

from collections.abc import Sequence

from optimizer.core.predicate import Look
from optimizer.core.score import Scored
from optimizer.knowledge.library import Library
from optimizer.model.diagnosis import LevelCeiling, Reason
from optimizer.model.evidence import Evidence
from optimizer.model.measurement import ADVICE, Invalidity, ValidityCode

# Below this nothing is suspected at all: odds of 1:2 against the best idea.
SUSPECT_DB = -3.0
# What speaks less is a prerequisite (playbooks/WEIGHTS.md): true of nearly every launch, so it points nowhere.
HINT_DB = 1.0


def failed_start(facts: Evidence) -> bool:
    return facts.value("startup.outcome", "ok") not in ("ok", None)


def held_back(facts: Evidence) -> float | None:
    """How many requests wait, where as many wait as run: whatever the cause, a server that lets them wait is not healthy."""
    waiting = facts.number("queue.depth_p95")
    waiting = facts.number("queue.depth_p50") if waiting is None else waiting
    running = facts.number("decode.batch_p90") or facts.number("decode.batch_p50")
    return waiting if waiting is not None and waiting >= max(running or 0.0, 1.0) else None


def launch_cost(facts: Evidence) -> str:
    """One relaunch, in minutes where this launch's own start and benchmark were timed."""
    start = next((fact.value for fact in facts.all("startup.phase_s") if fact.labels.get("stage") == "total"), None)
    windows = [fact.value for fact in facts.all("client.duration_s") if "concurrency" in fact.labels]
    measured = sum(value for value in windows if isinstance(value, int | float) and not isinstance(value, bool))
    if isinstance(start, bool) or not isinstance(start, int | float):
        return "one relaunch"
    return (
        f"one relaunch, about {max(round((start + measured) / 60 + 0.49), 1)} min (this one started in {start:.0f} s)"
    )


def next_observation(reason: Reason, scored: Sequence[Scored], library: Library, look: Look) -> str:
    """The cheapest observation that would tell the best ideas apart."""
    if reason == "healthy":
        return "Nothing deviates at this load. Measure at the concurrency that matters, or name a target, to learn more. Cost: a benchmark, no relaunch."
    if reason == "load_limited":
        return "The server serves all that is offered. Raise the offered load until requests wait, and look again. Cost: a benchmark, no relaunch."
    if failed_start(look.facts):
        return _after_a_failed_start(look.facts)
    waiting = held_back(look.facts)
    if waiting is not None and not any(item.supporting and item.score_db > SUSPECT_DB for item in scored):
        return _what_holds_them_back(waiting, look.facts)
    costs = {test.name: test.cost or "run" for test in library.vocabulary.tests}
    order = {"none": 0, "run": 1, "relaunch": 2, "host": 3}
    ranked = [item for item in scored if item.score_db > item.prior_db and any(hit.db >= HINT_DB for hit in item.supporting)][:3]
    choices = [
        (order.get(costs.get(name, "run"), 1), position, name, item.id)
        for position, item in enumerate(ranked)
        for name in library.by_id[item.id].tests
    ]
    if not choices:
        return _what_was_not_seen(look.facts)
    _, _, name, cause = min(choices)
    book = library.by_id[cause]
    cost = {"none": "no load needed", "run": "no relaunch", "relaunch": "one relaunch", "host": "a change of the host"}
    return f"{book.discriminating_test} ({name}, {cost.get(costs.get(name, 'run'), 'no relaunch')}; it decides {cause})"


def _what_holds_them_back(waiting: float, facts: Evidence) -> str:
    said = f"{waiting:.0f} requests wait, and nothing that was read says what holds them back."
    limit = facts.number("scheduler.max_running")
    if limit is None:
        return f"{said} Find the limit of running requests (scheduler.max_running: the server's arguments), and look again. Cost: none."
    running = facts.number("decode.batch_p90")
    if running is not None and running < limit:
        return (
            f"{said} Only {running:.0f} of at most {limit:.0f} run: look at the token budget of a step, the limits of partial "
            "prefills and the context that requests reserve. Cost: none."
        )
    return (
        f"{said} Double the limit of running requests ({limit:.0f}) and run once at the same load: more of them run, or "
        "the KV pool, the token budget of a step or the client holds them. Cost: one relaunch."
    )


def observed(facts: Evidence) -> dict[str, bool]:
    """Whether a running server's speed, steps and settings were seen; without all three nobody can call it healthy."""
    return {what: any(facts.get(name) for name in names) for what, names in _SEEN.items()}


_SEEN = {
    "speed": ("client.output_tps", "client.requests_per_s", "decode.throughput_tps"),
    "steps": ("decode.batch_p50", "decode.batch_p90", "decode.step_ms_p50"),
    "settings": ("scheduler.max_running", "graphs.mode", "kv.pool_tokens"),
}
_WHERE = {
    "speed": "a benchmark (bench.json)",
    "steps": "the log or the metrics of the server under load (server.log, metrics.txt)",
    "settings": "the start of its log, or its arguments (server.log, server_info.json, launch.json)",
}


def _what_was_not_seen(facts: Evidence) -> str:
    unseen = [what for what, seen in observed(facts).items() if not seen]
    if not unseen:
        return "Nothing that was read points to a cause. Measure at the concurrency that matters, and look again. Cost: a benchmark, no relaunch."
    return f"Nothing that was read points to a cause. Add {'; '.join(_WHERE[what] for what in unseen)}, and look again. Cost: no relaunch."


def measure_again(doubt: Invalidity) -> str:
    """How to get numbers that can be believed, in place of those of ``doubt``."""
    return f"{_cleanly(doubt)}, and look at that. Cost: {_clean_cost(doubt)}."


def clean_first(doubt: Invalidity, facts: Evidence, cause: str, action: str) -> str:
    """A cause stands, on numbers that must not be believed: a launch is worth more than a benchmark, so measure first.
    Where the server hangs, failed requests are what is to be explained, and the action stands."""
    hangs = facts.value("scheduler.stalled") is True or facts.value("startup.outcome") == "hang"
    if doubt.code == ValidityCode.ERRORS and hangs:
        return action
    return f"Before any change: {_cleanly(doubt)}. Cost: {_clean_cost(doubt)}. Only if {cause} is still named then: {action}"


def _cleanly(doubt: Invalidity) -> str:
    if doubt.code == ValidityCode.TWO_SERVERS:
        return "Separate the servers, each with a log and a port of its own, and measure again"
    return f"{ADVICE[doubt.code].rstrip('.')}; then measure again"


def _clean_cost(doubt: Invalidity) -> str:
    """A pool that was sized beside somebody else stays small until the server starts again."""
    return "one start, with nothing changed" if doubt.code in _NEEDS_A_START else "a benchmark, no relaunch"


_NEEDS_A_START = (ValidityCode.KV_POOL_SHRUNK, ValidityCode.START_FAILED, ValidityCode.TWO_SERVERS)


def beyond_the_roofline(levels: Sequence[LevelCeiling]) -> str | None:
    """What to correct where a level was measured faster than its GPU can be; None where none was."""
    at = [str(level.concurrency) for level in levels if level.contradicts]
    if not at:
        return None
    return (
        f"The speed measured at concurrency {', '.join(at)} is more than this GPU can give with this model: correct the GPU's name, the number "
        "of GPUs, the model (config.json) or the count of tokens, and look again. Cost: none."
    )


def _after_a_failed_start(facts: Evidence) -> str:
    outcome, message = facts.value("startup.outcome"), facts.value("startup.message")
    said = f": {message.strip()[:200].rstrip(chr(46))}" if isinstance(message, str) and message.strip() else ""
    if outcome == "timeout":
        return f"The server was stopped before it was ready ({outcome}){said}. Allow it more time, and look again. Cost: one start."
    return (
        f"The server never became ready ({outcome}){said}. Correct that, start again, and look again. Cost: one start."
    )
