"""The figures of docs/diagnosis.md: how good the diagnosis is on published incidents, on variations of them and on
recorded launches, and how near its ceilings and predictions come. Computes; prints and writes nothing."""

import importlib.util
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from optimizer.ceiling.hardware import find_hardware  # noqa: E402
from optimizer.ceiling.predict import computed_ratio  # noqa: E402
from optimizer.core.roofline import ceiling_inputs, load_points  # noqa: E402
from optimizer.evidence.bundle import Bundle, bundle_from_case, read_bundle  # noqa: E402
from optimizer.knowledge.causes import FAMILY_OF  # noqa: E402
from optimizer.knowledge.library import Library, load_library  # noqa: E402
from optimizer.knowledge.load import find_knowledge  # noqa: E402
from optimizer.model.ceiling import Waterfall  # noqa: E402
from optimizer.model.diagnosis import Diagnosis  # noqa: E402
from optimizer.runner.diagnose import diagnose  # noqa: E402
from tests.incidents_score import perturbing  # noqa: E402
from tests.incidents_score.distractors import filled, healthy_facts  # noqa: E402
from tests.incidents_score.judging import HIDDEN, Row, calibration_error, decidable, judge, load, share  # noqa: E402

RECORDINGS = ROOT / "tests" / "recordings"
H200 = RECORDINGS / "sglang-0.5.12-h200"
FOLDS = 10
BINS = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 1.01)
HEALTHY = ("tp1-7b-graph32", "tp1-7b-graph32-b", "tp1-7b-contdecode8", "tp2-27b-graph32")


@dataclass(frozen=True)
class Tables:
    """``sets``: name -> rows of every way to look at the published cases."""

    sets: dict[str, list[Row]]

    @property
    def varied(self) -> list[Row]:
        """The answers that calibration and confusion are read from: all variations, decidable cases only."""
        return [row for rows in self.sets.values() for row in decidable(rows)]


@cache
def library() -> Library:
    return load_library(find_knowledge(ROOT))


@cache
def _healthy(engine: str, gpus: int) -> tuple[dict[str, Any], ...]:
    return healthy_facts(RECORDINGS, engine, gpus)


def beside_a_healthy_launch(case: dict[str, Any]) -> dict[str, Any]:
    return filled(case, _healthy(case["engine"], case.get("gpu_count") or 1))


def weakened(case: dict[str, Any]) -> dict[str, Any]:
    """Without the observation that spoke loudest."""
    lines = ask(case).hypotheses[0].evidence
    return perturbing.without_fact(case, lines[0].fact) if lines else case


def ask(case: dict[str, Any]) -> Diagnosis:
    shown = {key: value for key, value in case.items() if key not in HIDDEN}
    return diagnose(bundle_from_case(json.dumps(shown).encode()), library())


@cache
def tables() -> Tables:
    cases, labels = load(ROOT / "tests" / "incidents")

    def judged(change: Callable[[dict[str, Any]], dict[str, Any]], **how: Any) -> list[Row]:
        return judge(cases, labels, library(), change=change, **how)

    def by_chance(seed: int, change: Callable[..., dict[str, Any]], *rest: Any) -> list[Row]:
        chance = random.Random(seed)
        return judged(lambda case: change(case, chance, *rest))

    return Tables(
        {
            "as published": judged(dict),
            "without their tests": judged(dict, without_tests=True),
            "beside a healthy launch": judged(beside_a_healthy_launch),
            "one observation left out": by_chance(11, perturbing.leave_out, 1),
            "two observations left out": by_chance(12, perturbing.leave_out, 2),
            "other magnitudes": by_chance(13, perturbing.rescaled),
            "another build": judged(perturbing.other_build),
            "the other engine, no log": judged(perturbing.other_engine),
            "without the loudest observation": judged(weakened),
        }
    )


def quality(rows: Sequence[Row]) -> dict[str, float | None]:
    known, unknown = decidable(rows), [row for row in rows if not row.decidable]
    return {
        "top-1": share(known, lambda row: row.right),
        "top-3": share(known, lambda row: row.among_three),
        "family": share(known, lambda row: row.family_right),
        "refuted first": share(known, lambda row: row.refuted_first),
        "abstains where it should": share(unknown, lambda row: row.abstained) if unknown else None,
        "abstains where it need not": share(known, lambda row: row.abstained),
        "names another cause": share(known, lambda row: not row.right and not row.abstained),
        "ECE": calibration_error(known),
    }


def reliability(rows: Iterable[Row]) -> list[tuple[float, float, int, float, float]]:
    """(from, to, count, stated, right) of every bin that holds an answer."""
    found = []
    every = list(rows)
    for low, high in pairwise(BINS):
        group = [row for row in every if low <= row.probability < high]
        if group:
            stated = sum(row.probability for row in group) / len(group)
            found.append((low, min(high, 1.0), len(group), stated, share(group, lambda row: row.right)))
    return found


