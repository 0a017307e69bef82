"""Command lines in and out: every recorded launch, renamed flags, prefixes, JSON settings."""

from typing import Any

import pytest

from optimizer.core.resolve import canonical_settings
from optimizer.engines.registry import engine, engine_of, load
from optimizer.errors import EngineError
from optimizer.model.base import Value
from optimizer.model.flags import FlagTable
from optimizer.model.settings import Settings

from .conftest import help_text, launches
from .conftest import load as read

SGLANG, VLLM = engine("sglang"), engine("vllm")
OLD, NEW = SGLANG.flags(help_text("0.5.12")), SGLANG.flags(help_text("0.5.23"))
VLLM_FLAGS = VLLM.flags(help_text("0.32.0"))
TABLES = {"0.5.12": OLD, "0.5.23": NEW, "0.32.0": VLLM_FLAGS}


def command(adapter: Any, argv: list[str], flags: FlagTable, **values: Value) -> tuple[str, ...]:
    to = Settings(values={name.replace("__", "."): value for name, value in values.items()})
    made: tuple[str, ...] = adapter.command(argv, {}, Settings(), to, port=None, served_name=None, flags=flags).argv
    return made


@pytest.mark.parametrize("path", launches(), ids=lambda path: f"{path.parent.parent.name}/{path.parent.name}")
def test_recorded_launches_round_trip(path: Any) -> None:
    launch = read(path)
    adapter = engine_of(launch["argv"], launch["env"])
    assert adapter is not None and adapter.name == launch["engine"]
    flags = TABLES[launch["engine_version"]]
    given = adapter.parse_launch(launch["argv"], launch["env"], flags)
    same = adapter.command(launch["argv"], launch["env"], given, given, port=None, served_name=None, flags=flags)
    assert (list(same.argv), same.env) == (launch["argv"], {})
    # Change one thing, change it back: the very same tokens again.
    param = "max_running_requests" if adapter.name == "sglang" else "max_num_seqs"
    before = given.values.get(param)
    there = adapter.command(
        launch["argv"], {}, Settings(), Settings(values={param: 5}), port=None, served_name=None, flags=flags
    )
    back = adapter.command(
        there.argv, {}, Settings(), Settings(values={param: before}), port=None, served_name=None, flags=flags
    )
    assert list(back.argv) == launch["argv"]
    expected_unknown = ("--cuda-graph-maxbs",) if path.parent.name == "tp1-7b-badflag" else ()
    assert adapter.unknown_flags(launch["argv"], flags) == expected_unknown


def test_the_graph_limit_takes_the_spelling_of_the_build() -> None:
    """The walk of the design: one parameter, three eras of flags."""
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "/m"]
    assert command(SGLANG, argv, OLD, cuda_graph_max_bs=256)[-2:] == ("--cuda-graph-max-bs", "256")
    assert command(SGLANG, argv, NEW, cuda_graph_max_bs=256)[-2:] == ("--cuda-graph-max-bs-decode", "256")
    both = SGLANG.flags(
        "options:\n  --cuda-graph-max-bs N\n                        Deprecated alias for --cuda-graph-max-bs-decode.\n"
        "  --cuda-graph-max-bs-decode N\n  --model-path P\n"
    )
    assert command(SGLANG, argv, both, cuda_graph_max_bs=256)[-2:] == ("--cuda-graph-max-bs-decode", "256")
    # ... but a user's own spelling stays where it is.
    mine = [*argv, "--cuda-graph-max-bs", "32", "--port", "1"]
    assert command(SGLANG, mine, both, cuda_graph_max_bs=256) == (*argv, "--cuda-graph-max-bs", "256", "--port", "1")
    neither = SGLANG.flags("options:\n  --model-path P\n")
    with pytest.raises(EngineError, match="cuda-graph-max-bs-decode"):
        command(SGLANG, argv, neither, cuda_graph_max_bs=256)


def test_an_ambiguous_old_flag_is_unknown_on_a_new_build() -> None:
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "/m", "--cuda-graph-max-bs", "32"]
    assert SGLANG.unknown_flags(argv, NEW) == ("--cuda-graph-max-bs",)
    assert SGLANG.unknown_flags(argv, OLD) == ()


