"""Makes the files of tests/test_torch_bin.c: python make_torch_files.py (PyTorch, safetensors).

weights-*.bin hold the same tensors in PyTorch's two forms and two pickle protocols, strided, shared,
empty, 0-d and half-precision ones among them; weights.safetensors holds them plainly. evil-*.bin ask
for a command to be run.
"""
import os
import sys
from collections import OrderedDict

import torch
from safetensors.torch import save_file

here = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))


def halves(dtype, bits):
    return torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(dtype)


base = torch.arange(40, dtype=torch.float32) * 0.37 - 5
weights = OrderedDict()
weights["plain"] = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 7
weights["half.special"] = halves(torch.float16, [0, 0x8000, 0x3C00, 1, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E01])
weights["bfloat"] = halves(torch.bfloat16, [0x3F80, 1, 0x7F80, 0x7FC1, 0xC2F7, 0x8000]).reshape(2, 3)
weights["transposed"] = base[:24].reshape(4, 6).t()
weights["stepped"] = base[3:39:5]
weights["shared.whole"] = base
weights["shared.part"] = base[8:20].reshape(3, 4)
weights["permuted"] = (torch.arange(24, dtype=torch.float32) + 0.5).to(torch.bfloat16).reshape(2, 3, 4).permute(2, 0, 1)
weights["expanded"] = torch.tensor([[1.5], [-2.5]]).expand(2, 3)
weights["parameter"] = torch.nn.Parameter(torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
weights["scalar"] = torch.tensor(3.25)
weights["empty"] = torch.empty(0, 3)
weights["counts"] = torch.tensor([1, -2, 3])
weights["flags"] = torch.tensor([True, False])
weights._metadata = OrderedDict({"": {"version": 1}})


class Evil:
    def __reduce__(self):
        return os.system, ("touch spillway-test-was-here",)


torch.save(weights, f"{here}/weights-zip.bin")
torch.save(weights, f"{here}/weights-zip4.bin", pickle_protocol=4)
torch.save(weights, f"{here}/weights-legacy.bin", _use_new_zipfile_serialization=False)
torch.save({"w": torch.zeros(2), "x": Evil()}, f"{here}/evil-zip.bin")
torch.save({"w": torch.zeros(2), "x": Evil()}, f"{here}/evil-legacy.bin", _use_new_zipfile_serialization=False)
torch.save({"step": 7, "model": {"w": torch.zeros(2)}}, f"{here}/nested.bin")
save_file({k: v.detach().contiguous().clone() for k, v in weights.items()}, f"{here}/weights.safetensors")
