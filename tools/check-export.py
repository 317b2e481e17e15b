#!/usr/bin/env python3
"""Check that a model which Spillway saved is the same model in HuggingFace transformers.

    tools/check-export.py --spillway ./spillway JOB.yaml MODEL [--logits tools/logits] [--rows 16] [--set key=value]...

MODEL is what `train` left in output.dir/final; the rows are the first ones of the job's data.train. Checks
that transformers finds no missing, unexpected or mismatched key, that the loss of every row by itself is the
same (fp32 on both sides), and that greedy generation gives the same ids; with --logits (`make tools/logits`) every
logit of every target token, too. Exit status 1 when one differs.
Needs Python with torch and transformers; runs on the first GPU where devices.kind is cuda, else on CPUs.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch
import yaml
from transformers import AutoModelForSeq2SeqLM

TOLERANCE = 2e-5  # of a loss, relative: two orders of summation in fp32
LOGITS_TOLERANCE = 1e-4  # likewise of a logit, relative to the largest of its token


def spillway(options, *words, stdin=None):
    sets = [word for value in options.set for word in ("--set", value)]
    done = subprocess.run([options.spillway, *words, *sets], input=stdin, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"check-export: {' '.join(words)}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def read_rows(job, count):
    path = job["data"]["train"]
    with open(path[0] if isinstance(path, list) else path) as file:
        return [json.loads(line) for _, line in zip(range(count), file)]


def tokens(options, job, rows, work):
    file = os.path.join(work, "rows.jsonl")
    with open(file, "w") as out:
        for row in rows:
            out.write(json.dumps(row) + "\n")
    lengths = [word for key in ("source", "target") for word in
               (f"--max-{key}-length", str(job["data"][f"max_{key}_length"]))]
    return spillway(options, "tokenize", "--model", options.model, "--input", file, *lengths)


def row_loss(options, row, work):
    file = os.path.join(work, "row.jsonl")
    with open(file, "w") as out:
        out.write(json.dumps(row) + "\n")
    return spillway(options, "eval", options.job, "--model", options.model, "--set", f"data.eval={file}",
                    "--set", "precision.compute=fp32")[-1]["loss"]


def farthest_logit(options, rows, ids, model, device, work):
    """How far apart logits are, relative to the largest of their token: the most of all."""
    file, out = os.path.join(work, "rows.jsonl"), os.path.join(work, "logits")
    with open(file, "w") as lines:
        lines.write("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run([options.logits, options.job, options.model, out, *options.set, f"data.eval={file}",
                           "precision.compute=fp32"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"check-export: logits: {done.stderr.strip()}")
    ours = torch.frombuffer(bytearray(open(out, "rb").read()), dtype=torch.float32)
    theirs = torch.cat([model(input_ids=torch.tensor([row["source_ids"]], device=device),
                              labels=torch.tensor([row["target_ids"]], device=device)).logits[0].cpu() for row in ids])
    ours = ours.reshape(theirs.shape[0], -1)[:, :theirs.shape[1]]
    return ((ours - theirs).abs().amax(1) / theirs.abs().amax(1)).max().item(), theirs.numel()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("job")
    parser.add_argument("model")
    parser.add_argument("--spillway", default="./spillway")
    parser.add_argument("--logits", help="the program tools/logits of a build: compares logits, too")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--set", action="append", default=[], help="passed on")
    options = parser.parse_args()
    with open(options.job) as file:
        job = yaml.safe_load(file)
    device = "cuda" if "devices.kind=cuda" in options.set or job.get("devices", {}).get("kind") == "cuda" else "cpu"
    model, info = AutoModelForSeq2SeqLM.from_pretrained(options.model, dtype=torch.float32, output_loading_info=True)
    wrong = {key: value for key, value in info.items() if value}
    print(f"keys      {'all match' if not wrong else wrong}")
    model = model.to(device).eval()
    start = model.config.decoder_start_token_id

    rows = read_rows(job, options.rows)
    worst, different = 0.0, 0
    with tempfile.TemporaryDirectory() as work, torch.no_grad():
        ids = tokens(options, job, rows, work)
        source = "".join(json.dumps({"source": row["source"]}) + "\n" for row in rows)
        generated = spillway(options, "generate", "--model", options.model, "--input", "-", "--max-new-tokens", "16",
                             "--max-source-length", str(job["data"]["max_source_length"]), "--set",
                             "precision.compute=fp32", stdin=source)
        for row, row_ids, ours in zip(rows, ids, generated):
            inputs = torch.tensor([row_ids["source_ids"]], device=device)
            labels = torch.tensor([row_ids["target_ids"]], device=device)
            theirs = model(input_ids=inputs, labels=labels).loss.item()
            worst = max(worst, abs(row_loss(options, row, work) - theirs) / abs(theirs))
            greedy = model.generate(inputs, max_new_tokens=16, do_sample=False, num_beams=1)[0].tolist()
            greedy = greedy[1:] if greedy[0] == start else greedy
            different += greedy != ours["ids"]
        if options.logits:
            off, count = farthest_logit(options, rows, ids, model, device, work)
            wrong = wrong or off > LOGITS_TOLERANCE
            print(f"logits    {count} of {len(rows)} rows, farthest apart {off:.1e} of the token's largest "
                  f"(allowed {LOGITS_TOLERANCE:.0e})")
    print(f"losses    {len(rows)} rows, farthest apart {worst:.1e} (allowed {TOLERANCE:.0e})")
    print(f"greedy    {len(rows) - different} of {len(rows)} rows have the same ids")
    return 1 if wrong or worst > TOLERANCE or different else 0


if __name__ == "__main__":
    sys.exit(main())