@pytest.mark.parametrize("spelling", ["--tp", "--tp-size", "--tensor-parallel-size", "--tensor-par"])
def test_aliases_and_prefixes_name_one_parameter(spelling: str) -> None:
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "/m", spelling, "2"]
    for flags in (OLD, NEW):
        assert SGLANG.parse_argv(argv, flags).values["tp_size"] == 2
        assert command(SGLANG, argv, flags, tp_size=4)[-2:] == (spelling, "4")


def test_both_decode_graph_switches_are_taken_off() -> None:
    argv = ["sglang", "serve", "--model-path", "/m", "--disable-cuda-graph", "--disable-decode-cuda-graph"]
    assert SGLANG.parse_argv(argv, NEW).values == {"disable_cuda_graph": True, "model_path": "/m"}
    assert command(SGLANG, argv, NEW, disable_cuda_graph=None, disable_decode_cuda_graph=None) == tuple(argv[:4])


def test_many_valued_flags() -> None:
    argv = ["sglang", "serve", "--model-path", "/m", "--cuda-graph-bs-decode", "1", "2", "4", "--port", "3"]
    assert SGLANG.parse_argv(argv, NEW).values["cuda_graph_bs"] == [1, 2, 4]
    assert command(SGLANG, argv, NEW, cuda_graph_bs=[8, 16])[4:7] == ("--cuda-graph-bs-decode", "8", "16")
    assert command(SGLANG, argv, NEW, cuda_graph_bs=[1, 2, 4]) == tuple(argv)


def test_equals_sign_and_negative_numbers() -> None:
    argv = ["sglang", "serve", "--model-path=/m", "--chunked-prefill-size", "-1", "--mem-fraction-static=0.70"]
    assert SGLANG.parse_argv(argv, NEW).values == {
        "chunked_prefill_size": -1, "mem_fraction_static": 0.7, "model_path": "/m",
    }  # fmt: skip
    assert command(SGLANG, argv, NEW, mem_fraction_static=0.8)[-1] == "--mem-fraction-static=0.8"
    assert command(SGLANG, argv, NEW, mem_fraction_static=0.7) == tuple(argv)


def test_the_last_of_two_wins_and_both_go() -> None:
    argv = ["sglang", "serve", "--model-path", "/m", "--page-size", "1", "--enable-metrics", "--page-size", "16"]
    assert SGLANG.parse_argv(argv, NEW).values["page_size"] == 16
    assert command(SGLANG, argv, NEW, page_size=None) == (*argv[:4], "--enable-metrics")
    assert command(SGLANG, argv, NEW, page_size=64) == (*argv[:4], "--enable-metrics", "--page-size", "64")


def test_suffixed_numbers() -> None:
    assert SGLANG.parse_argv(["sglang", "serve", "--max-total-tokens", "16k"], NEW).values["max_total_tokens"] == 16000
    assert VLLM.parse_argv(["vllm", "serve", "/m", "--max-model-len", "2K"], VLLM_FLAGS).values["max_model_len"] == 2048


def test_choices_of_the_build_are_respected() -> None:
    with pytest.raises(EngineError, match="fp4_e2m1"):
        command(SGLANG, ["sglang", "serve", "--model-path", "/m"], NEW, kv_cache_dtype="fp4_e2m1")


def test_vllm_switches_come_in_pairs() -> None:
    argv = ["vllm", "serve", "/m", "--no-enable-prefix-caching"]
    assert VLLM.parse_argv(argv, VLLM_FLAGS).values == {"enable_prefix_caching": False, "model": "/m"}
    assert command(VLLM, argv, VLLM_FLAGS, enable_prefix_caching=True) == (*argv[:3], "--enable-prefix-caching")
    assert command(VLLM, argv[:3], VLLM_FLAGS, enable_prefix_caching=False) == tuple(argv)


def test_speculation_of_vllm_is_put_together_from_its_keys() -> None:
    argv = ["vllm", "serve", "/m"]
    made = command(
        VLLM, argv, VLLM_FLAGS,
        speculative_config__method="ngram", speculative_config__num_speculative_tokens=4,
        speculative_config__prompt_lookup_max=4, speculative_config__prompt_lookup_min=2,
    )  # fmt: skip
    text = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4,"prompt_lookup_min":2}'
    assert made == (*argv, "--speculative-config", text)
    longer = command(VLLM, list(made), VLLM_FLAGS, speculative_config__num_speculative_tokens=8)
    assert longer[-1] == text.replace(':4,"prompt_lookup_max', ':8,"prompt_lookup_max')
    # Without a method the rest means nothing: the flag goes.
    assert command(VLLM, list(made), VLLM_FLAGS, speculative_config__method=None) == tuple(argv)
    assert command(VLLM, list(made), VLLM_FLAGS, speculative_config=None) == tuple(argv)


