"""Evidence from strangers: broken, mixed, poisoned or enormous. One clear error or a named fact, never a traceback."""

import json
import os
import random
from pathlib import Path

import pytest

from optimizer.errors import EvidenceError
from optimizer.evidence.bundle import bundle_from_case, bundle_from_files, read_bundle

RECORDINGS = Path(__file__).parents[2] / "recordings"
CASES = sorted((Path(__file__).parents[2] / "incidents" / "cases").glob("*.json"))
LAUNCH = {
    "name": "x",
    "engine": "sglang",
    "engine_version": "0.5.12",
    "argv": ["python3", "-m", "sglang.launch_server"],
    "env": {},
    "ready": True,
}


def folder(tmp_path: Path, launch: object = LAUNCH, **files: bytes) -> Path:
    if launch is not None:
        (tmp_path / "launch.json").write_text(json.dumps(launch))
    for name, data in files.items():
        (tmp_path / name.replace("__", ".")).write_bytes(data)
    return tmp_path


# -- B1 ------------------------------------------------------------------------------------------------------------


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"cannot be read") as caught:
        read_bundle(tmp_path / "absent")
    assert "launch.json" in str(caught.value)


@pytest.mark.fault("B1")
def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"no readable launch\.json"):
        read_bundle(tmp_path)


@pytest.mark.fault("B1")
@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", '{"name": 1}', '{"engine": 5}', '{"engine": "sglang", "argv": "x"}', '{"engine": "sglang", "env": []}',
     '{"engine": "sglang", "gpu_count": -1}', '{"engine": "sglang", "ready": "yes"}', "[" * 200_000, "\x00\xff"],
)  # fmt: skip
def test_malformed_launch(tmp_path: Path, text: str) -> None:
    (tmp_path / "launch.json").write_text(text)
    with pytest.raises(EvidenceError):
        read_bundle(tmp_path)


@pytest.mark.fault("B1")
def test_links_out_of_the_folder_and_device_files_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("[2026-01-01 00:00:00] Decode batch, #running-req: 7")
    inside = tmp_path / "bundle"
    inside.mkdir()
    folder(inside)
    (inside / "server.log").symlink_to(secret)
    (inside / "metrics.txt").symlink_to("/dev/zero")
    os.mkfifo(inside / "bench.json")
    (inside / "gpu.csv").mkdir()
    (inside / "topo.txt").symlink_to(inside / "topo.txt")
    bundle = read_bundle(inside)
    reasons = {item.name: item.reason for item in bundle.evidence.missing if item.name.startswith("file.")}
    assert "leaves the folder" in reasons["file.server.log"]
    assert "not a regular file" in reasons["file.metrics.txt"]
    assert "not a regular file" in reasons["file.bench.json"]
    assert "not a regular file" in reasons["file.gpu.csv"]
    assert "file.topo.txt" in reasons
    assert bundle.evidence.value("decode.batch_p90") is None


@pytest.mark.fault("B1")
def test_a_log_of_ten_gigabytes_is_read_at_both_ends(tmp_path: Path) -> None:
    folder(tmp_path)
    with (tmp_path / "server.log").open("wb") as handle:
        handle.write(b"[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m', tp_size=4, device='cuda')\n")
        handle.seek(10 * 1024**3)
        handle.write(b"\n[2026-01-01 00:00:09] Decode batch, #running-req: 7, #token: 70, token usage: 0.10, cuda graph: True, "
                     b"gen throughput (token/s): 70.00, #queue-req: 0\n")  # fmt: skip
    evidence = read_bundle(tmp_path).evidence
    assert evidence.number("parallel.tp") == 4
    fact = evidence.get("decode.batch_p90")
    assert (
        fact is not None
        and fact.value == 7
        and fact.line is None
        and fact.span is not None
        and fact.span[0] > 10 * 1024**3
    )


def test_a_directory_of_rubbish_yields_missing_facts(tmp_path: Path) -> None:
    rubbish = bytes(range(256)) * 400
    names = (
        "server__log",
        "metrics__txt",
        "server_info__json",
        "bench__json",
        "gpu__csv",
        "topo__txt",
        "nvidia-smi-q__txt",
        "config__json",
        "help__txt",
    )
    bundle = read_bundle(folder(tmp_path, **dict.fromkeys(names, rubbish)))
    assert bundle.bench == ()
    assert {item.name for item in bundle.evidence.missing} >= {
        "settings.resolved",
        "client.output_tps",
        "gpu.sm_util_p50",
    }


