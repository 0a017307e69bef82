"""Ideas that cannot change the ending: one launch each, and what rules them out does not make them the leading cause."""

from types import SimpleNamespace

import pytest

from optimizer.core import closing, verdicts


def judged(bayes_db):
    return SimpleNamespace(
        ratio=1.127, low=0.774, high=1.642, n_candidate=1, n_baseline=1, reason="", verdict="unresolved", bayes_db=bayes_db
    )


@pytest.mark.parametrize(("measured_db", "counted_db"), [(15.0, 0.0), (-6.0, -6.0)])
def test_a_small_effect_that_was_predicted_small_does_not_lead(measured_db, counted_db, monkeypatch):
    monkeypatch.setattr(verdicts, "_body", lambda *_: {})
    monkeypatch.setattr(verdicts, "_too_small_for_the_target", lambda *_: "the target needs ×41")
    test = SimpleNamespace(settings=object(), entry=7)
    kind, body, _ = verdicts._settle(SimpleNamespace(), test, judged(measured_db))
    assert kind == "pruned" and body["bayes_db"] == counted_db


@pytest.mark.parametrize(("reach", "pair"), [("none", True), ("configuration", False), ("hard", False)])
def test_no_second_baseline_where_nothing_reaches_the_target(reach, pair, monkeypatch):
    monkeypatch.setattr(closing, "over_budget", lambda *_, **__: False)
    monkeypatch.setattr(closing, "pooled", lambda *_: SimpleNamespace(sd=0.03))
    monkeypatch.setattr(closing, "policy", lambda *_: SimpleNamespace(quick_exit_sd=6.0))
    monkeypatch.setattr(verdicts, "unmeasurable", lambda *_: False)
    state = SimpleNamespace(base_arm=SimpleNamespace(results=[SimpleNamespace(ln=3.2)]), promoted=(), reach=reach)
    assert verdicts._pair_first(state, SimpleNamespace(), SimpleNamespace(ratio=(1.0, 1.19))) is pair
