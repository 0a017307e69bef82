"""One share of one loss: the sentence that calls a target out of reach has it from the ceiling entry, whatever is learned of η later."""

from dataclasses import replace
from pathlib import Path

from optimizer.core.picture import _largest_told, out_of_reach
from optimizer.core.since import LOSS_AS_TOLD
from optimizer.core.state import fold
from optimizer.journal import Journal
from optimizer.wiring import pinned_library, plan_of

H200 = Path(__file__).parents[2] / "histories/h200-7b-eager"


def test_the_largest_loss_is_named_as_it_was_told_last() -> None:
    with Journal.open(H200 / "journal.db", write=False) as journal:
        entries = journal.read()
        plan = plan_of(pinned_library(journal, entries))
    last = next(entry for entry in entries if entry.kind == "ceiling")
    state = fold(entry for entry in entries if entry.seq <= last.seq)
    assert state.spec is not None and state.ceiling is not None
    lost = [{**part, "share": 0.4321} for part in state.ceiling["lost"]]  # another η than the one that is known now
    target = state.spec.target.model_copy(update={"bounds": (state.spec.target.bounds[0].model_copy(update={"value": 3500.0}),)})
    said = []
    for version in (LOSS_AS_TOLD - 1, LOSS_AS_TOLD):
        spec = state.spec.model_copy(update={"policy_version": version, "target": target})
        kind, sentence = out_of_reach(replace(state, spec=spec, ceiling={**state.ceiling, "lost": lost}), plan, ())
        said.append(sentence)
        assert kind == "configuration"
    assert "(43 % of the time)" in said[1] and "(43 % of the time)" not in said[0]
    largest = max(state.ceiling["lost"], key=lambda part: part["ms"])
    assert _largest_told(state) == (largest["bucket"], largest["share"]) and _largest_told(replace(state, ceiling=None)) is None