def cross_validated(rows: Sequence[Row]) -> float:
    """Calibration error where the height of the scale is fitted on the other folds."""
    held_out: list[Row] = []
    for fold in range(FOLDS):
        slope = fitted_slope([row for index, row in enumerate(rows) if index % FOLDS != fold])
        held_out += [scaled(row, slope) for index, row in enumerate(rows) if index % FOLDS == fold]
    return calibration_error(held_out)


def fitted_slope(rows: Sequence[Row]) -> float:
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


def families(rows: Iterable[Row]) -> dict[tuple[str, str], int]:
    """(family of the cause, family named first) -> how often."""
    return Counter((FAMILY_OF[row.truth], FAMILY_OF[row.ranking[0]]) for row in rows)


def confusions(rows: Iterable[Row]) -> list[tuple[tuple[str, str], int]]:
    wrong = Counter((row.truth, row.ranking[0]) for row in rows if not row.right)
    return sorted(wrong.items(), key=lambda item: (-item[1], item[0]))


# --- recordings -----------------------------------------------------------------------------------------------------


@cache
def recordings() -> tuple[tuple[str, Diagnosis], ...]:
    folders = [path for path in sorted(RECORDINGS.glob("*/*")) if (path / "launch.json").exists()]
    return tuple((f"{path.parent.name}/{path.name}", diagnose(read_bundle(path), library())) for path in folders)


def ceilings() -> list[tuple[str, int, float, float, float]]:
    """(launch, concurrency, measured, expected, roofline) of the healthy H200 launches, tok/s."""
    found = []
    for name in HEALTHY:
        for level in diagnose(read_bundle(H200 / name), library()).ceilings:
            if (
                level.measured_tokens_per_s
                and level.expected_tokens_per_s
                and level.ceiling_tokens_per_s
                and level.concurrency <= 32
            ):
                found.append(
                    (
                        name,
                        level.concurrency,
                        level.measured_tokens_per_s,
                        level.expected_tokens_per_s,
                        level.ceiling_tokens_per_s,
                    )
                )
    return found


def rate(name: str, concurrency: int) -> float:
    return next(float(row["output_tps"]) for row in read_bundle(H200 / name).bench if row["c"] == concurrency)  # type: ignore[arg-type]


def tpot(name: str, concurrency: int) -> float:
    return next(float(row["tpot_p50_ms"]) for row in read_bundle(H200 / name).bench if row["c"] == concurrency)  # type: ignore[arg-type]


def graph_gain() -> list[tuple[int, float, float, float, float]]:
    """(concurrency, predicted low, middle, high, measured) from the eager launch alone."""
    found = []
    for item in _inputs(read_bundle(H200 / "tp1-7b-nograph")):
        low, high = computed_ratio("graphs_on", item) or (math.nan, math.nan)
        level = item.point.concurrency
        found.append(
            (level, low, math.sqrt(low * high), high, rate("tp1-7b-graph32", level) / rate("tp1-7b-nograph", level))
        )
    return found


def collectives() -> list[tuple[int, float, float, float, float]]:
    """(concurrency, lost ms as computed, as measured against the launch with peers, share computed, share measured)."""
    found = []
    for item in _inputs(
        read_bundle(H200 / "tp2-27b-nccl-shm").model_copy(update={"model_config_json": _config("27b")})
    ):
        assert isinstance(item.waterfall, Waterfall)
        level = item.point.concurrency
        lost = sum(part.ms for part in item.waterfall.slices if part.bucket == "collectives")
        slow = tpot("tp2-27b-nccl-shm", level)
        measured = slow - tpot("tp2-27b-graph32", level)
        found.append((level, lost, measured, lost / slow, measured / slow))
    return found


def drafts() -> list[tuple[int, float, float]]:
    """(concurrency, predicted worth of drafts, measured) from the speculative launch alone; measured against the plain ones."""
    answer = diagnose(read_bundle(H200 / "tp1-7b-nextn3-acc2.8"), library())
    predicted = {
        int(fact.labels["concurrency"]): float(fact.value) for fact in answer.facts if fact.fact == "spec.speed_ratio"
    }  # type: ignore[arg-type]
    plain = {1: "tp1-7b-graph32-b", 16: "tp1-7b-graph32-b", 32: "tp1-7b-graph32-b"}
    return [
        (level, predicted[level], rate("tp1-7b-nextn3-acc2.8", level) / rate(plain[level], level))
        for level in sorted(plain)
    ]


def _inputs(bundle: Bundle) -> tuple[Any, ...]:
    from optimizer.ceiling.shape import shape_from_config, shape_from_facts

    config = bundle.model_config_json
    shape = shape_from_config(config, bundle.model) if config else shape_from_facts(bundle.evidence, bundle.model)
    return ceiling_inputs(
        bundle.evidence, shape, find_hardware(library().hardware, "NVIDIA H200"), load_points(bundle.bench)
    )


def _config(model: str) -> dict[str, Any]:
    """config.json of the recorded models, which the recordings themselves do not hold."""
    spec = importlib.util.spec_from_file_location("recorded", ROOT / "tests" / "unit" / "ceiling" / "recorded.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["recorded"] = module
    spec.loader.exec_module(module)
    return dict({"7b": module.MODEL_7B, "27b": module.MODEL_27B}[model])
