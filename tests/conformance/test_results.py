"""What a milled Block leaves behind until it is written: its tokens, and nothing of its text."""

import gc
import weakref

from milling import encoder, job_of

from shardmill.job import block as blocks
from shardmill.job import plan


# A result that could be settled again referred to itself: its text and ids stayed in memory until Python looked for such
# circles, and a job of two million short documents took four times its memory.
def test_a_result_lets_go_of_the_text_and_the_ids(monkeypatch):
    used, alive = encoder("r50k_base", "reference"), []
    encode = type(used).encode

    def watched(self, pieces, begins=None):
        ids, counts = encode(self, pieces, begins)
        alive.append(weakref.ref(ids))
        return ids, counts

    monkeypatch.setattr(type(used), "encode", watched)
    gc.disable()
    try:
        with job_of([b"one##two##three"], separator="##", val_fraction=0, eot="after", engine="reference") as (
            job,
            split,
        ):
            (block,) = plan.blocks(job.files, job.rules)
            milled = blocks.mill_block(job, split, used, block)
        assert milled.if_no_text is None and sum(len(run.tokens) for run in milled.runs) == 6
        assert alive[-1]() is None
    finally:
        gc.enable()
