"""What a storm found."""

from __future__ import annotations

_MOST_SHOWN = 20


class StormReport:
    """Figures and problems of one storm; `str` is what the command line prints."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.figures: dict[str, object] = {}
        self.problems: list[str] = []

    @property
    def is_clean(self) -> bool:
        """Nothing was wrong."""
        return not self.problems

    def __str__(self) -> str:
        lines = [self.title]
        lines += [f"  {name}: {value}" for name, value in self.figures.items()]
        lines += [f"  PROBLEM {problem}" for problem in self.problems[:_MOST_SHOWN]]
        if len(self.problems) > _MOST_SHOWN:
            lines.append(f"  and {len(self.problems) - _MOST_SHOWN} more problems")
        lines.append("  clean" if self.is_clean else f"  {len(self.problems)} problems")
        return "\n".join(lines)
