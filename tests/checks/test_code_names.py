"""What rules understand of a program beyond their own examples: names, arguments, other modules; and what they must not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from antifreeze.checks.code.all_rules import code_findings
from antifreeze.checks.code.program import follow_imports, read_program
from antifreeze.checks.code.rule import PREAMBLE
from antifreeze.checks.code.source import parse_source
from antifreeze.checks.errors import NotCheckable

HANDLE = (
    "class D(Dataset):\n    def __init__(self):\n        self.f = open('x')\n    def __getitem__(self, i):\n        return self.f.read(1)\n"
)
LINES = "class L(IterableDataset):\n    def __iter__(self):\n        yield from open('x')\n"
BUFFER = (
    "class L(IterableDataset):\n  def __iter__(self):\n    b = []\n    {}\n      b.append(x)\n"
    "      if len(b) > 9:\n        yield b.pop(random.randrange(len(b)))\n    yield from b\n"
)
GPU = "class D(Dataset):\n    def __getitem__(self, i):\n        return self.x[i].to(device)\n"
LOADS = "class D(Dataset):\n    def __init__(self, paths):\n        self.x = {}\n"
GET = "class D(Dataset):\n  def __getitem__(self, i):\n"
LAMBDA = "DataLoader(ds, 2, num_workers=1, collate_fn=lambda x: x{})"

SPAWNED = "if __name__ == '__main__':\n  DataLoader({}, 2, num_workers=1, multiprocessing_context='spawn')"
KEEPS = "class D(Dataset):\n  def __init__(self, paths):\n    self.f = {}\n  def __getitem__(self, i):\n    return self.f[i]\n"
RANKS = "s = DistributedSampler(ds)\nloader = DataLoader(ds, 8, sampler=s)\n"


def codes(text: str, start: str = "fork") -> list[str]:
    return [each.code for each in code_findings(follow_imports(parse_source("nowhere/script.py", PREAMBLE + text), start))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # workers: known, unknown, through names, positions and dicts
        (HANDLE + "DataLoader(D(), 8)", []),
        (HANDLE + "DataLoader(D(), 8, num_workers=0)", []),
        (HANDLE + "DataLoader(D(), 8, False, None, None, 2)", ["handle-opened-in-init"]),
        (HANDLE + "n = 0\nDataLoader(D(), 8, num_workers=n)", []),
        (HANDLE + "n = 2\nDataLoader(D(), 8, num_workers=n)", ["handle-opened-in-init"]),
        (HANDLE + "def make(n):\n    return DataLoader(D(), 8, num_workers=n)", ["handle-opened-in-init"]),
        (HANDLE + "o = {'num_workers': 0}\nDataLoader(D(), 8, **o)", []),
        (HANDLE + "o = dict(num_workers=3)\nDataLoader(D(), 8, **o)", ["handle-opened-in-init"]),
        (HANDLE + "o = {'num_workers': 0}\no['num_workers'] = 2\nDataLoader(D(), 8, **o)", ["handle-opened-in-init"]),
        (HANDLE, ["handle-opened-in-init"]),  # no loader in sight: it stands in a file of its own
        (HANDLE.replace("open('x')", "None"), []),
        (HANDLE.replace("self.f = open('x')", "self.f = open('x'); self.n = len(self.f.read()); self.f.close()"), []),
        (HANDLE.replace("self.f = open('x')", "self.start()\n    def start(self):\n        self.f = open('x')"), ["handle-opened-in-init"]),
        (HANDLE.replace("Dataset", "object"), []),
        (HANDLE.replace("Dataset", "object") + "d = D()\nDataLoader(d, 8, num_workers=1)", ["handle-opened-in-init"]),
        # files read whole, one after another
        (
            LOADS + "        for p in paths:\n            with open(p, 'rb') as f:\n                self.x[p] = f.read()",
            ["data-loaded-in-init"],
        ),
        (LOADS + "        for p in paths:\n            self.x[p] = Path(p).read_bytes()", ["data-loaded-in-init"]),
        (LOADS + "        for p in paths:\n            with open(p) as f:\n                self.x[p] = f.read()", []),  # labels, mostly
        (LOADS + "        for p in paths:\n            with open(p, 'rb') as f:\n                self.x[p] = f.read(16)", []),
        # loops that wait for a file
        (GET + "    while not os.path.exists(self.p[i]):\n      pass", ["loop-without-limit"]),
        (GET + "    while not Path(self.p[i]).exists():\n      time.sleep(1)", ["loop-without-limit"]),
        (GET + "    end = time.time() + 9\n    while not Path(self.p[i]).exists():\n      if time.time() > end: raise OSError", []),
        # None without a word
        (GET + "    x = None\n    try:\n      x = read(i)\n    except OSError:\n      print(i)\n    return x", ["none-for-a-bad-sample"]),
        (GET + "    x = None\n    try:\n      x = read(i)\n    except OSError:\n      x = 0\n    return x", []),
        (GET + "    x = None\n    try:\n      x = read(i)\n    except OSError:\n      pass\n    x = x or 1\n    return x", []),
        # thread pools in workers
        (GET + "    torch.set_num_threads(4)\nDataLoader(D(), 2, num_workers=2)", ["threads-in-workers"]),
        (GET + "    torch.set_num_threads(1)\nDataLoader(D(), 2, num_workers=2)", []),
        (GET + "    torch.set_num_threads(4)\nDataLoader(D(), 2)", []),
        # iterable data sets
        (LINES + "DataLoader(L(), num_workers=2)", ["iterable-not-split"]),
        (LINES + "DataLoader(L(), num_workers=2, worker_init_fn=split)", []),
        (LINES + "DataLoader(L())", []),
        (LINES + "DataLoader(L(), num_workers=2, shuffle=True)", ["iterable-not-split", "shuffle-beside-sampler", "batch-size-one"]),
        (LINES.replace("open('x')", "self.source") + "DataLoader(L(), num_workers=2)", []),  # what it wraps may split itself
        (BUFFER.format("for x in self.source:") + "DataLoader(L(), num_workers=2)", []),  # it counts its buffer, not the data
        (BUFFER.format("for n, x in enumerate(iter(self.source)):") + "DataLoader(L(), num_workers=2)", []),
        (BUFFER.format("for x in range(len(self.source)):") + "DataLoader(L(), num_workers=2)", ["iterable-not-split"]),
        (BUFFER.format("for x in open(self.path):") + "DataLoader(L(), num_workers=2)", ["iterable-not-split"]),
        # the GPU
        (
            GPU + "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\nDataLoader(D(), 2, num_workers=1)",
            ["cuda-in-worker"],
        ),
        (GPU + "device = 'cpu'\nDataLoader(D(), 2, num_workers=1)", []),
        (GPU + "device = 'cuda'\nDataLoader(D(), 2)", []),
        # start methods
        (LAMBDA.format(""), []),
        (LAMBDA.format(", multiprocessing_context='spawn'"), ["no-main-guard", "not-picklable-under-spawn"]),
        ("import antifreeze\nantifreeze." + LAMBDA.format(", multiprocessing_context='spawn'"), []),
        (SPAWNED.format("D(sorted(paths, key=lambda p: p.stem))"), []),  # used up before anything is sent
        (SPAWNED.format("D(read().filter(lambda row: row.x))"), []),
        (SPAWNED.format("D(Compose([Lambda(lambda x: x)]))"), ["not-picklable-under-spawn"]),
        (KEEPS.format("lambda x: x") + SPAWNED.format("D(paths)"), ["not-picklable-under-spawn"]),
        (KEEPS.format("sorted(paths, key=lambda x: x)") + SPAWNED.format("D(paths)"), []),
        (KEEPS.format("lambda x: x") + "  def __getstate__(self): return {}\n" + SPAWNED.format("D(paths)"), []),
        # epochs by another name
        (RANKS + "for e in range(9):\n  for b in loader:\n    f(b)", ["set-epoch-missing"]),
        (RANKS + "while steps < 9:\n  for b in loader:\n    f(b)", ["set-epoch-missing"]),
        (RANKS + "for e in range(9):\n  s.set_epoch(e)\n  for b in loader:\n    f(b)", []),
        (RANKS + "for model in models:\n  for b in loader:\n    f(b)", []),
        (RANKS + "for b in loader:\n  f(b)", []),
        # loading in __init__
        (LOADS.format("[Image.open(p) for p in paths]"), ["data-loaded-in-init"]),
        (LOADS.format("[Image.open(p).size for p in paths]"), []),
        (LOADS.format("[len(Image.open(p).getbands()) for p in paths]"), []),
        (LOADS.format("{k: torch.load(k) for k in ('x', 'y')}"), []),
        (LOADS.format("np.load('all.npy')"), []),
        (LOADS.format("[np.load(p, mmap_mode='r') for p in paths]"), []),
        # loops
        (
            GET + "    while True:\n      c = f.read(9)\n      if not c:\n        break\n    return c",
            [],
        ),
        (
            "class D(Dataset):\n  def __getitem__(self, i):\n    while i == 3:\n      i = random.randint(0, 9)\n    return i",
            ["loop-without-limit"],
        ),
        ("class D(Dataset):\n  def __getitem__(self, i):\n    while True:\n      i += 1", ["loop-without-limit"]),
        ("class L(IterableDataset):\n  def __iter__(self):\n    while True:\n      yield 1", []),
        (GET + "    r = f(i)\n    while r.status_code != 200:\n      r = requests.get(i, timeout=9)\n    return r", ["loop-without-limit"]),
        (GET + "    while not os.path.exists(i):\n      time.sleep(1)\n    return i", ["loop-without-limit"]),
        (GET + "    while f(i) != 200:\n      try:\n        break\n      except OSError:\n        time.sleep(1)", ["loop-without-limit"]),
        (
            GET + "    n = 0\n    while r.status_code != 200 and n < 9:\n      r = requests.get(i, timeout=9)\n      n += 1\n    return r",
            [],
        ),
        (GET + "    while f(i) != 200:\n      n = n + 1\n      time.sleep(1)\n      if n > 9:\n        raise OSError\n    return i", []),
        (GET + "    while not f(i):\n      if time.monotonic() > end:\n        raise OSError\n      time.sleep(1)\n    return i", []),
        (GET + "    while url is not None:\n      url = requests.get(url, timeout=9).json()['next']\n    return url", []),
        (GET + "    while len(x) != 3:\n      x.append(requests.get(i, timeout=9))\n    return x", []),
        # files that are the samples, and files that only name them
        (KEEPS.format("json.load(open(paths))"), ["objects-loaded-in-init"]),
        (KEEPS.format("json.load(open(paths))['rows']"), ["objects-loaded-in-init"]),
        (KEEPS.format("[json.loads(line) for line in open(paths)]"), ["objects-loaded-in-init"]),
        (KEEPS.format("json.load(open(paths))") + "DataLoader(D(), 8)", []),
        (KEEPS.format("json.load(open(paths))").replace("self.f[i]", "Image.open(self.f[i]['path'])"), []),
        (KEEPS.format("json.load(open(paths))").replace("self.f[i]", "self.x[i] * self.f['scale']"), []),
        (KEEPS.format("len(json.load(open(paths)))"), []),
        # swallowed exceptions
        (
            GET + "    try:\n      return f(i)\n    except ValueError:\n      print(i)",
            ["none-for-a-bad-sample"],
        ),
        ("class D(Dataset):\n  def __getitem__(self, i):\n    try:\n      x = f(i)\n    except ValueError:\n      x = 0\n    return x", []),
        ("DataLoader(ds, num_workers=min(4, os.cpu_count()))", []),
        ("W = multiprocessing.cpu_count()\nDataLoader(ds, num_workers=W)", ["workers-cpu-count"]),
        ("DataLoader(ds, batch_size=1, shuffle=False)", []),
        ("test_loader = DataLoader(ds, batch_size=1)", []),
        ("train_loader = DataLoader(ds)", []),
        ("train_loader = DataLoader(ds, batch_size=1)", ["batch-size-one"]),
        ("x = DataLoader(ds, batch_size=1, sampler=s)\nfor b in x:\n  f(b).backward()", ["batch-size-one"]),
        ("x = DataLoader(ds, batch_size=1, sampler=s)\nfor b in x:\n  f(b)", []),
        ("def f():\n    subprocess.run(['x'])", []),  # not in a data set
    ],
)
def test_what_is_said(text: str, expected: list[str]) -> None:
    assert sorted(codes(text)) == sorted(expected)


def test_python_3_14_starts_workers_afresh_by_default() -> None:
    assert codes(LAMBDA.format(""), "forkserver") == ["not-picklable-under-spawn", "no-main-guard"]


def test_local_modules_are_followed_and_the_unreadable_named(tmp_path: Path) -> None:
    (tmp_path / "kinds").mkdir()
    (tmp_path / "kinds" / "__init__.py").write_text("from .files import Base as Files\n")
    (tmp_path / "kinds" / "files.py").write_text(
        "import h5py\nfrom torch.utils.data import Dataset\n\nclass Base(Dataset):\n"
        "    def __init__(self):\n        self.f = h5py.File('x')\n"
    )
    (tmp_path / "broken.py").write_text("def (:\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import broken, json\nfrom torch.utils import data\nfrom kinds import Files\n"
        "class Mine(Files):\n    pass\nloader = data.DataLoader(Mine(), 8, num_workers=3)\n"
    )
    program = read_program(str(script))
    found = code_findings(program)
    assert [(Path(each.file or "").name, each.line, each.code) for each in found] == [("files.py", 6, "handle-opened-in-init")]
    assert len(program.unread) == 1 and "broken.py:1" in program.unread[0]


def test_a_comment_above_silences_the_statement_and_an_unknown_rule_is_named() -> None:
    wrong = "loader = DataLoader(\n    ds,\n    num_workers=os.cpu_count(),\n)"
    assert codes(wrong) == ["workers-cpu-count"]
    assert codes(f"# antifreeze: ignore[workers-cpu-count]\n{wrong}") == []
    assert codes(wrong.replace("ds,", "ds,  # antifreeze: ignore")) == []
    assert codes(f"# antifreeze: ignore[workers-cpu-cont]\n{wrong}") == ["workers-cpu-count", "unknown-rule"]


@pytest.mark.parametrize("text", ["x = (", "\0", "def f(:\n", "(" * 5000])
def test_what_is_no_python_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(NotCheckable, match=r"script\.py"):
        parse_source("script.py", text)
