"""The keys of vendor.toml, and the error messages for invalid files."""

from pathlib import Path

import pytest

from pytest_flagperf.catalog import Catalog, CatalogError
from pytest_flagperf.results.measured.machine import is_named
from tests.helpers.trees import VENDOR_TOML, write_vendor

REPO = Path(__file__).resolve().parent.parent.parent
VENDORS = Catalog.scan([REPO]).vendors


def problems(folder: Path, text: str) -> str:
    write_vendor(folder, toml=text)
    with pytest.raises(CatalogError) as caught:
        _ = Catalog.scan([folder]).vendors["acme"].chips
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("device =", "modules = 'acme'\ndevice =", "modules is 'acme'; expected a list, as in ['acme']"),
        ("device =", "modules = ['torch acme']\ndevice =", "modules: 'torch acme' is not a module name"),
        ("[framework.pytorch]", "[framework.'pytorch_2.1']", "framework.pytorch_2.1: expected a framework without"),
        ("[framework.pytorch]\n", "", "vendor.toml:5: device: no such key"),
        ("[chips.A1x2]", "[chips.A1x2]\nmemory_gib = 0", "chips.A1x2.memory_gib is 0; expected more than 0"),
        ("bf16 =", "bf61 =", "chips.X9.peak_tflops.bf61: no such precision; did you mean bf16?"),
        ('source = "a sheet"', "", 'vendor.toml:10: chips.X9.peak_tflops has no source; add source = "DOCUMENT"'),
        ("[chips.A1x2]", "[chips.A1x2]\npci = ['10DE:1']", "chips.A1x2.pci: '10DE:1' is no PCI id; expected vendor:"),
        ("fp32 = 10", "fp32 = 0", "chips.X9.peak_tflops.fp32 is 0; expected more than 0; remove the key"),
        (
            "80.5 }",
            "80.5 }\npromised = { memory_gb_s = 0.8 }",
            "memory_gb_s: the chip declares no such peak; declar",
        ),
        (
            "80.5 }",
            "80.5 }\npromised = { 'peak_tflops.bf16' = 70 }",
            "peak_tflops.bf16 is 70; expected a share of th",
        ),
        ('"acme"', '"cpu:0"', "vendor.toml:6: framework.pytorch.device is 'cpu:0'; expected a device type without"),
        ('"acl"', '""', "vendor.toml:7: framework.pytorch.backend is empty"),
        ("[chips.A1x2]", "[chips.A1x2]\nnames = ['']", "vendor.toml:13: chips.A1x2.names: '' matches every name"),
        ("[chips.A1x2]", "[chips.A1x2]\nnames = ['A (']", "vendor.toml:13: chips.A1x2.names: 'A (' is not a regular"),
        ('["1x1", "1x8"]', "[]", "vendor.toml:3: shapes: empty list; expected at least one shape"),
        ('"1x8"', '"1x1"', "vendor.toml:3: shapes: '1x1' is listed 2 times"),
        ("0.85", "0.79", "vendor.toml:4: min_efficiency is 0.79; expected at least 0.8 and at most 1.5"),
        ('"1x8"]', '"8"]', "shapes: shape '8': expected NxP"),
        ("devices_per_host = 8", "devices_per_host = 0", "chips.X9.devices_per_host is 0; expected at least 1"),
        ("[chips.A1x2]", "[known_problem]\ncase = '*'", "expected a list, as in [[known_problem]]"),
        ("[chips.A1x2]", "[images]\n'a b' = 'x'", "vendor.toml:13: images.a b: expected a framework"),
        ("[chips.A1x2]", "[images]\n'a_2.10' = 'x y'", "vendor.toml:13: images.a_2.10 is 'x y'; expected an image"),
        ("[chips.A1x2]", "[environment]\nN = 1\n[chips.A1x2]", "environment.N is a number; expected a string"),
        ("[chips.A1x2]", "[environment]\n'A-B' = '1'\n[chips.A1x2]", "environment.A-B: invalid name of a variable"),
        ("[chips.A1x2]", "[container]\noptions = ['--devices=/dev/a']", "container.options: unsupported docker option"),
    ],
)
def test_an_invalid_file_is_an_error_with_a_suggestion(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in VENDOR_TOML
    assert message in problems(tmp_path, VENDOR_TOML.replace(old, new, 1))


def test_a_vendor_of_this_repository_has_all_keys_that_a_run_needs() -> None:
    for name, vendor in VENDORS.items():
        assert vendor.toml.framework, name
        if name == "cpu":
            continue
        assert vendor.toml.visible_devices, f"{name}: visible_devices is missing"
        assert vendor.probe is not None, f"{name}: probe.py is missing"
        assert all(chip.devices_per_host for chip in vendor.chips.values()), f"{name}: no devices_per_host"
        assert vendor.toml.container.options, f"{name}: container.options is missing"
        if vendor.toml.framework["pytorch"].device not in ("cuda", "xpu"):  # PyTorch has these itself
            assert vendor.toml.framework["pytorch"].modules, name


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla V100-PCIE-16GB", None),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA A800-SXM4-80GB", "A800"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", None),
        ("NVIDIA H20", "H20"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
    ],
)
def test_a_slower_board_does_not_match_a_chip_with_a_peak(name: str, chip: str | None) -> None:
    chips = VENDORS["nvidia"].chips
    assert [key for key, entry in chips.items() if is_named(name, key, entry.names)] == ([chip] if chip else [])


def test_a_vendors_readme_says_what_was_verified_and_the_source_of_each_sample() -> None:
    for name in VENDORS.keys() - {"cpu"}:
        folder = VENDORS[name].path
        readme = (folder / "README.md").read_text(encoding="utf-8")
        assert "verified on silicon" in readme, name
        for sample in folder.glob("samples/*.txt"):
            named = f"`{sample.stem}`" in readme or ("`error_*`" in readme and sample.stem.startswith("error"))
            assert named, f"{name}: README.md has no source of the sample {sample.stem}"
        image = any((folder / "images").glob("*/Dockerfile")) or "--image" in readme
        assert image, f"{name}: neither a Dockerfile nor --image in README.md"
