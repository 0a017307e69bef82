"""Prints how good the diagnosis is on the published incidents and on variations of them, how its probabilities hold up, and
what it confuses. Run from the repository root: ``python benchmarks/diagnosis/run.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import figures

from tests.incidents_score.judging import decidable


def main() -> None:
    tables = figures.tables()
    for name, rows in tables.sets.items():
        print(f"\n{name}: {len(decidable(rows))} can be decided, {len(rows) - len(decidable(rows))} cannot")
        for label, value in figures.quality(rows).items():
            print(f"  {label:<28} {'n/a' if value is None else f'{value:6.3f}'}")
    print("\nstated probability -> share right, over all of these")
    for low, high, count, stated, right in figures.reliability(tables.varied):
        print(f"  {low:.2f}-{high:.2f}  n={count:3}  stated {stated:.2f}  right {right:.2f}")
    published = decidable(tables.sets["as published"])
    print(
        f"  as published, with a slope fitted on the other folds: calibration error {figures.cross_validated(published):.3f}"
    )
    print(
        "\nconfused:",
        *(f"\n  {truth} -> {said} ({count})" for (truth, said), count in figures.confusions(tables.varied)[:12]),
    )


if __name__ == "__main__":
    main()
