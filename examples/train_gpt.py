"""Train a GPT on a token folder of shardmill, on a CPU, a GPU or many: a compact trainer that shows what the loader does.

    shardmill prepare book.txt -o data/ --index
    python examples/train_gpt.py data/ --steps 1000
    torchrun --nproc-per-node 8 examples/train_gpt.py data/ --steps 1000 --checkpoint run.pt

With --text it mills the text first. With --checkpoint the same command goes on where it was stopped, with any number of
ranks. The last line says how fast it was, the bits per byte of the validation set, and for how long the device waited.
"""

import argparse
import json
import math
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import xxhash
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import shardmill
from shardmill import Source, Windows
from shardmill.torch import Loader

SIZES = {"tiny": (2, 2, 64), "small": (12, 12, 768), "medium": (24, 16, 1024)}  # layers, heads, width; small is GPT-2's


class Layer(nn.Module):
    """Attention, then two linear maps, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, length: int, size: str) -> None:
        super().__init__()
        layers, heads, width = SIZES[size]
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                deep = name.endswith(("project.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if deep else 0.02)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The loss of each label, in nats."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        logits = self.norm(self.layers(x)) @ self.tokens.weight.T
        losses = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="none")
        return losses.view(labels.shape)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="an output of shardmill")
    parser.add_argument("--text", help="mill this text into DATA first")
    parser.add_argument("--tokenizer", default="gpt2", help="to mill with")
    parser.add_argument("--plan", help="rows that `shardmill pack` made")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64, help="rows in a step, of all ranks together")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", help="saved here, and resumed from here")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints and lines")
    parser.add_argument("--rows", help="write a checksum of every row that is trained on to this file, one per rank")
    parser.add_argument("--compile", action="store_true")
    return parser.parse_args()


def setup() -> tuple[int, int, torch.device]:
    """The rank, the number of ranks, and the device."""
    if "RANK" not in os.environ:
        return 0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    return dist.get_rank(), dist.get_world_size(), device


def mill(options: argparse.Namespace) -> None:
    spec = shardmill.Spec(inputs=[options.text], output=options.data, tokenizer=options.tokenizer, index=True)
    result = shardmill.prepare(spec)
    if run := result.run:
        print(
            f"milled {result.manifest.tokens:,} tokens at {run['bytes_per_second'] / 1e6:.0f} MB/s with {run['workers']} workers"
        )


def rate_at(step: int, options: argparse.Namespace) -> float:
    """Warm up, then a cosine down to a tenth."""
    warm = min(1.0, (step + 1) / max(1, options.steps // 20))
    return float(options.rate * warm * (0.55 + 0.45 * math.cos(math.pi * step / options.steps)))


@torch.no_grad()
def bits_per_byte(model: nn.Module, options: argparse.Namespace, device: torch.device, autocast: Any) -> float:
    """Over the beginning of the validation set."""
    windows = Windows(Source(path=options.data, split="val"), length=options.length, seed=None)
    nats, labels = [], []
    for first in range(0, min(len(windows), 64), 8):
        batch = windows.batch(range(first, min(first + 8, len(windows))))
        ids, targets = (torch.from_numpy(batch[name].copy()).to(device) for name in ("input_ids", "labels"))
        with autocast:
            nats.append(model(ids, targets).flatten().cpu())
        labels.append(targets.flatten().cpu())
    sizes = shardmill.token_bytes(options.data)
    return shardmill.bits_per_byte(torch.cat(nats).numpy(), torch.cat(labels).numpy(), sizes)


def train(options: argparse.Namespace) -> None:
    rank, ranks, device = setup()
    if options.text and rank == 0:
        mill(options)
    if ranks > 1:
        dist.barrier()
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    size = int(shardmill.open(options.data).manifest.job["vocabulary_size"])
    windows = Windows(
        Source(path=options.data, plan=options.plan), length=options.length, seed=options.seed, vocabulary_size=size
    )
    loader = Loader(windows, options.batch, rank=rank, ranks=ranks, device=device)
    model = GPT(-(-size // 128) * 128, options.length, options.size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=device.type == "cuda")
    step = 0
    if options.checkpoint and Path(options.checkpoint).exists():
        saved = torch.load(options.checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])
        step = saved["step"]
    forward = torch.compile(model) if options.compile else model
    trained = DistributedDataParallel(forward) if ranks > 1 else forward
    autocast = torch.autocast(device.type, torch.bfloat16) if device.type == "cuda" else nullcontext()
    seen = open(f"{options.rows}.{rank}", "a") if options.rows else None  # noqa: SIM115
    batches = iter(loader)
    losses: list[Tensor] = []
    began, waited, first = time.perf_counter(), 0.0, step
    while step < options.steps:
        sample = loader.sample
        batch = next(batches)
        if seen is not None:
            mine = (hash_of(row) for row in batch["input_ids"].cpu().numpy())
            start = sample + rank * options.batch // ranks
            seen.writelines(f"{json.dumps([start + i, digest])}\n" for i, digest in enumerate(mine))
            seen.flush()
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, options)
        with autocast:
            loss = trained(batch["input_ids"], batch["labels"]).sum() / (batch["labels"] >= 0).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        step += 1
        if step == first + 10:  # warm: start the clock
            finish(device)
            began, waited = time.perf_counter(), loader.waited
        if step % options.every == 0 or step == options.steps:
            mean = torch.stack(losses).mean().item()
            losses.clear()
            if rank == 0:
                print(f"step {step:,}  loss {mean:.4f}", flush=True)
                if options.checkpoint:
                    save(options.checkpoint, model, optimizer, loader, step)
    finish(device)
    seconds, steps = time.perf_counter() - began, max(1, step - first - 10)
    if rank == 0:
        bits = bits_per_byte(model, options, device, autocast)
        speed = steps * options.batch * options.length / seconds
        print(
            f"{speed:,.0f} tokens/s on {ranks} × {device.type}, {bits:.4f} bits per byte of the validation set, device waited {(loader.waited - waited) / seconds:.2%} of the time"
        )
    if ranks > 1:
        dist.destroy_process_group()


def hash_of(row: Any) -> str:
    return xxhash.xxh3_64_hexdigest(row.tobytes())


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def save(path: str, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Loader, step: int) -> None:
    """Appears under its name only when it is whole."""
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "data": loader.state_dict(),
        "step": step,
    }
    torch.save(content, f"{path}.partial")
    os.replace(f"{path}.partial", path)


if __name__ == "__main__":
    train(arguments())
