"""What a report says of its study as a whole: of what it was, whether it was real, how sure it is, and on how many requests a figure rests."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.box.box import Box
from optimizer.core.confidence import next_launch
from optimizer.core.state import State, fold
from optimizer.engines.base import Command
from optimizer.journal import Journal
from optimizer.model.entry import Entry
from optimizer.report.document import study_document
from optimizer.report.page import report_html
from optimizer.report.setup import both_levels, confidence_text, setup, simulated_text
from optimizer.report.study import _on_its_box, launch_files, report_markdown
from optimizer.runner.execute import LiveExecutor
from optimizer.transport.local import LocalTransport
from optimizer.wiring import pinned_library, plan_of
from optimizer.wiring.reporting import report_of

ROOT = Path(__file__).parents[3]
H200 = ROOT / "tests/histories/h200-7b-eager"


def study() -> tuple[list[Entry], State, Journal]:
    journal = Journal.open(H200 / "journal.db", write=False)
    entries = journal.read()
    return entries, fold(entries), journal


def simulated(state: State) -> State:
    """The same study, as if its box had been a simulated one."""
    assert state.spec is not None
    return replace(state, spec=state.spec.model_copy(update={"host": state.spec.host.model_copy(update={"kind": "sim", "name": "sim:h200-7b"})}))


@pytest.mark.parametrize("form", ["md", "html"])
def test_a_report_names_box_gpu_engine_model_and_date(form: str) -> None:
    entries, state, journal = study()
    with journal:
        rows = dict(setup(entries, state))
        assert list(rows) == ["box", "GPU", "engine", "model", "opened"] and rows["GPU"] == "1 × NVIDIA H200" and rows["engine"] == "sglang 0.5.12"
        text = report_of(H200, form)
        assert all(value in text for value in rows.values()) and "Simulated" not in text


def test_whatever_a_simulated_box_leaves_says_that_it_is_simulated() -> None:
    entries, real, journal = study()
    with journal:
        known = pinned_library(journal, entries)
        plan, state = plan_of(known), simulated(real)
        assert state.spec is not None
        said = simulated_text(state)
        assert "no figure here was measured on a GPU" in said and not simulated_text(real)
        assert said in report_markdown(entries, state, plan) and said in report_html(study_document(entries, state, plan))
        reader = LiveExecutor(Box(LocalTransport()), state.spec, known)
        reader.remember(entries, journal.blob)
        files = launch_files(reader, state, plan)
        for name in ("launch.sh", "optimized.service", "compose.yaml", "kubernetes.yaml"):
            assert "Simulated: sim:h200-7b" in files[name], name
        assert not any("Simulated" in text for text in launch_files(reader, real, plan).values())


def test_what_starts_on_a_simulated_box_finds_its_engine_beside_its_models() -> None:
    _, real, journal = study()
    journal.close()
    command, path = Command(argv=("python3", "-m", "sglang.launch_server"), env={"A": "1"}), "/runs/first/box/sim-h200-7b/models/dense-7b"
    assert _on_its_box(command, simulated(real), path).env == {"A": "1", "PYTHONPATH": "/runs/first/box/sim-h200-7b/site"}
    assert _on_its_box(command, real, path) is command and _on_its_box(command, simulated(real), None) is command


def test_the_chance_of_the_next_launch_follows_the_distance_to_the_target_and_the_noise() -> None:
    _, state, journal = study()
    journal.close()
    assert state.spec is not None and state.spec.target.primary is not None
    bound, best = state.spec.target.primary, state.base_arm.results[-1].value

    def at(value: float) -> float:
        target = state.spec.target.model_copy(update={"bounds": (bound.model_copy(update={"value": value}),)})  # type: ignore[union-attr]
        found = next_launch(replace(state, spec=state.spec.model_copy(update={"target": target})))  # type: ignore[union-attr]
        assert found is not None
        return float(found["probability"])

    rising = [at(best * factor) for factor in (1.3, 1.02, 1.0, 0.98, 0.7)]
    assert rising == sorted(rising) and rising[0] < 0.05 and rising[-1] > 0.95 and 0.3 < rising[2] < 0.7
    assert "one more launch of these settings has output_tokens_per_s ≥ " in confidence_text(state) and "noise of" in confidence_text(state)
    assert next_launch(State()) is None and confidence_text(State()) == ""
    document = json.loads(report_of(H200, "json"))
    assert document["next_launch"]["probability"] == pytest.approx(next_launch(state)["probability"])  # type: ignore[index]


def test_a_figure_is_shown_with_the_requests_behind_it() -> None:
    few = {"output_tokens_per_s": 26.16, "ttft_p50_ms": None, "tpot_p50_ms": None, "requests_ok": 1}
    more = {"output_tokens_per_s": 104.3, "ttft_p50_ms": 91.55, "tpot_p50_ms": 9.488, "requests_ok": 4}
    assert both_levels(few, more) == (("26.16", "104.3"), ("too few requests", "91.55"), ("too few requests", "9.488"), ("1", "4"))
    assert both_levels({}, more)[0] == ("not measured", "104.3")
    assert "| whole requests in the window |" in report_of(H200, "md") and 'data-of="whole requests"' in report_of(H200, "html")


def test_markdown_says_what_was_ruled_out_by_which_measurement_and_what_was_not_used() -> None:
    text = report_of(ROOT / "runs/recorded/h200-7b-oom", "md")
    part = text.split("## Ruled out or left undecided by a measurement")[1].split("## ")[0]
    assert "operator-wants-graphs-for-1024 (cuda_graph_max_bs=1024" in part and "ruled out: It does not run: oom_capture" in part and "(entry 29)" in part
    assert "a measurement of launch original is not used, another of it is: never_steady" in text and "launch original invalid" not in text


def test_what_a_launch_for_another_cause_changed_is_not_called_untried() -> None:
    document = json.loads(report_of(ROOT / "runs/recorded/h200x2-27b-unresolved", "json"))
    assert "custom-allreduce-disabled" not in {row["id"] for row in document["untried"]}
    launched = {name for trial in document["trials"] for name in trial["settings"]}
    assert "disable_custom_all_reduce" in launched
