"""Tells credentials from ordinary values, on the box, before anything leaves it. A secret in a command line is replaced
by a placeholder that only a launch on the same box can turn back into the value; a secret in the environment is named,
not shown. It never stores a value."""

from __future__ import annotations

import re

HIDDEN = "«secret»"
_PLACEHOLDER = re.compile(r"«secret:(\d+)»")
# Words that make a variable a credential. `TOKENIZERS_PARALLELISM`, `KEYRING`, `AUTHOR` are none: whole words only.
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|PWD_HASH|APIKEY|KEY|KEYS|CREDENTIAL|CREDENTIALS|COOKIE|AUTH|BEARER"
    r"|SIGNATURE|DSN|PAT|SECRETS)(_|$)",
    re.IGNORECASE,
)
_SECRET_FLAG = re.compile(
    r"(^|-)(api-keys?|apikey|token|password|passwd|secret|secret-key|access-key|auth|credentials?|keyfile-password)$",
    re.IGNORECASE,
)
# Linear on any input: every part is anchored or bounded, since logs with lines of megabytes pass through it.
_SECRET_VALUE = re.compile(
    r"hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{12,}|ASIA[0-9A-Z]{12,}|gh[opsu]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}|nvapi-[\w-]{16,}"
    r"|(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.|-----BEGIN [A-Z ]*PRIVATE KEY|(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,20}://[^/\s:@]{0,200}:[^/\s@]{1,500}@"
    r"|(?i:\bbearer\s+[\w.~+/-]{12,})"
)


def secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def secret_value(value: str) -> bool:
    return _SECRET_VALUE.search(value) is not None


def hide_environment(pairs: dict[str, str]) -> dict[str, str]:
    """Same names; the values that look like credentials are replaced."""
    return {
        name: HIDDEN if value and (secret_name(name) or secret_value(value)) else value for name, value in pairs.items()
    }


def hide_arguments(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Command line with placeholders, and placeholder number -> value. ``--api-key X``, ``--api-key=X`` and arguments
    that are credentials by their own look are covered."""
    shown: list[str] = []
    values: dict[str, str] = {}

    def hide(value: str) -> str:
        number = str(len(values))
        values[number] = value
        return "«secret:%s»" % number

    after_flag = False
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if after_flag and not argument.startswith("--"):
            shown.append(hide(argument))
        elif equals and flag.startswith("-") and _SECRET_FLAG.search(flag.lstrip("-").replace("_", "-")):
            shown.append(flag + equals + hide(value))
        elif secret_value(argument):
            shown.append(hide(argument))
        else:
            shown.append(argument)
        after_flag = (
            argument.startswith("--")
            and not equals
            and bool(_SECRET_FLAG.search(argument.lstrip("-").replace("_", "-")))
        )
    return shown, values


def reveal(argument: str, values: dict[str, str]) -> str:
    """Puts the values back. Raises KeyError with the placeholder whose value is not known here."""
    return _PLACEHOLDER.sub(lambda match: values[match.group(1)], argument)


def without_numbers(argument: str) -> str:
    """Placeholders without the number that tells them apart."""
    return _PLACEHOLDER.sub(HIDDEN, argument)


def secrets_of(pairs: dict[str, str], arguments: list[str]) -> list[bytes]:
    """Values of a process that must not be shown when its log repeats them. Short ones are left out: masking every ``true``
    would ruin the log and protect nothing."""
    values = [value for name, value in pairs.items() if secret_name(name)]
    values += hide_arguments(arguments)[1].values()
    # A mask must not be longer than what it hides, so that offsets stay what they are in the file.
    return sorted({raw for raw in (value.encode("utf-8", "surrogateescape") for value in values) if len(raw) >= 8})


_SECRET_BYTES = re.compile(_SECRET_VALUE.pattern.encode("ascii"))


def mask(data: bytes, values: list[bytes]) -> bytes:
    """Same length, credentials overwritten: the given values, and whatever looks like one by itself."""

    def cover(match: re.Match[bytes]) -> bytes:
        return b"<secret>".ljust(len(match.group()), b"*")[: len(match.group())]

    for value in sorted(values, key=len, reverse=True):
        data = data.replace(value, b"<secret>".ljust(len(value), b"*"))
    return _SECRET_BYTES.sub(cover, data)
