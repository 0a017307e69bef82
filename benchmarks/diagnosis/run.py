"""Prints how good the diagnosis is on the published incidents: bare, without their tests, with a healthy launch's facts
filled in, and how its probabilities hold up. Run from the repository root: ``python benchmarks/diagnosis/run.py``."""

import math
import sys
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from optimizer.knowledge.library import load_library  # noqa: E402
from optimizer.knowledge.load import find_knowledge  # noqa: E402
from tests.incidents_score.distractors import filled, healthy_facts  # noqa: E402
from tests.incidents_score.judging import Row, calibration_error, decidable, judge, load, share  # noqa: E402

FOLDS = 10


def main() -> None:
    library = load_library(find_knowledge(ROOT))
    cases, labels = load(ROOT / "tests" / "incidents")
    facts = cache(healthy_facts)

    def distract(case):
        return filled(case, facts(ROOT / "tests" / "recordings", case["engine"], case.get("gpu_count") or 1))

    bare = judge(cases, labels, library)
    table("as published", bare)
    table("without their tests", judge(cases, labels, library, without_tests=True))
    table("with a healthy launch's facts", judge(cases, labels, library, change=distract))
    calibration(decidable(bare))
    mistakes(bare)


def table(title: str, rows: list[Row]) -> None:
    known, unknown = decidable(rows), [row for row in rows if not row.decidable]
    answered = [row for row in known if not row.abstained]
    print(f"\n{title}: {len(known)} decidable, {len(unknown)} not")
    for name, value in (
        ("right cause first", share(known, lambda row: row.right)),
        ("among the first three", share(known, lambda row: row.among_three)),
        ("right family", share(known, lambda row: row.family_right)),
        ("refuted idea first", share(known, lambda row: row.refuted_first)),
        ("abstained where it should", share(unknown, lambda row: row.abstained)),
        ("abstained where it need not", share(known, lambda row: row.abstained)),
        ("right where it answered", share(answered, lambda row: row.right)),
        ("calibration error", calibration_error(known)),
    ):
        print(f"  {name:<30} {value:6.3f}")


def calibration(rows: list[Row]) -> None:
    """Stated against observed, and the error when the height of the scale is fitted on the other folds."""
    print("\nstated probability -> share right")
    for low in (0.0, 0.5, 0.7, 0.8, 0.9, 0.95):
        high = {0.0: 0.5, 0.5: 0.7, 0.7: 0.8, 0.8: 0.9, 0.9: 0.95, 0.95: 1.01}[low]
        group = [row for row in rows if low <= row.probability < high]
        if group:
            stated = sum(row.probability for row in group) / len(group)
            print(
                f"  {low:.2f}-{min(high, 1):.2f}  n={len(group):2}  stated {stated:.2f}  right {share(group, lambda row: row.right):.2f}"
            )
    held_out = []
    for fold in range(FOLDS):
        slope = fitted_slope([row for index, row in enumerate(rows) if index % FOLDS != fold])
        held_out += [scaled(row, slope) for index, row in enumerate(rows) if index % FOLDS == fold]
    print(
        f"  calibration error {calibration_error(rows):.3f}; cross-validated with a fitted slope {calibration_error(held_out):.3f}"
    )


def fitted_slope(rows: list[Row]) -> float:
    """The slope of the log-odds that makes the answers most likely, held near 1 by a prior worth one case."""

    def loss(slope: float) -> float:
        total = (math.log(slope)) ** 2
        for row in rows:
            probability = scaled(row, slope).probability
            total -= math.log(max(probability if row.right else 1 - probability, 1e-9))
        return total

    return min((0.3 + 0.02 * step for step in range(136)), key=loss)


def scaled(row: Row, slope: float) -> Row:
    odds = math.log(max(row.probability, 1e-9) / max(1 - row.probability, 1e-9)) * slope
    return Row(**{**row.__dict__, "probability": 1 / (1 + math.exp(-odds))})


def mistakes(rows: list[Row]) -> None:
    wrong = Counter((row.truth, row.ranking[0]) for row in decidable(rows) if not row.right)
    print(
        "\nconfused:",
        ", ".join(f"{truth} -> {said} ({count})" for (truth, said), count in sorted(wrong.items())) or "none",
    )


if __name__ == "__main__":
    main()
