"""A log without launch.json, and files that say nothing: read as far as they tell, and never in silence."""

import json
import shutil
from pathlib import Path

import pytest

from optimizer.errors import EvidenceError
from optimizer.evidence.bundle import Bundle, bundle_from_files, read_bundle

RECORDED = Path(__file__).parents[2] / "recordings"
VLLM = RECORDED / "vllm-0.32-cpu/base"
SGLANG = RECORDED / "sglang-0.5.12-h200/tp1-7b-graph4"


def _notes(bundle: Bundle) -> str:
    return "\n".join(bundle.evidence.notes)


@pytest.mark.parametrize(
    ("path", "engine", "version", "model", "slots"),
    [
        ("vllm-0.32-cpu/base/server.log", "vllm", "0.32.0", "m/s2", None),
        ("llamacpp-2026.10-cpu", "llamacpp", "b0-unknown", "/models/model-cycle.gguf", 4),
        ("llamacpp-2026.10-cpu/ngram-np4.log", "llamacpp", "b0-unknown", "/models/model-cycle.gguf", 4),
        ("llamacpp-cpu/p4", "llamacpp", "b0-unknown", "m/s2.gguf", 4),
        ("llamacpp-cpu/p16", "llamacpp", "b0-unknown", "m/s2.gguf", 16),
    ],
)
def test_a_log_alone_tells_its_launch(path: str, engine: str, version: str, model: str, slots: int | None):
    bundle = read_bundle(RECORDED / path)
    assert (bundle.engine, bundle.engine_version, bundle.model) == (engine, version, model)
    assert bundle.evidence.value("engine.name") == engine
    assert slots is None or bundle.evidence.value("scheduler.max_running") == slots
    assert "is all that says how the server was launched" in _notes(bundle) and "the GPUs" in _notes(bundle)
    assert bundle.evidence.value("startup.outcome") == "ok"
    assert not [fact for fact in bundle.evidence.facts if fact.source == "launch.json"]


# What the engines themselves print when they do not start, where a recording would be the usage text of 400 flags.
_VLLM_BAD_FLAG = (b"usage: api_server.py [-h] [--headless] [--api-server-count API_SERVER_COUNT]\n"
                  b"                     [--kv-transfer-config KV_TRANSFER_CONFIG] [--vllm-config-file FILE]\n"
                  b"api_server.py: error: unrecognized arguments: --max-num-seq-s\n")  # fmt: skip
_VLLM_SERVE = b"usage: vllm serve [model_tag] [options]\nvllm serve: error: argument --block-size: invalid choice: 7\n"
_SGLANG_OLD = b"usage: launch_server.py [-h] --model-path MODEL_PATH\nlaunch_server.py: error: the following arguments are required: --model-path/--model\n"
_SGLANG_THROUGH_VLLM = (b'Traceback (most recent call last):\n  File "/opt/venv/lib/python3.11/site-packages/sglang/launch_server.py", line 10, in <module>\n'
                        b'  File "/opt/venv/lib/python3.11/site-packages/vllm/config/__init__.py", line 26, in <module>\n'
                        b"ImportError: cannot import name 'ModelConfig'\n")  # fmt: skip


@pytest.mark.parametrize(
    ("log", "engine", "outcome", "said"),
    [
        ("sglang-0.5.12-h200/tp1-7b-badflag/server.log", "sglang", "bad_flag", "--cuda-graph-maxbs 8"),
        ("sglang-0.5.12-h200/tp1-7b-oom/server.log", "sglang", "oom", "out of memory"),
        ("vllm-0.32-cpu/vllm_console_script_metadata_crash.log", "vllm", "other", "No package metadata was found for vllm"),
        ("vllm-0.32-cpu/vllm_plain_install_torchvision_crash.log", "vllm", "other", "torchvision::nms does not exist"),
        (_VLLM_BAD_FLAG, "vllm", "bad_flag", "--max-num-seq-s"),
        (_VLLM_SERVE, "vllm", "bad_flag", "--block-size"),
        (_SGLANG_OLD, "sglang", "bad_flag", "--model-path/--model"),
        (_SGLANG_THROUGH_VLLM, "sglang", "other", "ModelConfig"),
        (b"error: invalid argument: --no-such\n", "llamacpp", "bad_flag", "--no-such"),
    ],
)
def test_a_failed_starts_log_alone_tells_its_engine_and_its_error(tmp_path: Path, log: str | bytes, engine: str, outcome: str, said: str):
    (tmp_path / "server.log").write_bytes(log if isinstance(log, bytes) else (RECORDED / log).read_bytes())
    bundle = read_bundle(tmp_path)
    assert (bundle.engine, bundle.evidence.value("startup.outcome")) == (engine, outcome)
    assert said in str(bundle.evidence.value("startup.message"))