def test_dotted_and_short_flags_of_vllm() -> None:
    argv = ["vllm", "serve", "/m", "-tp", "2", "-cc.mode=3", "-O3", "--speculative-config.method", "ngram",
            "--speculative-config.num_speculative_tokens=4", "--max_num_seqs", "4"]  # fmt: skip
    assert VLLM.parse_argv(argv, VLLM_FLAGS).values == {
        "compilation_config": {"mode": 3}, "max_num_seqs": 4, "model": "/m", "optimization_level": 3,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 4}, "tensor_parallel_size": 2,
    }  # fmt: skip
    made = command(VLLM, argv, VLLM_FLAGS, max_num_seqs=32)
    assert made == tuple("32" if token == "4" else token for token in argv)
    made = command(VLLM, argv, VLLM_FLAGS, speculative_config__num_speculative_tokens=8)
    assert made[-2:] == ("--speculative-config", '{"method":"ngram","num_speculative_tokens":8}')
    assert not any("config." in token for token in made)


def test_a_positional_model_is_left_alone() -> None:
    with pytest.raises(EngineError, match="another study"):
        command(VLLM, ["vllm", "serve", "/m"], VLLM_FLAGS, model="/other")


def test_without_a_help_text_nothing_is_filtered() -> None:
    unknown = FlagTable(known=False)
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "/m", "--tp", "2", "--enable-metrics"]
    assert SGLANG.parse_argv(argv, unknown).values == {"enable_metrics": True, "model_path": "/m", "tp_size": 2}
    assert command(SGLANG, argv, unknown, page_size=16) == (*argv, "--page-size", "16")


def test_one_digest_for_one_meaning() -> None:
    dotted = Settings(values={"speculative_config.method": "ngram", "speculative_config.num_speculative_tokens": 4})
    whole = Settings(values={"speculative_config": {"num_speculative_tokens": 4, "method": "ngram"}})
    assert canonical_settings(dotted).digest == canonical_settings(whole).digest
    text, number = Settings(values={"env.NCCL_NTHREADS": "512"}), Settings(values={"env.NCCL_NTHREADS": 512})
    assert canonical_settings(text).digest == canonical_settings(number).digest


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/usr/bin/python3.12", "-m", "sglang.launch_server", "--model-path", "/m"], "sglang"),
        (["/opt/venv/bin/python", "/opt/venv/bin/sglang", "serve", "--model-path", "/m"], "sglang"),
        (["numactl", "--cpunodebind=0", "python3", "-m", "sglang.launch_server", "--model-path", "/m"], "sglang"),
        (["sglang::scheduler_TP0"], None),
        (["VLLM::EngineCore"], None),
        (["/usr/bin/python3", "/usr/local/bin/vllm", "serve", "/m"], "vllm"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m"], "vllm"),
        (["bash", "-c", "vllm serve /m"], None),
        (["sudo", "vllm", "serve", "/m"], None),
        (["vllm", "bench", "serve", "--model", "/m"], None),
        (["python3", "-m", "sglang.bench_serving", "--model", "/m"], None),
        (["python3", "-m", "sglang.launch_server", "--help"], None),
        (["grep", "-m", "sglang.launch_server"], None),
    ],
)
def test_who_is_a_server(argv: list[str], name: str | None) -> None:
    found = engine_of(argv, {})
    assert (found.name if found else None) == name


def test_a_broken_adapter_is_named() -> None:
    from importlib.metadata import EntryPoint

    points = [EntryPoint("broken", "optimizer.engines.no_such_module:ENGINE", "optimizer.engines")]
    with pytest.raises(EngineError, match="broken"):
        load(points)
    with pytest.raises(EngineError, match="not an optimizer"):
        load([EntryPoint("x", "optimizer.engines.registry:GROUP", "optimizer.engines")])
    with pytest.raises(EngineError, match="calls itself"):
        load([EntryPoint("other", "optimizer.engines.sglang:ENGINE", "optimizer.engines")])
