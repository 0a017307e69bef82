"""Where studies are kept and knowledge is read: a folder of this machine, or a database that a team shares. Finds studies by name;
opens none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optimizer.errors import UsageError
from optimizer.journal import Database, Place, Stored
from optimizer.journal.files import holds_nothing


@dataclass(frozen=True)
class Roots:
    """``store``: the database that keeps the journals and what studies taught; without one, each journal lies in its study's folder
    under ``runs``. What else a study leaves (report, launch.sh, log) lies under ``runs`` of the machine that drove it."""

    runs: Path
    knowledge: Path | None = None
    store: Database | None = None

    def study(self, name: str) -> Place:
        """Where a study's journal is, also of a recorded one. Raises UsageError with the known names."""
        if not name or "/" in name or name.startswith("."):
            raise UsageError(f"{name!r} is no study name.", hint=self._known())
        folders = [folder for folder in (self.runs / name, self.runs / "recorded" / name) if (folder / "journal.db").is_file()]
        if self.store is None:
            if folders:
                return folders[0]
            raise UsageError(f"There is no study {name!r} under {self.runs}.", hint=self._known())
        stored = Stored(self.store, name)
        if _holds(stored):
            return stored
        if folders:
            raise UsageError(
                f"There is no study {name!r} in {self.store}; one lies in {folders[0]}.",
                hint=f"Leave --store out, or take it there: optimize --store … copy {folders[0]}",
            )
        raise UsageError(f"There is no study {name!r} in {self.store}.", hint=self._known())

    def named(self, name: str) -> Place:
        """The same for a word that may also be a study's folder or its journal's file, which are taken as they are."""
        path = Path(name)
        if (path / "journal.db").is_file():
            return path
        if path.is_file() and path.suffix == ".db":
            return path.parent if path.name == "journal.db" else path
        return self.study(name)

    def names(self) -> list[Place]:
        """All studies, newest first."""
        if self.store is not None:
            from optimizer.journal.postgres import studies

            return list(studies(self.store))
        found = [path for pattern in ("*/journal.db", "recorded/*/journal.db") for path in self.runs.glob(pattern)]
        return [path.parent for path in sorted(found, key=lambda path: (-path.stat().st_mtime, path.parent.name))]

    def place(self, name: str) -> Place:
        """Where a new study's journal is going to be."""
        return self.runs / name if self.store is None else Stored(self.store, name)

    def is_taken(self, name: str) -> bool:
        """Whether there is a study of this name already, here or in the store. One whose coordinator died before its first entry was none."""
        file = self.runs / name / "journal.db"
        if file.exists() and not holds_nothing(file):
            return True
        if self.store is None:
            return False
        from optimizer.journal.postgres import holds_entries

        return holds_entries(Stored(self.store, name))

    def folder(self, place: Place) -> Path:
        """The folder of a study's files on this machine; made where another machine drove the study so far."""
        if isinstance(place, Stored):
            folder = self.runs / place.name
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        return place if place.is_dir() else place.parent

    def _known(self) -> str:
        names = [place.name for place in self.names()][:10]
        return f"Studies: {', '.join(names)}" if names else "No study has been run here yet: optimize run --host … --target …"


def journal_of(place: Place) -> Path | Stored:
    """What ``Journal.create`` makes for a new study: a file in its folder, or a study of the database."""
    return place if isinstance(place, Stored) else place / "journal.db"


def _holds(stored: Stored) -> bool:
    from optimizer.journal.postgres import holds

    return holds(stored)
