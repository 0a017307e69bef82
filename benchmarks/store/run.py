"""Prints how many entries a second a journal takes, and how long one append and reading it all take, in a SQLite file and in
PostgreSQL; writes them to docs/store.md. Entries and attachments are those of a recorded study, again and again.

    python benchmarks/store/run.py [--url postgresql://…] [--entries 500] [--rounds 5] [--write]

Without --url a PostgreSQL server of this machine is started in a scratch folder, with durable commits. Both are on the disk of
--folder, which should be a real one: what an append costs is mostly the disk's flush."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from optimizer.journal import Database, Journal, Place, Stored, database  # noqa: E402
from optimizer.model.entry import EntryKind  # noqa: E402

HISTORY = ROOT / "tests" / "histories" / "h200-7b-eager"
BEGIN, END = "<!-- figures: benchmarks/store/run.py -->", "<!-- end of figures -->"


@dataclass(frozen=True)
class Figures:
    """Of one round; ``append_ms`` sorted."""

    per_s: float
    append_ms: list[float]
    read_per_s: float

    def at(self, share: float) -> float:
        return self.append_ms[min(len(self.append_ms) - 1, int(share * len(self.append_ms)))]


def bodies() -> list[tuple[str, dict[str, object], dict[str, bytes]]]:
    """Kind, body and attachments of the recorded conclusions and outcomes; as notes, so that their order is free."""
    with Journal.open(HISTORY, write=False) as journal:
        return [
            (
                EntryKind.NOTE,
                {key: value for key, value in entry.body.items() if key != "blobs"},
                {name: journal.blob(digest) for name, digest in (entry.body.get("blobs") or {}).items() if name != "knowledge.json"},
            )
            for entry in journal.read()
        ]


def measured(place: Place, entries: int, attached: bool) -> Figures:
    given = [(kind, body, blobs if attached else {}) for kind, body, blobs in bodies() if blobs or not attached]
    took = []
    with Journal.create(place) as journal:
        began = time.perf_counter()
        for seq in range(entries):
            kind, body, blobs = given[seq % len(given)]
            start = time.perf_counter()
            # Every attachment is new, as in a study: a digest that is known already costs nothing.
            journal.append(kind, body, expect=seq, blobs={name: data + b"%d" % seq for name, data in blobs.items()})
            took.append(1000 * (time.perf_counter() - start))
        per_s = entries / (time.perf_counter() - began)
    with Journal.open(place, write=False) as journal:
        began = time.perf_counter()
        assert len(journal.read()) == entries
        read_per_s = entries / (time.perf_counter() - began)
    return Figures(per_s, sorted(took), read_per_s)


@contextlib.contextmanager
def server(url: str | None, folder: Path) -> Iterator[Database]:
    if url:
        yield database(url)
        return
    from tests import postgres

    postgres.CONFIG = "listen_addresses = '127.0.0.1'\n"  # its own defaults: a commit is on disk when it is acknowledged
    tempfile.tempdir = str(folder)
    with postgres.running() as found:
        yield found.new_database()


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def table(rounds: dict[tuple[str, str], list[Figures]], entries: int) -> str:
    lines = ["| journal in | entries | appends/s | one append, median | 99th percentile | entries read/s |", "|---|---|---|---|---|---|"]
    for (name, what), found in rounds.items():
        lines.append(
            f"| {name} | {what} | {spread([one.per_s for one in found], 0)} | {spread([one.at(0.5) for one in found], 2)} ms "
            f"| {spread([one.at(0.99) for one in found], 2)} ms | {spread([one.read_per_s for one in found], 0)} |"
        )
    count = len(next(iter(rounds.values())))
    note = f"Median of {count} rounds of {entries:,} entries, a tenth of them with attachments, with the smallest and the largest; one writer, server and client on one machine, durable commits."
    return "\n".join([*lines, "", f"{note} The logs and metrics that hang on an outcome cost their cleaning of secrets and their compression, the same in both."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--entries", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rounds: dict[tuple[str, str], list[Figures]] = {}
    with server(args.url, args.folder) as base, tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        for at in range(args.rounds):  # in turn, so that both see the same machine
            for what, attached in (("alone", False), ("with their attachments", True)):
                for name, place in (("a SQLite file", Path(scratch) / f"{what}{at}.db"), ("PostgreSQL", Stored(base, f"benchmark-{time.time_ns()}"))):
                    rounds.setdefault((name, what), []).append(measured(place, args.entries // 10 if attached else args.entries, attached))
    text = table(rounds, args.entries)
    print(text)
    if args.write:
        document = ROOT / "docs" / "store.md"
        before, _, rest = document.read_text(encoding="utf-8").partition(BEGIN)
        document.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
