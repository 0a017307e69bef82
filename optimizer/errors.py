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
    │   ├── KnowledgeChanged        6   the pinned playbooks differ from those on disk
    │   └── NondeterminismError     6   a recomputed conclusion differs from the recorded one
    └── Interrupted               130   the user asked to stop; the box is clean

Every message says what happened, why it matters and what to do next.
"""


class OptimizerError(Exception):
    """Root of the tree. ``retryable`` tells whether the same call may succeed later without anybody's help."""

    exit_code = 1
    retryable = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(OptimizerError):
    exit_code = 2


class KnowledgeError(OptimizerError):
    """A knowledge file is wrong; the message starts with ``file:line:``."""

    exit_code = 2


class EvidenceError(OptimizerError):
    exit_code = 2


class EngineError(OptimizerError):
    exit_code = 2


class BoxError(OptimizerError):
    exit_code = 4


class HostUnknown(BoxError):
    pass


class HostKeyChanged(BoxError):
    pass


class AuthRefused(BoxError):
    pass


class PythonMissing(BoxError):
    pass


class BoxBusy(BoxError):
    pass


class LinkLost(BoxError):
    """The connection died in the middle: neither success nor failure. Only reconciliation may resolve it."""

    retryable = True


class NeedsOperator(OptimizerError):
    exit_code = 5


class JournalError(OptimizerError):
    exit_code = 6


class JournalTooNew(JournalError):
    pass


class AnotherWriter(JournalError):
    pass


class JournalCorrupt(JournalError):
    pass


class KnowledgeChanged(JournalError):
    pass


class NondeterminismError(JournalError):
    pass


class Interrupted(OptimizerError):
    exit_code = 130
