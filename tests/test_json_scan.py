"""A JSON string can be read in windows: wherever one ends, nothing is torn."""

import json
import random

from shardmill.documents.json_scan import _boundary


def test_a_window_never_ends_inside_an_escape_a_pair_or_a_character():
    # "\\ud800" is a backslash and five letters: once the cut fell between the two backslashes.
    units = ["a", "é", "中", "😀", "\\n", "\\\\", '\\"', "\\u00e9", "\\ud83d\\ude00", "\\\\ud800", "\\\\\\u0041"]
    rng = random.Random(5)
    for _ in range(300):
        raw = "".join(rng.choices(units, k=20)).encode()
        whole = json.loads(f'"{raw.decode()}"')
        for until in range(13, len(raw) + 1):
            cut = _boundary(raw[:until])
            assert until - 12 < cut <= until
            assert json.loads(f'"{raw[:cut].decode()}"') + json.loads(f'"{raw[cut:].decode()}"') == whole
            json.loads(f'"{raw[:cut].decode()}"').encode()
