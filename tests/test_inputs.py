"""The compact list of inputs: the same as a tuple of them, in a fraction of the memory."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.inputs.input_files import InputFiles, Strings
from shardmill.io.http import Address, RemoteFile
from shardmill.io.reading import InputFile

# What names can hold: bytes that are not UTF-8 (as halves of surrogate pairs), line ends, every script; and any length.
names = st.text(st.characters(exclude_characters="\0"), max_size=40) | st.just("ü\n" * 2000)
paths = st.lists(st.sampled_from(["", "/", "a/", "a/b/", "a/b/c\udcff/", "\n/", "../"]) | names, max_size=3).map(
    "".join
)
plain = st.builds(
    InputFile, path=paths, size=st.integers(0, 1 << 40), modified_ns=st.integers(-(1 << 63), (1 << 63) - 1)
)
timeless = st.builds(InputFile, path=paths, size=st.integers(0, 9), modified_ns=st.just(1 << 63))
pipes = st.builds(InputFile, path=st.just("-"), size=st.none(), once=st.just(True))


def remote(path, size):
    found = RemoteFile(
        path=path,
        identity=path,
        size=size,
        version="v1",
        address=lambda: Address(url=path),
        advice="",
        network_seconds=1.0,
    )
    return InputFile(path=path, size=size, version="v1", remote=found)


remotes = st.builds(remote, paths, st.integers(0, 1 << 40))
lists = st.lists(st.one_of(plain, plain, plain, timeless, pipes, remotes), max_size=30)


@given(lists, st.data())
def test_it_is_the_list_that_it_was_made_of(given, data):
    found = InputFiles(given)
    assert list(found) == given and len(found) == len(given)
    assert [found[number] for number in range(-len(given), len(given))] == [*given, *given]
    assert list(found.paths) == [found.path(number) for number in range(len(given))] == [file.path for file in given]
    assert [found.size(number) for number in range(len(given))] == [file.size for file in given]
    assert found.sizes.tolist() == [file.size or 0 for file in given]
    assert found.pipes == tuple(file for file in given if file.once) and found.known == (not found.pipes)
    cut = data.draw(st.slices(len(given)))
    assert list(found[cut]) == given[cut] and list(found.paths[cut]) == [file.path for file in given[cut]]
    first = data.draw(st.integers(0, len(given)))
    assert list(found.since(first)) == given[first:]


@given(st.lists(plain, min_size=1, max_size=20), st.data())
def test_files_laid_end_to_end_are_found_by_byte(given, data):
    found = InputFiles(given)
    bases = [sum(file.size for file in given[:number]) for number in range(len(given) + 1)]
    assert [found.base(number) for number in range(len(given))] == bases[:-1] and found.total_bytes == bases[-1]
    if found.total_bytes:
        place = data.draw(st.integers(0, found.total_bytes - 1))
        number = found.at_byte(place)
        assert bases[number] <= place < bases[number + 1]


@given(st.lists(names))
def test_strings_are_those_that_were_put_in(given):
    assert list(Strings(given)) == given and [Strings(given)[i] for i in range(len(given))] == given


def test_there_is_nothing_beyond_the_end():
    for number in (1, -2):
        with pytest.raises(IndexError):
            InputFiles([InputFile(path="a", size=1)])[number]
    assert not InputFiles() and list(InputFiles()) == list(InputFiles().paths) == []


def test_a_million_files_take_fifty_bytes_each():
    found = InputFiles()
    for number in range(1_000_000):
        found.add_local(f"/data/corpus/{number // 1000:04}/document-{number:07}.txt", 1000, 1_700_000_000_000_000_000)
    columns = [found._names.data, found._names.ends, found._folders.data, found._folders.ends]
    held = sum(map(sys.getsizeof, [*columns, found._first, found._ends, found._modified]))
    assert held < 55 * len(found) and 0.85 * held < found.nbytes <= held
    assert found[999_999].path == "/data/corpus/0999/document-0999999.txt" and found.total_bytes == 10**9
