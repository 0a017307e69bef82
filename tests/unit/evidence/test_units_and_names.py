"""What somebody else measured: units are converted or refused, unknown names and engines are said, nothing is taken silently."""

import ast
import json
from pathlib import Path

import pytest

from optimizer.evidence.absent import UNYIELDED
from optimizer.evidence.bundle import bundle_from_case, bundle_from_files
from optimizer.evidence.convert import factor, same_unit
from optimizer.evidence.units import UNITS
from optimizer.knowledge.library import Library, load_library
from optimizer.knowledge.lint import lint
from optimizer.knowledge.load import find_knowledge, read_files
from optimizer.model.diagnosis import Diagnosis
from optimizer.runner.diagnose import diagnose

ROOT = Path(__file__).parents[3]
SHARED = ROOT / ".." / "shared"


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library(find_knowledge(ROOT))


def seen(library: Library, *facts: dict, engine: str = "sglang") -> Diagnosis:
    case = {"engine": engine, "facts": list(facts)}
    return diagnose(bundle_from_case(json.dumps(case).encode()), library)


@pytest.mark.parametrize(
    ("name", "value", "unit", "expected"),
    [
        ("client.itl_ms_p50", 0.025, "s", 25.0),
        ("client.itl_ms_p50", 25.0, "ms", 25.0),
        ("client.itl_ms_p50", 25.0, None, 25.0),
        ("kv.usage_p95", 97, "%", 0.97),
        ("gpu.sm_util_p50", 0.97, "ratio", 97.0),
        ("memory.weights_gib", 8192, "MiB", 8.0),
        ("pcie.link_gb_s", 8000, "MB/s", 8.0),
        ("client.output_tps", 100, "tok/s", 100),
        ("client.requests_per_s", 120, "rpm", 2.0),
        ("allreduce.latency_us", 0.05, "ms", 50.0),
        ("spec.accept_by_position", [80, 60], "percent", [0.8, 0.6]),
        ("model.params_total_b", 7000, "million", 7.0),
    ],
)
def test_a_unit_of_the_same_kind_is_converted(library: Library, name: str, value: object, unit: str, expected: object) -> None:
    found = seen(library, {"name": name, "value": value, "unit": unit})
    fact = next(fact for fact in found.facts if fact.fact == name)
    assert fact.value == pytest.approx(expected)
    assert fact.unit == (UNITS[name] or "none")
    converted = any(name in note and "converted" in note for note in found.notes)
    assert converted == (unit is not None and not same_unit(unit, UNITS[name]))


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        ({"name": "client.itl_ms_p50", "value": 3, "unit": "GiB"}, "measured in ms"),
        ({"name": "client.itl_ms_p50", "value": "fast", "unit": "ms"}, "can never be"),
        ({"name": "client.itl_ms_p50", "value": "fast", "unit": "s"}, "is no number"),
        ({"name": "client.itl_p50_ms", "value": 3, "unit": "ms"}, "did you mean client.itl_ms_p50"),
        ({"name": "graphs.mode", "value": "sometimes"}, "can never be 'sometimes'"),
        ({"name": "kv.prefix_cache", "value": "yes"}, "can never be"),
        ({"name": "graphs.capture_sizes", "value": 8}, "is no list"),
        ({"name": "queue.depth_p95", "value": 3, "unit": "requests", "labels": {"color": "red"}}, "no label color"),
    ],
)
def test_what_the_vocabulary_cannot_hold_is_refused_and_said(library: Library, fact: dict, said: str) -> None:
    found = seen(library, fact, {"name": "queue.depth_p90", "value": 2, "unit": "requests"})
    assert fact["name"] not in {one.fact for one in found.facts}
    assert any(fact["name"] in note and said in note for note in found.notes), found.notes
    assert any(item.fact == fact["name"] and said in item.reason for item in found.missing)
    assert "queue.depth_p90" in {one.fact for one in found.facts}


