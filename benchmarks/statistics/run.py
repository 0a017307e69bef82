"""Prints the operating characteristics of the judge at full repetition counts and writes them to docs/statistics.md.

    python benchmarks/statistics/run.py [--quick] [--write]

About three minutes on one core; ``--quick`` divides the counts by ten. Everything is seeded."""

import argparse
import ast
import math
import sys
from collections.abc import Callable
from pathlib import Path

from simulate import (
    Beliefs,
    Draw,
    aa_studies,
    beliefs,
    beliefs_of_bundles,
    bimodal,
    coverage,
    drift_detections,
    heavy,
    lottery,
    many_tests,
    normal,
    quick_exits,
    skewed,
    winners_curse,
)

from optimizer.core import judge, weight
from optimizer.core.economy import policy_for
from optimizer.model.canonical import digest
from optimizer.model.verdict import JudgePolicy
from optimizer.stats import interval, noise

DOCS = Path(__file__).parents[2] / "docs" / "statistics.md"
GPU, THOROUGH, CPU = JudgePolicy(), JudgePolicy(thorough=True), policy_for("cpu")
BEFORE_5 = JudgePolicy(noise_known=True)
TABLE_EFFECTS = (1.00, 1.02, 1.05, 1.2, 2.0, 5.0)
TABLE_RUNS = 4000
EFFECTS = (0.95, 1.00, 1.02, 1.03, 1.05, 1.10, 1.20, 1.25, 2.0, 5.0)
HEAD = """# Operating characteristics of the judge

Written by `python benchmarks/statistics/run.py --write`; simulations that call the product's own `judge`,
`pooled_noise` and `drifted`. The bold number is the mean of candidate launches plus baseline launches made for the test;
the first baseline pair is not counted. Noise is the launch-to-launch sd of ln(metric). A gate is what the project promises; the tests hold it.
A test compares this line with the code: rules and simulation `{digest}`.
"""


def inputs_digest() -> str:
    """Of what the figures depend on: the rules, the policies, the simulation; comments and docstrings left out."""
    sources = [Path(module.__file__ or "") for module in (judge, weight, noise, interval)] + [Path(__file__).with_name("simulate.py")]
    policies = [policy.plain() for policy in (GPU, THOROUGH, CPU)]
    return digest([policies, [_code(path) for path in sources]])[:16]


