"""`antifreeze run` by real processes: as Python itself in everything but the loader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest
from programs import SQUARES, by_antifreeze, by_python, ended

import antifreeze

AS_IT_IS = {
    "what it sees of itself": (
        "import sys, os; print(sys.argv, sys.path, sys.flags, __file__, __name__, __spec__, __package__, type(__loader__),"
        " __builtins__, os.getcwd(), sorted(vars()))",
        [],
    ),
    "sys.exit(3)": ("import sys; sys.exit(3)", []),
    "sys.exit with words": ("import sys; sys.exit('enough')", []),
    "an exception": ("def f():\n    raise ValueError('no')\n\nf()", []),
    "a chain of exceptions": ("try:\n    1/0\nexcept Exception as e:\n    raise KeyError(1) from e", []),
    "a syntax error": ("x = (", []),
    "os._exit": ("import os; print('a', flush=True); os._exit(7)", []),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", []),
    "terminated": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", []),
    "interrupted": ("import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(5)", []),
    "its stdin": ("import sys; print(sys.stdin.read().upper())", []),
    "its arguments": ("import sys; print(sys.argv)", ["--on-bad-sample", "x", "--", "-m", "--help", ""]),
    "its handlers": ("import signal; print([signal.getsignal(n) for n in (2, 10, 13, 15)])", []),
    "atexit and threads": (
        "import atexit, threading, time; atexit.register(print, 'last')\n"
        "threading.Thread(target=lambda: (time.sleep(.1), print('t'))).start()",
        [],
    ),
}


@pytest.mark.parametrize("name", AS_IT_IS)
def test_a_script_is_as_if_run_by_python(name: str, tmp_path: Path) -> None:
    source, arguments = AS_IT_IS[name]
    (tmp_path / "script.py").write_text(source)
    plain = by_python(["script.py", *arguments], tmp_path, typed="typed")
    ours = by_antifreeze(["--on-bad-sample", "skip", "script.py", *arguments], tmp_path, typed="typed")
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, plain.stderr, plain.returncode)


@pytest.mark.parametrize(
    "words", [["-m", "pack.inner", "-m"], ["-c", "import sys; print(sys.argv)", "x"], ["-"], ["pack"], ["-m", "no.such.module"]]
)
def test_a_module_code_stdin_and_a_folder(words: list[str], tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    (pack / "__init__.py").write_text("")
    for name in ("inner.py", "__main__.py"):
        (pack / name).write_text("import sys; print(__name__, __spec__.name, __package__, sys.argv, sys.path)")
    plain, ours = by_python(words, tmp_path, typed="print(6*7)"), by_antifreeze(words, tmp_path, typed="print(6*7)")
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, plain.stderr, plain.returncode)


@pytest.mark.parametrize(
    ("words", "variables", "says"),
    [
        ([], {}, "no script was given"),
        (["nowhere.py"], {}, "no such script: nowhere.py"),
        (["-m"], {}, "-m needs a module"),
        (["--no-such-option", "script.py"], {}, "unrecognized arguments: --no-such-option"),
        (["--on-bad-sample", "maybe", "script.py"], {}, "--on-bad-sample maybe: on_bad_sample='maybe': expected \"raise\""),
        (["--sample-timeout", "soon", "script.py"], {}, "--sample-timeout soon: expected SECONDS|none"),
        (["--workers", "-1", "script.py"], {}, "--workers -1: expected N|auto"),
        (["--quarantine", "nowhere.json", "script.py"], {}, "--quarantine nowhere.json: quarantine='nowhere.json' cannot be read"),
        (["--trace", "nowhere/trace.json", "script.py"], {}, "--trace nowhere/trace.json: cannot be written: there is no folder "),
        (["--report", ".", "script.py"], {}, "--report .: cannot be written: it is a folder"),
        (["script.py"], {"ANTIFREEZE_STORY_FILE": "nowhere/story"}, "--story-file nowhere/story: cannot be written: there is no folder "),
        (["--bad-samples-file", "script.py/bad", "script.py"], {}, "--bad-samples-file script.py/bad: cannot be written: "),
        (["--report-signal", "WINK", "script.py"], {}, "--report-signal WINK: expected NAME|none"),
        (["script.py"], {"ANTIFREEZE_MEMORY_BUDGET": "much"}, "ANTIFREEZE_MEMORY_BUDGET=much: memory_budget='much': expected a number of"),
        (["--on-bad-sample"], {}, "--on-bad-sample: expected one argument"),
    ],
)
def test_bad_input_gets_a_sentence_and_exit_code_2(words: list[str], variables: dict[str, str], says: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('ran')")
    done = by_antifreeze(words, tmp_path, variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_variable_is_named_and_the_script_runs(tmp_path: Path) -> None:
    done = by_antifreeze(["-c", "print('ran')"], tmp_path, {"ANTIFREEZE_ON_BAD_SAMPEL": "skip"})
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "ANTIFREEZE_ON_BAD_SAMPEL in the environment means nothing" in done.stderr


def test_pythons_own_options_reach_the_script_and_what_keeps_us_out_is_said(tmp_path: Path) -> None:
    show = ["-c", "import sys; print(sys.orig_argv[1:-2], sys.flags.dev_mode, sys.flags.optimize)"]
    done = ended([sys.executable, "-W", "error", "-OX", "dev", "-um", "antifreeze", "run", *show], tmp_path)
    assert done.stdout == "['-W', 'error', '-OX', 'dev', '-u'] True 1\n"
    source = str(Path(antifreeze.__file__).parents[1])
    call = f"import sys; sys.path.insert(0, {source!r}); from antifreeze.cli import main; sys.exit(main(['run', '-c', 'pass']))"
    kept_out = ended([sys.executable, "-E", "-c", call], tmp_path)
    assert (kept_out.returncode, "-I, -E or -S" in kept_out.stderr) == (2, True)


def test_the_sitecustomize_of_the_user_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the user's own')".replace("user's", "users"))
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = by_antifreeze(["-c", "import sitecustomize; print(sitecustomize.__file__)"], tmp_path, {"PYTHONPATH": paths})
    assert done.stdout.splitlines()[-2:] == ["the users own", str(tmp_path / "sitecustomize.py")]


EVERYWHERE = (
    SQUARES
    + """
