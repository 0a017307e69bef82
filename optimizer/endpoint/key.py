"""The API key that a server asks its clients for, from the command line or environment that started it. It stays in memory:
whoever calls this must neither print nor store what it returns."""

from collections.abc import Mapping, Sequence

FLAGS = ("--api-key",)
VARIABLES = ("VLLM_API_KEY", "LLAMA_API_KEY", "SGLANG_API_KEY")


def api_key_of(argv: Sequence[str], env: Mapping[str, str | None]) -> str | None:
    """The first key that the server accepts; None when it asks for none."""
    for at, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag in FLAGS:
            value = value if equals else (argv[at + 1] if at + 1 < len(argv) else "")
            if value:
                return value
    return next((key for name in VARIABLES if (key := env.get(name))), None)
