"""Adapters with a vendor's steps for the toy, good and bad, and the trainings with them."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from toy_pytorch import STEPS, Classifier  # type: ignore[import-not-found]

HEAD = "import torch\nfrom torch import nn\nfrom flagperf_driver.pytorch import optimizers, steps\n\n"
ADAM = "lr=ctx.config.learning_rate, betas=(ctx.config.beta1, ctx.config.beta2), eps=ctx.config.epsilon"
GROUPS = "optimizers.parameter_groups(model, ctx.config)"
CONVERT = "def convert_model(ctx, model):\n"
CREATE = "def create_optimizer(ctx, model):\n"
PLAIN: dict[str, Any] = {"blocks": 2, "weight_decay": 0.01, "dropout": 0.3}
TOY = "import sys\nClassifier = sys.modules['toy_pytorch'].Classifier\n"

GOOD = {
    "modules": CONVERT
    + "    class Fused(nn.Linear):\n        pass\n"
    + "    fused = Fused(32, 2)\n    fused.weight, fused.bias = model.last.weight, model.last.bias\n"
    + "    model.last = fused\n    return model\n",
    "optimizer": "class Ours(torch.optim.AdamW):\n    pass\n\n"
    + f"{CREATE}    return Ours({GROUPS}, {ADAM}, foreach=True)\n",
    "model": f"{TOY}def create_model(ctx):\n    torch.manual_seed(9)\n    return Classifier(ctx.config)\n",
    "wrapped": "def compile_model(ctx, model):\n    return torch.compile(model, backend='eager')\n",
    "batch": "def prepare_batch(ctx, batch):\n" + "    return {**batch, 'values': batch['values'].clone()}\n",
    "loss": "def calculate_loss(ctx, model, batch):\n"
    + "    logits = model(batch['values']).log_softmax(1)\n"
    + "    return -logits.gather(1, batch['labels'][:, None]).mean()\n",
    "low": "def model_to_fp16(ctx, model):\n    return model.bfloat16()\n",
}
HALF = "    half = len(batch['labels']) // 2\n    batch = {name: values[:half] for name, values in batch.items()}\n"
LOSS = "def calculate_loss(ctx, model, batch):\n"
RETURN = "    return nn.functional.cross_entropy(model(batch['values']), batch['labels'])\n"
BAD = {
    "nothing": CONVERT + "    model.to(ctx.device)\n",
    "no loss": "def calculate_loss(ctx, model, batch):\n    model(batch['values'])\n",
}


class Declared(Classifier):  # type: ignore[misc]
    """The toy with the declarations of a model on the meta device."""

    def initial(self, name: str) -> float | None:
        return None if name.endswith("bias") else 0.1

    def tie(self) -> None:
        pass


def on_meta(ctx: Any) -> Declared:
    with torch.device("meta"):
        return Declared(ctx.config)


ON_META = replace(STEPS, create_model=on_meta)


def folder(text: str) -> str:
    made = Path(tempfile.mkdtemp())
    (made / "trainer_adapter.py").write_text(HEAD + text)
    return str(made)


def trained(scenarios: Any, name: str, **more: Any) -> Any:
    """Train with a vendor's good or bad steps."""
    how = {"compile": name == "wrapped", "precision": "bf16" if name == "low" else "fp32", **more}
    return scenarios.train(extern=folder({**GOOD, **BAD}[name]), compile_with="eager", **PLAIN, **how)


def of_one(scenarios: Any) -> dict[str, Any]:
    return {
        "standard": scenarios.train(**PLAIN),
        "good": {name: trained(scenarios, name) for name in GOOD},
        "bad": {name: trained(scenarios, name, max_steps=1)["error"] for name in BAD},
        "meta": trained(scenarios, "modules", steps=ON_META),
        "meta standard": scenarios.train(ON_META, **PLAIN),
    }


def of_two(scenarios: Any) -> dict[str, Any]:
    how = {"train_batch_size": 16, "blocks": 2, "max_grad_norm": 1.0, "weight_decay": 0.01}
    adapted = {"extern": folder(GOOD["modules"]), **how}
    return {
        "standard": scenarios.train(ON_META, parallel="ddp", **how),
        **{parallel: scenarios.train(ON_META, parallel=parallel, **adapted) for parallel in ("ddp", "fsdp")},
    }


def results(scenarios: Any) -> dict[str, Any]:
    return of_one(scenarios) if scenarios.meeting.world.world_size == 1 else of_two(scenarios)
