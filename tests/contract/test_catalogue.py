"""The catalogue of faults, hostile inputs and evidence bundles: what each must end as, and that a test asserts it by its name.
A test names what it asserts with ``@pytest.mark.fault("F13")``; here only the marks are read, nothing is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

TESTS = Path(__file__).parents[1]
Outcome = Literal["retried", "infeasible", "invalid", "needs_operator", "refused", "restored", "contained"]

# id: what happens, and what it has to end as. retried: done again, and right then. infeasible: the setting is to blame.
# invalid: measured, kept and not used. refused: told before anything was changed. restored: by the guard. contained: no harm.
CATALOGUE: dict[str, tuple[str, Outcome]] = {
    # -- the way to the box
    "F1": ("the box refuses connections", "refused"),
    "F2": ("the box answers with another host key", "refused"),
    "F3": ("the key is no longer accepted in mid-study", "needs_operator"),
    "F4": ("the link breaks during a launch: before the claim, after it, after the start", "retried"),
    "F5": ("the link breaks while the load is measured", "retried"),
    "F6": ("the link stalls for ten minutes without a reset; the guard does not fire", "retried"),
    "F7": ("a reply is cut off", "retried"),
    "F8": ("a reply comes twice or out of turn", "contained"),
    "F9": ("the login script writes on stdout", "contained"),
    "F10": ("the login shell is fish, tcsh or none", "contained"),
    "F11": ("home and /tmp of the box cannot be written", "refused"),
    "F12": ("the box has no Python, or one that is too old", "refused"),
    # -- the server's process
    "F13": ("the server exits at once, with code 0", "infeasible"),
    "F14": ("the server exits after it was ready", "infeasible"),
    "F15": ("the server hangs while it loads", "infeasible"),
    "F16": ("GPU memory runs out: weights, KV pool, graph capture, under load", "infeasible"),
    "F17": ("the kernel kills the server for memory", "infeasible"),
    "F18": ("the worker is dead, the API server answers on", "invalid"),
    "F19": ("a child leaves the session", "contained"),
    "F20": ("a process ignores SIGTERM", "contained"),
    "F21": ("a zombie, and a process that does not end", "needs_operator"),
    "F22": ("GPU memory stays allocated after the end", "needs_operator"),
    # -- port and identity
    "F23": ("the port is taken before the launch", "retried"),
    "F24": ("the port is taken between the check and the bind", "retried"),
    "F25": ("a server of an earlier study answers", "retried"),
    "F26": ("a second server shares the port (SO_REUSEPORT)", "invalid"),
    "F27": ("a proxy answers 200 to everything", "retried"),
    "F28": ("another model is served", "retried"),
    "F29": ("a setting is ignored or overridden", "infeasible"),
    # -- measuring
    "F30": ("some requests fail", "invalid"),
    "F31": ("a stream stalls half-way", "invalid"),
    "F32": ("answers carry no usage", "invalid"),
    "F33": ("answers are shorter than asked", "invalid"),
    "F34": ("the rate never settles", "invalid"),
    "F35": ("the GPU is throttled in the window", "invalid"),
    "F36": ("a stranger's process comes to the GPU in the window", "invalid"),
    "F37": ("prompts are found in the prefix cache", "invalid"),
    "F38": ("a clock steps by an hour, here or on the box", "invalid"),
    "F39": ("the coordinator's machine is suspended", "restored"),
    "F40": ("the load generator is the limit", "invalid"),
    # -- state
    "F41": ("the journal's file is deleted or replaced in mid-study", "refused"),
    "F42": ("the disk of the journal is full", "retried"),
    "F43": ("a playbook is edited in mid-study", "refused"),
    "F44": ("the engine is upgraded between two launches: said, and booked on no setting", "contained"),
    "F45": ("the box is rebooted", "retried"),
    "F46": ("the box is given to somebody else", "refused"),
    "F47": ("Optuna raises", "contained"),
    "F48": ("a metric is NaN, infinite or negative", "invalid"),
    "F49": ("nvidia-smi is missing, hangs, or speaks another language", "contained"),
    "F50": ("the environment of the server cannot be read", "refused"),
    # -- the guard and what came later
    "G1": ("a supervisor starts the original again", "needs_operator"),
    "G2": ("directory, program or port of the original are gone when it is brought back", "needs_operator"),
    "G3": ("the guard is dead and only it knew a credential", "needs_operator"),
    "G4": ("heartbeats cannot be written", "restored"),
    "G5": ("a start-up fact flips although nothing was changed: said, and booked on no setting", "contained"),
    "G6": ("the baseline measured again is beyond the bound of drift", "invalid"),
    "G7": ("one role of a deployment dies or falls back while the others serve", "invalid"),
    "G8": ("the first launch compiles for minutes", "contained"),
    # -- knowledge files
    "H1": ("a key appears twice", "refused"),
    "H2": ("anchors, and a billion laughs", "refused"),
    "H3": ("a tag that makes an object", "refused"),
    "H4": ("a file of ten megabytes", "refused"),
    "H5": ("nested ten thousand deep", "refused"),
    "H6": ("scalars that readers disagree on", "refused"),
    "H7": ("NUL, byte order mark, CR, bidi characters", "refused"),
    "H8": ("an unknown key", "refused"),
    "H9": ("a rule that says the same either way", "refused"),
    "H10": ("a weight that is NaN or infinite", "refused"),
    "H11": ("a path in the name of a space", "refused"),
    "H12": ("a circle of exclusions", "refused"),
    # -- values on their way to the box
    "H13": ("a value with ; rm -rf ~", "contained"),
    "H14": ("a value with $(...) or backticks", "contained"),
    "H15": ("a value with a line end", "contained"),
    "H16": ("a value that begins with a dash", "contained"),
    "H17": ("a value with quotes of every kind", "contained"),
    "H18": ("a value of 200 KB", "refused"),
    "H19": ("a path that is no UTF-8", "contained"),
    "H20": ("a path that is a circle of links", "refused"),
    # -- the command line
    "H21": ("a target that is none", "refused"),
    "H22": ("a study id that is a path", "refused"),
    "H23": ("a host name with blanks, @ or %", "refused"),
    "H24": ("a budget of nothing or without end", "refused"),
    "H25": ("a study id that is taken", "refused"),
    # -- what a box says
    "H26": ("terminal control sequences", "contained"),
    "H27": ("a line of a gigabyte", "contained"),
    "H28": ("a log that repeats a claim a million times", "contained"),
    "H29": ("a log line that looks like our reply frame", "contained"),
    "H30": ("text that is addressed to an AI", "contained"),
    "H31": ("a help text with 100,000 options", "contained"),
    "H32": ("server_info that is huge, deep or of other types", "contained"),
    "H33": ("HTTP without end, compressed, elsewhere, in drips", "contained"),
    "H34": ("metrics with doubled names, exponents, infinities", "contained"),
    "H35": ("stamps that run backwards", "contained"),
    # -- the journal's file
    "H36": ("a foreign SQLite file", "refused"),
    "H37": ("a file of a newer release", "refused"),
    "H38": ("one byte flipped", "refused"),
    "H39": ("an entry removed, the others renumbered", "refused"),
    "H40": ("an outcome without an intent", "refused"),
    "H41": ("a body with a field too many or too few", "refused"),
    "H42": ("a million entries", "contained"),
    "H43": ("twenty secrets on six ways out", "contained"),
    # -- evidence from strangers
    "B1": ("folders that are empty, malformed, huge, linked away, or hold devices", "refused"),
    "B2": ("files of different launches in one folder", "contained"),
    "B3": ("a case that carries its own answer", "contained"),
    "B4": ("model dimensions of zero, below zero, or beyond all bounds", "contained"),
}  # fmt: skip

NOT_YET: dict[str, str] = {}


def marks() -> Iterator[tuple[str, str]]:
    """(id, where) of every mark on a test, also of those on a single parameter."""
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.fault(" not in text:
            continue
        tree = ast.parse(text)
        on_tests: set[ast.Call] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for decorator in node.decorator_list:
                    for call in filter(is_mark, ast.walk(decorator)):
                        assert isinstance(call, ast.Call)
                        on_tests.add(call)
                        assert call.args and not call.keywords, f"{path}:{call.lineno}: name the faults"
                        for argument in call.args:
                            assert isinstance(argument, ast.Constant), f"{path}:{call.lineno}: as plain text"
                            yield str(argument.value), f"{path.relative_to(TESTS)}::{node.name}"
        astray = [node.lineno for node in ast.walk(tree) if is_mark(node) and node not in on_tests]
        assert not astray, f"{path}: marks that are on no test: lines {astray}"


def is_mark(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault"


def test_the_catalogue_is_whole() -> None:
    """50 faults, 8 of the later parts, 43 hostile inputs, 4 kinds of bundles."""
    for letter, count in (("F", 50), ("G", 8), ("H", 43), ("B", 4)):
        assert {f"{letter}{number}" for number in range(1, count + 1)} == {name for name in CATALOGUE if name[0] == letter}
    assert len({text for text, _ in CATALOGUE.values()}) == len(CATALOGUE) == 105


def test_every_one_is_asserted_by_name_or_says_why_not() -> None:
    marked = {name for name, _ in marks()}
    assert sorted(marked - set(CATALOGUE)) == [], "marks of nothing that the catalogue knows"
    assert sorted(set(CATALOGUE) - marked) == sorted(NOT_YET), "the list of what no test asserts has to be exact"


def test_the_promises_name_tests_that_exist() -> None:
    """The table of docs/safety.md: every promise from P1 to P15, each with tests of this tree."""
    rows = re.findall(r"^\| (P\d+) .*\| (.*) \|$", (TESTS.parent / "docs/safety.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == [f"P{number}" for number in range(1, 16)]
    for name, tests in rows:
        named = re.findall(r"`(tests/[^`]+)`", tests)
        assert named and all((TESTS.parent / one).exists() for one in named), name
