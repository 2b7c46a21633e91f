"""Windows: the number of a sample → its row, from any number of corpora, in any order, by any number of ranks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardmill.errors import InputError, UsageError
from shardmill.feed.documents import Documents, described, document_ends
from shardmill.feed.mixture import Stages, draw, stages_of
from shardmill.feed.order import Numbers, key_of, permuted, scrambled
from shardmill.feed.rows import PlainRows, PlannedRows, Rows
from shardmill.feed.source import Source, open_source
from shardmill.record.manifest import differences
from shardmill.system.names import show

Batch = dict[str, npt.NDArray[Any]]
State = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where some tokens of a row come from: an input file, and the byte, line or row where their document begins in it."""

    corpus: str
    document: int
    start: int
    stop: int
    """The tokens of the row, from start up to stop."""
    path: str
    position: int


class Windows:
    """Rows of `length` tokens as a pure function of the sample number: nothing is built, nothing has a state.

    corpora: a folder, a Source (with split="val" for the validation set), or several of them by name. seed: shuffles the
    rows, each of which comes once per epoch; None: in the order of the text. weights: the share of tokens from each
    corpus, or stages [(0, {...}), (200_000, {...})] by sample; by default in proportion to their rows. documents: also
    say where documents begin, and do not predict across them. vocabulary_size: refuse ids that the model does not have.

    >>> rows = shardmill.Windows("data", length=64, seed=1)
    >>> rows[0]["input_ids"].shape, rows[:8]["labels"].shape
    ((64,), (8, 64))
    """

    def __init__(
        self,
        corpora: str | Path | Source | Mapping[str, str | Path | Source],
        *,
        length: int,
        seed: int | None = 0,
        weights: Stages | None = None,
        documents: bool | Documents = False,
        vocabulary_size: int | None = None,
    ) -> None:
        if length < 1:
            raise UsageError(f"length {length}: a row has at least one token")
        named = corpora if isinstance(corpora, Mapping) else {"": corpora}
        if not named:
            raise UsageError("there is no corpus to read from; name at least one")
        self._length, self._seed, self._vocabulary = length, seed, vocabulary_size
        self._documents = (Documents() if documents else None) if isinstance(documents, bool) else documents
        self._names = list(named)
        self._rows = [self._open(source) for source in named.values()]
        self._refuse_other_tokenizers()
        densities = [rows.density for rows in self._rows]
        shares = weights or {name: rows.count * rows.density for name, rows in zip(self._names, self._rows)}
        self._keys = [key_of(seed or 0, number) for number in range(len(self._rows))]
        self._stages = stages_of(shares, self._names, densities, seed or 0)

    def _refuse_other_tokenizers(self) -> None:
        """Ids of two tokenizers mean different text. Files of other programs do not say whose they are."""
        made_by: dict[str, str] = {}
        for name, rows in self._named():
            job = rows.opened.corpus.manifest.job
            if (digest := job.get("tokenizer_sha256")) is not None:
                made_by.setdefault(digest, f"{name or rows.opened.shown}: {job['choices'].get('tokenizer')}")
        if len(made_by) > 1:
            raise UsageError(
                f"the corpora were made with different tokenizers ({show('; '.join(made_by.values()))}), so the same id means different text; prepare them again with one tokenizer"
            )

    def _open(self, source: str | Path | Source) -> PlainRows | PlannedRows:
        found = source if isinstance(source, Source) else Source(path=source)
        opened = open_source(found)
        if found.plan is not None:
            return PlannedRows(opened, found.plan, self._length, self._documents)
        return PlainRows(opened, self._length, self._documents)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name or rows.opened.shown}: {rows.count:,} rows" for name, rows in self._named())
        return f"Windows({parts}, length {self._length:,}, seed {self._seed})"

    def _named(self) -> Iterator[tuple[str, PlainRows | PlannedRows]]:
        return zip(self._names, self._rows, strict=True)

    def __len__(self) -> int:
        """The rows of all corpora together; batch() goes on after them, with the next epoch of each corpus."""
        return sum(rows.count for rows in self._rows)

    def __getitem__(self, sample: int | slice | Sequence[int] | Numbers) -> Batch:
        """A row by its number; of a slice or a list of numbers, a batch."""
        if isinstance(sample, slice):
            return self.batch(range(len(self))[sample])
        if not isinstance(sample, int | np.integer):
            return self.batch(sample)
        if not -len(self) <= sample < len(self):
            raise IndexError(f"sample {sample:,} of {len(self):,}")
        found = self.batch([sample % len(self)])
        return {name: values if name == "cu_seqlens" else values[0] for name, values in found.items()}

    def batch(self, samples: Sequence[int] | range | Numbers) -> Batch:
        """The rows of these samples: input_ids and labels, and with documents also document_ids, position_ids (all of
        shape samples × length) and cu_seqlens, of all rows laid end to end."""
        wanted = np.asarray(samples, np.int64)
        if not len(wanted) or int(wanted.min()) < 0:
            raise IndexError(f"samples {list(samples)[:8]}: name at least one; they count from 0")
        corpora, numbers = draw(self._stages, self._seed or 0, wanted)
        found = self._read(wanted, corpora, numbers)
        made: Batch = {"input_ids": found.inputs, "labels": found.labels}
        if found.begins is not None and self._documents is not None:
            made |= described(found.begins, self._documents.most)
        return made

    def _read(self, samples: Numbers, corpora: Numbers, numbers: Numbers) -> Rows:
        present = np.unique(corpora).tolist() if len(self._rows) > 1 else [0]
        if len(present) == 1:
            return self._read_from(present[0], samples, numbers)
        shape = len(samples), self._length
        inputs, labels = np.empty(shape, np.int64), np.empty(shape, np.int64)
        begins = np.empty(shape, np.bool_) if self._documents is not None else None
        for corpus in present:
            here = corpora == corpus
            rows = self._read_from(corpus, samples[here], numbers[here])
            inputs[here], labels[here] = rows.inputs, rows.labels
            if begins is not None and rows.begins is not None:
                begins[here] = rows.begins
        return Rows(inputs=inputs, labels=labels, begins=begins)

    def _read_from(self, corpus: int, samples: Numbers, numbers: Numbers) -> Rows:
        rows = self._rows[corpus].read(self._places(corpus, numbers))
        if self._vocabulary is not None and rows.largest >= self._vocabulary:
            row = int(samples[np.argmax(np.maximum(rows.inputs.max(axis=1), rows.labels.max(axis=1)))])
            raise InputError(
                f"{self._rows[corpus].opened.shown}: has the id {rows.largest:,} in sample {row:,}, and the model's vocabulary ends at {self._vocabulary - 1:,}; the tokens come from another tokenizer, or vocabulary_size is too small"
            )
        return rows

    def _places(self, corpus: int, numbers: Numbers) -> Numbers:
        """The rows of the corpus that come at these numbers: of each epoch, all of them once."""
        count = self._rows[corpus].count
        epochs, places = np.divmod(numbers, count)
        if self._seed is None:
            return places
        return permuted(places, count, scrambled(epochs, self._keys[corpus]))

    def where(self, sample: int) -> list[Origin]:
        """Where every document of a row came from; the output must have been prepared with --index --provenance."""
        corpora, numbers = draw(self._stages, self._seed or 0, np.array([sample]))
        corpus = int(corpora[0])
        rows, row = self._rows[corpus], int(self._places(corpus, numbers)[0])
        file = rows.opened.corpus.sidecar("places", rows.opened.split.name)
        if file is None:
            raise UsageError(
                f"{rows.opened.shown}: does not say where its documents came from; prepare it again with --index --provenance"
            )
        found, at = [], 0
        ends, sources = document_ends(rows.opened).array, rows.opened.corpus.sources
        for start, length in rows.spans(row):
            first, last = np.searchsorted(ends, [start, start + length - 1], side="right").tolist()
            for document in range(first, last + 1):
                begin = max(start, int(ends[document - 1]) if document else 0)
                stop = min(start + length, int(ends[document]))
                number, position = np.frombuffer(file.read(16 * document, 16), "<u8").tolist()
                found.append(
                    Origin(
                        corpus=self._names[corpus],
                        document=document,
                        start=at + begin - start,
                        stop=at + stop - start,
                        path=sources[number],
                        position=position,
                    )
                )
            at += length
        return found

    def state(self, sample: int) -> State:
        """What to save in a checkpoint: the number of the next sample, and what the samples are drawn from."""
        return {"sample": sample, "fingerprint": self._fingerprint(sample)}

    def resume(self, state: State) -> int:
        """The number of the next sample; an error that says what differs if the state is of other data."""
        try:
            sample, before = int(state["sample"]), dict(state["fingerprint"])
        except (KeyError, TypeError, ValueError) as e:
            raise UsageError(f"not a state that Windows.state gave ({type(e).__name__}: {show(str(e))})") from e
        if changed := differences(before, self._fingerprint(sample)):
            raise UsageError(
                "the state belongs to other data, so other samples came before it:\n  "
                + "\n  ".join(changed)
                + "\nResume with the same corpora and options, or start over."
            )
        return sample

    def _fingerprint(self, sample: int) -> dict[str, Any]:
        """Stages that begin later have made no difference yet."""
        begun = [stage for stage in self._stages if stage.start < max(1, sample)]
        documents = self._documents is not None and self._documents.begin
        return {
            "length": self._length,
            "seed": self._seed,
            "rows_begin_at_documents": documents,
            "stages": {str(stage.start): list(stage.counts) for stage in begun},
            "corpora": {name: rows.identity for name, rows in self._named()},
        }


def samples_of(first: int, batch_size: int, *, rank: int = 0, ranks: int = 1) -> range:
    """The samples of one rank in the global batch that begins at sample first.

    >>> shardmill.samples_of(64, 32, rank=1, ranks=4)
    range(72, 80)
    """
    if not 0 <= rank < ranks or batch_size < 1:
        raise UsageError(f"rank {rank} of {ranks}, batch of {batch_size}: ranks count from 0, and a batch has a sample")
    if batch_size % ranks:
        raise UsageError(
            f"a batch of {batch_size:,} samples cannot be divided among {ranks:,} ranks; choose a multiple of {ranks:,}"
        )
    share = batch_size // ranks
    return range(first + rank * share, first + (rank + 1) * share)
