"""Cheap tests on the server that runs: which there are, what each costs in seconds, which facts it yields, and whether one of them
is worth its time before a launch is spent. Pure; it makes no test and knows no box."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from optimizer.core import economy
from optimizer.core.plan import Plan
from optimizer.core.predicate import Look, Operand, explain, operands
from optimizer.core.score import Hit, Scored, probability_of
from optimizer.core.state import State
from optimizer.model.base import Scalar
from optimizer.model.playbook import CheckEntry, EvidenceRule, Playbook
from optimizer.model.step import ORIGINAL, Check, Level

SETTLE_S = 6.0  # between two loads
OVERHEAD_S = 2.0  # of carrying a test to the box and reading its answer
PROC_SAMPLE_S = 10.0
READ_PROC_S = 5.0
MIN_BITS = 0.05  # below this an answer changes nobody's mind
WORTH_ASKING = 0.10  # below this nothing but a prior speaks for a cause
NEAR_CERTAIN = 0.85  # from here on the launch itself is the cheapest test
WORTH_A_LAUNCH = 0.20  # rank.MIN_PROBABILITY
OPEN = ("open", "stale")
TYPICAL_START_MINUTES = 2.0  # of a server that was found running and was never started by this study

Yield = tuple[str, Mapping[str, Scalar]]


@dataclass(frozen=True)
class Kind:
    """One cheap test. ``yields``: the facts that it can state, with the labels that they will carry."""

    name: str
    text: str  # what is done, for people
    yields: tuple[Yield, ...]
    around: bool = False  # needs the load where a step is expected
    loads: bool = True  # offers load of its own
    real_only: bool = False  # a simulated server's processes are not the server's work


_PROCESSES = ("engine", "scheduler", "tokenizer", "detokenizer", "api_server", "worker", "client")

CATALOGUE: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("concurrency_sweep", "load it below, at and above the suspected limit",
             (("client.knee_concurrency", {}), ("probe.speed_ratio", {"probe": "one_above_limit", "metric": "client.itl_ms_p50"})), around=True),
        Kind("single_stream", "load it with one request and with sixteen at a time", (("probe.speed_ratio", {"probe": "concurrency_up"}),)),
        Kind("second_client", "offer the same load from two generators at once", (("client.output_tps", {"target": "second_client"}),)),
        Kind("repeat_in_process", "run the same load once more on the warm server", (("validity.repeat_ratio", {}), ("validity.run_cv", {}))),
        Kind("cpu_profile", "watch the CPU time of the server's threads under load",
             (("host.cpu_sat", {}), *(("host.proc_cpu_pct", {"process": name}) for name in _PROCESSES)), real_only=True),
        Kind("read_proc", "read what the kernel says of the server's processes",
             (("host.cpu_throttled_periods", {}), ("host.cpu_steal_pct", {}), ("host.cpu_quota_cores", {}), ("host.numa_remote_share", {}), ("nccl.env", {})),
             loads=False, real_only=True),
        Kind("flush_cache", "flush the prefix cache and send one prompt cold and warm",
             (("probe.speed_ratio", {"probe": "warm_prompt", "metric": "client.ttft_ms_p50"}),), loads=False),
        Kind("nccl_log", "read the log file that NCCL was told to write",
             (("nccl.transport", {}), ("nccl.version", {}), ("nccl.protocol", {}), ("nccl.channels", {}), ("nccl.env", {})), loads=False),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Offer:
    """One test that could be made now: ``bits`` that it is expected to tell, ``minutes`` that it costs, and the launch minutes that
    its answer is expected to save."""

    kind: Kind
    hypothesis: str  # whose playbook names it
    bits: float
    minutes: float
    saves_minutes: float
    about: tuple[str, ...]  # every cause that its answer speaks about
    around: int | None
    width: Literal["one", "double"]
    levels: tuple[Level, ...]
    seconds: float

    @property
    def value(self) -> float:
        return economy.probe_value([self.bits], self.minutes)


def next_check(state: State, plan: Plan, look: Look, scored: Sequence[Scored], *, key: str) -> Check | None:
    """The test to make on the running server before the next launch; None where none is worth its minutes."""
    launch = running_baseline(state)
    offer = best_offer(state, plan, look, scored) if launch is not None else None
    if launch is None or offer is None:
        return None
    return Check(
        key=key, launch=launch, test=offer.kind.name, levels=offer.levels, around=offer.around, width=offer.width, seconds=offer.seconds, run_index=state.runs,
        reference_tokens_per_s=_measured_rate(state), hypothesis=offer.hypothesis, about=offer.about, bits=round(offer.bits, 4), minutes=round(offer.minutes, 4),
        saves_minutes=round(offer.saves_minutes, 4),
    )  # fmt: skip


def _measured_rate(state: State) -> float | None:
    """Output tokens/s of the latest run on the current baseline, at the target's load."""
    points = state.base_arm.results[-1].points if state.base_arm.results else ()
    return points[0].metrics.get("output_tokens_per_s") if points else None


