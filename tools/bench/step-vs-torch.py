#!/usr/bin/env python3
"""Time one training step of t5-small against PyTorch with transformers, in turn, on the same cores.

usage: step-vs-torch.py --spillway ./spillway --tokenizer spiece.model [--cores 0,1] [--rounds 5] [--python python3]

Both sides: fp32, AdamW, gradient clipping at 1.0, no recomputation, the same number of rows and tokens, random weights.
Every round runs one side, then the other, each in a process of its own pinned to the same cores; a side's figure is the
median step of its process after a warm-up. Prints a line a round, then the medians and the ratio spillway / torch.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

TORCH_SIDE = r"""
import json, os, sys, time
import torch
from transformers import T5Config, T5ForConditionalGeneration
a = json.loads(sys.argv[1])
torch.set_num_threads(len(os.sched_getaffinity(0)))
torch.manual_seed(0)
m = T5ForConditionalGeneration(T5Config(vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=6,
    num_decoder_layers=6, num_heads=8, dropout_rate=a["dropout"], decoder_start_token_id=0, use_cache=False))
m.train()
opt = torch.optim.AdamW(m.parameters(), lr=1e-4, weight_decay=0.01, fused=a["fused"])
x = torch.randint(3, 900, (a["rows"], a["source"])); y = torch.randint(3, 900, (a["rows"], a["target"]))
mask = torch.ones_like(x)
times = []
for k in range(a["steps"]):
    t = time.perf_counter()
    loss = m(input_ids=x, attention_mask=mask, labels=y).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    times.append(time.perf_counter() - t)
print(json.dumps(times))
"""


def pinned(cores):
    return lambda: os.sched_setaffinity(0, cores)


def median_after_warmup(times, warmup):
    return statistics.median(times[warmup:])


def torch_side(args, shape):
    out = subprocess.run([args.python, "-c", TORCH_SIDE, json.dumps(shape)], check=True, capture_output=True, text=True,
                         preexec_fn=pinned(args.cores))
    return median_after_warmup(json.loads(out.stdout.splitlines()[-1]), args.warmup)


def spillway_side(args, shape, work, round_index):
    out = os.path.join(work, "run-%d" % round_index)
    config = {
        "model": {"path": os.path.join(work, "model")},
        "data": {"train": os.path.join(work, "train.jsonl"), "shuffle": False,
                 "max_source_length": shape["source"], "max_target_length": shape["target"]},
        "train": {"steps": shape["steps"], "global_batch": shape["rows"], "micro_batch": shape["rows"],
                  "dropout": shape["dropout"], "recompute": "off"},
        "optimizer": {"name": "adamw", "lr": 1e-4, "weight_decay": 0.01, "max_grad_norm": 1.0},
        "precision": {"compute": "fp32"}, "devices": {"kind": "cpu"},
        "output": {"dir": out, "final": False}}
    path = os.path.join(work, "run-%d.yaml" % round_index)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)
    subprocess.run([args.spillway, "train", path], check=True, capture_output=True, text=True,
                   preexec_fn=pinned(args.cores))
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        times = [json.loads(line)["step_seconds"] for line in f]
    return median_after_warmup(times, args.warmup)


def prepare(args, shape, work):
    subprocess.run([args.spillway, "init", "--preset", "t5-small", "--tokenizer", args.tokenizer,
                    "--out", os.path.join(work, "model")], check=True, capture_output=True)
    # Texts far longer than the limits: every row is cut to exactly `source` and `target` tokens.
    words = ["alpha", "river", "seven", "garden", "window", "paper", "stone", "light"]
    with open(os.path.join(work, "train.jsonl"), "w", encoding="utf-8") as f:
        for row in range(shape["rows"] * 4):
            text = " ".join(words[(row * 7 + i * 3) % len(words)] for i in range(4 * shape["source"]))
            f.write(json.dumps({"source": text, "target": text}) + "\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--spillway", default="./spillway")
    ap.add_argument("--tokenizer", required=True, help="a SentencePiece model")
    ap.add_argument("--python", default=sys.executable, help="an interpreter that has torch and transformers")
    ap.add_argument("--cores", default=None, help="cores to pin both sides to, such as 0,1 (default: all allowed)")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--steps", type=int, default=12)
    ap.add_argument("--warmup", type=int, default=3)
    ap.add_argument("--rows", type=int, default=8)
    ap.add_argument("--source", type=int, default=128)
    ap.add_argument("--target", type=int, default=32)
    ap.add_argument("--dropout", type=float, default=0.0)
    ap.add_argument("--fused", action="store_true", help="PyTorch's fused AdamW instead of its default")
    args = ap.parse_args()
    args.cores = {int(c) for c in args.cores.split(",")} if args.cores else os.sched_getaffinity(0)
    args.spillway = os.path.abspath(args.spillway)
    shape = {k: getattr(args, k) for k in ("rows", "source", "target", "dropout", "steps", "fused")}
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as work:
        prepare(args, shape, work)
        for i in range(args.rounds):
            ours.append(spillway_side(args, shape, work, i))
            theirs.append(torch_side(args, shape))
            print("round %d: spillway %.3f s, torch %.3f s, ratio %.3f" % (i + 1, ours[-1], theirs[-1],
                                                                           ours[-1] / theirs[-1]), flush=True)
    a, b = statistics.median(ours), statistics.median(theirs)
    print("median step: spillway %.3f s, torch %.3f s; spillway / torch = %.3f" % (a, b, a / b))


if __name__ == "__main__":
    main()
