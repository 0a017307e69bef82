"""Twenty secrets on the six ways out, through a whole study of the tool: none is found in the study's folder, in the box's folder while
the study runs, on the screen, in the journal or in the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.journal.test_redaction import CANARIES, pieces

from .fastbox import FastBox
from .test_api_key import holding

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ENVIRONMENT = [(name.upper(), secret) for name, secret in CANARIES]
PIECES = [piece for _, secret in CANARIES for piece in pieces(secret)]


def said(where: str, text: str) -> list[str]:
    return [f"{piece.decode()[:12]}... in {where}" for piece in PIECES if piece.decode() in text]


def kept(folder: Path) -> list[str]:
    return [f"{piece.decode()[:12]}... in {place}" for piece in PIECES for place in holding(folder, piece)]


@pytest.mark.fault("H43")
def test_no_canary_of_a_study_is_found_anywhere(box: FastBox) -> None:
    """argv, environment, log (with a traceback, and a note that somebody wrote), server_info: what the server knows, it says."""
    key = dict(CANARIES)["api_key"]
    box.argv = (*box.argv, "--api-key", key)
    box.env.update(ENVIRONMENT)
    talk = "\n".join([
        *(f"{name}={secret}" for name, secret in ENVIRONMENT),
        f"arguments=Arguments({', '.join(f'{name.lower()}={secret!r}' for name, secret in CANARIES)})",
        "Traceback (most recent call last):", '  File "x.py", line 3, in connect',
        *(f"ValueError: refused: {name}={secret}" for name, secret in ENVIRONMENT),
        *(f"note of the operator: {name}: {secret}" for name, secret in ENVIRONMENT),
    ])  # fmt: skip
    (box.home / "talk").write_text(talk)
    box.serve()
    words = box.study("canaries", "--finish", "restore", launch=False)
    died = box(*words, OPTIMIZER_CRASH_AT="box.listeners.after:2")
    assert died.exit == -9, died.err
    # The server's own output goes straight from the server into its log, which nobody else may read and which is removed at the end.
    logs = list((box.home / ".optimizer/runs").rglob("server.log"))
    assert logs and all(path.stat().st_mode & 0o077 == 0 for path in logs)
    on_the_box = [line for line in kept(box.home / ".optimizer") if "/server.log " not in line]
    done = box("resume", "canaries", "--json")
    assert done.json.get("ending") == "met", done.out + done.err
    assert box("report", "canaries").exit == 0
    assert "HF_TOKEN" in talk and (box.home / "server.log").read_text().count(key) >= 1, "the server did not say its secrets"
    shown = [box("journal", "canaries"), box("journal", "canaries", "--json"), box("report", "canaries", "--format", "json"), box("diagnose", "--host", "localhost", "--json")]
    found = [
        *on_the_box, *kept(box.runs), *kept(box.home / ".optimizer"),
        *(line for one in (died, done, *shown) for line in (*said("stdout", one.out), *said("stderr", one.err))),
    ]  # fmt: skip
    assert found == [], json.dumps(found[:20], indent=1)
    box.assert_clean(serving=True)
