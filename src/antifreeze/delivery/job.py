"""What an iterator's workers are for, as long as it lives; and the pool that does it, of workers or of this process alone.

loader, options ──▶ Job ──spec──▶ WorkerSpec, and one like it per worker ──▶ Pool
                        └───────────────────────────────────────────────▶ LocalPool
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from antifreeze.delivery.flights import Shape
from antifreeze.delivery.ledger import Ledger
from antifreeze.delivery.local_pool import LocalPool
from antifreeze.delivery.position import length_of
from antifreeze.delivery.traps import Traps
from antifreeze.options import Options, WorkerKind
from antifreeze.plan.map_plan import Quarantine
from antifreeze.slots.ring import Ring
from antifreeze.supervisor.cgroup import batch_limit
from antifreeze.supervisor.pool import Pool
from antifreeze.torch_private import apply_sharding, default_collate, is_datapipe, sharded_init_fn
from antifreeze.worker.as_found import AsFound
from antifreeze.worker.awaiting import awaits
from antifreeze.worker.main import WorkerSpec
from antifreeze.worker.slot_writer import Limit
from antifreeze.worker.task import FetchConfig
from antifreeze.worker.turns import Usage
from antifreeze.worker.ways import fetches_many, takes_parts

LOOK_AHEAD = 64


@dataclass(frozen=True)
class Seeding:
    """What the random numbers of an epoch come from."""

    base_seed: int
    epoch: int
    shared_seed: int | None


@dataclass(frozen=True)
class Job:
    dataset: Any
    is_map: bool
    collate_fn: Callable[[Any], Any]
    auto_collation: bool
    drop_last: bool
    worker_init_fn: Callable[[int], None] | None
    workers: int
    places: int  # for as many workers as there can ever be
    world_size: int
    rank: int
    options: Options
    context: Any
    use_server: bool  # workers come from the clean server
    usage: Usage | None  # of random generators, where workers are threads
    as_found: AsFound

    @property
    def in_threads(self) -> bool:
        return self.options.workers is WorkerKind.THREAD and self.workers > 0

    def pool(self, seeding: Seeding, ring: Ring, ledger: Ledger, begin_with: int | None, hosting: bool) -> Pool | LocalPool:
        """`hosting`: of streams that began with another number of workers."""
        if is_datapipe(self.dataset) and (hosting or not self.workers):
            apply_sharding(self.dataset, self.world_size, self.rank)
        if self.workers:
            given = (self.options, ledger.costs, ledger.story, self.use_server, begin_with, self.usage)
            return Pool(self.context, self.spec(seeding, hosting), self.places, ring, *given)
        return self.local_pool(seeding, ring, ledger)

    def local_pool(self, seeding: Seeding, ring: Ring, ledger: Ledger) -> LocalPool:
        options = self.options
        given = (self.collate_fn, self.auto_collation, self.drop_last, options.forgives, None)
        config = FetchConfig(*given, options.concurrency, options.sample_timeout_s, self._fills)
        seeds = (seeding.base_seed, seeding.epoch)
        known = (ledger.costs, ledger.learnt, ledger.local_seeds)
        pool = LocalPool(
            self.dataset, not self.is_map, config, seeds, ring, self._limit, *known, self.worker_init_fn, beside_workers=bool(self.workers)
        )
        ledger.local_seeds, ledger.held_loop = pool.seeds, pool.held_loop
        return pool

    def spec(self, seeding: Seeding, hosting: bool = False) -> WorkerSpec:
        """Of the first worker; that of another one is made when it is started."""
        return WorkerSpec(
            worker_id=0,
            num_workers=self.workers,
            dataset=self.dataset,
            iterable=not self.is_map,
            collate_fn=self.collate_fn,
            auto_collation=self.auto_collation,
            drop_last=self.drop_last,
            worker_init_fn=self.worker_init_fn,
            base_seed=seeding.base_seed,
            epoch=seeding.epoch,
            shared_seed=seeding.shared_seed,
            hosting=hosting,
            forgive=self.options.forgives,
            fill=self._fills,
            concurrency=self.options.concurrency,
            sample_timeout_s=self.options.sample_timeout_s,
            limit=self._limit,
            as_found=self.as_found,
        )

    @property
    def _limit(self) -> Limit:
        return partial(batch_limit, self.options.memory_budget_bytes)

    @property
    def _fills(self) -> bool:
        """Whether a stream's next samples move up for one that was left out: not among ranks, where one would have fewer batches then."""
        return self.options.keep_batches_full and self.world_size == 1

    def shape(self, loader: Any) -> Shape:
        many = self.is_map and fetches_many(self.dataset)
        return Shape(
            is_map=self.is_map,
            auto_collation=self.auto_collation,
            fetches_many=many,
            together=self.options.concurrency if self.is_map and awaits(self.dataset) else 1,
            splits=self.is_map and self.collate_fn is default_collate and self.auto_collation and takes_parts(self.dataset),
            in_order=loader.in_order,
            batch_rows=loader.batch_size if self.auto_collation else 1,
            prefetch_factor=loader.prefetch_factor or 2,
            prefetch_asked=loader._prefetch_asked,
            look_ahead=LOOK_AHEAD if self.options.forgives and self.is_map else None,
        )

    def quarantine(self) -> Quarantine | None:
        if not self.options.quarantined:
            return None
        # under DDP a listed sample is replaced, so that every rank keeps its number of batches
        samples = length_of(self.dataset) if self.world_size > 1 else None
        return Quarantine(self.options.quarantined, samples)

    def look_for_traps(self, traps: Traps, workers: int) -> None:
        """Before so many workers are started."""
        forks = not self.in_threads and bool(self.context.get_start_method() == "fork")
        with nullcontext() if self.in_threads else self.as_found.hidden():
            traps.before_start(self.dataset, workers, not self.use_server and forks, self.in_threads)


def job_of(loader: Any, made: Any, places: int) -> Job:
    """`made`: what torch's own iterator has taken from the loader when it was made."""
    options: Options = loader._own_options
    in_threads = options.workers is WorkerKind.THREAD and made._num_workers > 0
    worker_init_fn = loader.worker_init_fn
    if is_datapipe(made._dataset):
        worker_init_fn = sharded_init_fn(worker_init_fn, made._world_size, made._rank)
    start: tuple[Any, bool] = (None, False)
    if made._num_workers and not in_threads:
        start = loader._start_context()
    return Job(
        dataset=made._dataset,
        is_map=made._map,
        collate_fn=made._collate_fn,
        auto_collation=made._auto_collation,
        drop_last=made._drop_last,
        worker_init_fn=worker_init_fn,
        workers=made._num_workers,
        places=places,
        world_size=made._world_size,
        rank=made._rank,
        options=options,
        context=start[0],
        use_server=start[1],
        usage=loader._known_usage() if in_threads else None,
        as_found=loader._as_found,
    )
