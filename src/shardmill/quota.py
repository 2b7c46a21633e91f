"""Results in order → as much of them as --limit-documents and --limit-tokens allow, to the token."""

import dataclasses

import numpy as np

from shardmill.block import Milled, Trace, count
from shardmill.job import Job


class Quota:
    """Counts what is written; cut() gives back what of the next result is still wanted.

    So many documents had ended, tokens were written and bytes read before.
    """

    def __init__(self, job: Job, ended: int, tokens: int, input_bytes: int) -> None:
        limits = job.spec.limit_documents, job.spec.limit_tokens
        self._documents, self._tokens = (
            None if limit is None else limit - done for limit, done in zip(limits, (ended, tokens), strict=True)
        )
        self._files = job.files
        self._input_bytes = input_bytes
        self.full = self._documents == 0 or self._tokens == 0

    def cut(self, milled: Milled) -> Milled:
        """The result itself, or its beginning when the limit is in it; then full is set."""
        trace = milled.trace
        if trace is None or self.full:
            return milled
        total = int(trace.token_ends[-1]) if len(trace.token_ends) else 0
        tokens, pieces = total, len(trace.token_ends)
        if self._documents is not None:
            closed = np.flatnonzero(trace.ends)
            if len(closed) >= self._documents:
                pieces = int(closed[self._documents - 1]) + 1
                tokens, self.full = int(trace.token_ends[pieces - 1]), True
            else:
                self._documents -= len(closed)
        if self._tokens is not None:
            if tokens >= self._tokens:
                tokens, self.full = self._tokens, True
                pieces = min(pieces, int(np.searchsorted(trace.token_ends, tokens)) + 1)
            self._tokens -= tokens
        if not self.full:
            self._input_bytes += milled.counts.input_bytes
            return milled
        return self._beginning(milled, trace, pieces, tokens)

    def _beginning(self, milled: Milled, trace: Trace, pieces: int, tokens: int) -> Milled:
        """Counted are the bytes of the files before the one where the limit is: they do not depend on blocks."""
        spent = self._files.base(trace.files[pieces - 1]) - self._input_bytes
        runs, left = [], tokens
        for run in milled.runs:
            if left > 0:
                ends = run.ends[run.ends <= left]
                runs.append(dataclasses.replace(run, tokens=run.tokens[:left], ends=ends))
            left -= len(run.tokens)
        return dataclasses.replace(
            milled,
            runs=runs,
            counts=count(trace, spent, pieces),
            rejects=tuple(reject for at, reject in trace.rejects if at < pieces),
        )
