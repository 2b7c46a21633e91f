"""`make classes`: ask the installed tiktoken and tokenizers about each code point, and keep what is known of other versions."""

import json
from pathlib import Path

from shardmill.tokens import sweep, tables
from shardmill.tokens.tables import Kind, Table

FOLDER = Path("src/shardmill/tokens")


def main() -> None:
    for kind, table in sweep.unknown():
        keep(kind, table)
    for kind, number in tables.FORMATS.items():
        for table in json.loads((FOLDER / f"{kind}.json").read_text())["tables"]:
            print(f"{kind} {number}: {', '.join(table['made_with'])}: {len(table['runs']):,} runs")


def keep(kind: Kind, new: Table) -> None:
    """With the table of another version, if that is the same."""
    path = FOLDER / f"{kind}.json"
    content = json.loads(path.read_text())
    for table in content["tables"]:
        if alike(table, new):
            digits = {"digits": max(table["digits"], new["digits"])} if "digits" in new else {}
            table |= {"made_with": sorted({*table["made_with"], *new["made_with"]}), **digits}
            break
    else:
        content["tables"].append(new)
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")


def alike(one: Table, other: Table) -> bool:
    """tiktoken knows no digits of its own, and does without."""
    keys = one.keys() - {"made_with", "digits"}
    digits = [table.get("digits", []) for table in (one, other)]
    return all(one[key] == other[key] for key in keys) and (digits[0] == digits[1] or [] in digits)


if __name__ == "__main__":
    main()
