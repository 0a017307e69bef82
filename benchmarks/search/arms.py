"""Prints what studies of one box had reached after each launch: evidence beside its control arms.

    python benchmarks/search/arms.py STUDY [STUDY …] [--runs FOLDER]

Read from the journals alone. Launches are counted from the first one after the baseline, repeated baselines and the confirmation among
them; the server that runs afterwards is none. A study that has ended keeps what it had reached."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from optimizer.core.state import State
from optimizer.journal import Journal
from optimizer.model.target import unit_of
from optimizer.wiring import Roots
from optimizer.wiring.exporting import trials_of


@dataclass(frozen=True)
class Curve:
    """What a study had reached: ``best[k]`` after k launches, ``best[0]`` the baseline. ``failed``: launches that gave no number."""

    name: str
    policy: str
    metric: str
    best: tuple[float, ...]
    failed: int
    confirmed: float | None
    ending: str


def curve_of(name: str, roots: Roots) -> Curve:
    with Journal.open(roots.named(name), write=False) as journal:
        state, trials = trials_of(journal.read())
    assert state.spec is not None
    primary = state.spec.target.primary
    less = primary is not None and primary.direction != "at_least"
    first = _baseline(state)
    best, failed, skipped = [first], 0, not state.original_found  # the baseline's own launch, unless a running server was measured
    for trial in trials:
        if trial.notes["purpose"] == "final":
            continue
        if skipped and trial.notes["purpose"] == "baseline":
            skipped = False
            continue
        failed += trial.value is None
        value = best[-1] if trial.value is None else trial.value
        best.append(min(best[-1], value) if less else max(best[-1], value))
    closed = state.closed or {}
    confirmed = state.base_arm.confirmed if state.promoted else None
    metric = primary.metric if primary else "output_tokens_per_s"
    return Curve(name, state.spec.policy, metric, tuple(best), failed, confirmed.value if confirmed else None, str(closed.get("ending", "unfinished")))


def _baseline(state: State) -> float:
    results = state.first_arm.results or state.first_arm.earlier
    if not results:
        raise SystemExit("The baseline was never measured: there is nothing to compare with.")
    return results[0].value


def table(curves: Sequence[Curve]) -> list[str]:
    last = max(len(curve.best) for curve in curves) - 1
    lines = [
        f"Best {curves[0].metric} ({unit_of(curves[0].metric)}) after each launch; 0 is the baseline.", "",
        "| study | policy | " + " | ".join(str(at) for at in range(last + 1)) + " | launches | failed | confirmed | ending |",
        "|---|---|" + "---|" * (last + 5),
    ]  # fmt: skip
    for curve in curves:
        reached = [*curve.best, *[curve.best[-1]] * (last + 1 - len(curve.best))]
        confirmed = f"{curve.confirmed:,.4g}" if curve.confirmed is not None else "none"
        lines.append(f"| {curve.name} | {curve.policy} | " + " | ".join(f"{value:,.4g}" for value in reached) + f" | {len(curve.best) - 1} | {curve.failed} | {confirmed} | {curve.ending} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    asked = parser.parse_args()
    print("\n".join(table([curve_of(name, Roots(runs=asked.runs)) for name in asked.studies])))


if __name__ == "__main__":
    main()
