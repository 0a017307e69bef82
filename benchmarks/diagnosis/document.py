"""docs/diagnosis.md from the current figures, and its calibration plot. ``python benchmarks/diagnosis/document.py`` writes
both; the text is compared with the committed one by tests/incidents_score/test_document.py."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import figures

from optimizer.evidence.bundle import read_bundle
from optimizer.report.diagnosis_view import diagnosis_text
from tests.incidents_score.first_principles import STORIES, incidents
from tests.incidents_score.judging import decidable, share

DOCUMENT = figures.ROOT / "docs" / "diagnosis.md"
PLOT = figures.ROOT / "docs" / "diagnosis-calibration.svg"
FAMILIES = (
    "config",
    "interconnect",
    "acceptance_length",
    "kernel",
    "capacity",
    "host_cpu",
    "client",
    "hardware",
    "bug",
)
# One incident of each family: a launch of the recordings where there is one, else a published case.
SHOWN = {
    "config": "recordings/sglang-0.5.12-h200/tp1-7b-nograph",
    "capacity": "recordings/sglang-0.5.12-h200/tp1-7b-kvlimited",
    "acceptance_length": "recordings/sglang-0.5.12-h200/tp1-7b-nextn3-acc2.8",
    "interconnect": "recordings/sglang-0.5.12-h200/tp2-27b-nccl-shm",
    "host_cpu": "recordings/sglang-0.5.12-h200/tp1-7b-nooverlap",
    "kernel": "incidents/cases/case-97f45497.json",
    "client": "incidents/cases/case-5605e3f3.json",
    "hardware": "incidents/cases/case-ecdd4690.json",
    "bug": "incidents/cases/case-32e30002.json",
}
HEAD = """# How good the diagnosis is

