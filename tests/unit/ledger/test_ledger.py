"""S13: the fallback ledger on pairs of real launches."""

import shutil
from pathlib import Path

import pytest

from optimizer.core.ledger import STARTUP_FACTS, fallbacks, flips, narrowed, startup_facts
from optimizer.evidence.bundle import read_bundle
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact, evidence
from optimizer.model.startup import Flip

SGLANG = Path(__file__).parents[2] / "recordings" / "sglang-0.5.12-h200"
NEXTN: dict[str, tuple[Value, Value]] = {
    "speculative_algorithm": (None, "NEXTN"), "speculative_num_steps": (None, 3), "speculative_eagle_topk": (None, 1), "speculative_num_draft_tokens": (None, 4),
}  # fmt: skip


def read(name: str) -> Evidence:
    return read_bundle(SGLANG / name).evidence


def by_fact(found: tuple[Flip, ...]) -> dict[str, Flip]:
    return {flip.fact: flip for flip in found if not flip.minor}


def facts(**values: Value) -> Evidence:
    return evidence([Fact(name=name.replace("__", "."), value=value) for name, value in values.items()])


@pytest.mark.gate("S13")
def test_adding_speculation_to_the_27b_server() -> None:
    """The design's example: four flips; the middle two come with the setting, the other two are fallbacks nobody asked for."""
    declared = {"speculative_algorithm": ("graphs.capture_sizes", "kv.pool_tokens")}
    found = by_fact(flips(read("tp2-27b-graph32"), read("tp2-27b-nextn3"), NEXTN, declared))
    assert set(found) == {"scheduler.max_running", "graphs.capture_sizes", "kv.pool_tokens", "prefill.graph_used_share"}
    assert (found["scheduler.max_running"].before, found["scheduler.max_running"].after) == (4096, 48)
    assert found["graphs.capture_sizes"].before == [1, 2, 4, 8, 12, 16, 24, 32]
    assert len(found["graphs.capture_sizes"].after) == 20  # type: ignore[arg-type]
    assert (found["kv.pool_tokens"].before, found["kv.pool_tokens"].after) == (851472, 818621)
    assert (found["prefill.graph_used_share"].before, found["prefill.graph_used_share"].after) == (1.0, 0.0)
    assert {name for name, flip in found.items() if flip.expected} == {"graphs.capture_sizes", "kv.pool_tokens"}
    assert {name for name, flip in found.items() if flip.towards_fallback and flip.confounds} == {
        "scheduler.max_running",
        "prefill.graph_used_share",
    }
    assert found["scheduler.max_running"].blame == ("speculative_algorithm",), "the log line names speculative decoding"
    assert set(found["prefill.graph_used_share"].blame) == set(NEXTN)
    assert (found["scheduler.max_running"].source, found["scheduler.max_running"].line) == ("server.log", 421)


@pytest.mark.gate("S13")
def test_custom_all_reduce_off_and_peer_access_off() -> None:
    changed: dict[str, tuple[Value, Value]] = {
        "disable_custom_all_reduce": (None, True),
        "env.NCCL_P2P_DISABLE": (None, "1"),
    }
    found = by_fact(flips(read("tp2-27b-graph32"), read("tp2-27b-nccl-shm"), changed, {}))
    assert set(found) == {"allreduce.custom", "nccl.env"}
    flip = found["allreduce.custom"]
    assert (flip.before, flip.after, flip.blame, flip.expected, flip.towards_fallback) == (
        "on",
        "off_flag",
        ("disable_custom_all_reduce",),
        True,
        True,
    )
    assert found["nccl.env"].blame == ("env.NCCL_P2P_DISABLE",)


def test_a_dead_setting_flips_nothing() -> None:
    found = flips(read("tp1-7b-graph32-b"), read("tp1-7b-contdecode8"), {"num_continuous_decode_steps": (None, 8)}, {})
    assert found == ()


@pytest.mark.gate("S13")
def test_overlap_off() -> None:
    found = by_fact(
        flips(read("tp1-7b-graph32-b"), read("tp1-7b-nooverlap"), {"disable_overlap_schedule": (None, True)}, {})
    )
    assert set(found) == {"scheduler.overlap"}
    assert found["scheduler.overlap"].expected


def test_the_same_launch_twice_has_no_flip() -> None:
    for path in sorted(SGLANG.iterdir()):
        if path.is_dir():
            assert flips(read_bundle(path).evidence, read_bundle(path).evidence, {}, {}) == ()


@pytest.mark.fault("G5")
def test_nothing_changed_means_the_box_drifted() -> None:
    (flip,) = flips(facts(allreduce__custom="on"), facts(allreduce__custom="off_no_p2p"), {}, {})
    assert flip.drift and flip.towards_fallback and flip.confounds and "drift" in flip.text


