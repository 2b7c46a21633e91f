"""Servers on this machine, begun when the first cell needs them: one that speaks S3's protocol, one of files."""

import functools
import logging
import os
from pathlib import Path

from servers import Server


@functools.lru_cache(maxsize=1)
def _client():
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    login = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "sesame-sesame", "AWS_EC2_METADATA_DISABLED": "true"}
    os.environ.update(login, AWS_ENDPOINT_URL=f"http://{host}:{port}", AWS_CONFIG_FILE=str(Path("/nowhere")))
    client = boto3.client("s3", region_name="us-east-1")
    client.create_bucket(Bucket="mill")
    return client


def objects(prefix):
    """Name → bytes below an address."""
    found = _client().list_objects_v2(Bucket="mill", Prefix=f"{prefix}/").get("Contents", ())
    keys = [entry["Key"] for entry in found]
    return {key[len(prefix) + 1 :]: _client().get_object(Bucket="mill", Key=key)["Body"].read() for key in keys}


def bucket():
    return objects


def ready():
    _client()


@functools.lru_cache(maxsize=1)
def files():
    return Server()


def serve(named):
    """The addresses of these files; those of cells before are gone."""
    files().files = named
    return [files().url + name for name in named]