Written by `benchmarks/diagnosis/document.py`; a test holds it to the current figures. The published incidents were known when the rules were
written, so what counts are the variations: what is left of an answer when observations are missing, numbers are other ones, or the facts
of a healthy server surround it. How scores come about: [how-it-decides.md](how-it-decides.md); how weights are chosen:
[WEIGHTS.md](../playbooks/WEIGHTS.md).
"""


def text() -> str:
    return (
        "\n".join(
            [HEAD, *_quality(), *_calibration(), *_confusion(), *_stories(), *_recordings(), *_predictions(), *_shown()]
        ).rstrip()
        + "\n"
    )


def _quality() -> list[str]:
    sets = figures.tables().sets
    names = list(figures.quality(next(iter(sets.values()))))
    lines = [
        "## Published incidents, and variations of them",
        "",
        f"| | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for name, rows in sets.items():
        values = figures.quality(rows).values()
        lines.append(
            f"| {name} ({len(decidable(rows))} + {len(rows) - len(decidable(rows))}) | {' | '.join(_share(value) for value in values)} |"
        )
    return [
        *lines,
        "",
        "In brackets: cases that can be decided + cases that cannot. *Names another cause*: a wrong answer that does not abstain.",
        "",
    ]


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _calibration() -> list[str]:
    tables = figures.tables()
    published = decidable(tables.sets["as published"])
    lines = [
        "## Calibration",
        "",
        "![stated probability against how often the first answer was right](diagnosis-calibration.svg)",
        "",
    ]
    lines += ["| stated | answers | mean stated | right |", "|---|---|---|---|"]
    lines += [
        f"| {low:.2f} to {high:.2f} | {count} | {stated:.2f} | {right:.2f} |"
        for low, high, count, stated, right in figures.reliability(tables.varied)
    ]
    return [
        *lines, "",
        f"Over all variations above. Expected calibration error as published {figures.quality(published)['ECE']:.3f}; with the height of the scale fitted on "
        f"nine tenths of the cases and measured on the rest {figures.cross_validated(published):.3f}. The scale errs on the side of modesty: it was not "
        "stretched to fit cases that were known when it was made.", "",
    ]  # fmt: skip


def _confusion() -> list[str]:
    rows = figures.tables().varied
    found = figures.families(rows)
    lines = [
        "## What is taken for what",
        "",
        f"| true family, said first | {' | '.join(FAMILIES)} |",
        f"|---|{'---|' * len(FAMILIES)}",
    ]
    for truth in FAMILIES:
        lines.append(f"| **{truth}** | {' | '.join(str(found.get((truth, said), 0) or '·') for said in FAMILIES)} |")
    lines += ["", "Causes that were confused most often, over all variations:", ""]
    lines += [f"- {truth} taken for {said}: {count}" for (truth, said), count in figures.confusions(rows)[:8]]
    return [*lines, ""]


def _stories() -> list[str]:
    every = list(incidents())
    alone = [figures.ask(case).hypotheses[0].id == cause for cause, _, _, case in every]
    beside = [
        figures.ask(figures.beside_a_healthy_launch(case)).hypotheses[0].id == cause for cause, _, _, case in every
    ]
    return [
        "## Every cause from first principles", "",
        f"{sum(map(len, STORIES.values()))} made-up incidents, told from what each of the {len(STORIES)} causes does to a server and not from the published cases, on each "
        f"engine that has the cause: {sum(alone)} of {len(alone)} right alone, {sum(beside)} of {len(beside)} beside the facts of a healthy launch "
        "(`tests/incidents_score/first_principles.py`).", "",
    ]  # fmt: skip


def _recordings() -> list[str]:
    lines = ["## Recorded launches", "", "| launch | answer | next step |", "|---|---|---|"]
    for name, found in figures.recordings():
        best = found.hypotheses[0]
        answer = (
            f"{best.id} ({best.probability:.2f})" if found.verdict == "diagnosed" else f"cannot tell: {found.reason}"
        )
        lines.append(f"| {name} | {answer} | {(found.next_step or '').replace('|', '/')} |")
    return [*lines, ""]


def _predictions() -> list[str]:
    lines = [
        "## Ceilings and predictions against what was measured",
        "",
        "Healthy launches on one and two H200, tok/s:",
        "",
    ]
    lines += [
        "| launch | concurrency | measured | expected of a healthy launch | off by | roofline |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {level} | {measured:.0f} | {expected:.0f} | {100 * (expected / measured - 1):+.0f} % | {roofline:.0f} |"
        for name, level, measured, expected, roofline in figures.ceilings()
    ]
    lines += ["", "| predicted from one launch alone | concurrency | predicted | measured |", "|---|---|---|---|"]
    for level, low, middle, high, measured in figures.graph_gain():
        lines.append(
            f"| gain of graphs, from tp1-7b-nograph | {level} | ×{middle:.2f} (×{low:.2f} to ×{high:.2f}) | ×{measured:.2f} |"
        )
    for level, lost, seen, part, part_seen in figures.collectives():
        lines.append(
            f"| time lost in all-reduces, from tp2-27b-nccl-shm | {level} | {lost:.2f} ms a step ({part:.0%}) | {seen:.2f} ms ({part_seen:.0%}) |"
        )
    for level, predicted, measured in figures.drafts():
        lines.append(
            f"| worth of three drafts, from tp1-7b-nextn3-acc2.8 | {level} | ×{predicted:.2f} | ×{measured:.2f} |"
        )
    return [*lines, "", "The launches are short and single; two of the same setting differ by a tenth.", ""]


def _shown() -> list[str]:
    lines = ["## One incident of each family", ""]
    for family, where in SHOWN.items():
        found = figures.diagnose(read_bundle(figures.ROOT / "tests" / where), figures.library())
        lines += [
            f"### {family}: {Path(where).stem if where.endswith('.json') else Path(where).name}",
            "",
            "```text",
            diagnosis_text(found),
            "```",
            "",
        ]
    return lines


def plot() -> None:
    """Reliability of the first answer; the size of a dot is the number of answers."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "diagnosis", "svg.fonttype": "none", "font.size": 10})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.2, 4.2))
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle="--", label="perfect")
    tables = figures.tables()
    for name, rows, colour in (
        ("all variations", tables.varied, "#1b6ca8"),
        ("as published", decidable(tables.sets["as published"]), "#d1495b"),
    ):
        points = figures.reliability(rows)
        axes.scatter([point[3] for point in points], [point[4] for point in points], s=[12 + 1.2 * point[2] for point in points],
                     color=colour, alpha=0.75, label=f"{name}: {share(rows, lambda row: row.right):.0%} right of {len(rows)}")  # fmt: skip
    axes.set(
        xlim=(0, 1.03), ylim=(0, 1.05), xlabel="stated probability of the first answer", ylabel="share that was right"
    )
    axes.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Date": None, "Creator": None})
    # The drawing alone: no licence, no address, and no spaces at the ends of lines.
    drawn = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<!DOCTYPE.*?>", "", PLOT.read_text(), flags=re.DOTALL)
    PLOT.write_text("\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n")


if __name__ == "__main__":
    DOCUMENT.write_text(text(), encoding="utf-8")
    plot()
    print(f"{DOCUMENT} and {PLOT} are written.")
