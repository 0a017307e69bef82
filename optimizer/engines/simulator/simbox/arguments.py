"""The command line of SGLang 0.5.12: the same options, spellings and refusals, read from ``flags.tsv``. Responsible for
argv -> values as the real parser does it (unique prefixes accepted, unknown options exit with status 2); what the values
mean is decided in ``resolve.py``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Destinations that the real parser spells differently from the option.
DESTINATIONS = {"fp8_gemm_backend": "fp8_gemm_runner_backend", "fp4_gemm_backend": "fp4_gemm_runner_backend"}
WORDING = {
    "model_path": "Folder or hub name of the model.",
    "tp_size": "Number of GPUs that share each layer.",
    "mem_fraction_static": "Share of GPU memory for weights and KV pool.",
    "max_running_requests": "Largest number of requests that run at once.",
    "cuda_graph_max_bs": "Largest batch for which a decode graph is captured.",
    "cuda_graph_bs": "Batch sizes for which decode graphs are captured.",
    "disable_cuda_graph": "Run decode without CUDA graphs.",
    "speculative_num_steps": "Draft steps per round.",
    "speculative_num_draft_tokens": "Tokens verified per round.",
    "speculative_eagle_topk": "Branches per draft step.",
    "num_continuous_decode_steps": "Decode steps between two scheduler rounds.",
    "disable_custom_all_reduce": "Use NCCL instead of the custom all-reduce kernel.",
}


def defaults() -> dict[str, Any]:
    """Every server argument with its default, in the order in which the engine prints them."""
    loaded: dict[str, Any] = json.loads((HERE / "defaults.json").read_text())
    return loaded


def _destination(names: list[str], known: dict[str, Any]) -> str:
    plain = [name.lstrip("-").replace("-", "_") for name in names]
    plain = [DESTINATIONS.get(name, name) for name in plain]
    return next((name for name in plain if name in known), plain[0])


class _Wide(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=78)


def build_parser() -> argparse.ArgumentParser:
    known = defaults()
    parser = argparse.ArgumentParser(prog="sglang serve", formatter_class=_Wide)
    types: dict[str, Any] = {"int": int, "float": float, "str": str}
    for line in (HERE / "flags.tsv").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        names_text, nargs, kind, choices, deprecated = [*line.split("\t"), "", ""][:5]
        names = names_text.split(",")
        dest = _destination(names, known)
        words = WORDING.get(dest, "Sets " + dest.replace("_", " ") + ".")
        help_text = "Deprecated: " + words[0].lower() + words[1:] if deprecated else words
        extra: dict[str, Any] = {"dest": dest, "help": help_text, "default": known.get(dest)}
        if nargs == "0":
            parser.add_argument(*names, action="store_true", **{**extra, "default": known.get(dest, False)})
            continue
        if nargs == "b":
            parser.add_argument(names[0], action=argparse.BooleanOptionalAction, **extra)
            continue
        if nargs != "1":
            extra["nargs"] = nargs
        if choices:
            extra["choices"] = [types[kind](choice) for choice in choices.split(",")]
        extra["required"] = dest == "model_path"
        parser.add_argument(*names, type=types[kind], **extra)
    return parser


def parse(argv: list[str]) -> dict[str, Any]:
    """Values in the engine's print order; exits with status 2 on a bad command line, 0 after ``--help``."""
    values = vars(build_parser().parse_args(argv))
    known = defaults()
    return {name: values.get(name, default) for name, default in known.items()}