def running_baseline(state: State) -> str | None:
    """The launch on which evidence about the current baseline can be gathered right now."""
    server = state.server
    if server is not None:
        return server.key if server.status == "measured" and server.settings == state.baseline else None
    return ORIGINAL if state.original_running and not state.promoted and state.base_arm.results else None


def best_offer(state: State, plan: Plan, look: Look, scored: Sequence[Scored]) -> Offer | None:
    """The test with the most information per minute, if it beats the next launch and may save more minutes than it costs."""
    worth = [offer for offer in offers(state, plan, look, scored) if offer.bits >= MIN_BITS and offer.saves_minutes > offer.minutes]
    per_minute = _launch_bits_per_minute(state)
    worth = [offer for offer in worth if offer.value > per_minute]
    return min(worth, key=lambda offer: (-offer.value, offer.kind.name), default=None)


def offers(state: State, plan: Plan, look: Look, scored: Sequence[Scored]) -> list[Offer]:
    """Every test that a playbook of a living suspicion names and that was not made on this baseline."""
    assert state.spec is not None
    rows = {row["id"]: row for row in state.ranked}
    top = _top(state)
    if top is not None and top["probability"] >= NEAR_CERTAIN:
        return []
    alive = {item.id: item for item in scored if _asked(state, rows.get(item.id), item)}
    found: dict[tuple[str, int | None, str], Offer] = {}
    for item in scored:
        book = plan.playbook(item.id)
        if book is None or item.id not in alive:
            continue
        for entry in book.checks:
            kind = CATALOGUE[entry.test]
            around = _around(entry, look)
            if _made(kind.name, around) in state.base_arm.checked or (kind.name, around, entry.width) in found or not _possible(state, kind, around):
                continue
            found[kind.name, around, entry.width] = _offer(state, plan, look, kind, book, entry.width, around, alive, top)
    return list(found.values())


def _made(test: str, around: int | None) -> str:
    """Name under which a test that was made is remembered: one around another limit is another test."""
    return test if around is None else f"{test}@{around}"


def _asked(state: State, row: Mapping[str, Any] | None, item: Scored) -> bool:
    """Suspicions that a test is made for: still open, above their prior's doubt, and with something to do about them."""
    belief = state.beliefs.get(item.id)
    open_ = belief is None or belief.status in OPEN
    return open_ and item.probability >= WORTH_ASKING and row is not None and (row["hand_over"] or row["ratio"] is not None)


def _top(state: State) -> Mapping[str, Any] | None:
    testable = [row for row in state.ranked if row["testable"]]
    return min(testable, key=lambda row: (-row["value"], row["id"]), default=None)


def _around(entry: CheckEntry, look: Look) -> int | None:
    value = look.facts.number(entry.around) if entry.around else None
    return int(value) if value is not None and 2 <= value <= 4096 else None


def _possible(state: State, kind: Kind, around: int | None) -> bool:
    assert state.spec is not None
    simulated = state.spec.host.kind == "sim"
    if kind.real_only and simulated:
        return False
    if kind.around and around is None:
        return False
    return kind.name != "nccl_log" or bool(state.effective.get("env.NCCL_DEBUG_FILE"))