def _code(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [item for item in body if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def launches_row(ratio: float) -> list[str]:
    """One row of the first table: how a test of this true effect ends, and what each ending cost."""
    row = [f"{ratio:.2f}"]
    for sd in (0.02, 0.03, 0.05):
        found = many_tests(ratio, normal(sd), GPU, TABLE_RUNS, seed=9)
        parts = [f"{name} {100 * count / found.runs:.1f} % ({found.launches[name]:.1f})" for name, count in found.verdicts.most_common() if count >= found.runs / 200]
        row.append(f"{', '.join(parts)}; all **{found.mean_launches:.1f}**")
    return row


GATES = """## Where each gate is held

`pytest -k S7` runs what holds a gate (marker `gate`; `S1` also finds `S10` to `S14`). Slow ones need `-m slow`, those of S14 `-m scenarios`.

| gate | what | held by |
|---|---|---|
| S1 | of studies without effect at most 5 % promote something (6 % at a noise of 5 %), at most 5 % keep it after its fresh confirmation, at most 1 % end with `met` | `tests/statistics/test_operating_characteristics.py` (800 to 3,000 studies a cell; 10,000 with `-m slow`) |
| S2 | power and cost of true effects | `tests/statistics/test_operating_characteristics.py` |
| S3 | a true lower edge is not judged short | `tests/statistics/test_operating_characteristics.py` |
| S4 | coverage of the intervals under normal, heavy, skewed, bimodal and lottery noise | `tests/statistics/test_operating_characteristics.py` |
| S5 | claims about tails: at most 1 % false at the boundary | `tests/unit/stats_load/test_tail.py` |
| S6 | the steady state on eight warm-ups: within 10 % of the truth, or never | `tests/unit/stats_load/test_steady.py` |
| S7 | saturation: at most 2 % false at 80 % load, at least 98 % hits at 120 % | `tests/unit/stats_load/test_saturation.py` |
| S8 | calibration of scores on incidents | `tests/incidents_score/test_incidents.py` |
| S9 | launches needed on measured tables against plain policies; contaminated rows of a sweep | `tests/unit/replay/test_tables.py`, `tests/unit/replay/test_shared_tables.py`, `tests/unit/search/test_figures.py`, `tests/unit/evidence/test_contaminated_sweep.py` |
| S10 | a wrong quick exit | `tests/statistics/test_operating_characteristics.py` |
| S11 | drift that is found, and drift that is none | `tests/statistics/test_operating_characteristics.py` |
| S12 | the ceiling against recorded servers, never below a measured speed | `tests/unit/ceiling/test_recorded.py` |
| S13 | the ledger blames the right setting | `tests/unit/ledger/test_ledger.py` |
| S14 | the simulated boxes end as they must | `tests/unit/search/test_boxes_end_as_required.py` (in memory, twenty boxes of each kind with `-m slow`), `tests/e2e/test_scenarios.py` (over the command line; `OPTIMIZER_SEEDS=20` for as many: of such a run in November 2026 sixteen studies had ended, all as they must, when its machine went away; the other 64 were not seen) |
"""


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def table(title: str, columns: list[str], rows: list[list[str]]) -> str:
    lines = [f"## {title}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows), ""])


def verdicts(
    policy: JudgePolicy, noises: dict[str, Draw], runs: int, prediction: tuple[float, float]
) -> list[list[str]]:
    rows = []
    for ratio in EFFECTS:
        row = [f"{ratio:.2f}"]
        for draw in noises.values():
            found = many_tests(ratio, draw, policy, runs, seed=1, prediction=prediction)
            shares = sorted(found.verdicts.items(), key=lambda item: -item[1])
            text = ", ".join(f"{name} {100 * count / runs:.1f}" for name, count in shares)
            row.append(f"{text}; **{found.mean_launches:.1f}**")
        rows.append(row)
    return rows


def report(scale: float) -> str:
    def n(full: int) -> int:
        return max(int(full * scale), 50)

    gaussian = {f"{100 * sd:.0f} %": normal(sd) for sd in (0.01, 0.02, 0.03, 0.05)}
    shapes = {"normal": normal, "heavy tails": heavy, "spawn lottery": lottery}
    more = {**shapes, "skewed": skewed, "bimodal": lambda sd: bimodal(sd, within=sd / 3)}
    parts = [HEAD.replace("{digest}", inputs_digest())]
    parts.append(table(
        "Launches spent per verdict by true effect (default policy, predicted 1.03 to 1.30; endings below 0.5 % left out)",
        ["true effect", "noise 2 %", "noise 3 %", "noise 5 %"], [launches_row(ratio) for ratio in TABLE_EFFECTS],
    ))  # fmt: skip
    parts.append(table(
        "Verdicts and launches by true effect, default policy, predicted 1.03 to 1.30",
        ["true ratio", *(f"noise {name}" for name in gaussian)], verdicts(GPU, gaussian, n(4000), (1.03, 1.30)),
    ))  # fmt: skip
    parts.append(table(
        "The same with --thorough", ["true ratio", *(f"noise {name}" for name in gaussian)],
        verdicts(THOROUGH, gaussian, n(1000), (1.03, 1.30)),
    ))  # fmt: skip
    rows = []
    for name, shape in shapes.items():
        for sd in (0.01, 0.02, 0.03, 0.05):
            found = aa_studies(shape(sd), GPU, n(10_000), seed=2, target_above=3 * sd)
            gate = "6 %" if sd == 0.05 else "5 %"
            rows.append([
                name, f"{100 * sd:.0f} %", percent(found.promoted), gate, percent(found.kept), percent(found.met),
                percent(found.false_drift), f"{found.ideas:.1f}", f"{found.remeasured:.1f}",
            ])  # fmt: skip
    parts.append(table(
        "Studies of 20 launches in which no idea has any effect",
        ["noise", "sd", "promote something", "gate", "keep it after its fresh confirmation", "end with met", "false drift", "ideas", "baselines again"], rows,
    ))  # fmt: skip
    parts.append(worst_part(n))
    rows = []
    for edge in (1.03, 1.05, 1.10, 1.20):
        cells = [many_tests(edge, draw, GPU, n(4000), 3, (edge, edge + 0.3)).short for draw in gaussian.values()]
        rows.append([f"{edge:.2f}", *map(percent, cells)])
    parts.append(table(
        "An effect exactly at its predicted lower edge is judged short of it (gate 3 %)",
        ["edge", *(f"noise {name}" for name in gaussian)], rows,
    ))  # fmt: skip
    rows = []
    for name, shape in more.items():
        for sd in (0.01, 0.03, 0.05):
            cells = [coverage(shape(sd), GPU, n(20_000), 4, c, b) for c, b in ((1, 2), (2, 2), (3, 3), (8, 8))]
            rows.append([name, f"{100 * sd:.0f} %", *map(percent, cells)])
    parts.append(table(
        "Coverage of the nominal 95 % interval", ["noise", "sd", "1 against 2", "2 / 2", "3 / 3", "8 / 8"], rows,
    ))  # fmt: skip
    rows = []
    for name, shape in shapes.items():
        for sd in (0.01, 0.03, 0.05):
            rows.append([name, f"{100 * sd:.0f} %", f"{100 * quick_exits(shape(sd), GPU, n(100_000), 5):.3f} %"])
    parts.append(table("The first launch alone promotes an idea without effect", ["noise", "sd", "wrong"], rows))
    rows = []
    for sd in (0.01, 0.02, 0.03, 0.05):
        cells = [drift_detections(shift, sd, GPU, n(10_000), 6) for shift in (0, 3, 6)]
        rows.append([f"{100 * sd:.0f} %", *map(percent, cells)])
    parts.append(table(
        "One re-measurement calls a baseline shift of so many s a drift", ["sd", "0", "3", "6"], rows,
    ))  # fmt: skip
    rows = []
    for drift in (0.0, 0.1, 0.3, 0.5):
        cells = [many_tests(ratio, normal(0.03), GPU, n(4000), 10, drift=drift * 0.03) for ratio in (1.0, 1.1)]
        rows.append([f"{drift:g}", *(f"{percent(found.share('supported', 'partial'))}; **{found.mean_launches:.1f}**" for found in cells)])
    parts.append(table(
        "A box that gains so many sd with every launch (noise 3 %): promoted all the same, and launches",
        ["drift per launch, sd", "no effect", "true +10 %"], rows,
    ))  # fmt: skip
    rows = []
    for target in (1.2, 2.0, 10.0):
        plain = [many_tests(ratio, normal(0.03), GPU, n(4000), 11, (1.5, 4.0)) for ratio in (1.0, 1.1, 1.5)]
        ended = [many_tests(ratio, normal(0.03), GPU, n(4000), 11, (1.5, 4.0), target=target) for ratio in (1.0, 1.1, 1.5)]
        rows.append([f"{target:g}", *(f"{a.mean_launches:.1f} → **{b.mean_launches:.1f}**; kept {percent(a.share('supported', 'partial'))} → "
                                      f"{percent(b.share('supported', 'partial'))}" for a, b in zip(plain, ended, strict=True))])  # fmt: skip
    parts.append(table(
        "An idea that claimed 1.5 to 4 gets no further look once its claim and the target are excluded (noise 3 %)",
        ["target needs", "no effect", "true +10 %", "true 1.5x"], rows,
    ))  # fmt: skip
    rows = []
    for ideas in (8, 20, 50):
        seemed, fresh = winners_curse(ideas, normal(0.02), n(20_000), 12)
        rows.append([str(ideas), f"{100 * seemed:+.1f} %", f"{100 * fresh:+.2f} %"])
    parts.append(table("Best of so many equal settings (noise 2 %)", ["settings", "its own launch says", "its fresh confirmation says"], rows))
    parts.append(cpu_part(n))
    parts.append(beliefs_part(n))
    parts.append(GATES)
    return "\n".join(parts)


BELIEFS = """
Hypotheses with known truth, each with a probability of 0.2, 0.5 or 0.8 before its test and a prediction of 1.03 to 1.30, 1.10 to 1.50 or
1.5 to 4.0: a real cause has its effect anywhere in the prediction, another one has none. What was measured moves the probability
(`optimizer/core/weight.py`); a cell is the mean probability said, the share of those hypotheses that is real, and how many they are. The
error is the mean distance of the two. *Undecided* are tests whose interval holds both 1 and what is predicted at least: how far the farthest
of them moved its belief. That they may not move it farther is why ideas without effect are said to be likelier than they are.
*Useless ±3 %* are changes whose cause is not real and which still do something. Of several causes in one launch, three with a
probability of 0.3, 0.6 or 0.9 each, the effects of the real ones multiply. *Before* is policy version 4: noise taken as known, and each
cause of a launch credited with all of it.
"""


def beliefs_part(n: Callable[[int], int]) -> str:
    """Reliability: of what is said with probability P, the share that is true."""
    rows = []
    cases = {"normal 1 %": normal(0.01), "normal 3 %": normal(0.03), "normal 5 %": normal(0.05), "heavy tails 5 %": heavy(0.05),
             "spawn lottery 3 %": lottery(0.03), "bimodal 5 %": bimodal(0.05, 0.05 / 3)}  # fmt: skip
    for name, draw in cases.items():
        rows += [beliefs_row(name, said, beliefs(draw, policy, n(6000), 41)) for said, policy in (("before", BEFORE_5), ("**now**", GPU))]
    useless = "normal 3 %, useless ±3 %"
    rows += [beliefs_row(useless, said, beliefs(normal(0.03), policy, n(6000), 41, normal(0.03))) for said, policy in (("before", BEFORE_5), ("**now**", GPU))]
    for sd in (0.01, 0.03, 0.05):
        found = ((said, beliefs_of_bundles(normal(sd), policy, n(3000), 42)) for said, policy in (("before", BEFORE_5), ("**now**", GPU)))
        rows += [beliefs_row(f"three causes in one launch, normal {100 * sd:.0f} %", said, cell) for said, cell in found]
    columns = ["noise", "weights", "error", "undecided moved", "said → real (hypotheses), by tenths of what was said"]
    return table("Reliability of beliefs", columns, rows).replace("\n\n", f"\n{BELIEFS}\n", 1)


def beliefs_row(name: str, said: str, found: Beliefs) -> list[str]:
    low, high = found.undecided.farthest_db
    cells = ", ".join(f"{p:.2f} → {real:.2f} ({count})" for p, real, count in found.bins)
    return [name, said, f"{found.calibration_error:.3f}", f"{low:+.1f} to {high:+.1f} db", cells]


def worst_part(n: Callable[[int], int]) -> str:
    """S1 where it is closest, with enough studies for an interval that tells: four times as many, other seeds."""
    rows = []
    for name, shape in (("normal", normal), ("heavy tails", heavy), ("spawn lottery", lottery)):
        runs, seeds = n(10_000), range(101, 105)
        found = [aa_studies(shape(0.05), GPU, runs, seed=seed, target_above=0.15) for seed in seeds]
        cells = []
        for shares in ([one.promoted for one in found], [one.kept for one in found]):
            share, total = sum(shares) / len(shares), runs * len(shares)
            half = 1.96 * math.sqrt(share * (1 - share) / total)
            cells.append(f"{100 * share:.2f} % ({100 * (share - half):.2f} to {100 * (share + half):.2f})")
        rows.append([name, f"{runs * len(seeds):,}", cells[0], "6 %", cells[1], "5 %"])
    return table(
        "The same at a noise of 5 %, where the gate is closest: with 95 % intervals",
        ["noise", "studies", "promote something", "gate", "keep it after its fresh confirmation", "gate"], rows,
    )  # fmt: skip


def cpu_part(n: Callable[[int], int]) -> str:
    rows = []
    for name, policy in (("default: 3 %, weight 2", GPU), ("cpu: 12 %, weight 4", CPU)):
        for shape_name, shape in (("normal", normal), ("bimodal", bimodal), ("heavy tails", heavy)):
            for sd in (0.08, 0.10, 0.12, 0.15):
                studies = aa_studies(shape(sd), policy, n(4000), seed=7)
                row = [name, shape_name, f"{100 * sd:.0f} %", percent(studies.promoted)]
                for ratio in (1.5, 2.0, 3.0):
                    found = many_tests(ratio, shape(sd), policy, n(2000), 8, (1.3, 6.0))
                    row.append(f"{percent(found.within_two)} ({found.mean_launches:.1f})")
                rows.append(row)
    return table(
        "Machines whose identical launches differ by a quarter: prior and its weight",
        ["policy", "noise", "sd", "A/A study promotes", "1.5x within two launches (mean)", "2x", "3x"], rows,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    text = report(0.1 if options.quick else 1.0)
    sys.stdout.write(text)
    if options.write:
        DOCS.parent.mkdir(exist_ok=True)
        DOCS.write_text(text)
