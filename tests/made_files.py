"""Documents → files of every kind that is read, written by Python's and Arrow's own writers, with where each document stands."""

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BOM = b"\xef\xbb\xbf"
BROKEN = object()
"""A record that no policy can repair: no JSON, a null, too few columns, a server's response."""
SCORE, LANGUAGE = "score", "language"
HALF = "\ud83d"
"""Half a surrogate pair: only JSON can write it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A record as it stands in its file: its text, or what is left of it when repaired; None if nothing can be."""

    text: str | None
    place: int
    """What the index says of it: the line or row counted from 0, or the byte."""
    at: int
    """The byte of the file where it begins, for the splits that go by place."""
    good: bool = True
    replaced: int = 0
    raw: bytes | None = None
    """Plain text as it stands in the file: that decides its split and sample, whether it is UTF-8 or not."""
    tags: dict | None = None
    """What other fields say; None: nobody can tell, since the record cannot be parsed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A file, and the documents in it, in order."""

    data: bytes
    documents: tuple[Document, ...]
    marks: int = 0


def document(content, place, at, **more):
    """content: a str, bytes that may not be UTF-8, or BROKEN."""
    if content is BROKEN:
        return Document(text=None, place=place, at=at, good=False, **more)
    if isinstance(content, bytes):
        text = content.decode("utf-8", "replace")
        replaced = text.count("\ufffd") - content.count("\ufffd".encode())
        return Document(text=text, place=place, at=at, good=not replaced, replaced=replaced, **more)
    halves = content.count(HALF)
    repaired = content.replace(HALF, "\ufffd")
    return Document(text=repaired, place=place, at=at, good=not halves, replaced=halves, **more)


def raw(content):
    return content if isinstance(content, bytes) else content.encode()


def text(contents, separator=None, *, bom=False):
    """One file of text: one document, or what lies between separators; after the last one only if there is text.

    An empty file is an empty document.
    """
    sep = (separator or "").encode()
    data = sep.join(map(raw, contents))
    if not bom and data.startswith(BOM):  # a text that begins with this character is a file that begins with a BOM
        bom, data = True, data[len(BOM) :]
    start = len(BOM) * bom
    pieces = data.split(sep) if sep else [data]
    if len(pieces) > 1 and not pieces[-1]:
        pieces.pop()
    documents, at = [], start
    for piece in pieces:
        documents.append(document(piece, at, at, raw=piece))
        at += len(piece) + len(sep)
    return Made(data=BOM * bom + data, documents=tuple(documents), marks=int(bom))


def jsonl(contents, rng, *, bom=False, newline="\n", tags=None):
    """A line for each, written in the ways that JSON allows; blank lines in between are no records.

    tags, here and below: other fields of each record, SCORE and LANGUAGE.
    """
    lines, documents, at, number = [], [], 0, 0
    for i, content in enumerate(contents):
        if rng.random() < 0.05:
            lines.append(newline.encode())
            at, number = at + len(lines[-1]), number + 1
        own = tags[i] if tags else None
        line = _json_line(content, i, rng)
        if own is not None and line.startswith(b"{") and line.endswith(b"}"):
            line = _tagged(line, own)
        else:
            own = None
        lines.append(line + newline.encode())
        documents.append(document(content, number, at + len(BOM) * bom, tags=own))
        at, number = at + len(lines[-1]), number + 1
    if lines and rng.random() < 0.3:
        lines[-1] = lines[-1][: -len(newline)]  # the last line need not end
    return Made(data=BOM * bom + b"".join(lines), documents=tuple(documents), marks=int(bom))


def _json_line(content, i, rng):
    if content is BROKEN:
        lines = (b'{"text": null}', b'{"id": 1}', b'{"text": "a', b"[1]", b'{"text": "a", "text": "b"}')
        return lines[int(rng.random() * len(lines))]
    around = [{}, {"id": i}, {"meta": {"text": "not this", "n": [1, 2.5, None]}}][int(rng.random() * 3)]
    given = content if isinstance(content, str) else "\0here\0"
    last = {"after": "x" * int(rng.random() * 40)} if rng.random() < 0.5 else {}
    plain = isinstance(content, bytes) or (HALF not in given and rng.random() < 0.5)
    line = json.dumps({**around, "text": given, **last}, ensure_ascii=not plain).encode()
    if isinstance(content, bytes):
        inside = content.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        for code in range(0x20):
            inside = inside.replace(bytes([code]), b"\\u%04x" % code)
        line = line.replace(b"\\u0000here\\u0000", inside)
    return line


def _tagged(line, tags):
    """The same object with more fields, some before the text and some behind it; null and missing alike."""
    before, after = json.dumps({SCORE: tags[SCORE]})[1:-1], json.dumps({"meta_": {LANGUAGE: tags[LANGUAGE]}})[1:-1]
    return (
        b"{"
        + (before.encode() + b", " if tags[SCORE] is not None else b"")
        + line[1:-1]
        + b", "
        + after.encode()
        + b"}"
    )