def test_an_unknown_engine_is_said(library: Library) -> None:
    found = seen(library, {"name": "queue.depth_p95", "value": 3, "unit": "requests"}, engine="tgi")
    assert any("'tgi'" in note and "sglang" in note for note in found.notes)
    live = diagnose(bundle_from_files({"launch.json": json.dumps({"engine": "tgi", "argv": ["x"]}).encode()}), library)
    assert any("'tgi'" in note for note in live.notes)


@pytest.mark.parametrize("folder", [ROOT / "tests" / "incidents" / "cases", SHARED / "incidents" / "cases"], ids=["copied", "shared"])
def test_every_published_case_is_taken_as_it_is(library: Library, folder: Path) -> None:
    if not folder.is_dir():
        pytest.skip("not here")
    for path in sorted(folder.glob("*.json")):
        found = diagnose(bundle_from_case(path.read_bytes()), library)
        refused = [note for note in found.notes if "left out" in note or "converted" in note]
        assert not refused, (path.name, refused)


def test_units_of_other_kinds_are_never_converted() -> None:
    assert factor("s", "GiB") is None and factor("tokens/s", "requests/s") is None and factor("furlong", "ms") is None
    assert factor("ms", "s") == pytest.approx(1e-3) and factor("count", "requests") == 1.0


def test_every_fact_is_stated_by_some_parser_or_says_why_not() -> None:
    """The list of facts that this tool never collects is exactly what the sources do not name."""
    folder = ROOT / "optimizer"
    sources = [
        path
        for path in (folder / "evidence").glob("*.py")
        if path.name not in ("units.py", "absent.py", "odd.py", "__main__.py")
    ] + [folder / "core" / "roofline.py", folder / "runner" / "diagnose.py"]
    named = {
        node.value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    made_by_tests = (folder / "runner" / "checking.py").read_text(encoding="utf-8")
    never = {name for name in UNITS if name not in named and f'"{name}"' not in made_by_tests}
    assert never - set(UNYIELDED) == set()
    assert {name for name in UNYIELDED if name in named} == set(), "a parser states them now: take them off UNYIELDED"
    assert set(UNYIELDED) <= set(UNITS)


def test_lint_lists_a_fact_that_nobody_yields_and_nobody_uses() -> None:
    files = read_files(find_knowledge(ROOT))
    assert not [finding for finding in lint(files) if "no collector yields" in finding.message]
    name = next(name for name in files if name.endswith("facts.yaml"))
    more = '  - name: gpu.fan_pct\n    type: float\n    unit: "percent"\n    collectors: [nvidia_smi]\n    meaning: "Speed of the fan."\n'
    findings = [finding for finding in lint({**files, name: files[name] + more}) if "gpu.fan_pct" in finding.message]
    assert [finding.message for finding in findings] == ["gpu.fan_pct: no collector yields it and no playbook uses it"]
    assert findings[0].file == name and findings[0].line > 100
    book = next(name for name in files if name.endswith("power-cap.yaml"))
    asking = files[book].replace("evidence:\n", "evidence:\n  - {id: fan, group: fan, if_true_db: 1, if_false_db: -1, when: {fact: gpu.fan_pct, ge: 99}}\n", 1)
    findings = [finding for finding in lint({**files, name: files[name] + more, book: asking}) if "gpu.fan_pct" in finding.message]
    assert [finding.message for finding in findings] == ["gpu.fan_pct: no collector yields it, so every rule that asks for it stays silent"]


def test_the_vocabulary_holds_every_published_fact() -> None:
    path = SHARED / "facts" / "vocabulary.yaml"
    if not path.is_file():
        pytest.skip("not here")
    import yaml

    theirs = {fact["name"]: fact for fact in yaml.safe_load(path.read_text(encoding="utf-8"))["facts"]}
    ours = {fact["name"]: fact for fact in yaml.safe_load((ROOT / "playbooks" / "facts.yaml").read_text(encoding="utf-8"))["facts"]}
    for name, fact in theirs.items():
        assert name in ours
        for key in ("type", "unit", "phase"):
            assert ours[name][key] == fact[key], (name, key)
        assert set(ours[name].get("values", [])) >= set(fact.get("values", [])), name
        assert set(ours[name].get("labels", [])) >= set(fact.get("labels", [])), name
        assert ours[name]["collectors"], name
