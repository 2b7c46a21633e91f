"""Batches as tensors for PyTorch: a dataset for each kind of DataLoader, and a loader that reads ahead. Needs torch.

>>> loader = Loader(Windows("data", length=1024, seed=1), batch_size=64, device="cuda")
>>> for batch in loader:
...     loss = model(batch["input_ids"], batch["labels"])
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

try:
    import torch
    import torch.distributed
    from torch.utils.data import Dataset as _Dataset
    from torch.utils.data import IterableDataset, get_worker_info
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        f"shardmill.torch needs PyTorch ({e}); install it with: pip install torch", name=e.name
    ) from e

from shardmill.errors import UsageError
from shardmill.feed.documents import IGNORED, Documents
from shardmill.feed.source import Source
from shardmill.feed.windows import State, Windows, samples_of

Tensors = dict[str, torch.Tensor]


class Dataset(_Dataset[Tensors]):  # type: ignore[misc]
    """Rows by number, for DataLoader with any sampler and workers, Lightning and the Trainer of transformers.

    Workers fetch whole batches at once. The order is that of the Windows: pass shuffle=False.
    """

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, sample: int) -> Tensors:
        return _tensors(self.windows[sample])

    def __getitems__(self, samples: list[int]) -> list[Tensors]:
        batch = self.windows.batch(samples)
        batch.pop("cu_seqlens", None)  # of the batch, not of a row
        found = _tensors(batch)
        return [{name: values[i] for name, values in found.items()} for i in range(len(samples))]


class Batches(IterableDataset[Tensors]):  # type: ignore[misc]
    """The batches of this rank, without end, for DataLoader(batch_size=None) and torchdata's StatefulDataLoader.

    batch_size counts the samples of all ranks. Workers take turns, so any number of them gives the same batches.
    """

    def __init__(self, windows: Windows, batch_size: int, *, rank: int | None = None, ranks: int | None = None) -> None:
        self.windows, self.batch_size = windows, batch_size
        self.rank, self.ranks = _ranks(rank, ranks)
        samples_of(0, batch_size, rank=self.rank, ranks=self.ranks)
        self._first, self._next = 0, -1

    def __iter__(self) -> Iterator[Tensors]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        if self._next < 0:  # else this worker goes on where its state says
            self._next = self._first + number * self.batch_size
        while True:
            samples = samples_of(self._next, self.batch_size, rank=self.rank, ranks=self.ranks)
            self._next += workers * self.batch_size
            yield _tensors(self.windows.batch(samples))

    def start(self, sample: int) -> "Batches":
        """Begin at this sample, whatever workers did before."""
        self._first, self._next = sample, -1
        return self

    def state_dict(self) -> State:
        return self.windows.state(max(self._first, self._next))

    def load_state_dict(self, state: State) -> None:
        self._next = self.windows.resume(state)


class Loader:
    """The batches of this rank, without end, read ahead by a thread into pinned memory, and copied while the GPU works.

    batch_size counts the samples of all ranks; by default the ranks are those of torch.distributed. state_dict() is
    about what was handed out, not what was read ahead, and fits any number of ranks and any batch size.
    """

    def __init__(
        self,
        windows: Windows,
        batch_size: int,
        *,
        rank: int | None = None,
        ranks: int | None = None,
        device: str | torch.device = "cpu",
        ahead: int = 4,
    ) -> None:
        self.windows, self.batch_size = windows, batch_size
        self.rank, self.ranks = _ranks(rank, ranks)
        samples_of(0, batch_size, rank=self.rank, ranks=self.ranks)
        self._device, self._ahead = torch.device(device), ahead
        self.sample = 0
        """The first sample of the next batch."""
        self.waited = 0.0
        """Seconds that the trainer has waited for batches."""

    def __iter__(self) -> Iterator[Tensors]:
        coming: deque[Future[Tensors]] = deque()
        firsts = itertools.count(self.sample, self.batch_size)
        pool = ThreadPoolExecutor(1, thread_name_prefix="shardmill-loader")
        try:
            while True:
                while len(coming) <= self._ahead:
                    coming.append(pool.submit(self._read, next(firsts)))
                began = time.perf_counter()
                found = coming.popleft().result()
                self.waited += time.perf_counter() - began
                self.sample += self.batch_size
                yield {name: values.to(self._device, non_blocking=True) for name, values in found.items()}
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(self, first: int) -> Tensors:
        samples = samples_of(first, self.batch_size, rank=self.rank, ranks=self.ranks)
        found = _tensors(self.windows.batch(samples))
        return {name: values.pin_memory() for name, values in found.items()} if self._device.type == "cuda" else found

    def state_dict(self) -> State:
        return self.windows.state(self.sample)

    def load_state_dict(self, state: State) -> None:
        self.sample = self.windows.resume(state)


def nanochat_loader(
    data: str | Path, *, plans: dict[str, str] | None = None, seed: int = 0
) -> Callable[..., Iterator[tuple[torch.Tensor, torch.Tensor, State]]]:
    """A function that takes the place of nanochat's data loader, with its arguments: it yields inputs, targets and a state.

    Every row begins with a document, as there, or is a row of the plan of its split; nothing is tokenized meanwhile.
    nanochat fetches a batch before it saves a checkpoint and trains on it after, so the state is that before the batch.
    """

    def load(
        _tokenizer: object,
        B: int,
        T: int,
        split: Any,
        *_: object,
        device: str = "cuda",
        resume_state_dict: State | None = None,
        **__: object,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, State]]:
        plan = (plans or {}).get(split)
        documents = False if plan else Documents(begin=True)
        windows = Windows(Source(path=data, split=split, plan=plan), length=T, seed=seed, documents=documents)
        rank, ranks = _ranks(None, None)
        loader = Loader(windows, B * ranks, rank=rank, ranks=ranks, device=device)
        if resume_state_dict is not None:
            loader.load_state_dict(resume_state_dict)
        for batch in loader:
            targets, first = batch["labels"], loader.sample - loader.batch_size
            epoch, row = divmod(first, len(windows))
            logged = {"epoch": epoch + 1, "pq_idx": 0, "rg_idx": row}  # nanochat prints these
            yield batch["input_ids"], targets.masked_fill(targets == IGNORED, -1), {**windows.state(first), **logged}

    return load


def _ranks(rank: int | None, ranks: int | None) -> tuple[int, int]:
    """As given, else as torch.distributed has them."""
    if (rank is None) != (ranks is None):
        raise UsageError("pass both rank and ranks, or neither")
    if rank is not None and ranks is not None:
        return rank, ranks
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _tensors(batch: dict[str, Any]) -> Tensors:
    return {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in batch.items()}
