"""Where log events go: readable lines to stderr, everything as JSON lines to the study's ``log.jsonl``, both without
secrets. Standard-library logging of other packages takes the same way. For people who debug; nothing that a decision or
a report needs is ever only in the log."""

import logging
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, TextIO

import structlog

from optimizer.redact import Redactor

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}


def configure(
    *, level: str = "info", log_file: Path | None = None, redactor: Redactor | None = None, stream: TextIO | None = None
) -> None:
    """Send events from ``level`` up to stderr, and all of them to ``log_file``. May be called again: the last call
    counts.

    Pass the journal's ``redactor``, so that a secret which one of them has recognised by its name goes from both."""
    redactor = redactor or Redactor()
    out = sys.stderr if stream is None else stream
    sink = _Sink(out, _LEVELS[level], log_file)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            _without_secrets(redactor),
            sink,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            min(_LEVELS[level], _LEVELS["debug"]) if log_file else _LEVELS[level]
        ),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Forward)]:
        root.removeHandler(handler)
    root.addHandler(_Forward())
    # Other packages narrate at info; their warnings are news.
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)


def get(name: str) -> structlog.typing.FilteringBoundLogger:
    """A logger for the part of the program called ``name``."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind(logger=name)
    return logger


def _without_secrets(redactor: Redactor) -> structlog.typing.Processor:
    def process(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        cleaned: MutableMapping[str, Any] = redactor.value({key: _plain(value) for key, value in event.items()})
        return cleaned

    return process


def _plain(value: object) -> Any:
    """What JSON can hold; anything else as its text, so that a secret inside an object is seen by the redactor."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return str(value)


class _Sink:
    """The last processor: writes the event to its two places."""

    def __init__(self, stream: TextIO, level: int, log_file: Path | None) -> None:
        self._stream = stream
        self._level = level
        self._human = structlog.dev.ConsoleRenderer(colors=stream.isatty(), timestamp_key="timestamp", pad_event_to=0)
        self._json = structlog.processors.JSONRenderer(ensure_ascii=False)
        self._log_file = log_file
        if log_file is not None:
            log_file.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        if self._log_file is not None:
            line = self._json(logger, method, dict(event))
            try:
                with self._log_file.open("a", encoding="utf-8", errors="replace") as file:
                    file.write((line if isinstance(line, str) else line.decode()) + "\n")
            except OSError as error:
                # A full disk must not stop the study for the sake of its log; say so once, then go on without.
                self._log_file = None
                self._stream.write(f"The log file cannot be written ({error.strerror}); going on without it.\n")
        if _LEVELS.get(str(event.get("level")), 20) >= self._level:
            shown = dict(event)
            stamp = str(shown.get("timestamp", ""))
            shown["timestamp"] = stamp[11:19] if len(stamp) > 19 else stamp
            self._stream.write(f"{self._human(logger, method, shown)}\n")
            self._stream.flush()
        return ""


class _Forward(logging.Handler):
    """Brings records of the standard library's logging, such as those of the SSH and HTTP packages, to our sink."""

    def emit(self, record: logging.LogRecord) -> None:
        method = record.levelname.lower() if record.levelname.lower() in _LEVELS else "info"
        logger = structlog.get_logger()
        getattr(logger, method)(record.getMessage(), logger=record.name, exc_info=record.exc_info)
