"""The navigation of the site. A page of docs/ that no group names is listed in the last group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """A language of the site: ``sphinx`` is its name in Sphinx, ``folder`` its folder in the built site."""

    code: str
    sphinx: str
    folder: str
    title: str


ENGLISH = Language("en", "en", ".", "English")
CHINESE = Language("zh", "zh_CN", "zh", "中文")
LANGUAGES = (ENGLISH, CHINESE)


@dataclass(frozen=True)
class Group:
    """A group of pages with its title in both languages."""

    english: str
    chinese: str
    pages: tuple[str, ...]

    def title(self, language: Language) -> str:
        return self.chinese if language is CHINESE else self.english


NAVIGATION = (
    Group("Start", "入门", ("how-it-works", "concepts", "coming-from-flagperf")),
    Group(
        "How to, by user",
        "按用户查找",
        ("how-to-vendor", "how-to-buyer", "how-to-ci", "how-to-model"),
    ),
    Group(
        "Running",
        "运行",
        (
            "using", "packages/watch/index", "cluster", "slurm", "packages/modelarts/index", "preflight", "faults",
            "days", "gpu", "offline", "systems",
        ),
    ),
    Group("Results", "结果", ("results", "measuring", "machine", "serving", "packages/serving/index", "ci")),
    Group(
        "Models, vendors, frameworks",
        "模型、厂商、框架",
        ("support", "models", "measurements", "vendors", "frameworks", "suites/index", "vendors/index"),
    ),
    Group("Reference", "参考", ("reference/index",)),
    Group("Extending", "扩展", ("python", "extending")),
    Group(
        "The project",
        "项目",
        ("english", "architecture", "performance", "contributing", "changelog", "lab", "screens"),
    ),
)  # fmt: skip