def _offer(
    state: State, plan: Plan, look: Look, kind: Kind, book: Playbook, width: Literal["one", "double"], around: int | None, alive: Mapping[str, Scored], top: Mapping[str, Any] | None,
) -> Offer:  # fmt: skip
    levels, seconds = _load_of(state, kind, around, width)
    informed = {}
    for name, item in alive.items():
        other = plan.playbook(name)
        weights = _weights(other, item, look, _narrowed(kind, width)) if other is not None else None
        if weights is not None:
            informed[name] = weights
    bits = math.fsum(economy.expected_information_bits(alive[name].probability, *weights) for name, weights in informed.items())
    saves = max((_saves(state, alive[name], weights, top) for name, weights in informed.items()), default=0.0)
    return Offer(kind, book.id, bits, cost_s(kind, levels, seconds) / 60.0, saves, tuple(sorted(informed)), around, width, levels, seconds)


def _weights(book: Playbook, item: Scored, look: Look, kind: Kind) -> tuple[float, float] | None:
    """How the test's answer would move this cause's score, (if true, if false) in decibans; None where it could not."""
    best: tuple[float, float] | None = None
    for rule in book.evidence:
        if not _answerable(rule, look, kind):
            continue
        now = next((hit for hit in item.hits if hit.group == rule.group and hit.counted), None)
        pair = (_moves(now, rule.if_true_db), _moves(now, rule.if_false_db))
        if pair[0] * pair[1] < 0 and (best is None or pair[0] - pair[1] > best[0] - best[1]):
            best = pair
    return best


def _moves(now: Hit | None, db: float) -> float:
    """Of rules about one observation only the strongest counts: a weaker answer moves nothing."""
    if now is None:
        return db
    return db - now.db if abs(db) > abs(now.db) else 0.0


def _answerable(rule: EvidenceRule, look: Look, kind: Kind) -> bool:
    """Whether the test alone turns this rule from unanswered into answered."""
    if explain(rule.when, look).value is not None:
        return False
    yielded = False
    for operand in operands(rule.when):
        if operand.kind != "fact":
            continue
        if _states(kind, operand):
            yielded = True
        elif look.facts.get(operand.name, **operand.labels) is None:
            return False
    return yielded


def _saves(state: State, item: Scored, weights: tuple[float, float], top: Mapping[str, Any] | None) -> float:
    """Launch minutes that the answer is expected to save: those of a launch for the wrong cause, or of ending without the right one."""
    if_true, if_false = weights
    yes, no = 10 ** (if_true / 10), 10 ** (if_false / 10)
    given_false = (1 - no) / (yes - no)
    seen = item.probability * yes * given_false + (1 - item.probability) * given_false
    after_true, after_false = probability_of(item.score_db + if_true), probability_of(item.score_db + if_false)
    minutes = launch_minutes(state)
    if top is None:
        # Nothing is worth a launch as it stands: a cause that would come alive is worth the launch that nobody would make.
        return seen * minutes if after_true >= WORTH_A_LAUNCH > item.probability or after_true >= 0.5 > item.probability else 0.0
    test = minutes * max(1.0, float(top.get("launches") or 1.0))
    if item.id == top["id"]:
        runner_up = max((row["value"] for row in state.ranked if row["testable"] and row["id"] != top["id"]), default=0.0)
        value_after = top["value"] * after_false / max(item.probability, 1e-9)
        return (1 - seen) * test if after_false < WORTH_A_LAUNCH or value_after < runner_up else 0.0
    row = next((row for row in state.ranked if row["id"] == item.id), None)
    if row is None or row["value"] * after_true / max(item.probability, 1e-9) <= top["value"]:
        return 0.0
    return seen * (1 - float(top["probability"])) * test


def _launch_bits_per_minute(state: State) -> float:
    """What the next launch is expected to tell per minute: whether its cause is the cause."""
    top = _top(state)
    if top is None:
        return 0.0
    return economy.probe_value([economy.entropy_bits(float(top["probability"]))], launch_minutes(state) * max(1.0, float(top.get("launches") or 1.0)))


