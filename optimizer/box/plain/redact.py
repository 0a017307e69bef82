"""Tells credentials from ordinary values, on the box, before anything leaves it. A secret in a command line is replaced
by a placeholder that only a launch on the same box can turn back into the value; a secret in the environment is named,
not shown. It never stores a value."""

from __future__ import annotations

import re

from optimizer.box.plain import procfs

HIDDEN = "«secret»"
_PLACEHOLDER = re.compile(r"«secret:(\d+)»")
# Words that make a variable a credential: whole ones (`TOKENIZERS_PARALLELISM`, `KEYRING` and `AUTHOR` are none) ...
_SECRET_NAME = re.compile(
    r"(^|_)(TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASE|PASS|PWD|PW|PIN|APIKEY|KEYS?|CREDENTIALS?|COOKIES?|AUTH|AUTHORIZATION|BEARER"
    r"|SIGNATURE|DSN|PAT|JWT|WEBHOOK|CONNECTION_STRING|CONN_STR)(_|$)"
    # ... and ones that people write in one with what they belong to: PGPASSWORD, SSHPASS, HFTOKEN, OPENAIKEY
    r"|PASSWORD|PASSWD|PASSPHRASE|SECRET|APIKEY|CREDENTIAL|(?<!BY)(?<!COM)PASS$|PWD$|TOKEN$|(?<!MON)KEY$"
)
_TOKENS = re.compile(r"^(?!.*(^|_)(MAX|MIN|NUM|LIMIT|COUNT|PER|BATCHED|NEW|TOTAL|STOP|SPECIAL)(_|$)).*(^|_)TOKENS$")  # several credentials, no limit
_HARMLESS_NAMES = frozenset(("PWD", "OLDPWD"))
_SECRET_FLAG = re.compile(
    r"(^|-)(api-keys?|apikey|token|password|passwd|secret|secret-key|access-key|auth|credentials?|keyfile-password)$",
    re.IGNORECASE,
)
_SEVERAL = re.compile(r"api[-_]?keys?$", re.IGNORECASE)  # vLLM takes one or more
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Linear on any input: every part is anchored or bounded, since logs with lines of megabytes pass through it.
_SECRET_VALUE = re.compile(
    r"hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{12,}|ASIA[0-9A-Z]{12,}|gh[opsu]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AIza[\w-]{30,}|nvapi-[\w-]{16,}"
    r"|(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.|-----BEGIN [A-Z ]*PRIVATE KEY|(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,20}://[^/\s:@]{0,200}:[^/\s@]{1,500}@"
    r"|(?i:\bbearer\s+[\w.~+/-]{12,})|(?<![A-Za-z0-9])hv[sbr]\.[\w-]{16,}|AGE-SECRET-KEY-1[A-Za-z0-9]{16,}|dckr_pat_[\w-]{16,}|npm_[A-Za-z0-9]{20,}"
    r"|(?<![A-Za-z0-9])(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}|ya29\.[\w-]{16,}|pypi-[\w-]{32,}|(?<![A-Za-z0-9])dop_v1_[a-f0-9]{32,}"
)

# Inside of a setting: JSON, a connection string, the query of an address, a header. Of what people write, not of logs.
_SECRET_INSIDE = re.compile(
    r"""(?i:(?<![a-z0-9])(?:[a-z0-9]+[_-]){0,4}?(?:password|passwd|passphrase|pwd|secret|(?:secret|api|access|account|private|signing|encryption)[_-]?key"""
    r"""|sharedaccess(?:key|signature)|(?:access|auth|bearer|hf|refresh|session|api|id)[_-]?token)["']?\s{0,4}[:=]\s{0,4}["']?"""
    r"""|[?&](?:token|key|sig|signature|auth|x-(?:amz|goog)-(?:signature|credential|security-token))="""
    # of a file for curl or ftp, and of a command of theirs
    r"""|\bpassword\s{1,4}|(?<!\S)(?:-u|--user|--proxy-user)[\s=]{1,4}[^\s:"']{0,64}:"""
    r"""|["']token["']\s{0,4}:\s{0,4}["']"""
    r"""|\b(?:authorization|x-api-key|x-auth-token|cookie)["']?\s{0,4}[:=]\s{0,4}["']?(?:(?:basic|bearer|token)\s{1,4})?"""
    r"""|hooks\.slack\.com/services/|discord(?:app)?\.com/api/webhooks/)(?P<value>(?!(?i:none|null|true|false)\b)[^\s"'&;,}\]«]{3,})"""
)


