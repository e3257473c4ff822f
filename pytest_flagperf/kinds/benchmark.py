"""The tests of the suites of all kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pytest_flagperf.results.verdicts import Verdict

Judge = Callable[["Iterable[Verdict]"], None]


class Benchmark:
    """Base class of the tests of all kinds of suites."""

    kind: ClassVar[str]
    """The kind of the suites, as in suite.toml."""

    def test_plugins(self, plugin_verdicts: Sequence[Verdict], judge: Judge) -> None:
        """All rounds pass the verdicts of the installed plugins; not collected if no plugin has verdicts."""
        judge(plugin_verdicts)
