"""Formulas of knowledge files, availability of parameters, and the project's own spaces."""

import pytest

from optimizer.core.resolve import Unresolved, in_range, resolve_action, resolve_first, resolve_value
from optimizer.engines.registry import engine
from optimizer.knowledge.availability import available
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.playbook import SetAction, SpaceAction
from optimizer.model.space import Param, Refusal

from .conftest import facts, library, table

GRAPHS = Param(name="cuda_graph_max_bs", flag=("--x",), type="int", grid=(8, 16, 32, 64, 128, 256, 512))


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (256, 256),
        (None, None),
        ("LL", "LL"),
        ({"grid_above": "graphs.required_size"}, 256),
        ({"grid_below": "graphs.required_size"}, 128),
        ({"grid_above": "graphs.required_size", "times": 2}, 512),
        ({"fact": "graphs.required_size"}, 171),
        ({"fact": "graphs.required_size", "times": 0.5}, 86),
        ({"fact": "graphs.required_size", "plus": 1, "at_most": 100}, 100),
        ({"setting": "max_running_requests", "plus": 1}, 49),
        ({"setting": "speculative_algorithm"}, "EAGLE"),
        ({"method": "ngram"}, {"method": "ngram"}),
    ],
)
def test_values(value: Value, answer: Value) -> None:
    settings = {"max_running_requests": 48, "speculative_algorithm": "EAGLE"}
    assert resolve_value(value, facts(graphs__required_size=171), settings, GRAPHS) == answer


@pytest.mark.parametrize(
    "value",
    [
        {"grid_above": "graphs.required_size"},
        {"fact": "no.such_fact"},
        {"setting": "nothing"},
        {"grid_above": "kv.dtype"},
    ],
)
def test_what_was_not_observed_is_not_guessed(value: Value) -> None:
    assert isinstance(resolve_value(value, facts(kv__dtype="bf16", graphs__required_size=600), {}, GRAPHS), Unresolved)


def test_labelled_facts_ask_for_the_most() -> None:
    found = Evidence(
        facts=tuple(Fact(name="graphs.required_size", value=size, labels={"concurrency": size}) for size in (16, 64, 1))
    )
    assert resolve_value({"grid_above": "graphs.required_size"}, found, {}, GRAPHS) == 64
    labelled: Value = {"grid_above": "graphs.required_size", "labels": {"concurrency": 16}}
    assert resolve_value(labelled, found, {}, GRAPHS) == 16


def test_an_action_on_two_builds() -> None:
    action = SetAction(engine="sglang", params={"cuda_graph_max_bs": {"grid_above": "graphs.required_size"}})
    for version in ("0.5.12", "0.5.23"):
        got = resolve_action(action, facts(graphs__required_size=171), {}, library().spaces, table(version))
        assert got == {"cuda_graph_max_bs": 256}
    missing = resolve_action(action, facts(), {}, library().spaces, table("0.5.12"))
    assert isinstance(missing, Refusal) and "was not observed" in missing.why


def test_a_whole_json_setting_replaces_its_keys() -> None:
    action = SetAction(engine="vllm", params={"speculative_config": None})
    current = {"speculative_config.method": "ngram", "speculative_config.num_speculative_tokens": 4}
    got = resolve_action(action, facts(), current, library().spaces, table("0.32.0"))
    assert got == {**dict.fromkeys(current), "speculative_config": None}


def test_first_points() -> None:
    action = SpaceAction(
        space="sglang/decode-graphs",
        try_first=(
            {"cuda_graph_max_bs": {"grid_above": "graphs.required_size"}},
            {"cuda_graph_max_bs": {"fact": "nothing.known"}},
        ),
    )
    points, refusals = resolve_first(action, facts(graphs__required_size=60), {}, library().spaces, table("0.5.12"))
    assert points == ({"cuda_graph_max_bs": 64},)
    assert len(refusals) == 1


def test_ranges() -> None:
    assert in_range(GRAPHS, 64) and not in_range(GRAPHS, 999) and not in_range(GRAPHS, None)
    ratio = Param(name="x", flag=("--x",), type="float", low=0.1, high=0.9)
    assert in_range(ratio, 0.5) and not in_range(ratio, 1) and not in_range(ratio, "0.5")
    switch = Param(name="x", flag=("--x",), type="bool")
    assert in_range(switch, True) and not in_range(switch, 1)


# ---- the project's own spaces ----


def test_every_parameter_exists_in_a_recorded_build() -> None:
    tables = {"sglang": ("0.5.12", "0.5.23"), "vllm": ("0.32.0",), "llamacpp": ("llamacpp-2026.10",)}
    for space in library().spaces:
        for param in space.params:
            if param.env:
                continue
            versions = tables.get(space.engine, ("0.5.12", "0.5.23", "0.32.0"))
            assert any(table(version).offers(flag) for version in versions for flag in param.flag), (
                space.id,
                param.name,
            )


def test_spaces_and_adapters_spell_alike() -> None:
    for space in library().spaces:
        for param in space.params:
            if param.flag:
                assert engine(space.engine).dialect.spellings_of(param.name) == param.flag, (space.id, param.name)
                assert engine(space.engine).dialect.canonical(param.name) == param.name
            else:
                assert param.name == f"env.{param.env}"


def test_defaults_of_a_space_are_on_its_grid() -> None:
    for space in library().spaces:
        for param in space.params:
            assert all(value not in param.grid[:index] for index, value in enumerate(param.grid)), param.name
            if param.type in ("int", "float"):
                assert list(param.grid) == sorted(param.grid), param.name  # type: ignore[type-var]


def test_availability_names_what_is_left_out() -> None:
    space = library().space_by_id["sglang/prefill-graphs"]
    old, new = available(space, table("0.5.12")), available(space, table("0.5.23"))
    assert [param.name for param in old.params] == [
        "disable_prefill_cuda_graph", "cuda_graph_max_bs_prefill", "enforce_piecewise_cuda_graph",
    ]  # fmt: skip
    assert [list(item.params) for item in old.missing] == [["cuda_graph_backend_prefill"]]
    assert [list(item.params) for item in new.missing] == [["enforce_piecewise_cuda_graph"]]
    kernels = available(
        library().space_by_id["sglang/attention"], table("0.5.23"), only=("sampling_backend", "nonsense")
    )
    assert [param.name for param in kernels.params] == ["sampling_backend"]
    assert "nonsense" in kernels.missing[0].why


def test_choices_are_narrowed_to_the_build() -> None:
    flags = engine("sglang").flags("options:\n  --kv-cache-dtype {auto,fp8_e5m2}\n")
    space = library().space_by_id["sglang/memory"]
    (param,) = available(space, flags, only=("kv_cache_dtype",)).params
    assert param.grid == ("auto", "fp8_e5m2")
    nothing = engine("sglang").flags("options:\n  --kv-cache-dtype {int4}\n")
    assert available(space, nothing, only=("kv_cache_dtype",)).params == ()


def test_quiet_spaces_say_why() -> None:
    for space in library().spaces:
        assert (space.requires is None) == (space.why_not == ""), space.id
