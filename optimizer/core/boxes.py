"""The fold of a study on several boxes of one class. Each box has a part of its own: server, arms, comparator, noise and test, so that no
comparison ever mixes boxes. What a test taught is everybody's, and what was promoted on one box becomes the baseline of each as soon
as its own test is settled. Pure; decides nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from optimizer.errors import JournalCorrupt
from optimizer.model.entry import Entry, EntryKind

if TYPE_CHECKING:
    from optimizer.core.state import Belief, State

Handler = Callable[["State", Entry], "State"]
# What these say about a cause holds on every box of the class. A promotion is taken over with its baseline, see ``_adopting``.
_SHARED = frozenset({EntryKind.JUDGED, EntryKind.PRUNED, EntryKind.DEFERRED, EntryKind.REFUSED, EntryKind.ROLLED_BACK, EntryKind.NOTE})
BOX_ENDINGS = ("unfit", "needs_operator", "guard_fired")  # these end the work on one box, the others that of the study


def folded(state: State, entry: Entry, handler: Handler) -> State:
    """The whole after one more entry. Raises JournalCorrupt where it names a box that the study does not have."""
    parts = dict(state.boxes)
    closing, closed = state.closing, state.closed
    if entry.box:
        if entry.box not in parts:
            raise JournalCorrupt(f"Entry {entry.seq} is about the box {entry.box!r}, which is not one of this study.")
        before, after = parts[entry.box], handler(parts[entry.box], entry)
        if entry.kind == EntryKind.PROMOTED:
            after = replace(after, adopted=False)
        parts[entry.box] = after
        if entry.kind in _SHARED:
            parts = _taught(parts, before, after, entry)
    elif entry.kind == EntryKind.CLOSED:
        closed = entry.body
    else:
        # A box that ended for itself goes its own way to its end state.
        parts = {name: handler(part, entry) if part.closing is None else part for name, part in parts.items()}
        closing = closing or handler(replace(state, boxes={}), entry).closing
    parts = {name: replace(part, seq=entry.seq) for name, part in _adopting(parts, closing is not None).items()}
    return replace(whole(state, parts), closing=closing, closed=closed)


def whole(state: State, parts: Mapping[str, State]) -> State:
    """The study as people see it: the part of the box that knows most of what was kept, with what all of them spent and found."""
    every = tuple(parts.values())
    first = max(enumerate(every), key=lambda item: (_kept(item[1]), item[1].base_arm.confirmed is not None, *_rank(*item)))[1]
    return replace(
        first, seq=state.seq, spec=state.spec, box="", boxes=parts, peers=(), open=None, open_failures=0, last_hash=state.last_hash,
        launches_baseline=sum(one.launches_baseline for one in every), launches_after=sum(one.launches_after for one in every),
        launch_count=sum(one.launch_count for one in every), duration_s=max(one.duration_s for one in every),
        flips=tuple(sorted((flip for one in every for flip in one.flips), key=lambda flip: int(flip["entry"]))),
        drifts=sum(one.drifts for one in every), closing=state.closing, closed=state.closed,
    )  # fmt: skip


def leading(parts: Sequence[State]) -> State:
    """The box that confirms and ends the study: of those at work the one with the most promotions, made by itself if possible."""
    return max(enumerate(parts), key=lambda item: _rank(*item))[1]


def _rank(place: int, part: State) -> tuple[bool, int, bool, bool, int]:
    return is_at_work(part), len(part.promoted), not part.adopted, bool(part.base_arm.results), -place


def _kept(part: State) -> int:
    """Promotions that nobody will take back any more, or that the box is about to confirm."""
    return len(part.promoted) - (part.provisional is not None and not is_at_work(part))


def is_at_work(part: State) -> bool:
    """Neither lost nor ended for itself. While the whole study closes, its boxes still count as at work."""
    return not part.lost and (part.closing is None or part.closing.ending not in BOX_ENDINGS)


def ordered(part: State) -> list[State]:
    """This part and its peers, in the order in which the boxes were named."""
    assert part.spec is not None
    place = {one.name: at for at, one in enumerate(part.spec.boxes)}
    return sorted((part, *part.peers), key=lambda one: place[one.box])


def is_leading(part: State) -> bool:
    """Whether this is the only box, or the one that leads."""
    return not part.peers or leading(ordered(part)) is part


def pending(part: State) -> frozenset[str]:
    """Causes that other boxes are testing now, or promoted and did not confirm yet."""
    found: set[str] = set()
    for peer in part.peers:
        if peer.test is not None:
            found |= {peer.test.hypothesis, *peer.test.bundle, *peer.test.cures}
        if peer.provisional is not None:
            found |= {peer.provisional["hypothesis"], *peer.provisional.get("companions", ())}
    return frozenset(found)


def settled_elsewhere(part: State) -> list[Any]:
    """Settings that another box settled, or found not to run: no box tries them a second time. What a lost box was in the midst of is
    not among them."""
    tried = {digest for one in (part, *part.peers) for belief in one.beliefs.values() for digest in belief.tried}
    arms = [arm for peer in part.peers for arm in peer.arms.values()]
    return [arm.settings for arm in arms if arm.crashed or arm.given_up or arm.settings.digest in tried]


def measured_now(part: State) -> list[Any]:
    """Settings that another box is testing: they are left alone until that is settled, and refused for nothing."""
    return [peer.test.settings for peer in part.peers if peer.test is not None and peer.test.settings is not None]


def measured_elsewhere(part: State) -> list[tuple[Any, float | None]]:
    """(arm, ln) of what other boxes measured, as the ratio to their own baseline carried over to this one's; None: it does not run."""
    found: list[tuple[Any, float | None]] = []
    here = _mean(part.first_arm.results or part.first_arm.earlier)
    for peer in part.peers:
        there = _mean(peer.first_arm.results or peer.first_arm.earlier)
        for arm in peer.arms.values():
            value = _mean(arm.results)
            if arm.crashed and value is None:
                found.append((arm, None))
            elif value is not None and there is not None and here is not None and arm.settings.values:
                found.append((arm, here + value - there))
    return found


