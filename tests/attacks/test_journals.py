"""Journals that a stranger wrote with checksums that are right: refused in words, or of no consequence. And a long one stays small."""

import json
import shutil
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mutations import mutated
from shardmill import Limits, Spec, prepare
from shardmill.documents.pieces import Position
from shardmill.errors import OutputError, ShardmillError
from shardmill.formats.output_files import FileState
from shardmill.io import storage
from shardmill.job import mill
from shardmill.record import journal
from shardmill.record.journal import Checkpoint, Journal, Unfinished
from shardmill.record.manifest import Counts

LIMITS = Limits(engine="reference", workers=1, block_bytes=300, checkpoint_seconds=0, checkpoint_bytes=1)
JOB = {"choices": {}, "inputs": [{"path": "a", "bytes": 1}], "tokenizer_sha256": None, "vocabulary_size": None}
FORMATS = {"nanogpt": {}, "olmo": {"shard_tokens": 90}, "litdata": {"sample_tokens": 9, "shard_tokens": 90}}


def spec_of(folder, output, format):
    choices = dict(separator="##", val_fraction=0.2, index=True, provenance=True, **FORMATS[format])
    return Spec(inputs=[folder / "a.txt", folder / "b.jsonl"], output=output, format=format, **choices)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Jobs that were interrupted after some checkpoints, each in a folder named after its format."""
    folder = tmp_path_factory.mktemp("journals")
    (folder / "a.txt").write_text("##".join(f"Text number {i} of the miller." for i in range(60)))
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": f"Record {i}."}) + "\n" for i in range(60)))
    place = mill._Output.place
    for format in FORMATS:
        blocks = 0

        def stop(self, milled):
            nonlocal blocks
            blocks += 1
            if blocks > 6:
                raise KeyboardInterrupt
            return place(self, milled)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mill._Output, "place", stop)
            with pytest.raises(KeyboardInterrupt):
                prepare(spec_of(folder, folder / format, format), limits=LIMITS)
        assert len(lines_of(folder / format)) > 5
    return folder


def lines_of(folder):
    lines = (folder / journal.NAME).read_bytes().splitlines()
    return [json.loads(line.partition(b" ")[2]) for line in lines]


def write_lines(folder, lines):
    chain, data = b"", b""
    for content in lines:
        line, chain = journal._signed(content, chain)
        data += line
    (folder / journal.NAME).write_bytes(data)


@settings(max_examples=60)
@given(data=st.data(), format=st.sampled_from(list(FORMATS)))
def test_a_strangers_journal_is_refused_in_words_or_of_no_consequence(stopped, tmp_path_factory, data, format):
    place = tmp_path_factory.mktemp("resumed")
    out = place / "out"
    shutil.copytree(stopped / format, out)
    lines = lines_of(out)
    number = data.draw(st.sampled_from([0, 1, len(lines) - 1, len(lines) - 1]))
    lines[number] = data.draw(mutated(lines[number]))
    write_lines(out, lines)
    started = time.monotonic()
    try:
        prepare(spec_of(stopped, out, format), limits=LIMITS)
    except ShardmillError as e:
        assert "\x1b" not in str(e)
    assert time.monotonic() - started < 20
    assert [path.name for path in place.iterdir()] == ["out"], "nothing outside"
    shutil.rmtree(place)


@pytest.mark.parametrize(
    "first",
    [
        {"job": {"choices": 0}},
        {"format": journal.FORMAT, "job": {"choices": 0}, "overwrites": False},
        {"format": journal.FORMAT, "job": {**JOB, "choices": []}, "overwrites": False},
        {"format": journal.FORMAT, "job": {**JOB, "inputs": [{"bytes": 1}]}, "overwrites": False},
        {"format": journal.FORMAT, "job": {**JOB, "modified": {"last": None}}, "overwrites": False},
        {"format": journal.FORMAT, "job": [[]], "overwrites": False},
        [],
        0,
        None,
    ],
)
def test_a_damaged_beginning_is_refused_and_overwrite_helps(stopped, tmp_path, first):
    (tmp_path / "out").mkdir()
    write_lines(tmp_path / "out", [first])
    spec = spec_of(stopped, tmp_path / "out", "nanogpt")
    with pytest.raises(OutputError, match=r"is damaged .* Start over with --overwrite"):
        prepare(spec, limits=LIMITS)
    assert prepare(spec, limits=LIMITS, overwrite=True).manifest.tokens > 0


def test_an_unfinished_job_of_an_older_version_is_refused_in_words(stopped, tmp_path):
    shutil.copytree(stopped / "nanogpt", tmp_path / "out")
    first, *others = lines_of(tmp_path / "out")
    write_lines(tmp_path / "out", [{**first, "format": 2}, *others])
    spec = spec_of(stopped, tmp_path / "out", "nanogpt")
    with pytest.raises(OutputError, match="finish it with the version that began it, or start over with --overwrite"):
        prepare(spec, limits=LIMITS)
    assert prepare(spec, limits=LIMITS, overwrite=True).manifest.tokens > 0


def reached(number):
    """A checkpoint of a job that writes 64 MiB a second to one file."""
    checksums = tuple(f"{segment:016x}" for segment in range(number))
    train = FileState(bytes=number << 26, checksums=checksums, tail=None)
    val = FileState(bytes=number, tail=f"{number:016x}")
    counts, position = Counts(input_bytes=number), Position(offset=number)
    files = {"train.bin": train, "val.bin": val}
    return Checkpoint(index=number, position=position, tokens=number, counts=counts, files=files, extra={"a": number})


def test_the_journal_of_a_long_job_stays_small_and_says_the_same(tmp_path, monkeypatch):
    """A day of checkpoints took 592 MiB and 29 s to read. All that a full one repeats here is 300 checksums of 20 bytes."""
    monkeypatch.setattr(journal, "_MOST_BYTES", 20_000)
    log = Journal(tmp_path, Unfinished(overwrites=True))
    log.begin(JOB)
    log.split(7)
    for number in range(300):
        log.checkpoint(reached(number))
        if number % 50 == 0:
            log.uploaded(f"train-{number:05}.bin")
        assert (tmp_path / journal.NAME).stat().st_size < 25_000
    log.close()
    left = journal.read(tmp_path)
    assert left.checkpoint == reached(299) and left.job == JOB and left.overwrites and left.split == 7
    assert left.uploaded == {f"train-{number:05}.bin" for number in range(0, 300, 50)}
    assert sorted(path.name for path in tmp_path.iterdir()) == [journal.NAME]


def test_a_journal_goes_on_after_it_was_replaced_and_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "_MOST_BYTES", 4000)
    Journal(tmp_path, Unfinished()).begin(JOB)
    for number in range(40):
        log = Journal(tmp_path, journal.read(tmp_path))
        log.checkpoint(reached(number))
        log.close()
        assert journal.read(tmp_path).checkpoint == reached(number)


def test_a_long_journal_is_read_in_little_memory(tmp_path, monkeypatch):
    """One that was never replaced: 3,000 lines, of which only the last counts."""
    monkeypatch.setattr(journal, "_MOST_BYTES", 1 << 40)
    monkeypatch.setattr(storage.os, "fsync", lambda _: None)
    log = Journal(tmp_path, Unfinished())
    log.begin(JOB)
    for number in range(3000):
        log.checkpoint(reached(number % 200))
    log.close()
    tracemalloc.start()
    left = journal.read(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert left.checkpoint == reached(2999 % 200)
    assert peak < 1 << 20 < (tmp_path / journal.NAME).stat().st_size


def test_a_line_that_could_not_be_written_leaves_no_half_of_it(tmp_path, monkeypatch):
    """The disk is full for one line; the next one must not stand behind half of it."""
    log = Journal(tmp_path, Unfinished())
    log.begin(JOB)
    write = storage.os.pwrite

    def full(fd, data, at):
        write(fd, data[:50], at)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "pwrite", full)
        with pytest.raises(ShardmillError, match="no space left"):
            log.checkpoint(reached(1))
    log.checkpoint(reached(2))
    log.close()
    assert journal.read(tmp_path).checkpoint == reached(2)
