"""What a running server really uses, from recorded ``/server_info`` and logs; what each help text offers."""

from typing import Any

import pytest

from optimizer.engines.registry import engine
from optimizer.model.settings import Settings

from .conftest import help_text, launches, load, recordings

SGLANG, VLLM = engine("sglang"), engine("vllm")


def effective(run: str) -> dict[str, Any]:
    folder = recordings() / run
    info = load(folder / "server_info.json") if (folder / "server_info.json").exists() else None
    log = (folder / "server.log").read_text(encoding="utf-8", errors="replace")
    return (SGLANG if run.startswith("sglang") else VLLM).readback(info, None, log)


def test_what_was_asked_is_in_force_in_the_recordings() -> None:
    checked = 0
    for path in launches():
        launch, run = load(path), f"{path.parent.parent.name}/{path.parent.name}"
        if (
            not launch["ready"] or run == "sglang-0.5.23-cpu/base"
        ):  # its server_info is of another start, without the flag
            continue
        adapter = engine(launch["engine"])
        flags = adapter.flags(help_text(launch["engine_version"]))
        found = effective(run)
        checked += len(found)
        assert adapter.check_readback(adapter.parse_argv(launch["argv"], flags).values, found) == (), run
    assert checked > 4000


@pytest.mark.fault("F29")
def test_a_flag_that_was_not_obeyed_is_told() -> None:
    found = effective("sglang-0.5.12-h200/tp2-27b-nextn3")
    assert found["cuda_graph_max_bs"] == 32
    wrong = SGLANG.check_readback({"cuda_graph_max_bs": 256, "speculative_num_draft_tokens": 9, "tp_size": 2}, found)
    assert [(item.param, item.wanted, item.effective) for item in wrong] == [
        ("cuda_graph_max_bs", 256, 32), ("speculative_num_draft_tokens", 9, 4),
    ]  # fmt: skip


def test_an_alias_is_no_mismatch() -> None:
    found = effective("sglang-0.5.12-h200/tp2-27b-nextn3")
    assert found["speculative_algorithm"] == "EAGLE"
    assert SGLANG.check_readback({"speculative_algorithm": "NEXTN"}, found) == ()
    assert len(SGLANG.check_readback({"speculative_algorithm": "EAGLE3"}, found)) == 1


def test_the_effective_request_limit_counts_not_the_asked_one() -> None:
    found = effective("sglang-0.5.12-h200/tp1-7b-kvlimited")
    assert found["effective_max_running_requests"] == 2048
    assert [item.effective for item in SGLANG.check_readback({"max_running_requests": 4096}, found)] == [2048]
    assert SGLANG.check_readback({"max_running_requests": 2048}, found) == ()


def test_nested_graph_configuration_of_new_builds() -> None:
    found = effective("sglang-0.5.23-cpu/base")
    assert (found["cuda_graph_max_bs"], found["disable_cuda_graph"], found["device"]) == (32, True, "cpu")
    assert SGLANG.check_readback({"cuda_graph_max_bs": 256}, found)[0].where == "cuda_graph_config.decode.max_bs"


def test_vllm_tells_its_configuration_in_the_log_only() -> None:
    found = effective("vllm-0.32-cpu/cyc_ngram4")
    assert found["speculative_config.num_speculative_tokens"] == 4
    assert (found["device"], found["enforce_eager"], found["max_model_len"]) == ("cpu", True, 2048)
    wrong = VLLM.check_readback({"speculative_config.num_speculative_tokens": 8, "enforce_eager": True}, found)
    assert [(item.param, item.effective) for item in wrong] == [("speculative_config.num_speculative_tokens", 4)]
    off = effective("vllm-0.32-cpu/cyc_base")
    assert off["speculative_config"] is None
    assert len(VLLM.check_readback({"speculative_config.method": "ngram"}, off)) == 1
    assert effective("vllm-0.32-cpu/noprefix")["enable_prefix_caching"] is False


@pytest.mark.fault("F16")
@pytest.mark.parametrize("run", ["tp1-7b-oom", "tp1-7b-badflag"])
def test_recorded_exits(run: str) -> None:
    log = (recordings() / "sglang-0.5.12-h200" / run / "server.log").read_text(encoding="utf-8", errors="replace")
    assert SGLANG.classify_exit(log, None) == {"tp1-7b-oom": "oom", "tp1-7b-badflag": "bad_flag"}[run]


def test_flag_tables_of_three_builds() -> None:
    old, new, vllm = (engine(name).flags(help_text(version)) for name, version in (
        ("sglang", "0.5.12"), ("sglang", "0.5.23"), ("vllm", "0.32.0")))  # fmt: skip
    assert (len(old.flags), len(new.flags), len(vllm.flags)) == (389, 533, 317)
    assert old.by_name["--kv-cache-dtype"].choices[:3] == ("auto", "fp8_e5m2", "fp8_e4m3")
    assert old.by_name["--cuda-graph-bs"].many and not old.by_name["--cuda-graph-max-bs"].many
    assert not old.by_name["--disable-cuda-graph"].takes_value
    assert new.by_name["--disable-cuda-graph"].deprecated and not new.by_name["--disable-decode-cuda-graph"].deprecated
    assert vllm.by_name["-tp"].name == "--tensor-parallel-size"
    assert vllm.by_name["--enable-prefix-caching"].negatable
    assert vllm.by_name["--tensor-parallel-size"].default == "1"
    # "{a,b} or name registered in ..." is an open list.
    assert vllm.by_name["--tool-call-parser"].choices == ()


@pytest.mark.fault("H31")
def test_a_hostile_help_text_stays_small() -> None:
    text = "options:\n" + "".join(f"  --flag-{index} X\n" for index in range(100_000))
    assert len(SGLANG.flags(text).flags) == 5_000


def test_settings_of_the_environment() -> None:
    env = {"NCCL_DEBUG": "INFO", "NCCL_MIN_NCHANNELS": "8", "HOME": "/root", "SGLANG_API_KEY": "x", "VLLM_USE_V1": "1"}
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", "/m"]
    flags = SGLANG.flags(help_text("0.5.12"))
    assert SGLANG.parse_launch(argv, env, flags) == Settings(
        values={"env.NCCL_DEBUG": "INFO", "env.NCCL_MIN_NCHANNELS": 8, "model_path": "/m"}
    )
