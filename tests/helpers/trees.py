"""Small trees of suites and vendors for the tests of catalog, config and plan."""

import json
import re
from pathlib import Path
from typing import Any

from pytest_flagperf.catalog import Catalog

SUITE_TOML = """\
sample_unit = "images"
[metric]
name = "top1"
direction = "higher"
unit = "fraction"
range = [0, 1]
[scales.reference]
target = 0.75
flops_per_sample = 24e9
[[scales.reference.data]]
path = "train"
kind = "folder"
files = 3
[scales.small]
target = 0.9
"""
VENDOR_TOML = """\
name = "Acme"
visible_devices = "ACME_VISIBLE"
shapes = ["1x1", "1x8"]
min_efficiency = 0.85
[framework.pytorch]
device = "acme"
backend = "acl"
[chips.X9]
devices_per_host = 8
peak_tflops = { fp32 = 10, bf16 = 80.5 }
source = "a sheet"
[chips.A1x2]
"""
BASE = """\
train_data = "train"
width = 64
ratio = 0.5
layers = [1, 2]
names = {"a": [1]}
flag = False
note = "hello"
frozen = 3
anything = None
train_batch_size = 32
precision = "bf16"
"""
PLAIN_SUITE_TOML = """\
sample_unit = "samples"
[metric]
name = "accuracy"
direction = "higher"
unit = "fraction"
range = [0, 1]
[scales.reference]
target = 0.9
[scales.small]
target = 0.8
"""
PLAIN_MEASUREMENT_TOML = """\
kind = "measurement"
[figures.copy]
unit = "B/s"
direction = "higher"
about = "bytes read and written per second"
peak = "memory_gb_s"
over = "bytes"
[figures.extra]
unit = "s"
direction = "lower"
about = "a figure that no chip of the tree needs"
optional = true
[scales.reference]
[scales.small]
"""
PLAIN_VENDOR_TOML = """\
name = "{name}"
runtime = "host"
scale = "{scale}"
shapes = ["1x1", "1x2"]
lease = "device"
min_efficiency = 0.8
[framework.plain]
device = "cpu"
backend = "gloo"
[chips.{chip}]
devices_per_host = 8
"""
MUTABLE = 'mutable_params = ["width", "ratio", "layers", "names", "flag", "note", "anything"]\n'


def write(root: Path, name: str, text: str) -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def set_options(root: Path, **options: Any) -> None:
    """Set keys of a tree's flagperf.toml, with the options' names in Python; keep its other keys."""
    file = root / "flagperf.toml"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    for key, value in options.items():
        name = key.replace("_", "-")
        text = f"{name} = {json.dumps(value)}\n" + re.sub(rf"(?m)^{name} = .*\n", "", text)
    file.write_text(text, encoding="utf-8")


def write_suite(root: Path, model: str = "toy", framework: str = "pytorch", toml: str = SUITE_TOML) -> Path:
    folder = f"suites/{model}/{framework}"
    write(root, f"{folder}/config/_base.py", BASE)
    write(root, f"{folder}/config/_small.py", "width = 8\nmax_steps = 20\n")
    write(root, f"{folder}/config/mutable_params.py", MUTABLE)
    return write(root, f"{folder}/suite.toml", toml).parent


def write_vendor(root: Path, name: str = "acme", toml: str = VENDOR_TOML) -> Path:
    return write(root, f"vendors/{name}/vendor.toml", toml).parent


def write_config(root: Path, text: str = "", name: str = "config_X9x1x8.py", folder: str = "toy-pytorch") -> Path:
    return write(root, f"vendors/acme/{folder}/config/{name}", text)


def tree(root: Path, config: str = "") -> Catalog:
    """Write a tree with one suite and one vendor with a config file for 1x8."""
    write_suite(root)
    write_vendor(root)
    write_config(root, config)
    return Catalog.scan([root])
