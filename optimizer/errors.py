"""The exception tree, and the exit code that each branch ends the command with.

    OptimizerError                  1   a bug, or something that no branch below names
    ├── UsageError                  2   the command line, target, workload or host file is wrong
    ├── KnowledgeError              2   a playbook, space, constraint or hardware file is wrong (file and line)
    ├── EvidenceError               2   an evidence bundle cannot be read
    ├── EngineError                 2   a setting, flag or adapter that does not exist for this engine build
    ├── BoxError                    4   the box cannot be reached or is not fit
    │   ├── HostUnknown             4   the name does not resolve or refuses connections
    │   ├── HostKeyChanged          4   known_hosts does not vouch for the machine that answered
    │   ├── AuthRefused             4   no key was accepted
    │   ├── PythonMissing           4   no usable Python on the box
    │   ├── BoxBusy                 4   another study holds the box, or a foreign process holds the port or GPU
    │   └── LinkLost                4   the connection died; what happened on the box is unknown (retryable)
    ├── NeedsOperator               5   only a person can put this right; the message carries the command
    ├── JournalError                6   the journal cannot be used
    │   ├── JournalTooNew           6   written by a newer release
    │   ├── AnotherWriter           6   a second coordinator
    │   ├── JournalCorrupt          6   broken chain, gap or foreign file
    │   ├── StoreLost               6   the database that keeps the journal is out of reach (retryable)
    │   ├── KnowledgeChanged        6   the pinned playbooks differ from those on disk
    │   └── NondeterminismError     6   a recomputed conclusion differs from the recorded one
    └── Interrupted               130   the user asked to stop; the box is clean
        └── GaveUp                130   a question was left without an answer; nothing was changed

Every error that is shown says what happened, why it matters and what to do next. Whoever raises one says the first, and the others
where it knows more than its class: ``matters`` and ``todo`` (inherited) stand in. docs/errors.md is made from the classes.
"""

from typing import ClassVar


