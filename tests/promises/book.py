"""The book of promises: what docs/guarantees.md says, one entry each, with its populations."""

from __future__ import annotations

from functools import partial

from promises.enumeration import (
    GivenPromise,
    Promise,
    a_case_of_the_stratum,
    a_random_case,
    as_likely_as_its_weight,
    enough_cases,
    enough_cases_of_the_stratum,
    every_order,
    given_its_stratum,
)
from promises.populations import draw
from promises.trials import bound, given, in_all_rounds, joint_bound, stopped

cases = partial(draw, units=(4, 10))
groups = partial(draw, units=(4, 8), largest=5)
few_groups = partial(draw, units=(5, 5), largest=6)
large_groups = partial(draw, units=(5, 5), smallest=10, largest=14)
scans = partial(draw, units=(4, 8), rounds=3)
group_scans = partial(draw, units=(4, 7), largest=4, rounds=3)
few_group_scans = partial(draw, units=(5, 5), largest=6, rounds=2)

BOUNDS = [
    *(
        Promise(f"a new case, {score}", 60, cases, partial(bound, score=score))
        for score in ("ar", "lwr", "cqr", "mlwr")
    ),
    *(
        Promise(f"a new case, {side}", 40, cases, partial(bound, score="lwr", side=side))
        for side in ("upper", "lower", "each")
    ),
    Promise(
        "a new case under a shift", 150, cases, partial(bound, score="ar", weights=True),
        as_likely_as_its_weight,
    ),
]  # fmt: skip

GROUPS = [
    *(
        Promise(
            f"a random case of a new group, {score}", 150, groups,
            partial(bound, score=score, by_group=True),
        )
        for score in ("ar", "lwr", "mlwr")
    ),
    *(
        Promise(
            f"{share} of the cases of a new group", 100, groups,
            partial(bound, score="ar", by_group=True, cases=share), enough_cases(share),
        )
        for share in ("all", 0.6)
    ),
    Promise(
        "a random case of a new group, each end", 60, groups,
        partial(bound, score="ar", by_group=True, side="each"),
    ),
]  # fmt: skip

CONDITIONS = {"stratum": {"strata": True}, "class": {"label": True}}
STRATA = [
    *(
        Promise(
            f"a new case in each of {count} strata", 120,
            partial(draw, units=(8, 20), strata=count),
            partial(bound, score="ar", strata=True), given_its_stratum,
        )
        for count in (2, 3, 10)
    ),
    Promise(
        "a new case of each class", 150, partial(draw, units=(8, 16), strata=3),
        partial(bound, score="ar", label=True), given_its_stratum, fewest=2,
    ),
    *(
        Promise(
            f"{what} {kind}", 200, partial(draw, units=(5, 10), largest=6, strata=2),
            partial(bound, score="ar", by_group=True, **how, **asked), whom,
            fewest=1 if kind == "stratum" else 2,
        )
        for kind, how in CONDITIONS.items()
        for what, asked, whom in (
            ("a random case of a new group, given its", {}, given_its_stratum),
            ("a case of a new group that has some of the", {"within": "group"},
             a_case_of_the_stratum),
            ("all cases of a new group in the", {"cases": "all"},
             enough_cases_of_the_stratum("all")),
            ("0.6 of the cases of a new group in the", {"cases": 0.6},
             enough_cases_of_the_stratum(0.6)),
        )
    ),
    *(
        Promise(
            f"a random case of a new group in each of 10 {reading}", 60,
            partial(draw, units=(6, 12), largest=8, strata=10),
            partial(bound, score="ar", by_group=True, strata=True, within=within), whom,
        )
        for reading, within, whom in (
            ("strata it may fall in", "case", given_its_stratum),
            ("strata it may have", "group", a_case_of_the_stratum),
        )
    ),
    *(
        Promise(
            f"a random case of a new group, given its {kind}, each end", 80,
            partial(draw, units=(6, 10), largest=6, strata=2),
            partial(bound, score="ar", by_group=True, side="each", **how), given_its_stratum,
            fewest=1 if kind == "stratum" else 2,
        )
        for kind, how in CONDITIONS.items()
    ),
]  # fmt: skip