@pytest.mark.fault("F44")
def test_an_engine_that_was_upgraded_between_two_launches_is_no_effect_of_a_setting(tmp_path: Path) -> None:
    """What the server says of itself counts, not what the survey saw: the version flips, and no changed setting gets the blame."""
    shutil.copytree(SGLANG / "tp1-7b-graph32", tmp_path / "after")
    info = tmp_path / "after/server_info.json"
    assert '"version":"0.5.12"' in info.read_text()
    info.write_text(info.read_text().replace('"version":"0.5.12"', '"version":"0.5.13"'))
    after = read_bundle(tmp_path / "after").evidence
    assert any("0.5.12" in text and "0.5.13" in text for text in after.value("validity.version_conflict"))  # type: ignore[union-attr]
    (flip,) = flips(read("tp1-7b-graph32"), after, {"x": (1, 2)}, {})
    assert (flip.fact, flip.before, flip.after) == ("engine.version", "0.5.12", "0.5.13")
    assert flip.drift and flip.confounds and flip.blame == ()


@pytest.mark.parametrize(("pool", "flipped"), [(1000, False), (1009, False), (991, False), (1011, True), (980, True)])
def test_pool_tolerance_is_one_percent(pool: int, flipped: bool) -> None:
    assert bool(flips(facts(kv__pool_tokens=1000), facts(kv__pool_tokens=pool), {"x": (1, 2)}, {})) is flipped


def test_missing_is_not_compared() -> None:
    assert flips(facts(allreduce__custom="on"), facts(kv__dtype="fp8"), {"x": (1, 2)}, {}) == ()


def test_durations_are_not_compared() -> None:
    base, other = (
        evidence([Fact(name="startup.phase_s", value=value, labels={"stage": "total"})]) for value in (1.0, 99.0)
    )
    assert flips(base, other, {}, {}) == ()


def test_one_change_is_to_blame_for_everything() -> None:
    (flip,) = flips(
        facts(kernel__attention_backend="fa3"),
        facts(kernel__attention_backend="triton"),
        {"kv_cache_dtype": ("auto", "fp8")},
        {},
    )
    assert (flip.blame, flip.expected, flip.towards_fallback) == (("kv_cache_dtype",), False, True)


@pytest.mark.gate("S13")
def test_blame_shrinks_over_launches() -> None:
    first = Flip(fact="graphs.mode", before="full", after="none", blame=("a", "b", "c"))
    second = Flip(fact="graphs.mode", before="full", after="none", blame=("b", "d"))
    assert narrowed(first, second).blame == ("b",)
    assert narrowed(first, second.model_copy(update={"blame": ("d",)})).blame == ("d",)


def test_a_capped_value_is_unexpected_even_when_its_own_setting_changed() -> None:
    changed: dict[str, tuple[Value, Value]] = {"max_running_requests": (None, 512), "kv_cache_dtype": (None, "fp8")}
    (capped,) = flips(facts(scheduler__max_running=4096), facts(scheduler__max_running=300), changed, {})
    (taken,) = flips(facts(scheduler__max_running=4096), facts(scheduler__max_running=512), changed, {})
    assert not capped.expected and taken.expected


def test_a_warning_that_only_repeats_a_flip_is_not_listed_twice() -> None:
    base = facts(startup__warnings=[], kernel__moe_config="found")
    same = facts(startup__warnings=["moe_default_config"], kernel__moe_config="default")
    more = facts(startup__warnings=["moe_default_config", "slow_tokenizer"], kernel__moe_config="default")
    assert [flip.fact for flip in flips(base, same, {"x": (1, 2)}, {})] == ["kernel.moe_config"]
    assert {flip.fact for flip in flips(base, more, {"x": (1, 2)}, {})} == {"kernel.moe_config", "startup.warnings"}


def test_the_record_of_a_launch() -> None:
    record = startup_facts(read("tp2-27b-graph32"))
    names = [fact.name for fact in record]
    assert {
        "allreduce.custom",
        "graphs.capture_sizes",
        "kv.pool_tokens",
        "scheduler.max_running",
        "settings.resolved",
    } <= set(names)
    assert names == sorted(names, key=STARTUP_FACTS.index)


def test_a_log_can_name_its_own_fallback() -> None:
    (flip,) = [flip for flip in fallbacks(read("tp2-27b-nextn3")) if flip.fact == "scheduler.max_running"]
    assert (flip.after, flip.blame, flip.line) == (48, ("speculative_algorithm",), 4)
