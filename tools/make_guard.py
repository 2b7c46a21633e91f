"""`make guard`: find anew on which code points the fast engines and the reference differ, for the installed versions."""

import json
import sys
from pathlib import Path

from shardmill.tokens import gigatoken, guard, native
from shardmill.tokens.encoder import native_model, why_not_native
from shardmill.tokens.gigatoken import Gigatoken
from shardmill.tokens.native import Native
from shardmill.tokens.reference import Fast, load_reference
from shardmill.tokens.tokenizer import ENCODINGS, load

TABLE = Path("src/shardmill/tokens") / guard.SHIPPED


def main(names: list[str]) -> None:
    tables = {}
    for name in [*ENCODINGS, *names]:
        tokenizer = load(name)
        reference = load_reference(tokenizer)
        engines: list[tuple[str, Fast]] = [(gigatoken.version(), Gigatoken(tokenizer))]
        if why_not_native(tokenizer) is None:
            engines.append((native.version(), Native(native_model(tokenizer))))
        for version, engine in engines:
            found = guard.find_disagreements(engine, reference)
            print(f"{name} on {version}: {len(found):,} code points")
            tables[guard.table_key(version, tokenizer, reference)] = guard.to_ranges(found)
    TABLE.write_text(json.dumps({"format": guard.TABLE_FORMAT, "tables": tables}, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
