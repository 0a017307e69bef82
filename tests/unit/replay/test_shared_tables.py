"""Public measurements, where this checkout has them beside it (they are never committed): what is promised of them holds."""

import csv
import io
import tarfile
from pathlib import Path

import pytest

from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.search.contest import contest
from optimizer.search.table import Table, read_tables
from optimizer.wiring import Roots
from optimizer.wiring.tables import TableOptions, replay_table

ROOT = Path(__file__).parents[3]
DATA = ROOT / ".." / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the public tables are not beside this checkout")
HISTORIES = "auto_tuning_vllm_optuna_trials.csv"
PARAMS = ("param:block_size", "param:compilation_config", "param:cuda_graph_sizes", "param:gpu_memory_utilization", "param:kv_cache_dtype",
          "param:long_prefill_token_threshold", "param:max_num_batched_tokens", "param:max_num_partial_prefills", "param:max_num_seqs")  # fmt: skip
ROOTS = Roots(runs=ROOT / "runs", knowledge=ROOT)




def text(name: str, **where: str) -> str:
    rows = list(csv.DictReader(io.StringIO((DATA / name).read_text(encoding="utf-8"))))
    kept = [row for row in rows if all(row[key] == value for key, value in where.items())]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(kept)
    return out.getvalue()


def launches(table: Table, policy: str) -> float:
    return {score.policy: score for score in contest(table, (policy,), load_library(find_knowledge(ROOT)).directions, 12)}[policy].launches_to["95%"].mean


@pytest.mark.gate("S9")
@pytest.mark.parametrize("objective", ["total_throughput_tps", "total_tps_per_gpu", "p99_ttft_ms"])
def test_inferencex_needs_at_most_half_of_random(objective: str) -> None:
    table = read_tables(
        text("inferencex_llama33_70b_fp4_b200_vllm_tp_bs_offload.csv", derived_validity_flags="", log_present="1"), ["tp", "bs", "offload"], objective
    ).tables[0]
    assert sum(len(results) for results in table.results) == 27
    assert launches(table, "evidence") <= 0.5 * launches(table, "random")


@pytest.mark.gate("S9")
@pytest.mark.parametrize("group", [("bench", "seq", "hw"), ("bench", "seq", "conc")])
def test_inferencemax_needs_at_most_half_of_random_on_the_median_group(group: tuple[str, ...]) -> None:
    params = tuple(name for name in ("hw", "tp", "ep", "dp_attention", "conc", "framework", "precision", "mtp") if name not in group)
    found = replay_table(
        TableOptions(table=DATA / "inferencemax_official_dsr1_gptoss_agg.csv", params=params, objective="tput_per_gpu", group=group, policies=("evidence", "random"), seeds=20),
        ROOTS,
    )
    assert found["summary"]["half_of_random"] is True
    assert found["summary"]["against_random"]["never_more_on"] >= 0.9
    assert min(speed["steps_per_s"] for speed in found["speed"].values()) > 0


def logs(study: str) -> dict[str, bytes]:
    with tarfile.open(DATA / "evidence" / "auto_tuning_vllm_study7_study30_logs.tar.xz") as archive:
        members = {member.name.removeprefix("./"): member for member in archive if f"/{study}/" in member.name and member.name.endswith("vllm_server.log")}
        return {name: archive.extractfile(member).read() for name, member in members.items()}  # type: ignore[union-attr]


@pytest.mark.parametrize(("study", "baseline"), [("study_7", 293.413), ("study_30", 913.885)])
def test_a_history_replayed_with_its_logs(study: str, baseline: float, tmp_path: Path) -> None:
    for name, data in logs(study).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    pattern = str(tmp_path / "src" / "mlperf_studies" / study / "trial_{trial}" / "vllm_server.log")
    found = replay_table(
        TableOptions(table=DATA / HISTORIES, params=PARAMS, objective="objective_0", where=("state=COMPLETE", f"path=src/mlperf_studies/{study}/optuna.db"),
                     policies=("evidence", "random"), seeds=10, logs=pattern, baseline=baseline),
        ROOTS,
    )  # fmt: skip
    run = found["with_logs"][0]
    assert "engine.generation fell back to V0 because of kv_cache_dtype" in " ".join(run["launches"][0]["fallbacks"])
    if study == "study_7":  # every trial is slower than the baseline: one launch names the branch, and none follows
        assert len(run["launches"]) == 1 and run["kept"] == "baseline" and run["left"] == 19
        assert run["launches"][0]["pruned"][0].startswith('kv_cache_dtype="fp8": engine.generation fell back to V0')
    else:  # the same fallback, and yet trials that beat the baseline: the branch is no dead end
        near = next(number for number, launch in enumerate(run["launches"], 1) if launch["value"] >= 0.95 * 991.952)
        assert near <= 2
        assert found["groups"][0]["policies"]["evidence"]["launches_to"]["95%"]["mean"] <= 2


def test_study_7_names_the_fallback_after_trial_0() -> None:
    from optimizer.core.ledger import fallbacks
    from optimizer.evidence.bundle import bundle_from_files
    from optimizer.search.logged import replay_with_logs

    found = logs("study_7")
    table = read_tables(text(HISTORIES, state="COMPLETE", path="src/mlperf_studies/study_7/optuna.db"), PARAMS, "objective_0").tables[0]

    def read(index: int) -> tuple[object, ...]:
        log = next(data for name, data in found.items() if f"/trial_{table.rows[index]['trial']}/" in name)
        return fallbacks(bundle_from_files({"launch.json": b'{"engine": "vllm"}', "server.log": log}).evidence)

    first = next(index for index, row in enumerate(table.rows) if row["trial"] == "0")
    run = replay_with_logs(table, load_library(find_knowledge(ROOT)).directions, read, baseline=293.413, first=first)  # type: ignore[arg-type]
    assert len(run.launches) == 1 and run.kept == "baseline" and run.left == 19
