"""Parsers and the vocabulary file speak of the same facts: names, units, types, enum values and labels."""

from pathlib import Path

import pytest
import yaml

from optimizer.core.ledger import STARTUP_FACTS
from optimizer.evidence.bundle import read_bundle
from optimizer.evidence.gather import _TELLS
from optimizer.evidence.units import UNITS
from optimizer.model.evidence import Fact

ROOT = Path(__file__).parents[3]
VOCABULARY = yaml.load((ROOT / "playbooks" / "facts.yaml").read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
FACTS = {fact["name"]: fact for fact in VOCABULARY["facts"]}
LAUNCHES = sorted(path.parent for path in (ROOT / "tests" / "recordings").glob("*/*/launch.json"))
TYPES = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "enum": (str,),
    "list": (list,),
    "map": (dict,),
}


def test_units_equal_the_vocabulary() -> None:
    """The vocabulary may know more (facts that only a study can state), never less or differently."""
    units = {name: "" if fact["unit"] == "none" else fact["unit"] for name, fact in FACTS.items()}
    assert {name: units.get(name) for name in UNITS} == UNITS


def test_names_are_unique_and_enums_have_values() -> None:
    assert len(FACTS) == len(VOCABULARY["facts"])
    assert all(bool(fact.get("values")) == (fact["type"] == "enum") for fact in FACTS.values())


def test_labels_and_collectors_are_declared() -> None:
    labels = {label["name"] for label in VOCABULARY["labels"]}
    collectors = {collector["name"] for collector in VOCABULARY["collectors"]}
    for fact in FACTS.values():
        assert set(fact.get("labels", [])) <= labels, fact["name"]
        assert set(fact["collectors"]) <= collectors, fact["name"]


def test_the_ledger_and_the_missing_list_name_known_facts() -> None:
    assert set(STARTUP_FACTS) <= set(FACTS)
    assert {name for names in _TELLS.values() for name in names} <= set(FACTS)


def wrong(fact: Fact) -> str | None:
    spec = FACTS.get(fact.name)
    if spec is None:
        return "not in the vocabulary"
    if isinstance(fact.value, bool) != (spec["type"] == "bool") or not isinstance(fact.value, TYPES[spec["type"]]):
        return f"{fact.value!r} is no {spec['type']}"
    if spec["type"] == "enum" and fact.value not in spec["values"]:
        return f"{fact.value!r} is none of {spec['values']}"
    if fact.name.endswith("_share") and not 0 <= float(fact.value) <= 1:  # type: ignore[arg-type]
        return f"{fact.value!r} is no share"
    return None if set(fact.labels) <= set(spec.get("labels", [])) else f"labels {fact.labels}"


@pytest.mark.parametrize("folder", LAUNCHES, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_every_stated_fact_fits_the_vocabulary(folder: Path) -> None:
    found = {fact.name: why for fact in read_bundle(folder).evidence.facts if (why := wrong(fact))}
    assert not found


def test_every_warning_code_is_declared() -> None:
    codes = {entry["code"] for entry in VOCABULARY["warning_codes"]}
    source = "".join(path.read_text() for path in (ROOT / "optimizer" / "evidence").glob("*_log.py"))
    used = {part.split('"')[0] for part in source.split('.warn("')[1:]}
    assert used and used <= codes