JOINT = [
    Promise(
        f"all tasks of a new case, {method}", 80, partial(draw, units=(5, 10), tasks=2),
        partial(joint_bound, score="lwr", method=method),
    )
    for method in ("max", "rank")
] + [
    Promise(
        "all tasks of a random case of a new group", 80,
        partial(draw, units=(4, 8), largest=4, tasks=2),
        partial(joint_bound, score="ar", method="max", by_group=True),
    ),
]  # fmt: skip

SET_ASIDE = [
    Promise(
        f"all tasks of a random case of a new group, {method}", 24,
        partial(few_groups, tasks=2),
        partial(joint_bound, score="ar", method=method, by_group=True),
        enumerate=every_order, alphas=(0.5, 0.4, 0.34),
    )
    for method in ("scale", "minimax")
] + [
    Promise(
        "a random case of a new group, learned", 6, large_groups,
        partial(bound, score="learned", by_group=True), enumerate=every_order, alphas=(0.5, 0.34),
    ),
    Promise(
        "the report at the stop, two phases, by group", 16, few_group_scans,
        partial(stopped, by="group", budget=0.5, max_width=0.2), enumerate=every_order,
        alphas=(0.5, 0.4),
    ),
]  # fmt: skip

STOPPED = [
    *(
        Promise(
            f"the report at the stop, {policy}, by {by}", 60 if by == "case" else 80,
            scans if by == "case" else group_scans,
            partial(stopped, policy=policy, score="lwr", by=by),
        )
        for policy in ("fixed-width", "adaptive")
        for by in ("case", "group", "whole-group")
    ),
    *(
        Promise(
            f"the report at the stop for {share} of a group, {by}", 50, group_scans,
            partial(stopped, policy="fixed-width", by=by, cases=share), enough_cases(share),
        )
        for share in ("all", 0.6)
        for by in ("group", "whole-group")
    ),
    *(
        Promise(
            f"the intervals of all rounds, by {by}", 60, scans if by == "case" else group_scans,
            partial(in_all_rounds, score="lwr", by=by),
        )
        for by in ("case", "group")
    ),
]  # fmt: skip

GIVEN = [
    GivenPromise(
        "a new case, given the calibration set", 10, partial(draw, units=(3, 3)),
        given(partial(bound, score="ar")),
    ),
    *(
        GivenPromise(
            f"{share} of a new group, given the calibration set", 10,
            partial(draw, units=(3, 3), largest=4),
            given(partial(bound, score="ar", by_group=True, cases=share)),
            enough_cases(share) if share != "random" else a_random_case,
        )
        for share in ("random", "all")
    ),
    GivenPromise(
        "the strata of a new case, each given the calibration set", 10,
        partial(draw, units=(3, 3), strata=2), given(partial(bound, score="ar", strata=True)),
        given_its_stratum,
    ),
    GivenPromise(
        "the strata of a new case, all given the calibration set", 10,
        partial(draw, units=(3, 3), strata=2),
        given(partial(bound, score="ar", strata=True, delta_for="all")), given_its_stratum,
        together=True,
    ),
    *(
        GivenPromise(
            f"a random case of a new group, given the {kind} and the calibration set", 10,
            partial(draw, units=(3, 3), largest=4, strata=2),
            given(partial(bound, score="ar", by_group=True, **how)), given_its_stratum,
            together=kind == "class", seen=kind == "class",
        )
        for kind, how in CONDITIONS.items()
    ),
    *(
        GivenPromise(
            f"the report at the stop by {by}, given the calibration set", 10,
            partial(draw, units=(3, 3), rounds=2, largest=1 if by == "case" else 3),
            given(partial(stopped, by=by, max_width=0.1)), levels=((0.3, 0.5), (0.5, 0.3)),
        )
        for by in ("case", "group", "whole-group")
    ),
]  # fmt: skip

PROMISES = [*BOUNDS, *GROUPS, *STRATA, *JOINT, *SET_ASIDE, *STOPPED, *GIVEN]
