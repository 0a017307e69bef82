"""The printed next step: a number that is worked out, or what is missing; nothing that the version lacks."""

from pathlib import Path

import pytest

from optimizer.core.predicate import Look
from optimizer.engines.renames import absent_spellings
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.flags import FlagTable
from optimizer.model.playbook import HandOver, SetAction
from optimizer.runner.phrases import action_sentence

LIBRARY = load_library(find_knowledge(Path(__file__).parents[3]))


def _look(engine: str = "vllm", version: str = "0.32.0", settings: dict[str, Value] | None = None, **facts: Value) -> Look:
    known = {"engine.name": engine, "engine.version": version, **{name.replace("__", "."): value for name, value in facts.items()}}
    return Look(facts=Evidence(facts=tuple(Fact(name=name, value=value) for name, value in known.items())), settings=settings or {}, box={})


def _said(action: SetAction, look: Look) -> str:
    engine, version = str(look.facts.value("engine.name")), str(look.facts.value("engine.version"))
    spaces = [space for space in LIBRARY.spaces if space.engine in ("any", engine)]
    return action_sentence(action, look, spaces, FlagTable(known=False, absent=absent_spellings(engine, version)), None)


SEQS = SetAction(engine="vllm", params={"max_num_seqs": {"fact": "client.concurrency"}})
SHARE = SetAction(
    engine="vllm",
    params={"gpu_memory_utilization": {"setting": "gpu_memory_utilization", "plus": 0.05, "at_least": 0.9, "at_most": 0.97}},
)
MODE = SetAction(engine="vllm", params={"compilation_config.cudagraph_mode": "FULL_AND_PIECEWISE"})
SIZE = SetAction(engine="vllm", params={"max_cudagraph_capture_size": {"grid_above": "graphs.required_size"}})


@pytest.mark.parametrize(
    ("action", "look", "said"),
    [
        (SEQS, _look(client__concurrency=96, scheduler__max_running=16), "Relaunch with --max-num-seqs 96 and compare"),
        (SEQS, _look(scheduler__max_running=16), "Relaunch with --max-num-seqs 32 and compare"),
        (SEQS, _look(), "The value for --max-num-seqs follows from client.concurrency, which was not observed: run a benchmark"),
        (SHARE, _look(version="0.9.0.1"), "--gpu-memory-utilization 0.95 and compare"),
        (SHARE, _look(version="0.32.0"), "-memory-utilization 0.97 and compare"),
        (SHARE, _look(settings={"gpu_memory_utilization": 0.87}), "-memory-utilization 0.92 and compare"),
        (SIZE, _look(decode__batch_p90=40), "--max-cudagraph-capture-size 64 and compare"),
        (SIZE, _look(graphs__required_size=3000), "--max-cudagraph-capture-size 3000 and compare"),
        (SIZE, _look(), "The value for --max-cudagraph-capture-size follows from graphs.required_size, which was not observed"),
        (SIZE, _look(version="0.10.2", decode__batch_p90=40), "Not with this version: 0.10.2 has no --max-cudagraph-capture-size."),
        (MODE, _look(version="0.9.0.1"), "Not with this version: --compilation-config.cudagraph_mode is in >=0.10.2 only, and this is 0.9.0.1."),
        (MODE, _look(version="0.10.2"), "Relaunch with --compilation-config.cudagraph_mode FULL_AND_PIECEWISE and compare"),
        (MODE, _look(version=""), "Relaunch with --compilation-config.cudagraph_mode FULL_AND_PIECEWISE and compare"),
    ],
)  # fmt: skip
def test_a_step_has_a_number_or_says_what_is_missing(action: SetAction, look: Look, said: str):
    assert said in _said(action, look)


@pytest.mark.parametrize("key", ["cuda_graph_max_bs", "cuda_graph_max_bs_decode"])
def test_without_a_version_a_renamed_flag_is_spelled_as_the_server_names_it(key: str):
    action = SetAction(engine="sglang", params={"cuda_graph_max_bs": {"grid_above": "decode.batch_p90"}})
    said = _said(action, _look("sglang", "", {key: 4}, decode__batch_p90=16))
    assert said.startswith(f"Relaunch with --{key.replace('_', '-')} 16 ")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
@pytest.mark.parametrize("facts", [{}, {"scheduler__max_running": 16, "decode__batch_p90": 12.0, "client__concurrency": 64}])
def test_no_step_of_any_playbook_has_a_placeholder(engine: str, facts: dict[str, Value]):
    look = _look(engine, "0.9.0.1" if engine == "vllm" else "0.5.12", **facts)
    spaces = [space for space in LIBRARY.spaces if space.engine in ("any", engine)]
    said = [
        action_sentence(action, look, spaces, FlagTable(known=False), None)
        for book in LIBRARY.playbooks
        for action in book.actions
        if action.engine in ("any", engine) and not isinstance(action, HandOver)
    ]
    assert len(said) > 5
    assert not [text for text in said if "<" in text or "None" in text or "{" in text]
