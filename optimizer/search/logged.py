"""One replay of the evidence policy on a table whose launches left their logs: after each launch the log is read as after a
real one, and a setting that the server itself blames for a fallback, on a launch slower than the baseline, costs no further
launch. Reads no file; the caller gives the fallbacks of each configuration."""

import math
from collections.abc import Callable, Sequence

from optimizer.model.base import Frozen, Value
from optimizer.model.canonical import canonical_json
from optimizer.model.space import Direction
from optimizer.model.startup import Flip
from optimizer.search.encode import Array, plain_name
from optimizer.search.gaussian import Posterior
from optimizer.search.policies import Model
from optimizer.search.table import Table

_DEFAULT_NOISE = 0.02


class LoggedLaunch(Frozen):
    """One launch: ``fallbacks`` as the server's log tells them, ``pruned`` what was given up because of them."""

    configuration: dict[str, Value]
    value: float
    fallbacks: tuple[str, ...]
    pruned: tuple[str, ...] = ()


class LoggedRun(Frozen):
    launches: tuple[LoggedLaunch, ...]
    kept: str  # "baseline", or the number of the launch that is kept
    share_of_best: float  # of the table, of what is kept
    left: int  # configurations that were not launched
    why: str


def replay_with_logs(
    table: Table,
    directions: Sequence[Direction],
    fallbacks_of: Callable[[int], Sequence[Flip]],
    *,
    baseline: float,
    first: int | None = None,
    most_launches: int = 200,
) -> LoggedRun:
    """``baseline``: what was measured before any of the rows. ``first`` names the first launch instead of the policy."""
    model = Model(table, directions, knowledge=True)
    sign = 1.0 if table.direction == "max" else -1.0
    noise = table.noise() or _DEFAULT_NOISE
    gains, posterior, reached = table.gains(), Posterior(model.prior), -math.inf
    settings = [{plain_name(name): value for name, value in {**table.constant, **point}.items()} for point in table.points]
    pruned: dict[tuple[str, str], str] = {}
    launches: list[LoggedLaunch] = []
    best: tuple[float, int] | None = None
    good: set[tuple[str, str]] = set()  # branches that beat the baseline once: whatever the log says, they are no dead end
    left = set(range(len(table.points)))
    while left and len(launches) < most_launches:
        index = first if first is not None and not launches else _most_promising(posterior.expected_gain(reached) if launches else model.expected, left)
        left.discard(index)
        value, flips = table.values[index], fallbacks_of(index)
        given_up = []
        branches = {(plain_name(param), canonical_json(settings[index].get(plain_name(param)))): flip for flip in reversed(flips) for param in flip.blame}
        if sign * value > sign * baseline:
            good |= set(branches)
        if sign * math.log(max(value, 1e-12) / max(baseline, 1e-12)) < -noise:
            for branch, flip in branches.items():
                if branch not in good and branch not in pruned:
                    pruned[branch] = flip.fact
                    given_up.append(f"{branch[0]}={branch[1]}: {flip.fact} fell back to {flip.after}, and no launch with it beats the baseline")
        named = tuple(f"{flip.fact} fell back to {flip.after} because of {', '.join(flip.blame)} (line {flip.line})" for flip in flips)
        launches.append(LoggedLaunch(configuration=dict(table.points[index]), value=value, fallbacks=named, pruned=tuple(given_up)))
        if sign * value > (best[0] if best else sign * baseline):
            best = (sign * value, len(launches))
        left = {other for other in left if not any(canonical_json(settings[other].get(name)) == held for name, held in pruned)}
        posterior.observe(index, gains[index][0], model.noise**2)
        reached = max(reached, gains[index][0])
    untouched = len(table.points) - len(launches)
    why = "Every configuration that is left shares a setting that the server's own log blames." if pruned and untouched else "All configurations were launched."
    if not pruned and untouched:
        why = f"The limit of {most_launches} launches was reached."
    kept = baseline if best is None else sign * best[0]
    return LoggedRun(
        launches=tuple(launches), kept="baseline" if best is None else f"launch {best[1]}", share_of_best=round(table.share(kept), 4), left=untouched, why=why
    )


def _most_promising(score: Array, left: set[int]) -> int:
    """The first of those that are worth the most, up to what rounding differs by."""
    top = max(float(score[index]) for index in left)
    return min(index for index in left if float(score[index]) >= top - 1e-9 * max(1.0, abs(top)))
