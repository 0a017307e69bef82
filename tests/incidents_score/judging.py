"""Scores diagnoses of labelled cases in one process, by the definitions that the incident set is published with."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer.evidence.bundle import bundle_from_case
from optimizer.knowledge.causes import FAMILY_OF
from optimizer.knowledge.library import Library
from optimizer.model.diagnosis import Diagnosis
from optimizer.runner.diagnose import diagnose

HIDDEN = ("id", "diagnosable", "needs_tests", "reason")  # never shown to the diagnosis

Change = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One case as answered."""

    case: str
    truth: str
    decidable: bool
    ranking: tuple[str, ...]
    abstained: bool
    family_right: bool
    refuted_first: bool
    probability: float

    @property
    def right(self) -> bool:
        return self.ranking[0] == self.truth

    @property
    def among_three(self) -> bool:
        return self.truth in self.ranking[:3]


def load(folder: Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Cases in file order and their labels."""
    cases = [json.loads(path.read_text()) for path in sorted((folder / "cases").glob("case-*.json"))]
    return cases, json.loads((folder / "labels.json").read_text())


def judge(
    cases: Iterable[Mapping[str, Any]],
    labels: Mapping[str, Mapping[str, Any]],
    library: Library,
    *,
    without_tests: bool = False,
    change: Change = dict,
) -> list[Row]:
    """Diagnose every case; ``change`` may alter what the diagnosis sees."""
    rows = []
    for case in cases:
        shown = {key: value for key, value in case.items() if key not in HIDDEN}
        if without_tests:
            shown["tests"] = []
        answer = diagnose(bundle_from_case(json.dumps(change(shown)).encode()), library)
        rows.append(_row(case["id"], labels[case["id"]], answer, without_tests))
    return rows


def _row(case: str, label: Mapping[str, Any], answer: Diagnosis, without_tests: bool) -> Row:
    ranking = tuple(found.id for found in answer.hypotheses)
    accepted = label.get("accepted_families", [label["cause_family"]])
    return Row(
        case=case,
        truth=label["cause_id"],
        decidable=label["diagnosable"] and not (without_tests and label.get("needs_tests", False)),
        ranking=ranking,
        abstained=answer.verdict == "cannot-tell",
        family_right=FAMILY_OF[ranking[0]] in accepted,
        refuted_first=ranking[0] in label["refuted_cause_ids"],
        probability=answer.hypotheses[0].probability,
    )


def share(rows: Sequence[Row], test: Callable[[Row], bool]) -> float:
    return sum(1 for row in rows if test(row)) / len(rows)


def decidable(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.decidable]


def calibration_error(rows: Sequence[Row], bins: int = 5) -> float:
    """Expected calibration error of the first answer, equal-width bins."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(min(int(row.probability * bins), bins - 1), []).append(row)
    gap = 0.0
    for group in groups.values():
        stated = sum(row.probability for row in group) / len(group)
        gap += len(group) / len(rows) * abs(stated - share(group, lambda row: row.right))
    return gap
