"""A C library that is missing, damaged or of another version is an error that says what to do."""

import pytest

from shardmill.errors import ShardmillError
from shardmill.system import compiled


@pytest.mark.parametrize(
    "path, version, why",
    [
        ("feed/native/none.so", 1, "none.so: is missing; run `make native`"),
        ("feed/native/spans.c", 1, r"spans.c: cannot be loaded \(.*\); run `make native`"),
        (
            "feed/native/spans.so",
            99,
            r"spans.so: is version \d+, and the Python around it needs version 99; run `make native`",
        ),
    ],
)
def test_a_library_that_cannot_be_used_is_an_error(path, version, why):
    with pytest.raises(ShardmillError, match=why):
        compiled.load(path, version)


def test_outside_a_checkout_the_remedy_is_to_reinstall(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_PACKAGE", tmp_path / "lib/shardmill")
    with pytest.raises(ShardmillError, match="is missing; reinstall: pip install --force-reinstall"):
        compiled.load("feed/native/spans.so", 1)