# A value that is one long word of letters and digits explains itself by its name, or is taken for a key.
_RANDOM = re.compile(r"(?=(?:[A-Za-z]*[0-9]){3})(?=(?:[0-9]*[A-Za-z]){3})[A-Za-z0-9+=]{24,}")
_EXPLAINED = re.compile(r"COMMIT|SHA|HASH|DIGEST|REVISION|VERSION|BUILD|TAG|MODULETABLE|ID(_|$)|(^|_)(REF|HOST(NAME)?|NAME|PATH|DIR|MODEL)(_|$)")


def secret_name(name: str) -> bool:
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper().replace("-", "_")
    return plain not in _HARMLESS_NAMES and _SECRET_NAME.search(plain) is not None


def secret_value(value: str) -> bool:
    return _SECRET_VALUE.search(value) is not None


def secret_variable(name: str, value: str) -> bool:
    """Whether a variable holds a credential, by its name or by what it looks like."""
    if not value:
        return False
    return (
        secret_name(name)
        or secret_value(value)
        or _SECRET_INSIDE.search(value) is not None
        or _quoted_secret(value)
        or (_RANDOM.fullmatch(value) is not None and _EXPLAINED.search(name.upper()) is None)
        or (_TOKENS.search(name.upper()) is not None and not value.isdigit())
    )


_QUOTED = re.compile("%([0-7][0-9A-Fa-f])")


def _quoted_secret(value: str) -> bool:
    """Whether a credential stands in it as in an address: ``api%5Fkey%3D...``."""
    if "%" not in value:
        return False
    plain = _QUOTED.sub(lambda match: chr(int(match.group(1), 16)), value)
    return plain != value and (secret_value(plain) or _SECRET_INSIDE.search(plain) is not None)


def hide_environment(pairs: dict[str, str]) -> dict[str, str]:
    """Same names; the values that look like credentials are replaced."""
    return {name: HIDDEN if secret_variable(name, value) else value for name, value in pairs.items()}


def hide_arguments(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Command line with placeholders, and placeholder number -> value. ``--api-key X``, ``--api-key=X``, ``--api-key X Y``,
    ``NAME=X`` in front of a command, credentials inside of JSON or an address, and arguments that are credentials by their own
    look are covered."""
    shown: list[str] = []
    values: dict[str, str] = {}

    def hide(value: str) -> str:
        number = str(len(values))
        values[number] = value
        return "«secret:%s»" % number

    def hide_inside(match: re.Match[str]) -> str:
        return match.group()[: match.start("value") - match.start()] + hide(match.group("value"))

    flag_before, several = False, False
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        named = flag.startswith("-") and _SECRET_FLAG.search(flag.lstrip("-").replace("_", "-")) is not None
        if (flag_before and not argument.startswith("--")) or (several and not argument.startswith("-")):
            shown.append(hide(argument))
            flag_before = False
            continue
        if equals and named:
            shown.append(flag + equals + hide(value))
        elif equals and value and _VARIABLE.fullmatch(flag) and secret_variable(flag, value):
            shown.append(flag + equals + hide(value))
        elif secret_value(argument) or _quoted_secret(argument):
            shown.append(hide(argument))
        else:
            shown.append(_SECRET_INSIDE.sub(hide_inside, argument))
        flag_before = named and not equals
        several = flag_before and _SEVERAL.search(flag) is not None
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
    values = [value for name, value in pairs.items() if secret_variable(name, value)]
    values += hide_arguments(arguments)[1].values()
    # A mask must not be longer than what it hides, so that offsets stay what they are in the file.
    return sorted({raw for raw in map(procfs.raw, values) if len(raw) >= 8})


_SECRET_BYTES = re.compile(_SECRET_VALUE.pattern.encode("ascii"))


def mask(data: bytes, values: list[bytes]) -> bytes:
    """Same length, credentials overwritten: the given values, and whatever looks like one by itself."""

    def cover(match: re.Match[bytes]) -> bytes:
        return b"<secret>".ljust(len(match.group()), b"*")[: len(match.group())]

    for value in sorted(values, key=len, reverse=True):
        data = data.replace(value, b"<secret>".ljust(len(value), b"*"))
    return _SECRET_BYTES.sub(cover, data)
