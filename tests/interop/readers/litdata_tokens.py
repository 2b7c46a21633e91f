"""litdata's StreamingDataset, TokensLoader and StreamingDataLoader, as LitGPT's LitData has them, but not shuffled."""

import json
import os
import sys

from litdata.streaming import StreamingDataLoader, StreamingDataset, TokensLoader

BLOCK = 70


def main():
    folder, found = sys.argv[1], {}
    for split in ("train", "val"):
        place = os.path.join(folder, split)
        seen = StreamingDataset(input_dir=place, item_loader=TokensLoader(block_size=BLOCK), shuffle=False)
        rows = [row for batch in StreamingDataLoader(seen, batch_size=1, num_workers=1) for row in batch.long()]
        assert len(rows) == len(seen) and all(row.shape == (BLOCK,) for row in rows)
        found[split] = [token for row in rows for token in row.tolist()]
    json.dump({"tokens": found, "unseen": BLOCK}, sys.stdout)


if __name__ == "__main__":
    main()
