"""Servers on this machine, begun when the first cell needs them: one that speaks S3's protocol, one of files."""

import contextlib
import functools
import logging
import os
from unittest.mock import patch

from servers import Server

_LOGIN = {
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "sesame-sesame",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nowhere",
}


@functools.lru_cache(maxsize=1)
def _client():
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    keys = {"aws_access_key_id": "id", "aws_secret_access_key": "sesame-sesame"}
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=address, **keys)
    client.create_bucket(Bucket="mill")
    return client


@contextlib.contextmanager
def login():
    """Within it, s3://mill is there."""
    with patch.dict(os.environ, {**_LOGIN, "AWS_ENDPOINT_URL": _client().meta.endpoint_url}):
        yield


def objects(prefix):
    """Name → bytes below an address."""
    found = _client().list_objects_v2(Bucket="mill", Prefix=f"{prefix}/").get("Contents", ())
    keys = [entry["Key"] for entry in found]
    return {key[len(prefix) + 1 :]: _client().get_object(Bucket="mill", Key=key)["Body"].read() for key in keys}


@functools.lru_cache(maxsize=1)
def files():
    return Server()


def serve(named):
    """The addresses of these files; those of cells before are gone."""
    files().files = named
    return [files().url + name for name in named]
