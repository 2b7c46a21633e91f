"""The manifest: complete, the same for the same job, and refused when it is not ours."""

import dataclasses
import json

import pytest

import shardmill
from shardmill import Limits, Spec, prepare, verify
from shardmill.errors import OutputError
from shardmill.io.fileset import LocalFiles
from shardmill.record import manifest


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "a.txt").write_text("one two three\n" * 20000)
    return Spec(inputs=[tmp_path / "a.txt"], output=tmp_path / "out", separator="\\n", val_fraction=0.01)


def test_the_manifest_is_the_same_for_any_limits(spec, tmp_path):
    first = prepare(spec, limits=Limits(workers=1, block_bytes=1000)).manifest.to_json()
    second = prepare(spec, limits=Limits(workers=3, engine="reference"), overwrite=True).manifest.to_json()
    assert first == second == (tmp_path / "out/manifest.json").read_bytes()


def test_every_document_and_byte_is_accounted_for(spec, tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n\ntwo\nthree\n\n")
    made = prepare(spec).manifest
    assert made.counts.documents == 6 and made.counts.documents_empty == 3
    assert made.counts.input_bytes == (tmp_path / "a.txt").stat().st_size


def test_reading_gives_back_what_was_written(spec):
    made = prepare(spec)
    assert manifest.of(LocalFiles(made.output)) == made.manifest


def test_the_format_number_comes_first_and_an_unknown_one_is_refused(spec, tmp_path):
    prepare(spec)
    file = tmp_path / "out/manifest.json"
    text = file.read_text()
    assert text.startswith('{\n "format": 4,\n "checksum": "') and text.endswith("}\n")
    file.write_text(text.replace('"format": 4', '"format": 99'))
    with pytest.raises(OutputError, match="format 99"):
        prepare(spec)


def test_a_manifest_of_format_1_is_read_without_its_checksum(spec, tmp_path):
    """M8"""
    made = prepare(spec).manifest
    file = tmp_path / "out/manifest.json"
    content = json.loads(file.read_bytes())
    del content["checksum"]
    file.write_text(json.dumps({**content, "format": 1}))
    assert manifest.of(LocalFiles(tmp_path / "out")) == dataclasses.replace(made, format=1)
    assert prepare(spec).already_complete and verify(tmp_path / "out").ok
    assert shardmill.open(tmp_path / "out").tokens == made.tokens


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "null", '{"format": 1}', "\x00\xff", '{"format": 1, "job": 3, "counts": []}']
)
def test_a_foreign_manifest_is_reported_and_kept(spec, tmp_path, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/manifest.json").write_text(content)
    with pytest.raises(OutputError, match="manifest"):
        prepare(spec)
    assert (tmp_path / "out/manifest.json").read_text() == content


def test_without_the_manifest_a_job_is_not_complete(spec, tmp_path):
    prepare(spec)
    (tmp_path / "out/manifest.json").unlink()
    with pytest.raises(OutputError, match=r"token_bytes\.npy: exists, and shardmill did not write it"):
        prepare(spec)


def test_differences_are_told_field_by_field():
    old = {"a": 1, "b": {"c": [1, 2]}, "choices": {"val_fraction": 0.1}, "same": 0}
    assert manifest.differences(old, {"a": 2, "b": {"c": [1]}, "choices": {"val_fraction": 0.2}, "same": 0}) == [
        "a: was 1, is now 2",
        "b.c: was [1, 2], is now [1]",
        "--val-fraction: was 0.1, is now 0.2",
    ]
    content = json.loads(manifest.dump({"x": 1}))
    assert (list(content), content["format"], content["x"]) == (["format", "checksum", "x"], 4, 1)


def test_a_job_that_fails_at_its_last_step_leaves_nothing_in_the_way_of_the_next(spec, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(manifest.Manifest, "to_json", fail)
        with pytest.raises(OSError):
            prepare(spec)
    assert prepare(spec).manifest.tokens > 0


def test_a_time_that_no_calendar_has_is_told_nevertheless():
    """Some file systems keep any 64-bit number; datetime ends with the year 9999."""
    assert manifest.when(1_700_000_000_000_000_001) == "2023-11-14 22:13:20.000000001 UTC"
    assert manifest.when(10**29) == "100000000000000000000.000000000 s after 1970"
