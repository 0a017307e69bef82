"""Numbers as people read them: an interval's ends and its value to the same place; one observation once, with what each rule makes of it."""

from types import SimpleNamespace

import pytest

from optimizer.core.rank import _evidence
from optimizer.core.state import State
from optimizer.model.evidence import Fact
from optimizer.report.asking_view import facts_text
from optimizer.report.journal_view import study_table
from optimizer.report.prose import interval_text, result_text
from tests.unit.core.model_box import spec


@pytest.mark.parametrize(
    ("low", "high", "value", "said"),
    [
        (415.1, 489.0, 450.7, "450.7 tok/s [415.1, 489.0]"), (996.4, 1163.7, 1077.2, "1,077 tok/s [996, 1,164]"), (24.0, 25.5, 24.52, "24.52 tok/s [24.00, 25.50]"),
        (0.0, 0.0, 0.0, "0 tok/s [0, 0]"), (0.5, 2.0, 1.0, "1.000 tok/s [0.500, 2.000]"), (None, 2.0, 1.5, "1.500 tok/s [none, 2.000]"),
    ],
)  # fmt: skip
def test_an_interval_has_its_ends_to_the_place_of_its_value(low: float | None, high: float, value: float, said: str) -> None:
    assert interval_text(low, high, value, "tok/s") == said
    assert interval_text(low, high) == said[said.index("[") :] or value > max(low or 0, high)


def test_a_result_says_unit_interval_and_launches() -> None:
    result = {"value": 450.74, "interval": [415.1, 489.0], "launches": 2, "metric": "output_tokens_per_s"}
    assert result_text(result) == "450.7 tok/s [415.1, 489.0] (2 launches)"


def test_one_observation_that_two_rules_weigh_stands_once_with_both() -> None:
    seen = {"fact": "queue.depth_p95", "value": 16.0, "source": "server.log", "line": 141}
    hits = [{**seen, "db": 15.0, "rule": "pinned-at-the-limit"}, {**seen, "db": 6.0, "rule": "waiting-with-free-pool"}, {"fact": "client.concurrency", "value": 16, "db": 3.0, "rule": "more"},
            {"rule": "nobody-asked", "db": 0.1}]  # fmt: skip
    assert facts_text(hits) == [
        "queue.depth_p95 = 16.0 (+15 db by pinned-at-the-limit, +6 db by waiting-with-free-pool, server.log line 141)", "client.concurrency = 16 (+3 db)", "nobody-asked (+0.1 db)",
    ]  # fmt: skip


def test_an_observation_says_which_of_several_it_is() -> None:
    shares = [{"fact": "waterfall.share", "value": 0.85, "db": 5.0, "labels": {"bucket": "eager", "concurrency": at}} for at in (1, 32)]
    assert facts_text(shares) == ["waterfall.share of eager at concurrency 1 = 0.85 (+5 db)", "waterfall.share of eager at concurrency 32 = 0.85 (+5 db)"]


def test_a_ranking_keeps_the_labels_of_its_observations_since_version_5() -> None:
    fact = Fact(name="waterfall.share", value=0.85, source="derived", basis="derived", labels={"bucket": "eager", "concurrency": 1})
    hit = SimpleNamespace(rule="launches-hold-the-time", db=5.0, facts=(fact,))
    rows = [_evidence(State(spec=spec().model_copy(update={"policy_version": version})), hit) for version in (4, 5)]
    assert rows == [{"rule": "launches-hold-the-time", "db": 5.0, "fact": "waterfall.share", "value": 0.85, "source": "derived", "line": None} | labels
                    for labels in ({}, {"labels": {"bucket": "eager", "concurrency": 1}})]  # fmt: skip


def test_studies_that_measured_nothing_do_not_fill_the_list() -> None:
    row = {"host": "box", "target": "1000tps", "ending": "met", "launches": 2, "minutes": 12.0, "best": 1077.0, "metric": "output_tokens_per_s"}
    rows = [{"study": "good", "measured": True, **row}, *({"study": f"typo{n}", "measured": False, **row, "ending": "unfit", "best": None} for n in range(7)), {"study": "torn", "ending": "never opened"}]
    said = study_table(rows).splitlines()
    assert [line.split()[0] for line in said] == ["study", "good", "torn", "7"]
    assert said[-1] == "7 more ended before anything was measured (typo0, typo1, typo2, typo3, typo4, …): optimize studies --all"
    assert len(study_table(rows, everything=True).splitlines()) == 10


def test_the_list_of_studies_has_words_intervals_and_columns_that_hold() -> None:
    row = {"host": "box", "target": "1000tps", "ending": "not_met", "launches": 2, "minutes": 83.8, "best": 2372.0, "interval": [2182.0, 2580.0], "metric": "output_tokens_per_s", "measured": True}
    head, short, long = study_table([{"study": "a", **row}, {"study": "a-study-with-a-long-name", **row}]).splitlines()
    assert short.index("not met") == long.index("not met") == head.index("ending") and "2,372 tok/s [2,182, 2,580]" in short and "launches after the baseline" in head
