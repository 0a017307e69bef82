"""A public sweep of 46 runs, all recorded SUCCESS, of which its own logs and metrics contradict a third: the rules name those and
no other. Read where this checkout has the archive beside it; nothing of it is committed."""

import csv
import io
import json
import re
import tarfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from optimizer.evidence.bundle import bundle_from_files
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.measurement import Invalidity
from optimizer.report.diagnosis_view import diagnosis_text
from optimizer.runner.diagnose import contamination, diagnose

DATA = Path(__file__).parents[4] / "shared" / "data"
ARCHIVE = DATA / "evidence" / "inferencex_llama33_70b_sweep_logs_metrics.tar.xz"
TABLE = DATA / "inferencex_llama33_70b_fp4_b200_vllm_tp_bs_offload.csv"
pytestmark = pytest.mark.skipif(not ARCHIVE.is_file(), reason="the public sweep is not beside this checkout")


class Row(NamedTuple):
    """One run: what the harness recorded, what the publishers of the table read from it, and what the rules say."""

    status: str
    read_by_others: str
    found: tuple[Invalidity, ...]

    @property
    def codes(self) -> set[str]:
        return {str(item.code) for item in self.found}


@cache
def members() -> dict[str, dict[str, bytes]]:
    runs: dict[str, dict[str, bytes]] = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            parts = Path(member.name).parts
            if member.isfile() and len(parts) == 2:
                handle = archive.extractfile(member)
                assert handle is not None
                runs.setdefault(parts[0], {})[parts[1]] = handle.read()
    return runs


def snapshots(table: bytes) -> bytes:
    """The sampled gauges, one exposition a second, as a bundle carries them."""
    rows = csv.DictReader(io.StringIO(table.decode()))
    return "".join(
        f"vllm:num_requests_running {row['num_requests_running']}\nvllm:num_requests_waiting {row['num_requests_waiting']}\n"
        for row in rows
    ).encode()


def bundle_files(name: str) -> dict[str, bytes]:
    """One run as evidence: the declared load, the server's own log and gauges, and that the harness thought it was up."""
    raw = members()[name]
    command = raw["vllm_command.txt"].decode().split()
    clients = re.search(r" -p (\d+)", raw["benchmark_command.txt"].decode())
    assert clients is not None
    launch = {
        "name": name, "engine": "vllm", "gpu": "NVIDIA B200", "gpu_count": int(name[2]), "argv": command,
        "ready": raw["status.txt"].decode().strip() == "SUCCESS",
    }  # fmt: skip
    files = {
        "launch.json": json.dumps(launch).encode(),
        "bench.json": json.dumps([{"c": int(clients[1]), "requests": 1, "failed": 0}]).encode(),
        "metrics_load.txt": snapshots(raw["metrics_server_metrics.csv"]),
    }
    logs = [data for file, data in raw.items() if file.endswith(".log")]
    return {**files, "server.log": logs[0]} if logs else files


@cache
def sweep() -> dict[str, Row]:
    library = load_library(find_knowledge())
    with TABLE.open() as handle:
        recorded = {row["exp_name"]: row for row in csv.DictReader(handle)}
    return {
        name: Row(
            row["recorded_status"], row["derived_validity_flags"], contamination(bundle_from_files(bundle_files(name)), library)
        )
        for name, row in sorted(recorded.items())
    }


def table() -> str:
    return "\n" + "\n".join(
        f"{name:22} {row.status:8} ours: {','.join(sorted(row.codes)) or '-':48} others: {row.read_by_others or '-'}"
        for name, row in sweep().items()
    )


@pytest.mark.gate("S9")
def test_a_third_of_the_runs_recorded_as_success_is_contaminated_and_no_clean_run_is_accused() -> None:
    rows = sweep()
    assert len(rows) == 46 and all(row.status == "SUCCESS" for row in rows.values()), table()
    accused = {name for name, row in rows.items() if row.found}
    assert len(accused) >= 16, table()
    assert not [name for name in accused if name.startswith("tp1_")], table()
    assert not [name for name in accused if name.startswith("tp8_")], table()
    assert accused == {name for name, row in rows.items() if row.read_by_others}, table()


@pytest.mark.parametrize(
    ("flag", "code"),
    [
        ("two_servers_one_log", "two_servers"),
        ("foreign_traffic", "foreign_traffic"),
        ("kv_pool_shrunk", "kv_pool_shrunk"),
        ("start_failure_in_log", "start_failed"),
        ("own_server_never_served", "start_failed"),
    ],
)
def test_every_kind_of_contamination_is_named_where_it_was_read(flag: str, code: str) -> None:
    missed = [name for name, row in sweep().items() if flag in row.read_by_others and code not in row.codes]
    assert not missed, f"{flag} not named {code} in {missed}{table()}"


def test_a_diagnosis_of_a_contaminated_run_says_so_first() -> None:
    library = load_library(find_knowledge())
    spoilt = diagnose(bundle_from_files(bundle_files("tp4_bs32_offloadoff")), library)
    said = diagnosis_text(spoilt)
    assert said.startswith("The numbers of this evidence must not be believed.")
    assert "two_servers" in said and "kv_pool_shrunk" in said
    clean = diagnose(bundle_from_files(bundle_files("tp4_bs32_offloadon")), library)
    assert not clean.contaminated and "must not be believed" not in diagnosis_text(clean)