def _mean(results: Sequence[Any]) -> float | None:
    return math.fsum(result.ln for result in results) / len(results) if results else None


def _taught(parts: dict[str, State], before: State, after: State, entry: Entry) -> dict[str, State]:
    """The other boxes know what this one found out. A box that is already further takes it as what it is there: weak and open again."""
    changed = {name: belief for name, belief in after.beliefs.items() if before.beliefs.get(name) != belief}
    if not changed and after.bundle_failed == before.bundle_failed:
        return parts
    refusals = after.refusals[len(before.refusals) :]
    for name, part in parts.items():
        ahead = len(part.promoted) - len(after.promoted)
        if name == after.box or (ahead < 0 and entry.kind != EntryKind.ROLLED_BACK):
            continue
        known = {cause: _weaker(belief) for cause, belief in changed.items()} if ahead > 0 else changed
        parts[name] = replace(
            part, beliefs={**part.beliefs, **known}, belief_version=part.belief_version + 1, refusals=(*part.refusals, *refusals),
            bundle_failed=part.bundle_failed or (after.bundle_failed and ahead == 0),
        )  # fmt: skip
    return parts


def _weaker(belief: Belief) -> Belief:
    """As a promotion leaves it, see ``state._promoted``."""
    kept = belief.status == "supported" or belief.verdict == "harmful"
    status = "stale" if belief.status in ("pruned", "deferred", "refused") else belief.status
    return replace(belief, status=status, measured_db=belief.measured_db if kept else belief.measured_db / 2)


def _adopting(parts: dict[str, State], ends: bool) -> dict[str, State]:
    """Boxes without a test of their own take over the baseline that another one has promoted and, if it had to, confirmed. When the study
    ``ends`` all do that are at work: what is promoted is what may run on them afterwards."""
    firm = [part for part in parts.values() if part.provisional is None]
    tip = max(firm, key=lambda part: (len(part.promoted), not part.adopted), default=None)
    if tip is None:
        return parts
    for name, part in parts.items():
        behind = len(part.promoted) < len(tip.promoted) and part.test is None and part.provisional is None
        if behind and is_at_work(part) and (part.closing is None or ends):
            parts[name] = replace(
                part, baseline=tip.baseline, promoted=tip.promoted, promotions=tip.promotions, beliefs=tip.beliefs, ceiling=None, reach="none",
                out_of_reach="", bundle_failed=False, adopted=True, belief_version=part.belief_version + 1,
            )  # fmt: skip
    return parts


# ---- one class ----------------------------------------------------------------------------------------------------------


def model_of_class(part: State) -> State | None:
    """The box that all others must be like: the first that could be read. None while that is not known yet."""
    for one in ordered(part):
        if one.survey is not None:
            return one
        if not one.lost and one.survey_failure is None and one.closing is None:
            return None
    return part


def differences(model: State, part: State) -> list[str]:
    """What makes ``part`` another class of box, or another server, than ``model``: each with both values. Empty where it is the same."""
    there, here = model.survey or {}, part.survey or {}
    pairs = [(what, there.get(key), here.get(key)) for key, what in _CLASS]
    if not there.get("gpu_count"):
        pairs.append(("CPUs", there.get("cpus"), here.get("cpus")))
    pairs.append(("GPU memory in MiB", there.get("facts", {}).get("gpu.memory_mib"), here.get("facts", {}).get("gpu.memory_mib")))
    pairs.append(("driver", _fact(model, "gpu.driver"), _fact(part, "gpu.driver")))
    shape_there, shape_here = there.get("model_config_json"), here.get("model_config_json")
    if shape_there and shape_here and shape_there != shape_here:
        pairs.append(("model", _named(there), _named(here) if _named(here) != _named(there) else f"{_named(here)} with another config.json"))
    for name in sorted({*model.given, *part.given} - _PLACES):
        pairs.append((f"setting {name}", model.given.get(name), part.given.get(name)))
    return [f"{what} {_said(one)} there, {_said(other)} here" for what, one, other in pairs if one != other]


_CLASS = (("gpu", "GPU"), ("gpu_count", "GPUs"), ("interconnect", "interconnect"), ("engine", "engine"), ("engine_version", "engine version"))
# Where things lie on a box says nothing about how fast they are.
_PLACES = frozenset({"model", "model_path", "tokenizer", "tokenizer_path", "host", "port", "served_model_name", "api_key", "log_file", "download_dir"})


def _fact(part: State, name: str) -> Any:
    return next((fact.value for fact in part.survey_evidence.facts if fact.name == name), None)


def _named(survey: Mapping[str, Any]) -> str:
    return str(survey.get("model_path") or "model").rstrip("/").rpartition("/")[2]


def _said(value: Any) -> str:
    return "none" if value is None else str(value)
