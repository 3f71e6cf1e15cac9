"""What samplers are to reach: limits for the lines of a judgement, and whether they are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskuq.errors import InputError
from taskuq.settings import from_table, read_toml

Numbers = tuple[float, ...]
ROUNDING = 1e-9


@dataclass(frozen=True)
class Aim:
    """Limits for one line, or for the same line of all tasks and units.

    A list of limits has one for each column of the line, or one for all of them.

    Arguments:
        measure: The line, e.g. ``"crps"``.
        task: Only that task network's; all of them where None.
        unit: Only that unit's, ``"case"`` or ``"group"``; both where None.
        compared: Whether limits are for the comparison with the reference, not for the value.
        must_least: What must be reached at least.
        must_most: What must be reached at most.
        goal_least: The goal, at least.
        goal_most: The goal, at most.
    """

    measure: str = ""
    task: str | None = None
    unit: str | None = None
    compared: bool = False
    must_least: Numbers = ()
    must_most: Numbers = ()
    goal_least: Numbers = ()
    goal_most: Numbers = ()

    def is_for(self, line: dict[str, Any]) -> bool:
        """Whether a line of a judgement is meant."""
        return (
            self.measure == line["measure"]
            and self.task in (None, line["task"])
            and self.unit in (None, line["unit"])
        )

    def verdict(self, line: dict[str, Any], sampler: str) -> dict[str, list[bool]]:
        """Return for each column whether the must, and whether the goal, is reached.

        Arguments:
            line: A line of a judgement.
            sampler: Whose.

        Example:
            >>> line = {"columns": ["R = 16", "R = 8"], "samplers": {"mine": {"value": [0.9, 1.2]}}}
            >>> Aim("spread", must_least=(0.85,), must_most=(1.15,)).verdict(line, "mine")
            {'must': [True, False]}
        """
        found = line["samplers"][sampler]
        values = found["against" if self.compared else "value"]
        if values is None:
            return {}
        slack = found.get("slack") or [ROUNDING] * len(values)
        said = {}
        for name in ("must", "goal"):
            least, most = getattr(self, f"{name}_least"), getattr(self, f"{name}_most")
            if least or most:
                low, high = self._each(least, values), self._each(most, values)
                said[name] = [
                    v is not None and (a is None or v + s >= a) and (b is None or v - s <= b)
                    for v, s, a, b in zip(values, slack, low, high, strict=True)
                ]
        return said

    def words(self, name: str) -> str:
        """The limits of the must or of the goal in words."""
        least, most = getattr(self, f"{name}_least"), getattr(self, f"{name}_most")
        shown = [
            " / ".join(f"{x:g}" if math.isfinite(x) else "–" for x in limits)
            for limits in (least, most)
        ]
        if least and most:
            return f"{shown[0]} to {shown[1]}"
        return f"≥ {shown[0]}" if least else f"≤ {shown[1]}" if most else ""

    def _each(self, limits: Numbers, values: list[float]) -> list[float | None]:
        if len(limits) not in (0, 1, len(values)):
            raise InputError(
                f"an aim for {self.measure} has {len(limits)} limits for {len(values)} columns; "
                "give one for each, or one for all"
            )
        return [None] * len(values) if not limits else list(limits * (len(values) // len(limits)))


def read_aims(path: Path | str) -> tuple[Aim, ...]:
    """Read aims from the tables ``[[aim]]`` of a TOML file.

    Arguments:
        path: The file.
    """
    tables = read_toml(path).get("aim")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{path} has no aims; write tables [[aim]]")
    return tuple(from_table(Aim, table, "aim", over=Aim()) for table in tables)