import torch.utils.data.dataloader, torch.utils.data as tud

class Derived(DataLoader):
    def __init__(self, dataset, **more):
        super().__init__(dataset, batch_size=4, **more)

class Infinite(DataLoader):
    "as ultralytics (and, by the private name, timm) has it"
    def __init__(self, *words, private=False, **more):
        super().__init__(*words, **more)
        if private:
            self._DataLoader__initialized = False
            self.batch_sampler = Again(self.batch_sampler)
            self._DataLoader__initialized = True
        else:
            object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
        self.iterator = super().__iter__()
    def __len__(self):
        return len(self.batch_sampler.sampler)
    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

class Again:
    def __init__(self, sampler):
        self.sampler = sampler
    def __iter__(self):
        while True:
            yield from iter(self.sampler)

class OwnIterator(DataLoader):
    def _get_iterator(self):
        return iter(["its own"])

if __name__ == "__main__":
    import antifreeze
    assert DataLoader is tud.DataLoader is torch.utils.data.dataloader.DataLoader is antifreeze.DataLoader
    derived, infinite = Derived(Squares(bad=[3])), Infinite(Squares(), batch_size=8, num_workers=2)
    assert all(isinstance(loader, tud.DataLoader) for loader in (derived, infinite, antifreeze.DataLoader(Squares())))
    assert issubclass(Derived, DataLoader) and DataLoader[int]
    assert derived.num_workers == 1 and infinite.num_workers == 1, "--workers stands above the script"
    assert DataLoader(torch.utils.data.ChainDataset([]), num_workers=0).num_workers == 0, "but not for iterables"
    print(sorted(torch.cat(list(derived)).tolist()))
    for loader in (infinite, Infinite(Squares(), batch_size=8, num_workers=2, private=True)):
        print([torch.cat(list(loader)).tolist() == [i * i for i in range(16)] for _ in range(2)])
    print(list(OwnIterator(Squares())))
    assert antifreeze.DataLoader(Squares(), sample_timeout_s=7)._own_options.sample_timeout_s == 7.0, "what the script says stays"
    assert derived._own_options.sample_timeout_s == 60.0
"""
)


def test_every_name_of_torchs_loader_and_classes_derived_from_it_are_ours(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EVERYWHERE)
    words = ["--on-bad-sample", "skip", "--workers", "1", "train.py"]
    done = by_antifreeze(words, tmp_path, {"ANTIFREEZE_SAMPLE_TIMEOUT": "60"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        str([i * i for i in range(16) if i != 3]),
        "[True, True]",
        "[True, True]",
        "['its own']",
    ]
    assert "at the end: loader 1 of 3, made at train.py:53, over Squares" in done.stderr
    assert "sample 3: ValueError: sample 3 is broken (in __getitem__); skipped" in done.stderr
    assert "antifreeze: __main__.OwnIterator brings its own iterator (it overrides _get_iterator)" in done.stderr
    assert done.stderr.count("verdict") == 3


def test_loaders_that_frameworks_make_anew_and_derive(tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("as_frameworks_do.py"))
    plain, ours = by_python([script], tmp_path), by_antifreeze([script], tmp_path)
    assert (ours.stdout, ours.returncode) == (plain.stdout, 0), ours.stderr
    assert len(ours.stdout.splitlines()) == 4
    assert ours.stderr.count("verdict") == 4, "every one of them was ours"


SPAWNED = (
    SQUARES
    + """
import torch.multiprocessing

