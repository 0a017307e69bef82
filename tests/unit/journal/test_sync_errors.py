"""The disk refuses to make something durable: ``fsync`` and ``fdatasync`` answer EIO from the k-th append on. The append says so, nothing that
was acknowledged is lost, at most the refused one is there all the same, and the next coordinator carries on.

A seccomp filter answers the calls, in a child process of its own for each k: no privilege, no file system and no stand-in is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from optimizer.journal import Journal

EVERY = range(1, 51) if os.environ.get("OPTIMIZER_SWEEP") == "full" else (1, 2, 3, 5, 8, 13, 21)
# For each k a forked child appends k - 1 entries, asks the kernel to refuse what comes, and appends one more, twice.
CHILDREN = r"""
import ctypes, errno, json, os, platform, struct, sys
from pathlib import Path
from optimizer.errors import JournalError, OptimizerError
from optimizer.journal import Journal

NUMBERS = {"x86_64": (0xC000003E, 74, 75), "aarch64": (0xC00000B7, 82, 83)}  # the architecture's name, fsync, fdatasync
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EIO
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06


def refuse_to_sync():
    arch, fsync, fdatasync = NUMBERS[platform.machine()]
    program = [(LOAD, 0, 0, 4), (EQUAL, 0, 4, arch), (LOAD, 0, 0, 0), (EQUAL, 1, 0, fsync), (EQUAL, 0, 1, fdatasync), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(Program(len(program), ctypes.cast(code, ctypes.c_void_p))), 0, 0):
        print(json.dumps({"no filter": os.strerror(ctypes.get_errno())}), flush=True)
        os._exit(77)


def child(path, k):
    journal = Journal.create(path)
    journal.append("opened", {}, expect=0)
    for n in range(1, k):
        journal.append("note", {"n": n}, expect=journal.last_seq, blobs={"log": os.urandom(5000)})
    refuse_to_sync()
    said = []
    acknowledged = before = journal.last_seq
    for n in (k, k + 1):
        try:
            acknowledged = journal.append("note", {"n": n}, expect=before, blobs={"log": os.urandom(5000)}).seq
        except OptimizerError as error:
            said.append([type(error).__name__, str(error), error.hint])
    closing = None
    try:
        journal.close()
    except BaseException as error:
        closing = repr(error)
    print(json.dumps({"k": k, "before": before, "acknowledged": acknowledged, "said": said, "closing": closing}), flush=True)


for k in map(int, sys.argv[2:]):
    pid = os.fork()
    if not pid:
        try:
            child(Path(sys.argv[1]) / str(k) / "journal.db", k)
        except BaseException as error:
            print(json.dumps({"k": k, "raised": repr(error)}), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_a_disk_that_cannot_sync_at_any_append_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", CHILDREN, str(tmp_path), *map(str, EVERY)], capture_output=True, text=True, check=True)
    told = [json.loads(line) for line in run.stdout.splitlines()]
    if told and "no filter" in told[0]:
        pytest.skip(f"this kernel takes no filter: {told[0]['no filter']}")
    assert [one["k"] for one in told] == list(EVERY), run.stderr
    for one in told:
        assert "raised" not in one, one
        assert one["acknowledged"] == one["before"] == one["k"], "an append was acknowledged that is not durable"
        assert [name for name, *_ in one["said"]] == ["JournalError"] * 2, one
        assert all("I/O error" in text and hint for _, text, hint in one["said"]), one
        assert one["closing"] is None
        with Journal.open(tmp_path / str(one["k"]) / "journal.db", write=True) as journal:
            notes = [entry.body["n"] for entry in journal.read() if entry.kind == "note"]
            assert notes[: one["k"] - 1] == list(range(1, one["k"]))
            assert len(notes) <= one["k"], "more than the refused append is there"
            journal.append("note", {"n": 99}, expect=journal.last_seq)
            assert journal.verify() == journal.last_seq
