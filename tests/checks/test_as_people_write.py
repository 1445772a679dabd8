"""The same mistakes as people write them: behind an alias, a class attribute, a module's name, an option's default."""

from __future__ import annotations

import pytest
from test_rules import found

from antifreeze.checks.code.rule import PREAMBLE

HEAD = PREAMBLE + "import argparse, contextlib, lmdb\n"
LOADER = "\nloader = DataLoader(D(), batch_size=8, num_workers=4)\n"


def data_set(loading: str, init: str = "pass", body: str = "pass", above: str = "", below: str = LOADER) -> str:
    return (
        f"{HEAD}{above}\nclass D(Dataset):\n    {body}\n    def __init__(self, path='x'):\n        {init}\n"
        f"    def __getitem__(self, i):\n        {loading}\n{below}"
    )


WRITTEN = {
    "h5 by its name": ("handle-opened-in-init", data_set("return self.x[i]", "self.x = h5py.File(path, 'r')['pictures']")),
    "a transaction": ("handle-opened-in-init", data_set("return self.t.get(b'1')", "env = lmdb.open(path); self.t = env.begin()")),
    "of the module": ("handle-opened-in-init", data_set("return ENV.begin().get(b'1')", above="ENV = lmdb.open('x')")),
    "lock of the class": ("lock-in-dataset", data_set("return self.lock.acquire()", body="lock = threading.RLock()")),
    "lock of the module": ("lock-in-dataset", data_set("return LOCK.acquire()", above="LOCK = multiprocessing.Lock()")),
    "seeded generator": (
        "random-numbers-repeated",
        data_set("return torch.rand(3, generator=self.g)", "self.g = torch.Generator().manual_seed(0)"),
    ),
    "cores or one": (
        "workers-cpu-count",
        data_set("return i", below="\nDataLoader(D(), batch_size=8, num_workers=os.cpu_count() or 1)\n"),
    ),
    "cores as a default": (
        "workers-cpu-count",
        data_set(
            "return i",
            above="p = argparse.ArgumentParser()\np.add_argument('-j', '--num-workers', default=os.cpu_count())\nargs = p.parse_args()",
            below="\nDataLoader(D(), batch_size=8, num_workers=args.num_workers)\n",
        ),
    ),
    "another name of the loader": (
        "workers-cpu-count",
        data_set("return i", below="\nmake = DataLoader\nmake(D(), batch_size=8, num_workers=os.cpu_count())\n"),
    ),
    "a collate lambda": (
        "cuda-in-worker",
        data_set("return i", below="\nDataLoader(D(), batch_size=8, num_workers=2, collate_fn=lambda b: torch.stack(b).to('cuda'))\n"),
    ),
    "a pair of nothing": (
        "none-for-a-bad-sample",
        data_set("try:\n            x = Image.open(str(i))\n        except OSError:\n            return None, None\n        return x, 1"),
    ),
    "a name for nothing": (
        "none-for-a-bad-sample",
        data_set("try:\n            x = Image.open(str(i))\n        except OSError:\n            x = None\n        return x"),
    ),
    "a session": ("read-without-limit", data_set("return self.s.get(str(i)).content", "self.s = requests.Session()")),
    "a queue": ("read-without-limit", data_set("return self.q.get()", "self.q = multiprocessing.Queue()")),
    "until it can be read": (
        "loop-without-limit",
        data_set(
            "x = None\n        while x is None:\n            x = cv2.imread(str(i))\n        return x",
            above="import cv2; cv2.setNumThreads(0)",
        ),
    ),
    "a program's answer": ("read-without-limit", data_set("p = subprocess.Popen(['x'])\n        return p.communicate()[0]")),
}

RIGHT = {
    "a slice is read, and the file not kept": data_set("return self.x[i]", "self.x = h5py.File(path, 'r')['pictures'][:]"),
    "a text is read, and the file not kept": data_set("return self.x[i]", "self.x = open(path).read()"),
    "a lock that no sample takes": data_set("return i", above="LOCK = threading.Lock()"),
    "a lock of its own": data_set("LOCK = threading.Lock()\n        return LOCK.acquire()", above="LOCK = threading.Lock()"),
    "opened on first use": data_set("self.env = self.env or lmdb.open('x')\n        return self.env", body="env = None"),
    "a default that is known": data_set(
        "return i",
        above="p = argparse.ArgumentParser()\np.add_argument('--workers', default=4)\nargs = p.parse_args()",
        below="\nDataLoader(D(), batch_size=8, num_workers=args.workers)\n",
    ),
    "none, and something for it": data_set(
        "try:\n            x = Image.open(str(i))\n        except OSError:\n            x = None\n        return x or blank()"
    ),
    "a queue with a limit": data_set("return self.q.get(timeout=9)", "self.q = multiprocessing.Queue()"),
    "a queue that is not waited for": data_set("return self.q.get(False)", "self.q = multiprocessing.Queue()"),
    "until one of some can be read": data_set(
        "x = None\n        while x is None:\n            x = cv2.imread(str(i))\n            i += 1\n        return x",
        above="import cv2; cv2.setNumThreads(0)",
    ),
    "limits": data_set("return self.s.get(str(i), timeout=9).content", "self.s = requests.Session()"),
    "a program with a limit": data_set("p = subprocess.Popen(['x'])\n        return p.communicate(timeout=9)[0]"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_found_as_it_is_written(name: str) -> None:
    rule, text = WRITTEN[name]
    assert list(found(text)) == [rule]


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_left_alone(name: str) -> None:
    assert found(RIGHT[name]) == {}
