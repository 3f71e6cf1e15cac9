"""taskuq specify: write what a policy decides as numbers, for other languages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from taskuq.commands.arguments import Seed
from taskuq.commands.terminal import show
from taskuq.errors import InputError


def specify(
    policy: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("decide.json"),
    vectors: Path | None = None,
    cases: int = 20,
    seed: Seed = 0,
) -> None:
    """Write the specification of a policy's decisions, and cases to try an implementation on.

    Arguments:
        policy: The policy's file.
        output: Where to write the specification.
        vectors: Where to write made-up cases and what is decided about them.
        cases: How many cases for each round.
        seed: The seed of the cases.
    """
    from taskuq.decide.policy import load_policy
    from taskuq.decide.specification import decision_vectors, specification
    from taskuq.files import write_json

    if cases < 1:
        raise InputError(f"{cases} cases are asked for; ask for at least 1")
    loaded = load_policy(policy)
    show(str(write_json(output, specification(loaded))))
    if vectors is not None:
        show(str(write_json(vectors, decision_vectors(loaded, cases=cases, seed=seed))))
