"""How the same text is tokenized elsewhere: each way as its documentation describes it, in a few lines of our own.

    python tools/peers.py NAME INPUTS OUTPUT TOKENIZER

Run by tools/compare.py, each in an environment that has its packages. INPUTS is a folder with text.txt (running text),
documents.txt (documents joined by <|endoftext|>), documents.jsonl and parts/*.jsonl (the same documents); TOKENIZER one
with GPT-2's vocabulary for tiktoken and as tokenizer.json. Where a tool has workers, it gets two.
"""

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

EOT, EOT_ID = "<|endoftext|>", 50256
WORKERS = 2
SHARD_TOKENS = 100_000_000
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


@cache
def gpt2(tokenizer: Path) -> Any:
    """What tiktoken.get_encoding("gpt2") gives, without its download."""
    tiktoken, loading = import_module("tiktoken"), import_module("tiktoken.load")
    ranks = loading.load_tiktoken_bpe(str(tokenizer / "r50k_base.tiktoken"))
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={EOT: EOT_ID})


def whole_file(inputs: Path, output: Path, tokenizer: Path) -> None:
    """nanoGPT's data/shakespeare/prepare.py: the whole text, one list of ints."""
    np = import_module("numpy")
    ids = gpt2(tokenizer).encode_ordinary((inputs / "text.txt").read_text(encoding="utf-8"))
    np.array(ids, dtype=np.uint16).tofile(output / "train.bin")


def streaming_script(inputs: Path, output: Path, tokenizer: Path) -> None:
    """What people write when that runs out of memory: 1,000,000 characters at a time, appended."""
    np, encoding = import_module("numpy"), gpt2(tokenizer)
    with open(inputs / "text.txt", encoding="utf-8") as text, open(output / "train.bin", "wb") as tokens:
        while chunk := text.read(1_000_000):
            tokens.write(np.array(encoding.encode_ordinary(chunk), np.uint16).tobytes())


def gigatoken(inputs: Path, output: Path, tokenizer: Path) -> None:
    """gigatoken's fastest way: it reads the file itself and gives all documents as one array in memory."""
    np, engine = import_module("numpy"), import_module("gigatoken")
    encoder = engine.Tokenizer.from_tiktoken(str(tokenizer / "r50k_base.tiktoken"), pretokenizer="gpt2")
    source = engine.TextFileSource([str(inputs / "documents.txt")], separator=EOT.encode())
    layout = encoder.encode_files(source).layout
    ids = np.insert(np.asarray(layout.content.data), np.asarray(layout.offsets.data)[1:], EOT_ID)
    ids.astype(np.uint16).tofile(output / "train.bin")


def _documents(file: Path) -> Iterator[str]:
    with open(file, encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def _ids_of(tokenizer: Path, document: str) -> Any:
    np = import_module("numpy")
    return np.array([EOT_ID, *gpt2(tokenizer).encode_ordinary(document)], np.uint16)


def build_nanogpt(inputs: Path, output: Path, tokenizer: Path) -> None:
    """build-nanogpt's fineweb.py: a pool encodes documents, the parent fills shards of 100 million tokens."""
    np = import_module("numpy")
    shard, filled, number = np.empty(SHARD_TOKENS, np.uint16), 0, 0
    with multiprocessing.Pool(WORKERS) as pool:
        documents = _documents(inputs / "documents.jsonl")
        for ids in pool.imap(partial(_ids_of, tokenizer), documents, chunksize=16):
            room = min(len(ids), SHARD_TOKENS - filled)
            shard[filled : filled + room] = ids[:room]
            filled += room
            if filled == SHARD_TOKENS:
                np.save(output / f"shard_{number:06d}", shard)
                number, filled = number + 1, len(ids) - room
                shard[:filled] = ids[room:]
    np.save(output / f"shard_{number:06d}", shard[:filled])


@cache
def _transformers(tokenizer: Path) -> Any:
    return import_module("transformers").PreTrainedTokenizerFast(tokenizer_file=str(tokenizer / "tokenizer.json"))


def _megatron_ids(tokenizer: Path, line: str) -> list[int]:
    return [*_transformers(tokenizer).encode(json.loads(line)["text"]), EOT_ID]


def megatron(inputs: Path, output: Path, tokenizer: Path) -> None:
    """Megatron-LM's tools/preprocess_data.py with a Hugging Face tokenizer: a pool over lines, its own index builder."""
    np, indexed = import_module("numpy"), import_module("megatron.core.datasets.indexed_dataset")
    torch = import_module("torch")
    builder = indexed.IndexedDatasetBuilder(str(output / "text_document.bin"), dtype=np.uint16)
    with (
        open(inputs / "documents.jsonl", encoding="utf-8") as lines,
        multiprocessing.Pool(WORKERS, initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        for ids in pool.imap(partial(_megatron_ids, tokenizer), lines, chunksize=32):
            builder.add_document(ids, [len(ids)])
    builder.finalize(str(output / "text_document.idx"))


def datatrove(inputs: Path, output: Path, tokenizer: Path) -> None:
    """datatrove: a task for each file, JsonlReader and DocumentTokenizer, without its shuffling."""
    tokens, readers = import_module("datatrove.pipeline.tokens"), import_module("datatrove.pipeline.readers")
    executor = import_module("datatrove.executor").LocalPipelineExecutor(
        pipeline=[
            readers.JsonlReader(str(inputs / "parts")),
            tokens.DocumentTokenizer(
                str(output), str(tokenizer / "tokenizer.json"), eos_token=EOT, shuffle_documents=False
            ),
        ],
        tasks=len(list((inputs / "parts").iterdir())),
        workers=WORKERS,
        logging_dir=str(output / "logs"),
    )
    executor.run()


def _litdata_ids(tokenizer: Path, file: str) -> Iterator[Any]:
    torch = import_module("torch")
    for document in _documents(Path(file)):
        yield torch.tensor([*gpt2(tokenizer).encode_ordinary(document), EOT_ID], dtype=torch.uint16)


def litdata(inputs: Path, output: Path, tokenizer: Path) -> None:
    """litdata's optimize with a TokensLoader: a generator of token tensors for each file."""
    package = import_module("litdata")
    package.optimize(
        fn=partial(_litdata_ids, tokenizer),
        inputs=sorted(map(str, (inputs / "parts").iterdir())),
        output_dir=str(output / "litdata"),
        chunk_size=2049 * 8012,
        item_loader=package.TokensLoader(),
        num_workers=WORKERS,
    )


def tokbin(inputs: Path, output: Path, tokenizer: Path) -> None:
    """tokbin build, with small shards, since it saves its progress after each; with --resume after a kill."""
    started = any(output.glob("*.partial"))
    command = [str(Path(sys.executable).with_name("tokbin")), "build", str(output / "web"), "--shard-size", "8M"]
    command += ["--from-jsonl", str(inputs / "parts"), "--tokenizer", str(tokenizer / "tokenizer.json")]
    subprocess.run([*command, *["--resume"][: int(started)]], check=True)


if __name__ == "__main__":
    name, *folders = sys.argv[1:]
    globals()[name](*map(Path, folders))
