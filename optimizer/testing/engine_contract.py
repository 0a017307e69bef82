"""What every engine adapter must do, as tests: derive a class from ``EngineContract``, give it the adapter, a real ``--help``
and a launch, and run pytest. Ships with the package so that third-party adapters can run it; imported by nothing at run time."""

import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import pytest

from optimizer.engines import registry
from optimizer.engines.base import Engine, Quirks
from optimizer.engines.script import render
from optimizer.errors import EngineError
from optimizer.model.base import Value
from optimizer.model.flags import FlagTable
from optimizer.model.settings import Settings

HOSTILE = (
    "; rm -rf ~",
    "$(id)",
    "`id`",
    "a\nb",
    "-rf",
    "--port",
    "'",
    '"',
    "a'b\"c",
    "\\",
    "*",
    "~",
    "%s",
    "é\u202e",
    " lead",
    "",
)


@lru_cache(maxsize=8)
def _table(engine: Engine, help_text: str) -> FlagTable:
    return engine.flags(help_text)


class EngineContract:
    """Class attributes that a derived suite must set; ``number`` and ``switch`` name a numeric and a boolean parameter."""

    engine: ClassVar[Engine]
    help_text: ClassVar[str]
    argv: ClassVar[tuple[str, ...]]
    env: ClassVar[Mapping[str, str]] = {}
    number: ClassVar[str]
    switch: ClassVar[str]
    text: ClassVar[str]

    @property
    def flags(self) -> FlagTable:
        return _table(self.engine, self.help_text)

    def edit(self, **values: object) -> tuple[str, ...]:
        to = Settings.model_validate({"values": values})
        return self.engine.command(
            self.argv, self.env, Settings(), to, port=None, served_name=None, flags=self.flags
        ).argv

    # ---- registration and data ----

    def test_passes_the_registry_check(self) -> None:
        registry.check(self.engine.name, self.engine)

    def test_quirks_are_declared(self) -> None:
        assert isinstance(self.engine.quirks, Quirks)
        assert self.engine.quirks.start_limit_s > 0
        assert self.engine.quirks.drain_s > 0

    def test_is_stateless(self) -> None:
        before = dict(vars(self.engine))
        self.engine.parse_argv(self.argv, self.flags)
        assert dict(vars(self.engine)) == before

    # ---- help ----

    def test_reads_the_help(self) -> None:
        assert self.flags.known
        assert len(self.flags.flags) > 50

    def test_help_digest_is_stable(self) -> None:
        assert self.engine.flags(self.help_text).digest == self.flags.digest != ""

    @pytest.mark.parametrize("text", ["", "no options here", "\x00\x1b[31m", "usage: x [-h]"])
    def test_unreadable_help_filters_nothing(self, text: str) -> None:
        table = self.engine.flags(text)
        assert not table.known
        assert table.offers("--anything")

    def test_help_command_keeps_the_interpreter(self) -> None:
        command = self.engine.help_argv(self.argv)
        assert command[0] == self.argv[0]
        assert not self.engine.recognise(command, self.env)

    def test_version_command_keeps_the_interpreter(self) -> None:
        assert self.engine.version_argv(self.argv)[0] == self.argv[0]

    # ---- recognition ----

    def test_recognises_its_server(self) -> None:
        assert self.engine.recognise(self.argv, self.env)

    @pytest.mark.parametrize(
        "argv", [(), ("",), ("sleep", "1"), ("python3",), ("python3", "-m", "http.server"), ("bash", "-c", "x")]
    )
    def test_recognises_nothing_else(self, argv: tuple[str, ...]) -> None:
        assert not self.engine.recognise(argv, {})

    def test_a_wrapper_is_not_the_server(self) -> None:
        assert not self.engine.recognise(("timeout", "100", *self.argv), self.env)

    def test_foreign_command_line_is_refused(self) -> None:
        with pytest.raises(EngineError):
            self.engine.parse_argv(("sleep", "1"), self.flags)

    # ---- command ----

    def test_no_change_changes_nothing(self) -> None:
        settings = self.engine.parse_launch(self.argv, self.env, self.flags)
        for settings_from, settings_to in ((settings, settings), (Settings(), Settings()), (Settings(), settings)):
            command = self.engine.command(
                self.argv, self.env, settings_from, settings_to, port=None, served_name=None, flags=self.flags
            )
            assert command.argv == self.argv
            assert command.env == {}

    def test_a_number_is_set_and_taken_off_again(self) -> None:
        argv = self.edit(**{self.number: 7})
        assert self.engine.parse_argv(argv, self.flags).values[self.number] == 7
        to = Settings(values={self.number: None})
        back = self.engine.command(argv, {}, Settings(), to, port=None, served_name=None, flags=self.flags)
        assert self.number not in self.engine.parse_argv(back.argv, self.flags).values

    def test_a_switch_is_set_and_taken_off_again(self) -> None:
        argv = self.edit(**{self.switch: True})
        assert self.engine.parse_argv(argv, self.flags).values[self.switch] is True
        to = Settings(values={self.switch: None})
        back = self.engine.command(argv, {}, Settings(), to, port=None, served_name=None, flags=self.flags)
        assert self.switch not in self.engine.parse_argv(back.argv, self.flags).values

    def test_dropping_a_given_setting_takes_it_off(self) -> None:
        argv = self.edit(**{self.number: 7})
        given = self.engine.parse_argv(argv, self.flags)
        without = Settings(values={name: value for name, value in given.values.items() if name != self.number})
        command = self.engine.command(argv, {}, given, without, port=None, served_name=None, flags=self.flags)
        assert self.number not in self.engine.parse_argv(command.argv, self.flags).values

    def test_untouched_tokens_keep_their_order(self) -> None:
        argv = self.edit(**{self.number: 7, self.switch: True})
        assert argv[: len(self.argv)] == self.argv

    def test_unknown_settings_are_refused(self) -> None:
        with pytest.raises(EngineError, match="no_such_setting_anywhere"):
            self.edit(no_such_setting_anywhere=1)

    def test_port_and_name(self) -> None:
        command = self.engine.command(
            self.argv, self.env, Settings(), Settings(), port=31877, served_name="m@s7f3-36", flags=self.flags
        )
        identity = self.engine.identity(command.argv, self.flags)
        assert (identity.port, identity.served_name) == (31877, "m@s7f3-36")
        assert self.engine.model_name(command.argv, self.flags) == "m@s7f3-36"

    @pytest.mark.parametrize("name", ["", "-x", "a b", "a\n", "$(id)"])
    def test_bad_served_names_are_refused(self, name: str) -> None:
        with pytest.raises(EngineError):
            self.engine.command(self.argv, {}, Settings(), Settings(), port=1, served_name=name, flags=self.flags)

    def test_identity_and_secrets_are_no_settings(self) -> None:
        command = self.engine.command(
            (*self.argv, "--api-key", "sk-canary"),
            {},
            Settings(),
            Settings(),
            port=1234,
            served_name="x",
            flags=self.flags,
        )
        settings = self.engine.parse_argv(command.argv, self.flags)
        assert not {"port", "host", "served_model_name", "api_key"} & set(settings.values)
        assert "sk-canary" not in settings.model_dump_json()

    def test_environment_changes(self) -> None:
        to = Settings(values={"env.NCCL_PROTO": "LL", "env.OMP_NUM_THREADS": None, "env.NCCL_MIN_NCHANNELS": 8})
        command = self.engine.command(
            self.argv, {"OMP_NUM_THREADS": "4", "NCCL_MIN_NCHANNELS": "8"}, Settings(), to,
            port=None, served_name=None, flags=self.flags,
        )  # fmt: skip
        assert command.env == {"NCCL_PROTO": "LL", "OMP_NUM_THREADS": None}
        assert command.argv == self.argv

    def test_environment_names_are_checked(self) -> None:
        to = Settings(values={"env.A=B": "x"})
        with pytest.raises(EngineError):
            self.engine.command(self.argv, {}, Settings(), to, port=None, served_name=None, flags=self.flags)

    def test_environment_of_interest_has_no_secrets(self) -> None:
        env = {
            "NCCL_PROTO": "LL",
            "HF_TOKEN": "hf_canary",
            "PATH": "/bin",
            "OMP_NUM_THREADS": "1",
            "VLLM_API_KEY": "sk-canary",
        }
        assert self.engine.environment_of_interest(env) == {"NCCL_PROTO": "LL", "OMP_NUM_THREADS": "1"}

    # ---- values that reach the box (H13 to H18) ----

    @pytest.mark.parametrize("value", HOSTILE)
    def test_a_hostile_value_stays_one_argument(self, value: str) -> None:
        argv = self.edit(**{self.text: value})
        assert self.engine.parse_argv(argv, self.flags).values[self.text] == value
        added = [token for token in argv if token not in self.argv]
        assert len(added) <= 2
        assert all(not token.startswith("-") or token.startswith("--") for token in added if token != value)

    @pytest.mark.parametrize("value", HOSTILE)
    def test_a_hostile_value_survives_the_shell(self, value: str, tmp_path: Path) -> None:
        to = Settings(values={self.text: value, "env.NCCL_TEST": value})
        command = self.engine.command(self.argv, {}, Settings(), to, port=None, served_name=None, flags=self.flags)
        files = render(command, to.values, ["made by a test", f"note {value}"])
        # The shell's own printf stands in for the server: what it receives is what the server would.
        stand_in = 'exec sh -c \'printf "%s\\0" "$NCCL_TEST" "$@"\' sh \\\n'
        for name, content in files.items():
            (tmp_path / name).write_text(content.replace("exec \\\n", stand_in), encoding="utf-8")
        done = subprocess.run(["sh", str(tmp_path / "launch.sh")], capture_output=True, timeout=20, check=True)
        assert done.stdout.decode().split("\0")[:-1] == [value, *command.argv]

    @pytest.mark.parametrize("value", ["x" * 200_000, "a\0b"])
    def test_values_that_no_argument_can_carry_are_refused(self, value: str) -> None:
        with pytest.raises(EngineError):
            self.edit(**{self.text: value})

    # ---- a running server ----

    def test_ready_names_the_port(self) -> None:
        ready = self.engine.ready(31877)
        assert ready.base_url.endswith(":31877")
        assert ready.probe.path.startswith("/")
        assert ready.probe.ok == (200,)

    @pytest.mark.parametrize(
        "info", [None, {}, {"internal_states": 3}, {"internal_states": [[]]}, {"cuda_graph_config": []}]
    )
    def test_readback_takes_anything(self, info: dict[str, Value] | None) -> None:
        assert isinstance(
            self.engine.readback(info, None, "\x1b[31m garbage\nnon-default args: {'a': __import__('os')}"), dict
        )

    def test_readback_mismatch_is_told(self) -> None:
        found = self.engine.check_readback({self.number: 7, self.switch: True}, {self.number: 3, self.switch: True})
        assert [(item.param, item.wanted, item.effective) for item in found] == [(self.number, 7, 3)]

    def test_what_is_not_reported_is_not_judged(self) -> None:
        assert self.engine.check_readback({self.number: 7, "env.X": 1}, {}) == ()

    def test_exits(self) -> None:
        classify = self.engine.classify_exit
        assert classify("torch.OutOfMemoryError: CUDA out of memory.", -9) == "oom"
        assert classify("usage: ...\nserver: error: unrecognized arguments: --x", 2) == "bad_flag"
        assert classify("OSError: [Errno 98] Address already in use", 1) == "port_busy"
        assert classify("", 1) == "crashed"
        assert classify("", None) == "unknown"
