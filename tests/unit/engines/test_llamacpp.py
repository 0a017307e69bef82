"""llama.cpp's command line is no argparse: its rules, its help text and what its server says of itself, on recordings of a real one."""

import json
from pathlib import Path

import pytest

from optimizer.engines.llamacpp import ENGINE
from optimizer.engines.registry import engine_of, engines
from optimizer.errors import EngineError
from optimizer.model.flags import FlagTable
from optimizer.model.settings import Settings

RECORDED = Path(__file__).parents[2] / "recordings/llamacpp-2026.10-cpu"
FLAGS = ENGINE.flags((RECORDED / "help.txt").read_text(encoding="utf-8"))
ARGV = ("/opt/llama-server", "-m", "/m/a.gguf", "-np", "2", "-nkvo", "-fa", "on", "--metrics")


def test_the_help_of_a_real_build() -> None:
    printed = [line for line in (RECORDED / "help.txt").read_text().splitlines() if line.startswith("-") and not line.startswith("---")]
    removed = 5  # still printed, refused when given
    assert len(FLAGS.flags) == len(printed) - removed
    by_name = FLAGS.by_name
    assert by_name["-np"].name == "--parallel" and by_name["-np"].default == "-1"
    assert by_name["--flash-attn"].choices == ("on", "off", "auto")
    assert "q8_0" in by_name["-ctk"].choices and by_name["--split-mode"].choices[0] == "none"
    assert by_name["--kv-unified"].negatable and not by_name["--kv-unified"].takes_value
    assert not by_name["--no-host"].negatable and by_name["--defrag-thold"].deprecated
    assert "--draft-max" not in by_name and "--spec-draft-n-max" in by_name
    assert by_name["--spec-type"].choices == ()  # a list that may be combined


def test_values_are_read_as_the_server_reads_them() -> None:
    settings = ENGINE.parse_argv((*ARGV, "--n_gpu_layers", "-1", "--chat-template", "--port"), FLAGS).values
    assert settings == {
        "model": "/m/a.gguf", "parallel": 2, "kv_offload": False, "flash_attn": "on", "gpu_layers": -1, "chat_template": "--port",
    }  # fmt: skip


@pytest.mark.parametrize("word", ["--paral", "--port=80", "-np4", "--draft-max", "--no-such"])
def test_what_the_server_refuses_is_unknown(word: str) -> None:
    assert word in ENGINE.unknown_flags((*ARGV, word), FLAGS)


def test_edits_keep_the_users_spelling_and_use_this_builds_names() -> None:
    def edited(**values: object) -> tuple[str, ...]:
        to = Settings.model_validate({"values": values})
        return ENGINE.command(ARGV, {}, Settings(), to, port=None, served_name=None, flags=FLAGS).argv

    assert edited(parallel=16, kv_unified=True) == ("/opt/llama-server", "-m", "/m/a.gguf", "-np", "16", "-nkvo", "-fa", "on", "--metrics", "--kv-unified")
    assert edited(kv_offload=True)[5] == "--kv-offload"
    assert edited(cont_batching=False)[-1] == "--no-cont-batching"
    assert edited(draft_max=8)[-2:] == ("--spec-draft-n-max", "8")
    with pytest.raises(EngineError, match="does not take"):
        edited(cache_type_k="fp8")


def test_it_is_found_without_its_help_and_by_nothing_else() -> None:
    assert "llamacpp" in engines()
    unknown = FlagTable(known=False)
    for argv in (ARGV, ("/v/bin/python", "/v/bin/llama-server", *ARGV[1:])):
        assert engine_of(argv, {}) is ENGINE
        identity = ENGINE.identity((*argv, "-a", "name", "--port", "81"), unknown)
        assert (identity.model, identity.served_name, identity.port) == ("/m/a.gguf", "name", 81)
    for argv in (("llama-server", "--version"), ("llama-server", "--list-devices"), ("bash", "-c", "llama-server -m x"), ("llama-cli", "-m", "x")):
        assert engine_of(argv, {}) is None


def test_readback_of_a_real_server() -> None:
    props = json.loads((RECORDED / "props.json").read_text())
    effective = ENGINE.readback(props, None, (RECORDED / "ngram-np4.log").read_text())
    assert effective == {
        "parallel": 4, "spec_type": "ngram-simple", "kv_unified": False, "ctx_size": 8192, "batch_size": 2048, "ubatch_size": 512,
        "threads": 1,
    }  # fmt: skip
    assert [item.param for item in ENGINE.check_readback({"parallel": 16, "ctx_size": 8192, "threads": -1}, effective)] == ["parallel"]
