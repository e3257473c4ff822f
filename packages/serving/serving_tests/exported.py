"""A checkpoint of a plan's training, and what transformers reads: exported.py COMMAND SUITE PLAN FOLDER.

``write`` writes a checkpoint into FOLDER; ``compare`` prints the largest difference of the logits of an export in
FOLDER from those of the checkpoint's model, and then from those of the same model with two layers swapped.
``measure`` prints the bytes of the weights in bf16, and of the keys and values of a request of 100 tokens.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from common.training.program import steps_of

from flagperf_driver.driver import Config
from flagperf_driver.pytorch import Context, storage

command, suite, plan, folder = sys.argv[1], *map(Path, sys.argv[2:])
values = {key: value["value"] for key, value in json.loads(plan.read_text())["values"].items()}
model: Any = steps_of(suite).create_model(Context(config=Config(values), suite_dir=suite)).to_empty(device="cpu").eval()
generator = torch.Generator().manual_seed(1)
with torch.no_grad():
    for name, parameter in model.named_parameters():
        parameter.normal_(float(name.endswith("norm.weight")), 0.1, generator=generator)
    if command == "write":
        folder.mkdir(parents=True)
        storage.write(folder, {f"model/{name}": value for name, value in model.state_dict().items()}, None)
    elif command == "measure":
        from common.serving import published
        from transformers import AutoModelForCausalLM

        published.write(model, folder)
        served = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        kept = served(torch.randint(0, 256, (1, 100)), use_cache=True).past_key_values.layers
        weights = {one.data_ptr(): one.nbytes for one in served.parameters()}
        print(sum(weights.values()), sum(layer.keys.nbytes + layer.values.nbytes for layer in kept))
    else:
        from transformers import AutoModelForCausalLM

        tokens = torch.randint(0, 256, (2, 100), generator=generator)
        expected = AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
        own = model(tokens)
        model.blocks = torch.nn.ModuleList([model.blocks[1], model.blocks[0]])
        print(*(float((logits - expected).abs().max()) for logits in (own, model(tokens))))
