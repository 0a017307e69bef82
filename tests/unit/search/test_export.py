"""A study in Optuna's own database, as optuna-dashboard reads it."""

from pathlib import Path

import optuna
import pytest
from click.testing import CliRunner

from optimizer.cli import main
from optimizer.errors import UsageError
from optimizer.search.export import ExportedTrial, export

HISTORY = Path(__file__).parents[2] / "histories" / "h200-7b-eager"


def test_failed_launches_keep_their_reason_and_values_of_any_kind_survive(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'o.db'}"
    trials = [
        ExportedTrial({"tp": 2, "sizes": [1, 2, 4]}, 100.0, notes={"purpose": "baseline"}),
        ExportedTrial({"tp": 4}, None, "oom_kv: no room"),
        ExportedTrial({"tp": 4, "eager": True}, 150.0),
    ]
    assert export(url, "s", "output_tokens_per_s", "maximize", trials, {"target": "1000tps@32"}) == 3
    study = optuna.load_study(study_name="s", storage=url)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert study.best_value == 150.0 and study.best_params == {"tp": 4, "sizes": "(not given)", "eager": True}
    assert study.trials[0].params["sizes"] == "[1,2,4]" and study.trials[1].user_attrs["why"] == "oom_kv: no room"
    assert study.user_attrs["target"] == "1000tps@32" and study.metric_names == ["output_tokens_per_s"]


def test_what_never_differs_is_told_once_and_what_was_taken_away_is_not_given(tmp_path: Path) -> None:
    """The dashboard's importance is over the parameters that all trials share."""
    url = f"sqlite:///{tmp_path / 'o.db'}"
    trials = [ExportedTrial({"model_path": "m", "disable_cuda_graph": True}, 100.0), ExportedTrial({"model_path": "m"}, 300.0)]
    export(url, "s", "output_tokens_per_s", "maximize", trials, {})
    study = optuna.load_study(study_name="s", storage=url)
    assert [trial.params for trial in study.trials] == [{"disable_cuda_graph": True}, {"disable_cuda_graph": "(not given)"}]
    assert study.user_attrs["the same in every launch"] == {"model_path": "m"}


def test_nothing_is_overwritten_and_a_password_is_not_shown(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'o.db'}"
    export(url, "s", "m", "maximize", [ExportedTrial({}, 1.0)], {})
    with pytest.raises(UsageError, match="already holds"):
        export(url, "s", "m", "maximize", [ExportedTrial({}, 2.0)], {})
    with pytest.raises(UsageError) as refused:
        export("nodriver://me:secret@db/x", "s", "m", "maximize", [ExportedTrial({}, 1.0)], {})
    assert "secret" not in refused.value.message


def test_the_command_exports_a_recorded_study(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'o.db'}"
    done = CliRunner().invoke(main, ["export", str(HISTORY), "--optuna", url])
    assert done.exit_code == 0, done.output
    study = optuna.load_study(study_name="h200-7b-eager", storage=url)
    assert len(study.trials) >= 2 and study.best_value > 1000
    assert all("journal_entry" in trial.user_attrs for trial in study.trials)


def test_a_searched_front_has_both_objectives(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'o.db'}"
    trials = [ExportedTrial({"n": 8}, 400.0, second=5.0), ExportedTrial({"n": 16}, 700.0, second=9.0), ExportedTrial({"n": 32}, 650.0, second=9.5),
              ExportedTrial({"n": 64}, 800.0), ExportedTrial({"n": 128}, None, "oom_kv: no room")]  # fmt: skip
    assert export(url, "s", "output_tokens_per_s", "maximize", trials, {}, second="tpot_p50_ms") == 5
    study = optuna.load_study(study_name="s", storage=url)
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"] and study.metric_names == ["output_tokens_per_s", "tpot_p50_ms"]
    assert sorted(trial.params["n"] for trial in study.best_trials) == [8, 16]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 3 + ["FAIL"] * 2
    assert study.trials[3].user_attrs["why"] == "it measured 800, and no tpot_p50_ms" and study.trials[4].user_attrs["why"] == "oom_kv: no room"