# -- B2 ------------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B2")
def test_files_of_different_launches_are_named_not_merged_silently(tmp_path: Path) -> None:
    launch = json.loads((RECORDINGS / "sglang-0.5.12-h200/tp2-27b-graph32/launch.json").read_text())
    launch["engine_version"] = "0.5.9"
    files = {"launch__json": json.dumps(launch).encode()}
    other = RECORDINGS / "sglang-0.5.12-h200/tp1-7b-graph32"
    for name in ("server.log", "server_info.json"):
        files[name.replace(".", "__")] = (other / name).read_bytes()
    conflict = read_bundle(folder(tmp_path, None, **files)).evidence.value("validity.version_conflict")
    assert isinstance(conflict, list)
    assert any("0.5.9" in text and "0.5.12" in text for text in conflict)
    assert any("tp_size 2" in text and "1" in text for text in conflict)


def test_a_clean_recording_has_no_conflict() -> None:
    for path in (RECORDINGS / "sglang-0.5.12-h200").iterdir():
        if path.is_dir():
            assert read_bundle(path).evidence.value("validity.version_conflict") is None


# -- B3 ------------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B3")
@pytest.mark.parametrize("path", CASES[:12], ids=lambda path: path.stem)
def test_a_case_cannot_carry_its_own_answer(path: Path) -> None:
    clean = path.read_bytes()
    case = json.loads(clean)
    poison = {**case, "id": "cuda-graph-disabled", "diagnosable": "no", "needs_tests": ["all"], "reason": "it is the cable", "cause": "x",
              "labels": {"answer": 1}, "evidence": [{"fact": "graphs.mode", "value": "none"}], "ready": False, "bench": [{"c": 1}]}  # fmt: skip
    keys = list(poison)
    random.Random(7).shuffle(keys)
    poisoned = json.dumps({key: poison[key] for key in keys}).encode()
    assert bundle_from_case(poisoned).plain() == bundle_from_case(clean).plain()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_case_reads_and_keeps_its_facts(path: Path) -> None:
    case = json.loads(path.read_text())
    bundle = read_bundle(path)
    assert bundle.kind == "case"
    for stated in case["facts"]:
        fact = bundle.evidence.get(stated["name"], **(stated.get("labels") or {}))
        assert fact is not None, stated
    for test in case["tests"]:
        for stated in test["facts"]:
            assert bundle.evidence.get(stated["name"], test=test["name"], **(stated.get("labels") or {})) is not None


def test_absence_in_a_case_is_never_false() -> None:
    evidence = bundle_from_case(
        json.dumps({"engine": "sglang", "known_flags": ["--tp", "1", "--trust-remote-code"], "facts": []}).encode()
    ).evidence
    assert evidence.value("parallel.tp") == 1
    for name in (
        "graphs.disable_flag",
        "spec.method",
        "spec.simulated",
        "nccl.env",
        "kernel.attention_forced",
        "parallel.dp",
        "kv.preemptions",
    ):
        assert evidence.value(name) is None, name


def test_the_log_line_wins_over_the_stated_fact() -> None:
    case = {"engine": "sglang", "facts": [{"name": "scheduler.max_running", "value": 1}],
            "log_lines": ["max_total_num_tokens=100, chunked_prefill_size=8, max_prefill_tokens=9, max_running_requests=48, context_len=10"]}  # fmt: skip
    fact = bundle_from_case(json.dumps(case).encode()).evidence.get("scheduler.max_running")
    assert fact is not None and (fact.value, fact.source, fact.line) == (48, "log_lines", None)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"engine": 3}', '{"engine": "sglang", "facts": 3}', '{"engine": "sglang", "facts": [3]}', '{"facts": [{"name": "a"}]}',
     '{"engine": "vllm", "log_lines": [3]}', '{"engine": "vllm", "tests": [{"facts": []}]}', '{"engine": "vllm", "known_flags": {}}', "[" * 100_000],
)  # fmt: skip
def test_malformed_cases(text: str) -> None:
    with pytest.raises(EvidenceError):
        bundle_from_case(text.encode())


# -- B4 ------------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B4")
@pytest.mark.parametrize("value", [0, -4096, 10**18, "4096", 1.5, True, None])
def test_absurd_dimensions(tmp_path: Path, value: object) -> None:
    config = json.dumps({"hidden_size": value, "num_hidden_layers": 32, "num_experts": 10**18}).encode()
    bundle = read_bundle(folder(tmp_path, config__json=config))
    if value is None:
        assert bundle.model_config_json is not None
    else:
        assert bundle.model_config_json is None
        assert any(
            item.name == "model.moe_experts" and "hidden_size" in item.reason for item in bundle.evidence.missing
        )


def test_files_collected_from_a_box_equal_the_folder() -> None:
    path = RECORDINGS / "sglang-0.5.12-h200/tp2-27b-graph32"
    files = {item.name: item.read_bytes() for item in path.iterdir()}
    shared = {name: (path.parent / name).read_bytes() for name in ("help.txt", "topo.txt", "nvidia-smi-q.txt")}
    assert bundle_from_files({**files, **shared}, frozenset(shared)) == read_bundle(path)