def table(contents, delimiter=",", *, bom=False, tags=None):
    """A header and a row for each; a value may hold line ends and is quoted then."""
    out, documents = io.BytesIO(), []
    row = lambda *values: out.write(_csv_row(values, delimiter))  # noqa: E731
    more = [["" if own[SCORE] is None else own[SCORE], own[LANGUAGE]] for own in tags] if tags else [[]] * len(contents)
    row("id", "text", *([SCORE, f"meta_.{LANGUAGE}"] if tags else []))
    for i, content in enumerate(contents):
        own = tags[i] if tags and content is not BROKEN else None
        documents.append(document(content, out.getvalue().count(b"\n"), out.tell() + len(BOM) * bom, tags=own))
        if content is BROKEN:
            row("lonely")
        elif isinstance(content, bytes):
            quoted = b'"' + content.replace(b'"', b'""') + b'"'
            out.write(_csv_row([i, "@", *more[i]], delimiter).replace(b"@", quoted, 1))
        else:
            row(i, content, *more[i])
    return Made(data=BOM * bom + out.getvalue(), documents=tuple(documents), marks=int(bom))


def _csv_row(values, delimiter):
    line = io.StringIO(newline="")
    # The csv module of Python 3.10 cannot write a NUL.
    hidden = [value.replace("\0", "\ue000") if isinstance(value, str) else value for value in values]
    csv.writer(line, delimiter=delimiter).writerow(hidden)
    return line.getvalue().replace("\ue000", "\0").encode()


def warc(contents, rng, *, tags=None):
    """A WET file: a conversion for each, and records that are no documents in between."""
    out, documents = bytearray(), []
    for i, content in enumerate(contents):
        if rng.random() < 0.2:
            out += _warc_record("metadata", b"fetchTimeMs: 17")
        broken = content is BROKEN
        kind, body = ("response", b"HTTP/1.1 200 OK") if broken else ("conversion", raw(content))
        own = tags[i] if tags else None
        documents.append(document(content, len(out), len(out), tags=own))
        out += _warc_record(kind, body, own)
    return Made(data=bytes(out), documents=tuple(documents))


def _warc_record(kind, body, tags=None):
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    if tags is not None:
        head += f"{SCORE.upper()}: {tags[SCORE]}\r\nMeta_.{LANGUAGE}: {tags[LANGUAGE]}\r\n"
    return head.encode() + b"\r\n" + body + b"\r\n\r\n"


def _columns(contents, tags):
    """As strings, or as binary where something is not UTF-8."""
    values = [None if content is BROKEN else raw(content) for content in contents]
    array = pa.array(values, pa.binary())
    if all(isinstance(content, str) or content is BROKEN for content in contents):
        array = array.cast(pa.string())
    more = {}
    if tags:
        more = {SCORE: [own[SCORE] for own in tags], "meta_": [{LANGUAGE: own[LANGUAGE]} for own in tags]}
        more[SCORE] = pa.array(more[SCORE], pa.float32())
    return pa.table({"id": list(range(len(contents))), "text": array, **more})


def parquet(contents, rng, *, tags=None):
    out = io.BytesIO()
    pq.write_table(
        _columns(contents, tags),
        out,
        row_group_size=1 + int(rng.random() * 40),
        data_page_size=64 + int(rng.random() * 2000),
        use_dictionary=rng.random() < 0.5,
        compression=["none", "snappy", "zstd", "gzip"][int(rng.random() * 4)],
    )
    data, rows = out.getvalue(), max(1, len(contents))
    own = tags or [None] * rows
    places = (document(content, i, len(data) * i // rows, tags=own[i]) for i, content in enumerate(contents))
    return Made(data=data, documents=tuple(places))


def arrow(contents, rng, *, stream=False, tags=None):
    out, made = io.BytesIO(), _columns(contents, tags)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(out, made.schema) as writer:
        writer.write_table(made, max_chunksize=1 + int(rng.random() * 20))
    own = tags or [None] * len(contents)
    documents = tuple(document(content, i, 0, tags=own[i]) for i, content in enumerate(contents))
    return Made(data=out.getvalue(), documents=documents)


def _in_pieces(compress):
    """Several members, frames or streams, one after the other."""

    def pack(data, pieces):
        size = max(1, -(-len(data) // pieces))
        return b"".join(compress(data[at : at + size]) for at in range(0, len(data), size)) or compress(b"")

    return pack


COMPRESSIONS = {
    ".gz": _in_pieces(lambda data: gzip.compress(data, 1, mtime=0)),
    ".zst": _in_pieces(lambda data: zstd.compress(data, 1)),
    ".bz2": _in_pieces(lambda data: bz2.compress(data, 1)),
    ".xz": _in_pieces(lambda data: lzma.compress(data, preset=0)),
}