class OptimizerError(Exception):
    """A bug, or something that no other class names. ``retryable`` tells whether the same call may succeed later without
    anybody's help. ``why``: why it matters, and ``hint``: what to do, where the raiser knows better than the class."""

    exit_code: ClassVar[int] = 1
    retryable: bool = False
    matters: ClassVar[str] = "What the command was to do is not done."
    todo: ClassVar[str] = "Report it, with the command, the message and the study's `log.jsonl`."

    def __init__(self, message: str, *, why: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    @property
    def parts(self) -> tuple[str, str, str]:
        """What happened, why it matters, what to do next: none is empty."""
        return self.message, self.why or self.matters, self.hint or self.todo


class UsageError(OptimizerError):
    """The command line, a target, a workload or a host file says something that cannot be done."""

    exit_code = 2
    matters = "Nothing was started or changed."
    todo = "Correct it as the message says; `optimize COMMAND --help` lists what is accepted."


class KnowledgeError(OptimizerError):
    """A knowledge file is wrong; the message starts with ``file:line:``."""

    exit_code = 2
    matters = "Decisions rest on these files, so nothing is decided with a wrong one."
    todo = "Correct the file at that line; `optimize lint` finds all such places at once."


class EvidenceError(OptimizerError):
    """A bundle of evidence, a case file or a table cannot be read."""

    exit_code = 2
    matters = "Nothing can be concluded from what cannot be read."
    todo = "Give a folder with `server.log` (and `metrics.txt`, `help.txt`, `bench.json`), or correct the file that is named."


class EngineError(OptimizerError):
    """This engine build has no such setting or flag, or an adapter is broken."""

    exit_code = 2
    matters = "A launch with it would fail, or measure something else than was meant."
    todo = "Leave the setting away, spell it as this build's `--help` does, or repair the adapter."


class BoxError(OptimizerError):
    """The box cannot be reached, or is not fit for a study."""

    exit_code = 4
    matters = "Without the box nothing can be measured; what had been begun on it stands in the journal."
    todo = "`optimize doctor --host HOST` says what would go wrong, and how to mend it."


class HostUnknown(BoxError):
    """The name does not resolve, nobody answers, or SSH connections are refused."""

    matters = "Nothing was done there."
    todo = "Make `ssh HOST true` work, then repeat the command."


class HostKeyChanged(BoxError):
    """Your known hosts do not vouch for the machine that answered: it is new to you, or it is another one."""

    matters = "It may be another machine than yours, so nothing was sent."
    todo = "Connect once with `ssh HOST` and compare the fingerprint; if it changed for a reason, `ssh-keygen -R HOST` first."


class AuthRefused(BoxError):
    """The box accepted none of your SSH keys."""

    matters = "Nothing was done there; passwords are never asked for."
    todo = "Load the key into your agent (`ssh-add`), or name it as IdentityFile in `~/.ssh/config`."


class PythonMissing(BoxError):
    """The box, or the container that is entered, has no usable Python 3.8 or later."""

    matters = "What reads and guards the box is a Python program, and nothing is installed there."
    todo = "Install python3 there; its standard library is enough. With `--inside`, check the container's name."


class BoxBusy(BoxError):
    """Somebody else uses the box."""

    matters = "Two at once would measure each other, so nothing was launched."
    todo = "Wait for it, or end it with `optimize stop STUDY`; stop a foreign process yourself."


class LinkLost(BoxError):
    """The connection died in the middle: neither success nor failure. Only reconciliation may resolve it."""

    retryable = True
    matters = "Whether the last step was done there is unknown until the box is asked; nothing is guessed."
    todo = "`optimize resume STUDY` asks the box what happened, then goes on."


class NeedsOperator(OptimizerError):
    """Only a person can put this right."""

    exit_code = 5
    matters = "The box may not be as it was, and nothing is tried again by itself."
    todo = "Do what the message names, then `optimize resume STUDY`, or `optimize restore --host HOST`."


class JournalError(OptimizerError):
    """The journal of a study cannot be found, read or written."""

    exit_code = 6
    matters = "Without its journal a study can be neither checked nor continued."
    todo = "Check the study's name with `optimize studies`, and that its folder can be written and has room."


class JournalTooNew(JournalError):
    """The journal was written by a newer release."""

    matters = "This release would misread the entries of that one."
    todo = "Use the release that wrote it, or a later one."


class AnotherWriter(JournalError):
    """Another process drives this study."""

    matters = "Two writers would break the study's record, so nothing was written."
    todo = "Wait for the other process, or end it with `optimize stop STUDY`; then `optimize resume STUDY`."


class JournalCorrupt(JournalError):
    """The journal's hash chain is broken, an entry is missing, or the file is no journal."""

    matters = "What follows cannot be trusted, so no decision is made from it."
    todo = "Restore the study's folder from a copy; `optimize restore --host HOST` needs no journal."


class StoreLost(JournalError):
    """The database that keeps the journal cannot be reached, or the connection to it died and did not come back."""

    retryable = True
    matters = "What was committed is there; without the database nothing more was done."
    todo = "When the database answers again, `optimize resume STUDY`: it reads back what was committed and goes on."


class KnowledgeChanged(JournalError):
    """Playbooks or spaces differ from those that the study was opened with."""

    matters = "Decisions from here on could not be compared with those before."
    todo = "Put the files back, or `optimize resume STUDY --adopt-knowledge`."


class NondeterminismError(JournalError):
    """A recomputed decision differs from the recorded one."""

    matters = "The record then does not explain the decisions: this release decides otherwise, or there is a bug."
    todo = "Replay with the release that made the study; if it is the same one, report it with the study's folder."


class Interrupted(OptimizerError):
    """You asked to stop."""

    exit_code = 130
    matters = "The study is closed and the box is as it was."
    todo = "Nothing; start another study when you like."


class GaveUp(Interrupted):
    """A question was left without an answer."""

    matters = "No study was opened and nothing was changed."
    todo = "Repeat the command; with `--yes` and the options that `optimize run --help` lists, nothing is asked."