def launch_minutes(state: State) -> float:
    """Minutes of one measured launch in this study: what its launches took so far, else start-up unknown and the windows alone."""
    assert state.spec is not None
    load = state.spec.workload
    windows = (load.warmup_min_s + load.window_s + len(load.side_levels) * (load.warmup_min_s / 3 + load.side_window_s)) / 60.0
    launches = state.launches_baseline + state.launches_after
    return max(windows, state.minutes / launches) if launches else windows + TYPICAL_START_MINUTES


def _narrowed(kind: Kind, width: str) -> Kind:
    """What a sweep of this width can state: only one request more shows the length of a step."""
    return replace(kind, yields=kind.yields[:1]) if kind.around and width == "double" else kind


def _load_of(state: State, kind: Kind, around: int | None, width: str) -> tuple[tuple[Level, ...], float]:
    """The loads of a test and how long processes are watched."""
    assert state.spec is not None
    load = state.spec.workload

    def level(concurrency: int, window_s: float | None = None) -> Level:
        return Level(concurrency=concurrency, warmup_min_s=load.warmup_min_s / 6, warmup_max_s=load.warmup_min_s / 3, window_s=window_s or load.side_window_s)

    c = load.concurrency
    match kind.name:
        case "concurrency_sweep":
            assert around is not None
            below, above = (around - 1, around + 1) if width == "one" else (max(1, around // 2), 2 * around)
            return (level(below), level(around), level(above)), 0.0
        case "single_stream":
            return (level(1), level(16)), 0.0
        case "second_client":
            return (level(max(1, c - c // 2)), level(max(1, c // 2))), 0.0
        case "repeat_in_process":
            # As long as the run that it is compared with is level for: a fraction of a wave of requests says little.
            return (Level(concurrency=c, warmup_min_s=load.warmup_min_s, warmup_max_s=load.warmup_max_s, window_s=max(load.side_window_s, load.window_s / 2)),), 0.0
        case "cpu_profile":
            return (level(c, max(load.side_window_s, PROC_SAMPLE_S)),), PROC_SAMPLE_S
        case "read_proc":
            return (), READ_PROC_S
        case _:
            return (), 0.0


def cost_s(kind: Kind, levels: Sequence[Level], seconds: float) -> float:
    """Seconds of the server's time: two generators at once cost one run."""
    runs = [level.warmup_min_s + level.window_s for level in levels]
    loaded = max(runs, default=0.0) if kind.name == "second_client" else math.fsum(runs) + SETTLE_S * max(0, len(runs) - 1)
    return OVERHEAD_S + max(loaded, seconds)


def problems_of(book: Playbook) -> list[tuple[int, str]]:
    """(index of the entry, what is wrong): a test that nobody can make, or one whose answer no rule of the playbook reads."""
    found = []
    for index, entry in enumerate(book.checks):
        kind = CATALOGUE.get(entry.test)
        if kind is None:
            found.append((index, f"there is no test {entry.test} (there are {', '.join(sorted(CATALOGUE))})"))
        elif kind.around and not entry.around:
            found.append((index, f"{entry.test} needs `around`: the fact that holds the load where a step is expected"))
        elif entry.around and not kind.around:
            found.append((index, f"{entry.test} has no use for `around`"))
        elif entry.width != "one" and not kind.around:
            found.append((index, f"{entry.test} has no use for `width`"))
        elif not any(_reads(rule, _narrowed(kind, entry.width)) for rule in book.evidence):
            stated = ", ".join(dict.fromkeys(name for name, _ in kind.yields))
            found.append((index, f"{entry.test} decides nothing here: no rule reads what it states ({stated})"))
    return found


def _reads(rule: EvidenceRule, kind: Kind) -> bool:
    return any(operand.kind == "fact" and _states(kind, operand) for operand in operands(rule.when))


def _states(kind: Kind, operand: Operand) -> bool:
    """Whether the test states the fact that a rule asks for. What it did to one metric answers only who asks for that metric."""
    return any(
        name == operand.name
        and all(labels.get(key) == value for key, value in operand.labels.items())
        and ("metric" not in labels or "metric" in operand.labels)
        for name, labels in kind.yields
    )