def train(rank):
    loader = DataLoader(Squares(), batch_size=8, num_workers=1, multiprocessing_context="spawn")
    print(type(loader).__module__, torch.cat(list(loader)).sum().item(), flush=True)

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=1)
"""
)


def test_a_rank_that_the_script_spawns_has_our_loader_and_its_own_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    done = by_antifreeze(["--report", "report.json", "--trace", "trace.json", "train.py"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "antifreeze.loader 1240\n"), done.stderr
    (line,) = (tmp_path / "report.json").read_text().splitlines()
    report = json.loads(line)
    assert (report["samples"], report["over"], report["workers"]) == (16, "Squares", 1)
    assert "antifreeze" not in done.stderr
    (trace,) = tmp_path.glob("trace*.json")
    assert trace.name == f"trace.{report['pid']}.json", "the first process loaded nothing, and wrote nothing"
    assert [event for event in json.loads(trace.read_text())["traceEvents"] if event["name"] == "antifreeze: fetch"]


RANKS = (
    SQUARES
    + """
import torch.distributed as dist
from torch.utils.data import DistributedSampler
dist.init_process_group("gloo")
loader = DataLoader(Squares(), batch_size=4, sampler=DistributedSampler(Squares()))
total = torch.tensor(sum(len(batch) for batch in loader))
dist.all_reduce(total)
sys.stdout.write(f"rank {dist.get_rank()} {type(loader).__module__} {total.item()}\\n")  # in one piece
dist.destroy_process_group()
sys.exit(5 if "fail" in sys.argv else 0)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["as a module", "as a program", "around torchrun"])
def test_under_torchrun(how: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    program = tmp_path / "antifreeze"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom antifreeze.cli import main\nsys.exit(main())\n")
    program.chmod(0o755)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    commands = {
        "as a module": [sys.executable, *torchrun, "-m", "antifreeze", "run", "train.py"],
        "as a program": [sys.executable, *torchrun, "--no-python", str(program), "run", "train.py"],
        "around torchrun": [str(program), "run", *torchrun, "train.py"],
    }
    done = ended(commands[how], tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} antifreeze.loader 16" for rank in (0, 1)]
    assert all(f"antifreeze: rank {rank}, at the end: the loader, made at train.py" in done.stderr for rank in (0, 1))
    failed = ended([*commands[how], "fail"], tmp_path)
    assert failed.returncode == 1
    assert "exitcode  : 5" in failed.stderr


WAITS = (
    SQUARES
    + """
import signal, time
loader = DataLoader(Squares(), batch_size=4)
for batch in loader:
    pass
if "own" in sys.argv:
    signal.signal(signal.SIGUSR1, lambda *_: print("the script's own", flush=True))
print("ready", flush=True)
for line in sys.stdin:
    print("went on", flush=True)
"""
)


@pytest.mark.parametrize("words", [[], ["own"]])
def test_a_signal_asks_for_the_report_unless_the_script_uses_it(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITS)
    command = [sys.executable, "-m", "antifreeze", "run", "--report", "none", "train.py", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        if words:
            assert process.stdout.readline() == "the script's own\n"
        process.stdin.write("go on\n")
        out, err = process.communicate(timeout=150)
    assert (process.returncode, out) == (0, "went on\n")
    assert ("antifreeze: so far: the loader, made at train.py:17, over Squares" in err) == (not words)
    assert "at the end" not in err


STUCK = (
    SQUARES
    + """
import time

class Stuck(Squares):
    def __getitem__(self, index):
        if index == 9:
            time.sleep(600)
        return super().__getitem__(index)

for batch in DataLoader(Stuck(), batch_size=4, num_workers=2):
    print("batch", flush=True)
"""
)


def test_a_loop_that_waits_says_for_whom_when_it_is_asked_and_ends_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STUCK)
    command = [sys.executable, "-m", "antifreeze", "run", "--report-signal", "USR2", "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(2)] == ["batch\n"] * 2
        with _asked_again_and_again(process):  # the first time may be before the loop waits, or the worker is there
            said = _until(process.stderr, "in __getitem__")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=150)
    assert "antifreeze: so far: the loader, made at train.py" in said
    assert "sample 9 of batch 2 (fetch)" in said
    assert 'train.py", line 21 in __getitem__' in said
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err
    assert "antifreeze: at the end: the loader, made at train.py" in err


@contextmanager
def _asked_again_and_again(process: subprocess.Popen[str]) -> Iterator[None]:
    enough = threading.Event()

    def ask() -> None:
        while not enough.wait(0.3):
            process.send_signal(signal.SIGUSR2)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        enough.set()
        asking.join()


def _until(stream: TextIO, words: str) -> str:
    lines = ""
    for line in stream:
        lines += line
        if words in line:
            break
    return lines


def test_without_torch_nothing_is_loaded_and_nothing_said(tmp_path: Path) -> None:
    done = by_antifreeze(["-c", "import sys; print([n for n in sys.modules if n.startswith(('torch', 'numpy'))])"], tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")
