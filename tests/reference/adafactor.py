#!/usr/bin/env python3
"""Makes adafactor.json: what transformers' Adafactor does to parameters of simple numbers.

usage: adafactor.py >adafactor.json      (needs torch and transformers; the file says which ones made it)

Everything runs in float64, so the numbers are the formula's and not a rounding's. Weights and gradients come from whole
numbers that fp32 holds exactly, so that whoever compares makes the same ones:

    weight   i of parameter p:               ((37 i + 11 p) mod 101 - 50) / 64
    gradient i of parameter p in step t >= 1: ((53 i + 29 t + 7 p) mod 97 - 48) / 128
"""
import json

import torch
import transformers
from transformers.optimization import Adafactor

SHAPES = [(7, 12), (13,), (300, 301), (20, 9)]  # the third is larger than a block of statistics
STEPS = 5
LR = 0.02
SAMPLES = 40  # positions of a parameter whose weights are kept


def weight(p, count):
    return ((37 * torch.arange(count) + 11 * p) % 101 - 50).double() / 64


def gradient(p, count, t):
    return ((53 * torch.arange(count) + 29 * t + 7 * p) % 97 - 48).double() / 128


def positions(count):
    return sorted({k * (count - 1) // (SAMPLES - 1) for k in range(SAMPLES)})


def run(scale_parameter, relative_step, weight_decay):
    parameters = []
    for p, shape in enumerate(SHAPES):
        count = torch.Size(shape).numel()
        parameters.append(torch.nn.Parameter(weight(p, count).reshape(shape)))
    optimizer = Adafactor(
        parameters,
        lr=None if relative_step else LR,
        scale_parameter=scale_parameter,
        relative_step=relative_step,
        weight_decay=weight_decay,
    )
    for t in range(1, STEPS + 1):
        for p, parameter in enumerate(parameters):
            parameter.grad = gradient(p, parameter.numel(), t).reshape(parameter.shape)
        optimizer.step()
    weights = [[float(f"{x.detach().reshape(-1)[i].item():.12g}") for i in positions(x.numel())] for x in parameters]
    return {
        "scale_parameter": scale_parameter,
        "relative_step": relative_step,
        "weight_decay": weight_decay,
        "weights": weights,
    }


def main():
    runs = [
        run(scale_parameter, relative_step, weight_decay)
        for scale_parameter in (False, True)
        for relative_step in (False, True)
        for weight_decay in (0.0, 0.1)
    ]
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    head = {
        "made_by": f"tests/reference/adafactor.py with {versions}",
        "steps": STEPS,
        "lr": LR,
        "shapes": SHAPES,
        "positions": [positions(torch.Size(shape).numel()) for shape in SHAPES],
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    lines.append(' "runs": [\n' + ",\n".join(f"  {json.dumps(x)}" for x in runs) + "\n ]")
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