def test_what_the_log_says_of_its_arguments_equals_what_was_recorded():
    alone, whole = read_bundle(VLLM / "server.log"), read_bundle(VLLM)
    asked, told = (bundle.evidence.value("settings.asked") for bundle in (alone, whole))
    assert isinstance(asked, dict) and isinstance(told, dict)
    assert asked["max_model_len"] == told["max_model_len"] == 2048 and asked["enforce_eager"] is True
    assert alone.evidence.value("graphs.disable_flag") is True
    assert alone.evidence.value("decode.batch_p90") == whole.evidence.value("decode.batch_p90")
    alone = read_bundle(SGLANG / "server.log")
    assert alone.engine == "sglang" and alone.engine_version == "" and "the engine's version" in _notes(alone)
    assert alone.evidence.value("graphs.capture_max") == 4
    assert alone.model and alone.model == read_bundle(SGLANG).evidence.value("settings.resolved")["model_path"]  # type: ignore[index,call-overload]


def test_a_folder_with_several_logs_asks_which(tmp_path: Path):
    for name in ("a.log", "b.log"):
        shutil.copy(RECORDED / "llamacpp-2026.10-cpu/ngram-np4.log", tmp_path / name)
    with pytest.raises(EvidenceError, match=r"several logs \(a.log, b.log\)"):
        read_bundle(tmp_path)
    assert read_bundle(tmp_path / "b.log").engine == "llamacpp"


@pytest.mark.parametrize("data", [b"hello\nworld\n", b"", b"\xff\x00" * 900, b"[2026-11-29 10:00:00] INFO: nginx started\n" * 50,
                                  b"usage: cat [OPTION]...\ncat: error: unrecognized arguments: --vllm\n", b"error: cannot reach sglang serve: refused\n",
                                  b"user asked: what does 'sglang serve: error: ' or \"error: invalid argument: \" mean?\n"])  # fmt: skip
def test_what_no_engine_wrote_is_refused_with_what_to_give(tmp_path: Path, data: bytes):
    (tmp_path / "server.log").write_bytes(data)
    for path in (tmp_path, tmp_path / "server.log"):
        with pytest.raises(EvidenceError, match="no log of a known engine") as caught:
            read_bundle(path)
        assert "launch.json" in str(caught.value)


def test_a_broken_launch_json_is_no_excuse_to_guess(tmp_path: Path):
    shutil.copy(VLLM / "server.log", tmp_path / "server.log")
    (tmp_path / "launch.json").write_text("{")
    with pytest.raises(EvidenceError, match=r"launch\.json cannot be read"):
        read_bundle(tmp_path)


RANDOM = bytes(range(256)) * 20
LAUNCH = json.dumps({"engine": "vllm", "argv": ["vllm", "serve", "m"]}).encode()


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("bench.json", b"[{", "bench.json cannot be used"),
        ("bench.json", RANDOM, "bench.json cannot be used"),
        ("server_info.json", RANDOM, "server_info.json cannot be used"),
        ("metrics.txt", RANDOM, "metrics.txt cannot be used"),
        ("metrics.txt", b"<html>404</html>", "metrics.txt cannot be used"),
        ("config.json", b"{", "config.json cannot be used"),
        ("host.json", b"{", "host.json cannot be used"),
        ("server.log", (SGLANG / "server.log").read_bytes(), "server.log is a log of SGLang, and launch.json says vLLM"),
        ("server.log", b"hello\n", "server.log: no line of it was recognised as one of vLLM"),
    ],
)
def test_a_file_that_says_nothing_is_named_in_a_note(name: str, data: bytes, said: str):
    bundle = bundle_from_files({"launch.json": LAUNCH, name: data})
    assert said in _notes(bundle)


@pytest.mark.parametrize("folder", sorted(path.parent for path in RECORDED.glob("*/*/launch.json")), ids=lambda path: path.name)
def test_no_recording_is_called_unusable(folder: Path):
    notes = _notes(read_bundle(folder))
    assert "cannot be used" not in notes and "recognised as" not in notes and "is a log of" not in notes
