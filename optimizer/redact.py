"""Takes secrets out of text, values and bytes before anything is written down: what looks like one (token formats, PEM
keys, URL passwords, bearer headers), what is named like one (``HF_TOKEN=``, ``--api-key``, ``"password":``), and every
value that was once recognised by its name. Each becomes ``«redacted:sha8»``: equal secrets stay recognisably equal.
Never decides where text goes, and never keeps a secret anywhere but in memory."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

# Of ours, and of the box: what the guard there holds is found again by its number.
_REDACTED = re.compile(r"«(?:redacted:[0-9a-f]{8}|secret:[0-9]+)»")

# Values that are no secret even under a secret's name: unset, switched off, or a count.
_HARMLESS = re.compile(r"(?:none|null|true|false|\*+|<[^>]*>|\$\{?\w+\}?|[0-9.]{1,6})?", re.IGNORECASE)

_PLACEHOLDER = re.compile(r"(?:[A-Z]+_)*(?:KEY|TOKEN|PASSWORD|SECRET)")  # a usage text: [--api-key API_KEY]

# Names in any of the spellings api_key, api-key, apiKey, API_KEY. `token` alone mostly counts tokens, so it is a
# secret's name only behind one of these owners, in capitals before `=`, as a flag, or in front of a long value with
# letters.
_OWNER = (
    "access|auth|refresh|session|security|hf|hub|face|huggingface|github|gitlab|gh|wandb|slack|bot|id|bearer|api|jwt|"
    "ngc|nvidia|registry|azure|vault|pypi|openai|anthropic"
)
_WORD = (
    r"(?:(?:api|access|secret|private|account|encryption|signing|master)[_\-]?key|secret[_\-]?access[_\-]?key|"
    r"(?:client|app|shared|webhook)[_\-]?secret|secret|passwd|password|passphrase|credentials?|"
    rf"(?:{_OWNER})[_\-]?token)"
)
_PREFIX = r"(?:[A-Za-z0-9]+[_\-.])*?"
_SECRET_NAME = re.compile(rf"{_PREFIX}{_WORD}(?:[_\-](?:value|base64|b64))?", re.IGNORECASE)
_BARE_TOKEN = re.compile(r"(?:.*[_\-.])?token", re.IGNORECASE)
_COUNTED_TOKEN = re.compile(
    r"(?:.*[_\-.])?(?:eos|bos|pad|unk|sep|cls|mask|stop|image|audio|video|tool|think|reasoning|per|max|min|num|next|first|last|"
    r"draft|boi|eoi|begin|end|special|added|prompt|output|input|extra|time|each|every|kv|bytes|s|ms)[_\-.]token",
    re.IGNORECASE,
)
_HEADER = r"(?:(?:proxy-)?authorization|x-api-key|x-auth-token|(?:set-)?cookie)"
_HEADER_NAME = re.compile(_HEADER, re.IGNORECASE)

# Variables that people write in one word with what they belong to (PGPASSWORD, SSHPASS, HFTOKEN), in capitals alone: a key of ours
# may be called `second_pass`.
_VARIABLE = (
    r"(?!(?:OLD)?PWD\b)(?:[A-Z0-9]{1,30}_){0,6}(?:[A-Z0-9]{0,30}(?:PASSWORDS?|PASSWD|PASSPHRASE|SECRETS?|APIKEYS?|(?<!BY)(?<!COM)PASS|PWD)|"
    r"PW|JWT|WEBHOOK|WEBHOOK_URL|CONNECTION_STRING|CONN_STR|DSN|[A-Z0-9]{1,30}TOKEN)"
)
_VARIABLE_NAME = re.compile(_VARIABLE)

_VALUE = r"""(?:(?P<q>\\?["'])(?P<quoted>(?:(?!(?P=q))[^\n])+)(?P=q)|(?P<bare>[^\s"'\\,;&|)\]}>]+))"""

# The secret stands in the group `s`, `quoted` or `bare`; nothing else of a match is touched. No pattern may start in
# the middle of a word or repeat a group that can match the same text twice: each must stay linear on hostile logs.
_FORMATS = (
    r"(?P<s>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?s:.{0,20000}?)-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|(?:\\n|\s|[A-Za-z0-9+/=:,\-])*))",
    r"://[^\s/:@\"'«]{0,200}:(?P<s>[^\s/@\"'«]{1,500})@",
    r"\b(?i:bearer|basic)\s{1,4}(?P<s>[A-Za-z0-9._~+/\-]{6,}=*)",
    r"(?<![A-Za-z0-9_])(?P<s>(?:api_org|hf)_[A-Za-z0-9]{16,})",
    r"(?<![A-Za-z0-9_\-])(?P<s>(?:sk|rk|pk)-[A-Za-z0-9_\-]{16,})",
    r"(?<![A-Za-z0-9_])(?P<s>(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,})",
    r"(?<![A-Z0-9])(?P<s>(?:AKIA|ASIA|AGPA|AROA)[A-Z0-9]{16})(?![A-Z0-9])",
    r"(?<![A-Za-z0-9_])(?P<s>gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})",
    r"(?<![A-Za-z0-9_\-])(?P<s>glpat-[A-Za-z0-9_\-]{16,}|nvapi-[A-Za-z0-9_\-]{16,}|xox[abeoprs]-[A-Za-z0-9\-]{10,}|pypi-[A-Za-z0-9_\-]{32,})",
    r"(?<![A-Za-z0-9_\-])(?P<s>hv[sbr]\.[A-Za-z0-9_\-]{16,}|AGE-SECRET-KEY-1[A-Za-z0-9]{16,}|dckr_pat_[A-Za-z0-9_\-]{16,}|npm_[A-Za-z0-9]{20,}|dop_v1_[a-f0-9]{32,})",
    r"[?&](?i:x-(?:amz|goog)-(?:signature|credential|security-token))=(?P<bare>[^\s\"'&]+)",
    r"\b(?i:login)\s{1,4}\S{1,200}\s{1,4}(?i:password)\s{1,4}(?P<bare>\S+)",
    r"(?<![A-Za-z0-9_\-])(?P<s>AIza[A-Za-z0-9_\-]{35}|ya29\.[A-Za-z0-9_\-]{16,})",
    r"(?<![A-Za-z0-9_\-])(?P<s>eyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,})",
    # NAME=value in an environment or before a command: everything up to the next space or quote
    rf"(?<![A-Za-z0-9])(?:{_WORD.upper()}|(?<![A-Z0-9]_)TOKEN|[A-Z0-9]{{2,20}}_TOKEN)=(?P<bare>[^\s\"']+)",
    rf"(?<![A-Za-z0-9_]){_VARIABLE}=(?P<bare>[^\s\"']+)",
    r"(?P<s>(?<=hooks\.slack\.com/services/)[\w/]{8,}|(?<=/api/webhooks/)[\w/-]{8,})",
    # --api-key VALUE, --api-key=VALUE, --hf-token 'two words'
    rf"(?<![\w\-])--?(?i:{_PREFIX}{_WORD}|token)(?:\s+|=){_VALUE}",
    # name=value, name: value, 'name': 'value', \"name\": \"value\"
    rf"(?<![A-Za-z0-9])(?i:{_WORD})(?:\\?[\"'])?\s{{0,4}}(?:=>|[:=])\s{{0,4}}{_VALUE}",
    r"""(?<![A-Za-z0-9])(?i:token)(?:\\?["'])?\s{0,4}[:=]\s{0,4}(?:\\?["'])?(?P<bare>(?=[^\s"'\\,;&|)\]}>]*[A-Za-z])[^\s"'\\,;&|)\]}><]{12,})""",
    rf"""(?<![A-Za-z0-9])(?i:{_HEADER})(?:\\?["'])?\s{{0,4}}[:=]\s{{0,4}}(?:\\?["'])?(?P<bare>(?!(?i:bearer|basic)\b)[^\r\n"'\\]+)""",
)  # fmt: skip
_PATTERNS = tuple(re.compile(pattern) for pattern in _FORMATS)

# A value learned by its name is also removed where nothing names it; shorter ones would tear ordinary words apart.
LEARNED_MIN_LENGTH = 8


def mark(secret: str) -> str:
    """What stands in the place of ``secret``."""
    return f"«redacted:{hashlib.sha256(secret.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}»"


def is_secret_name(name: str) -> bool:
    """Whether a setting, environment variable, header or JSON key with this name holds a secret."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lstrip("-")
    if _SECRET_NAME.fullmatch(plain) or _HEADER_NAME.fullmatch(plain) or _VARIABLE_NAME.fullmatch(name):
        return True
    return bool(_BARE_TOKEN.fullmatch(plain)) and not _COUNTED_TOKEN.fullmatch(plain)


# Broader, for single names: words that make one suspicious, and those that only count tokens or name a tokenizer.
_SUSPICIOUS = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|AUTH|(?:^|_)(?:PAT|DSN|BEARER)(?:_|$)")
_INNOCENT = re.compile(r"TOKENIZER|TOKENS|(?<=_)TOKEN_")


def may_hold_secret(name: str) -> bool:
    """Whether a flag or variable of this name could hold a secret. Errs towards yes: for places where a harmless value that is
    left out costs little, as in what becomes a setting or is written into a script."""
    plain = name.upper().replace("-", "_")
    return is_secret_name(name) or _SUSPICIOUS.search(_INNOCENT.sub("", plain)) is not None


_SEVERAL = re.compile(r"api[-_]?keys?$", re.IGNORECASE)  # a flag that takes one or more


class Redactor:
    """Removes secrets and remembers, in memory only, those it recognised by name, so that later copies go as well."""

    def __init__(self) -> None:
        self._learned: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def learn(self, secret: str) -> None:
        """Remove ``secret`` from now on wherever it stands. Short values are ignored: they would match ordinary
        text."""
        if (
            len(secret) < LEARNED_MIN_LENGTH
            or secret in self._learned
            or _REDACTED.search(secret)
            or secret.isdecimal()
        ):
            return
        self._learned[secret] = mark(secret)
        longest_first = sorted(self._learned, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def text(self, text: str) -> str:
        """``text`` without secrets. Idempotent."""
        if self._pattern is not None:
            text = self._pattern.sub(lambda match: mark(match.group()), text)
        for pattern in _PATTERNS:
            text = pattern.sub(self._replace, text)
        return text

    def data(self, data: bytes) -> bytes:
        """Bytes without secrets; bytes that are no UTF-8 come through unchanged."""
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def value(self, value: Any, name: str = "") -> Any:
        """A JSON-like value without secrets: by the name of its key, by the flag before it in an argv, and by its
        looks.

        ``("--api-key", "x")`` as two neighbours in a list counts as a name and its value."""
        if isinstance(value, str):
            return self._named(value) if name and is_secret_name(name) else self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(item, str(key)) for key, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            found: list[Any] = []
            before, several = "", False
            for item in value:
                flag = isinstance(item, str) and item.startswith("-")
                found.append(self.value(item, name if several and flag else before or name))
                if flag:
                    before, several = (item if "=" not in item else ""), False
                else:
                    several = _SEVERAL.search(before) is not None
                    before = before if several else ""
            return found
        if isinstance(value, int | float) and not isinstance(value, bool) and name and _is_password(name):
            return mark(str(value))
        return value

    def _named(self, secret: str) -> str:
        if _HARMLESS.fullmatch(secret) or _REDACTED.search(secret):
            return secret
        self.learn(secret)
        return mark(secret)

    def _replace(self, match: re.Match[str]) -> str:
        group = next(name for name in ("s", "quoted", "bare") if match.groupdict().get(name) is not None)
        secret = match[group]
        if _HARMLESS.fullmatch(secret) or _PLACEHOLDER.fullmatch(secret) or _REDACTED.search(secret):
            return match[0]
        if match.string.endswith("«secret:", 0, match.start(group)):  # the number of what the box has hidden
            return match[0]
        if len(secret) >= 20 or any(
            character.isdigit() for character in secret
        ):  # not the "required" of "password: required"
            self.learn(secret)
        start, end = match.start(group) - match.start(), match.end(group) - match.start()
        return match[0][:start] + mark(secret) + match[0][end:]


def _is_password(name: str) -> bool:
    return re.search(r"passw|secret|api[_\-]?key", name, re.IGNORECASE) is not None


def words_text(words: Sequence[str]) -> str:
    """A command as people may read it: its words in one line, without the secrets among them."""
    return " ".join(Redactor().value(list(words)))


_CONTROL = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text as a terminal may get it: a log, an answer or a file name of a box can hold sequences that move the cursor, retitle
    the window or reorder what is read."""
    return _CONTROL.sub("", text)
