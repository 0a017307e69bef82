"""What the refusals of a journal's triggers mean to the user. SQLite and PostgreSQL refuse with the same words."""

from optimizer.errors import AnotherWriter, JournalError

# The prefix of a trigger's refusal -> what it means. All of them mean that nothing was written.
_REFUSALS = {
    "stale": (AnotherWriter, "Another process has taken this study over.", "Stop it before you resume here."),
    "gap": (AnotherWriter, "Something else has written to this journal.", "Stop the other coordinator, then resume."),
    "chain": (AnotherWriter, "Something else has written to this journal.", "Stop the other coordinator, then resume."),
}


def refused(where: object, text: str) -> JournalError:
    """The error for a refusal that reads ``code: explanation``."""
    kind, what, hint = _REFUSALS.get(
        text.partition(":")[0], (JournalError, "The rules of the journal refuse this entry.", "This is a bug; please report it.")
    )
    return kind(f"{what} ({where}: {text})", hint=hint)
