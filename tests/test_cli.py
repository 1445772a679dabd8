"""The command line: what it prints, what it imports, and its exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from antifreeze.cli import COMMANDS, Command, main

GREET = """
from antifreeze.errors import OptionError
def configure(parser):
    parser.add_argument("--end", default="well")
def run(args):
    if args.end == "error":
        raise OptionError("no such greeting")
    if args.end == "ctrl-c":
        raise KeyboardInterrupt
    print("hello,", args.end)
    return 0 if args.end == "well" else 7
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Command]:
    (tmp_path / "greet_for_test.py").write_text(GREET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "greet_for_test", raising=False)
    return {"greet": Command("greet_for_test", "say hello"), "absent": Command("no_such_module_for_test", "is never imported")}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["greet"], (0, "hello, well\n", "")),
        (["greet", "--end", "badly"], (7, "hello, badly\n", "")),
        (["greet", "--end", "error"], (1, "", "antifreeze: no such greeting\n")),
        (["greet", "--end", "ctrl-c"], (130, "", "")),
    ],
)
def test_a_command_runs_and_its_exit_code_is_ours(
    words: list[str], expected: tuple[int, str, str], commands: dict[str, Command], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (main(words, commands), *capsys.readouterr()) == expected


@pytest.mark.parametrize("words", [["nonsense"], ["--nonsense"], ["greet", "--nonsense"]])
def test_wrong_usage_is_2_and_goes_to_stderr(words: list[str], commands: dict[str, Command], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words, commands)
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    assert err.startswith("usage: antifreeze")


def test_no_command_at_all_shows_the_help_as_an_error(commands: dict[str, Command], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], commands) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "say hello" in err


def test_help_lists_every_command_and_imports_none(commands: dict[str, Command], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"], commands)
    out = capsys.readouterr().out
    assert left.value.code == 0
    assert "say hello" in out and "is never imported" in out
    assert "greet_for_test" not in sys.modules


def test_every_command_of_the_real_table_can_be_asked_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in COMMANDS.items():
        with pytest.raises(SystemExit) as left:
            main([name, "--help"])
        assert left.value.code == 0
        assert command.help in " ".join(capsys.readouterr().out.split())


def test_version_names_antifreeze_torch_and_python(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert re.fullmatch(r"antifreeze [^(]+ \(torch [^,]+, Python 3[^,]+, \w+\)\n", capsys.readouterr().out)


def test_python_dash_m_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "antifreeze"], capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: antifreeze")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "--bogus", "script.py"], "usage: antifreeze run [option …]"),
        (["doctor", "1", "--bogus"], "usage: antifreeze doctor "),
        (["--bogus"], "usage: antifreeze [-h]"),
    ],
)
def test_a_wrong_option_shows_the_usage_of_its_own_command(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(expected) and err.endswith("error: unrecognized arguments: --bogus\n")
