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

Every message says what happened, why it matters and what to do next. Each class says the same in general: its docstring is the
meaning and, after "To do:", the remedy (inherited where there is none). docs/errors.md is made from them.
"""


class OptimizerError(Exception):
    """A bug, or something that no other class names. ``retryable`` tells whether the same call may succeed later without
    anybody's help.

    To do: report it, with the command, the message and the study's `log.jsonl`.
    """

    exit_code = 1
    retryable = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(OptimizerError):
    """The command line, a target, a workload or a host file says something that cannot be done. Nothing was started.

    To do: correct it as the message says; `optimize COMMAND --help` lists what is accepted.
    """

    exit_code = 2


class KnowledgeError(OptimizerError):
    """A knowledge file is wrong; the message starts with ``file:line:``.

    To do: correct the file at that line; `optimize lint` finds all such places at once.
    """

    exit_code = 2


class EvidenceError(OptimizerError):
    """A bundle of evidence, a case file or a table cannot be read, so nothing can be concluded from it.

    To do: give a folder with `server.log` (and `metrics.txt`, `help.txt`, `bench.json`), or correct the file that is named.
    """

    exit_code = 2


class EngineError(OptimizerError):
    """This engine build has no such setting or flag, or an adapter is broken. A launch with it would fail or mean something else.

    To do: leave the setting away, spell it as this build's `--help` does, or repair the adapter.
    """

    exit_code = 2


class BoxError(OptimizerError):
    """The box cannot be reached, or is not fit for a study; what had been begun on it stands in the journal.

    To do: `optimize doctor --host HOST` says what would go wrong, and how to mend it.
    """

    exit_code = 4


class HostUnknown(BoxError):
    """The name does not resolve, nobody answers, or SSH connections are refused.

    To do: make `ssh HOST true` work, then repeat the command.
    """


class HostKeyChanged(BoxError):
    """Your known hosts do not vouch for the machine that answered: it is new to you, or it is another one. Nothing was sent.

    To do: connect once with `ssh HOST` and compare the fingerprint; if it changed for a reason, `ssh-keygen -R HOST` first.
    """


class AuthRefused(BoxError):
    """The box accepted none of your SSH keys. Passwords are never asked for.

    To do: load the key into your agent (`ssh-add`), or name it as IdentityFile in `~/.ssh/config`.
    """


class PythonMissing(BoxError):
    """The box, or the container that is entered, has no usable Python 3.8 or later.

    To do: install python3 there; its standard library is enough. With `--inside`, check the container's name.
    """


class BoxBusy(BoxError):
    """Somebody else uses the box: two at once would measure each other.

    To do: wait for it, or end it with `optimize stop STUDY`; stop a foreign process yourself.
    """


class LinkLost(BoxError):
    """The connection died in the middle: neither success nor failure. Only reconciliation may resolve it.

    To do: `optimize resume STUDY` asks the box what happened, then goes on.
    """

    retryable = True


class NeedsOperator(OptimizerError):
    """Only a person can put this right; nothing more was changed, and nothing is tried again by itself.

    To do: do what the message names, then `optimize resume STUDY`, or `optimize restore --host HOST`.
    """

    exit_code = 5


class JournalError(OptimizerError):
    """The journal of a study cannot be found, read or written. Without it no decision could be checked.

    To do: check the study's name with `optimize studies`, and that its folder can be written and has room.
    """

    exit_code = 6


class JournalTooNew(JournalError):
    """The journal was written by a newer release, whose entries this one would misread.

    To do: use the release that wrote it, or a later one.
    """


class AnotherWriter(JournalError):
    """Another process drives this study. Two writers would break its record; nothing was written.

    To do: wait for the other process, or end it with `optimize stop STUDY`; then `optimize resume STUDY`.
    """


class JournalCorrupt(JournalError):
    """The journal's hash chain is broken, an entry is missing, or the file is no journal. What follows cannot be trusted.

    To do: restore the study's folder from a copy; `optimize restore --host HOST` needs no journal.
    """


class StoreLost(JournalError):
    """The database that keeps the journal cannot be reached, or the connection to it died and did not come back. What was
    committed is there; without it nothing more was done.

    To do: when the database answers again, `optimize resume STUDY`: it reads back what was committed and goes on.
    """

    retryable = True


class KnowledgeChanged(JournalError):
    """Playbooks or spaces differ from those that the study was opened with, so that its decisions would not be comparable.

    To do: put the files back, or `optimize resume STUDY --adopt-knowledge`.
    """


class NondeterminismError(JournalError):
    """A recomputed decision differs from the recorded one: this release decides otherwise, or there is a bug.

    To do: replay with the release that made the study; if it is the same one, report it with the study's folder.
    """


class Interrupted(OptimizerError):
    """You asked to stop. The study is closed and the box is as it was.

    To do: nothing; start another study when you like.
    """

    exit_code = 130


class GaveUp(Interrupted):
    """A question was left without an answer. No study was opened and nothing was changed.

    To do: repeat the command; with `--yes` and the options that `optimize run --help` lists, nothing is asked.
    """
