"""The same documents in every format that is read, and every compression."""

import bz2
import csv
import gzip
import io
import json
import lzma
import sys

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SEPARATOR = "<|mark|>"
NUL = "\ue000"
"""What stands for a NUL while the csv module writes, since that of Python 3.10 cannot."""


def text(documents):
    return SEPARATOR.join(documents).encode()


def jsonl(documents, *, newline="\n", ensure_ascii=True, **around):
    lines = [
        json.dumps({**around, "text": document, "id": i}, ensure_ascii=ensure_ascii)
        for i, document in enumerate(documents)
    ]
    return "".join(line + newline for line in lines).encode()


def table(documents, delimiter=",", **options):
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, **options)
    writer.writerow(["id", "text"])
    writer.writerows(enumerate(document.replace("\0", NUL) for document in documents))
    return out.getvalue().replace(NUL, "\0").encode()


def columns(documents, kind=None):
    array = pa.array(documents, pa.string())
    if kind is not None:
        array = array.dictionary_encode() if kind == "dictionary" else array.cast(kind)
    return pa.table({"id": list(range(len(documents))), "text": array})


def parquet(documents, kind=None, **options):
    out = io.BytesIO()
    pq.write_table(columns(documents, kind), out, **{"row_group_size": 7, "data_page_size": 512, **options})
    return out.getvalue()


def arrow_stream(documents, kind=None, rows=5, **options):
    out = io.BytesIO()
    made = columns(documents, kind)
    with pa.ipc.new_stream(out, made.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(made, max_chunksize=rows)
    return out.getvalue()


def arrow_file(documents, kind=None, rows=5, **options):
    out = io.BytesIO()
    made = columns(documents, kind)
    with pa.ipc.new_file(out, made.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(made, max_chunksize=rows)
    return out.getvalue()


def feather(documents, compression):
    out = io.BytesIO()
    pyarrow.feather.write_feather(columns(documents), out, compression=compression, chunksize=4)
    return out.getvalue()


def halves(compress):
    """Two members, frames or streams, one after the other."""
    return lambda data: compress(data[: len(data) // 3]) + compress(data[len(data) // 3 :])


STREAMS = {
    "jsonl": jsonl,
    "ndjson": lambda documents: jsonl(documents, ensure_ascii=False, newline="\r\n"),
    "csv": table,
    "tsv": lambda documents: table(documents, "\t"),
    "arrow": arrow_stream,
}
WHOLE = {
    "parquet": parquet,
    "feather": lambda documents: feather(documents, "lz4"),
    "arrow": arrow_file,
}
COMPRESSIONS = {
    "": lambda data: data,
    ".gz": halves(gzip.compress),
    ".zst": halves(zstd.compress),
    ".bz2": halves(bz2.compress),
    ".xz": halves(lzma.compress),
}
