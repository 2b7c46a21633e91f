"""`make guard`: find anew on which code points the fast engine and the reference differ, for the installed versions."""

import json
import sys
from pathlib import Path

from shardmill.tokens import guard
from shardmill.tokens.gigatoken import Gigatoken
from shardmill.tokens.reference import load_reference
from shardmill.tokens.tokenizer import ENCODINGS, load

TABLE = Path("src/shardmill/tokens") / guard.SHIPPED


def main(names: list[str]) -> None:
    tables = {}
    for name in [*ENCODINGS, *names]:
        tokenizer = load(name)
        reference = load_reference(tokenizer)
        found = guard.find_disagreements(Gigatoken(tokenizer), reference)
        print(f"{name}: {len(found):,} code points")
        tables[guard.table_key(tokenizer, reference)] = guard.to_ranges(found)
    TABLE.write_text(json.dumps({"format": guard.TABLE_FORMAT, "tables": tables}, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
