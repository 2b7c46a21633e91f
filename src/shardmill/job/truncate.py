"""Milled Blocks in order → as much of them as --limit-documents and --limit-tokens allow, to the token."""

import dataclasses

import numpy as np

from shardmill.job.block import Milled, Trace, count, runs_of
from shardmill.job.job import Job
from shardmill.tokens.layout import Layout, Tokens, lay_out
from shardmill.tokens.token_bytes import token_bytes_of


class Truncation:
    """Counts what is written; take() returns as much of the next Block as is still wanted.

    ended, tokens and input_bytes are what an earlier run did.
    """

    def __init__(self, job: Job, ended: int, tokens: int, input_bytes: int) -> None:
        limits = job.spec.limit_documents, job.spec.limit_tokens
        self._documents, self._tokens = (
            None if limit is None else limit - done for limit, done in zip(limits, (ended, tokens), strict=True)
        )
        self._job = job
        self._input_bytes = input_bytes
        self.full = self._documents == 0 or self._tokens == 0

    def take(self, milled: Milled) -> Milled:
        """The Block, or its beginning if the limit is in it; then full is set. Otherwise raises the Block's error, if any."""
        milled = self._cut(milled)
        if milled.error is not None and not self.full:
            raise milled.error
        return milled

    def _cut(self, milled: Milled) -> Milled:
        trace = milled.trace
        if trace is None or self.full:
            return milled
        token_ends = trace.token_ends
        total = int(token_ends[-1]) if len(token_ends) else 0
        tokens, pieces = total, len(token_ends)
        if self._documents is not None:
            closed = np.flatnonzero(trace.ends)
            if len(closed) >= self._documents:
                pieces = int(closed[self._documents - 1]) + 1
                tokens, self.full = int(token_ends[pieces - 1]), True
            else:
                self._documents -= len(closed)
        if self._tokens is not None:
            if tokens >= self._tokens:
                tokens, self.full = self._tokens, True
                pieces = min(pieces, int(np.searchsorted(token_ends, tokens)) + 1)
            self._tokens -= tokens
        if not self.full:
            self._input_bytes += milled.counts.input_bytes
            return milled
        return self._beginning(milled, trace, pieces, tokens)

    def _beginning(self, milled: Milled, trace: Trace, pieces: int, tokens: int) -> Milled:
        """input_bytes counts the files before the one with the limit, so that it does not depend on the size of blocks."""
        spent = self._job.files.base(trace.files[pieces - 1]) - self._input_bytes
        written = np.concatenate([run.tokens for run in milled.runs])[:tokens]
        last, val = pieces - 1, trace.pieces.val[:pieces]
        # Of the last piece, what is written; all of it, or its beginning.
        inside, whole = written[int(trace.token_ends[last - 1]) if last else 0 :], tokens == trace.token_ends[last]
        text_bytes = np.append(trace.text_bytes[:last], trace.text_bytes[last] if whole else self._bytes_of(inside))
        closes = np.append(trace.ends[:last], True)  # the document that is cut ends here
        sizes = np.diff(np.append(trace.token_ends[:last], tokens), prepend=0)
        layout = Layout(dtype=written.dtype, eot=None, closes=closes, val=val, text_bytes=text_bytes)
        laid = lay_out((written, sizes), layout)
        counts = count(trace.pieces, spent, pieces)
        behind = 0 if whole else self._replaced_behind(trace.pieces.replaced.get(last, []), inside)
        return dataclasses.replace(
            milled,
            runs=runs_of(laid, trace.places),
            counts=dataclasses.replace(counts, replaced_characters=counts.replaced_characters - behind),
            rejects=tuple(reject for at, reject in trace.pieces.rejects if at < pieces),
        )

    def _bytes_of(self, inside: Tokens) -> int:
        """How much text these tokens are."""
        known = token_bytes_of(self._job.tokenizer)
        return int(known.sizes[inside].sum()) if known is not None else 0

    def _replaced_behind(self, places: list[int], inside: Tokens) -> int:
        """How many of the characters replaced in a piece come after these tokens, which it begins with."""
        if not places:
            return 0
        if self._job.eot_side == "before" and inside[0] == self._job.eot_id:
            inside = inside[1:]
        size = len(self._job.engines.reference.decode(inside.tolist()))
        return sum(place >= size for place in places)
