"""What all tests share: seeded property tests, tokenizers loaded once, and a GPT-2 tokenizer.json made on the spot."""

import functools
import json
import logging
import os
from collections import Counter
from unittest.mock import patch

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # nothing here needs the threads that numpy would start

import pytest
from hypothesis import HealthCheck, settings

from given_texts import load_once
from shardmill.tokens import encoder, native, reference
from shardmill.tokens import tokenizer as vocabularies
from shardmill.tokens.compile import byte_alphabet
from shardmill.tokens.tokenizer import ENCODINGS, read_ranks

settings.register_profile(
    "shardmill",
    max_examples=30,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
settings.load_profile("shardmill")


_ENGINES_KEPT = 16


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of tests with the mark `thin`, each third case is fast; the others are slow."""
    seen = Counter()
    for item in items:
        if item.get_closest_marker("thin"):
            name = item.nodeid.partition("[")[0]
            if seen[name] % 3:
                item.add_marker(pytest.mark.slow)
            seen[name] += 1


@pytest.fixture(scope="session", autouse=True)
def loaded_once():
    """The bundled vocabularies and their engines are loaded once: it is most of what a small job does."""

    def by_digest(make):
        made = {}

        @functools.wraps(make)
        def once(tokenizer):
            key = tokenizer.name if tokenizer.kind == "tiktoken" else tokenizer.digest
            key = key, os.environ.get("SHARDMILL_CPU")
            if key not in made:
                if len(made) == _ENGINES_KEPT:
                    del made[next(iter(made))]  # each takes tens of megabytes
                made[key] = make(tokenizer)
            return made[key]

        return once

    load = vocabularies._load_encoding
    loaded = functools.cache(lambda encoding, _file: load(encoding))

    @functools.wraps(load)
    def load_once_more(encoding, _cache):
        return loaded(encoding, vocabularies.vocabulary_file(encoding))

    with (
        patch.object(vocabularies, "_load_encoding", load_once_more),
        patch.object(reference, "TiktokenReference", by_digest(reference.TiktokenReference)),
        patch.object(encoder, "_make", by_digest(encoder._make)),
    ):
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Nobody pulls the plug in these processes; those that are started or killed by a test do wait."""
    with patch.object(os, "fsync", os.fstat), patch.object(os, "fdatasync", os.fstat):
        yield


@pytest.fixture(params=native.cpu_paths())
def cpu_path(request, monkeypatch):
    """Engines that are made take each code path that this processor has."""
    monkeypatch.setenv("SHARDMILL_CPU", request.param)
    return request.param


@pytest.fixture(params=list(ENCODINGS))
def encoding(request):
    return request.param


@pytest.fixture
def tokenizer(encoding):
    return load_once(encoding)


@pytest.fixture(scope="session")
def gpt2_json(tmp_path_factory):
    """GPT-2's tokenizer.json, made from the vocabulary that ships with the package."""
    ranks = read_ranks("r50k_base")
    spell = {byte: char for char, byte in byte_alphabet().items()}
    spelled = {token: "".join(spell[byte] for byte in token) for token in ranks}
    merges = [
        [spelled[part] for part in _parts(token, ranks)] for token in sorted(ranks, key=ranks.get) if len(token) > 1
    ]
    end = {"id": 50256, "content": "<|endoftext|>", "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    config = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**end, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "vocab": {**{spelled[token]: rank for token, rank in ranks.items()}, "<|endoftext|>": 50256},
            "merges": merges,
        },
    }
    path = tmp_path_factory.mktemp("gpt2") / "tokenizer.json"
    path.write_text(json.dumps(config))
    return str(path)


@pytest.fixture(scope="session")
def s3_server():
    """A client of a server on this machine that speaks S3's protocol and has the bucket mill; and its address."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{port}",
        region_name="us-east-1",
        aws_access_key_id="id",
        aws_secret_access_key="sesame-sesame",
    )
    client.create_bucket(Bucket="mill")
    yield client, f"http://{host}:{port}"
    client.close()
    server.stop()


@pytest.fixture
def aws_login(s3_server, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server[1])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame-sesame")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    return s3_server[0]


@pytest.fixture(scope="session")
def gcs_server():
    """The address of an emulator of Google Cloud Storage with the bucket mill."""
    from gcp_storage_emulator.server import create_server

    logging.getLogger("gcp_storage_emulator").setLevel(logging.ERROR)
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="mill")
    server.start()
    port = server._api._httpd.server_port if hasattr(server, "_api") else 0
    yield f"http://127.0.0.1:{port}"
    server.stop()


def _parts(token, ranks):
    """The two tokens that merge into this one: what is left when only merges of lower rank are done."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        _, i = min((ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1))
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts
