#!/usr/bin/env python3
"""The model of `tutti train` in plain PyTorch, for a comparison on one GPU.

    python3 bench/train/torch_equal.py --layers 12 --dim 1024 --heads 16 --ffn 3072 \
        --seq 1024 --batch 16 --dtype bf16 --steps 60
    tutti train --device cuda --bench        with the same options

Same sizes, same optimiser, same precision (f32 weights and residual stream, products in bf16), same
kind of data. Prints tokens per second after ten steps of warm-up. `--compile` compiles the model,
which is what PyTorch can do beyond the plain program.
"""

import argparse
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

WARM_UP = 10


class RmsNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
        return x.float() * scale * self.weight


class Layer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.heads, self.kv_heads, self.size = args.heads, args.kv_heads, args.dim // args.heads
        self.attention_norm, self.mlp_norm = RmsNorm(args.dim), RmsNorm(args.dim)
        self.qkv = nn.Linear(args.dim, (args.heads + 2 * args.kv_heads) * self.size, bias=False)
        self.out = nn.Linear(args.dim, args.dim, bias=False)
        self.gate_up = nn.Linear(args.dim, 2 * args.ffn, bias=False)
        self.down = nn.Linear(args.ffn, args.dim, bias=False)

    def attention(self, x, cos, sin):
        batch, seq, _ = x.shape
        heads = self.qkv(x).view(batch, seq, -1, self.size).transpose(1, 2)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        grouped = self.kv_heads != self.heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).reshape(batch, seq, -1))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def rotate(x, cos, sin):
    left, right = x.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).type_as(x)


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embedding = nn.Embedding(256, args.dim)
        self.layers = nn.ModuleList(Layer(args) for _ in range(args.layers))
        self.norm = RmsNorm(args.dim)
        self.head = nn.Linear(args.dim, 256, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        if not args.untied:
            self.head.weight = self.embedding.weight
        half = args.dim // args.heads // 2
        powers = 10_000.0 ** (-torch.arange(half) / half)
        angles = torch.arange(args.seq)[:, None] * powers[None, :]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in [("layers", 4), ("dim", 128), ("heads", 4), ("kv-heads", None),
                        ("ffn", None), ("seq", 128), ("batch", 8), ("micro-batch", None),
                        ("steps", 200), ("warmup", 10), ("seed", 0)]:
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--untied", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tf32", action="store_true", help="f32 products on tensor cores")
    parser.add_argument("--data", help="a text file; random bytes if not given")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.kv_heads = args.kv_heads or args.heads
    args.ffn = args.ffn or 3 * args.dim
    args.micro_batch = args.micro_batch or args.batch
    return args


def learning_rate(args, step):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    done = min(1.0, (step - args.warmup) / max(1, args.steps - args.warmup))
    return args.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


def optimizer(args, model):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-8,
                             fused=args.device.startswith("cuda"))


def batches(args, text):
    starts = torch.randint(len(text) - args.seq - 1, (args.batch,))
    windows = torch.stack([text[s:s + args.seq + 1] for s in starts.tolist()]).to(args.device)
    return windows[:, :-1].split(args.micro_batch), windows[:, 1:].split(args.micro_batch)


def main():
    args = options()
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    if args.data:
        with open(args.data, "rb") as file:
            text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    else:
        text = torch.randint(256, (1 << 20,))
    model = Model(args).to(args.device)
    parameters = sum(p.numel() for p in model.parameters())
    forward = torch.compile(model) if args.compile else model
    adam = optimizer(args, model)
    sync = torch.cuda.synchronize if args.device.startswith("cuda") else lambda: None
    kind = args.device.split(":")[0]
    for step in range(args.steps):
        if step == WARM_UP:
            sync()
            since = time.perf_counter()
        for group in adam.param_groups:
            group["lr"] = learning_rate(args, step)
        inputs, targets = batches(args, text)
        for x, y in zip(inputs, targets):
            with torch.autocast(kind, torch.bfloat16, enabled=args.dtype == "bf16"):
                loss = forward(x, y) / len(inputs)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
    sync()
    took = time.perf_counter() - since
    speed = (args.steps - WARM_UP) * args.batch * args.seq / took
    result = {"tokens_per_s": speed, "parameters": parameters, "torch": torch.__version__,
              "compiled": args.compile, "loss": loss.item() * len(inputs)}
    if args.device.startswith("cuda"):
        result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    print(json.dumps(result) if args.json else f"{speed:.0f} tokens/s")


if __name__ == "__main__":
    main()
