"""`make classes`: ask the installed tiktoken and tokenizers for the class of each code point, and keep what is known of other versions."""

import json
from pathlib import Path

from shardmill.tokens import classes

TABLE = Path("src/shardmill/tokens") / classes.SHIPPED


def main() -> None:
    content = json.loads(TABLE.read_text())
    tables = content["tables"] if content["format"] == classes.FORMAT else []
    for reference in ("tiktoken", "huggingface"):
        if classes.installed(reference) in (name for table in tables for name in table["made_with"]):
            continue
        new = classes.sweep(reference)
        for table in tables:
            digits = [table["digits"], new["digits"]]
            if table["runs"] == new["runs"] and (digits[0] == digits[1] or [] in digits):
                table["made_with"] = sorted({*table["made_with"], *new["made_with"]})
                table["digits"] = max(digits)
                break
        else:
            tables.append(new)
    TABLE.write_text(json.dumps({"format": classes.FORMAT, "tables": tables}, separators=(",", ":")) + "\n")
    for table in tables:
        print(f"{', '.join(table['made_with'])}: {len(table['runs']):,} runs")


if __name__ == "__main__":
    main()
