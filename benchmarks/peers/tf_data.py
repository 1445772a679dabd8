"""tf.data: vectorized where the rows are an array, parallel maps with AUTOTUNE or a fixed number elsewhere, prefetch.

Code in Python (the JPEG with the same decoder, the slow read) runs in `tf.numpy_function`, as the guide tells for such code.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from peers.contract import TUNES_ITSELF_S, Entry, Epochs, Peer, Setting, Task, one_thread_each, with_warm_malloc
from peers.samples import data_set

PEER = Peer("tfdata", "tf.data", ("tensorflow-cpu==2.21.0",), gives="tf tensors")


def entries(task: Task) -> list[Entry]:
    return [Entry(entry.title, tuple(map(with_time_to_tune, entry.settings))) for entry in entries_of(task)]


def with_time_to_tune(setting: Setting) -> Setting:
    return replace(setting, warm_s=TUNES_ITSELF_S) if "AUTOTUNE" in setting.name else setting


def entries_of(task: Task) -> list[Entry]:
    calls = [("AUTOTUNE", -1), ("2 calls", 2), ("4 calls", 4)]
    if task.concurrency:
        wide = Setting(f"{task.concurrency} calls, as many threads", {"calls": task.concurrency, "pool": task.concurrency})
        any_order = Setting(f"{task.concurrency} calls, as many threads, in any order", {**wide.options, "order": False})
        return [Entry(PEER.title, (wide, any_order))]
    if task.workload == "rows":
        slices = Setting("from_tensor_slices, shuffle 10,000", {"way": "slices", "calls": -1})
        mapped = [Setting(f"shuffled indices, map, {name}", {"way": "gather", "calls": count}) for name, count in calls]
        return [Entry(PEER.title, (slices, *mapped))]
    if task.workload == "rows-batch":
        return [Entry(PEER.title, tuple(Setting(f"gather by batch, {name}", {"calls": count}) for name, count in calls))]
    if task.workload == "jpeg":
        calls = calls[:2]
        same = tuple(Setting(f"simplejpeg in numpy_function, {name}", {"calls": count}) for name, count in calls)
        own = tuple(Setting(f"decode_and_crop_jpeg, {name}", {"calls": count, "own": True}) for name, count in calls)
        return [Entry(PEER.title, with_warm_malloc(task, same)), Entry("tf.data, own decoder", own)]
    return [Entry(PEER.title, with_warm_malloc(task, tuple(Setting(name, {"calls": count}) for name, count in calls)))]


def open_epochs(task: Task, options: dict[str, Any], folder: Path) -> Epochs:
    import tensorflow as tf

    build = {
        "rows": rows_of,
        "rows-batch": rows_by_batch,
        "images": images,
        "jpeg": own_jpegs if options.get("own") else jpegs,
        "slow-reads": reads,
        "tokens": tokens,
    }[task.workload]
    one_thread_each(options)
    source = data_set(task)

    def epochs() -> Any:
        chain = build(tf, task, source, options)
        settings = tf.data.Options()
        settings.deterministic = options.get("order", True)
        if options.get("pool"):
            settings.threading.private_threadpool_size = options["pool"]
        yield iter(chain.prefetch(tf.data.AUTOTUNE).with_options(settings))

    return epochs


def indices(tf: Any, task: Task) -> Any:
    """Every index once an epoch, shuffled wholly, without end."""
    return tf.data.Dataset.range(task.samples).shuffle(task.samples, reshuffle_each_iteration=True).repeat()


def rows_of(tf: Any, task: Task, source: Any, options: dict[str, Any]) -> Any:
    x, y = source.x.numpy(), source.y.numpy()
    if options["way"] == "slices":
        chain = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10_000).repeat()
    else:
        kept_x, kept_y = tf.constant(x), tf.constant(y)
        chain = indices(tf, task).map(lambda index: (kept_x[index], kept_y[index]), num_parallel_calls=options["calls"])
    return chain.batch(task.batch_size, drop_remainder=True)


def rows_by_batch(tf: Any, task: Task, source: Any, options: dict[str, Any]) -> Any:
    x, y = tf.constant(source.x.numpy()), tf.constant(source.y.numpy())
    batches = indices(tf, task).batch(task.batch_size, drop_remainder=True)
    return batches.map(lambda chosen: (tf.gather(x, chosen), tf.gather(y, chosen)), num_parallel_calls=options["calls"])


def images(tf: Any, task: Task, source: Any, options: dict[str, Any]) -> Any:
    kept = tf.constant(source.source.numpy())
    one = indices(tf, task).map(lambda index: (kept[index % source.SOURCES], index % 1000), num_parallel_calls=options["calls"])
    return one.batch(task.batch_size, drop_remainder=True)


def jpegs(tf: Any, task: Task, source: Any, options: dict[str, Any]) -> Any:
    def load(index: Any) -> Any:
        image, label = source[int(index)]
        return image.numpy(), label

    def one(index: Any) -> Any:
        image, label = tf.numpy_function(load, [index], (tf.float32, tf.int64))
        return tf.ensure_shape(image, (3, 224, 224)), tf.ensure_shape(label, ())

    return indices(tf, task).map(one, num_parallel_calls=options["calls"]).batch(task.batch_size, drop_remainder=True)


def own_jpegs(tf: Any, task: Task, source: Any, options: dict[str, Any]) -> Any:
    files = tf.constant(source.files)

    def one(index: Any) -> Any:
        file = files[index % source.SOURCES]
        area, ratio, top, left, flip = tf.unstack(tf.random.uniform((5,)))
        side = tf.sqrt(area * 0.92 + 0.08)
        height, width = tf.cast(375 * side * (0.75 + ratio / 4), tf.int32), tf.cast(500 * side, tf.int32)
        y, x = tf.cast(top * tf.cast(375 - height, tf.float32), tf.int32), tf.cast(left * tf.cast(500 - width, tf.float32), tf.int32)
        crop = tf.io.decode_and_crop_jpeg(file, tf.stack((y, x, height, width)), channels=3)
        small = tf.image.resize(crop, (224, 224), antialias=True) / 255
        return tf.transpose(tf.cond(flip < 0.5, lambda: small[:, ::-1], lambda: small), (2, 0, 1)), index % 1000

    return indices(tf, task).map(one, num_parallel_calls=options["calls"]).batch(task.batch_size, drop_remainder=True)


def reads(tf: Any, task: Task, source: Any, options: dict[str, Any]) -> Any:
    def one(index: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda number: source[int(number)].numpy(), [index], tf.uint8), (3072,))

    return indices(tf, task).map(one, num_parallel_calls=options["calls"]).batch(task.batch_size, drop_remainder=True)


def tokens(tf: Any, task: Task, source: Any, options: dict[str, Any]) -> Any:
    ids, ends = tf.constant(source.ids.numpy()), tf.constant([0, *source.ends], tf.int64)

    def one(index: Any) -> Any:
        found = ids[ends[index] : ends[index + 1]]
        return found, tf.size(found, tf.int64)

    return indices(tf, task).map(one, num_parallel_calls=options["calls"]).padded_batch(task.batch_size, drop_remainder=True)
