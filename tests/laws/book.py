"""All guarantees of the documentation, one law each, with its populations."""

from functools import partial
from typing import Any

import numpy as np

from laws.enumeration import (
    GivenLaw,
    Law,
    a_case_of_a_patient,
    a_case_of_the_stratum,
    a_random_case,
    a_stop_in_each_round,
    a_stop_of_each_class_in_each_round,
    an_early_stop,
    as_likely_as_its_weight,
    enough_cases,
    enough_cases_of_the_stratum,
    every_order,
    given_its_stratum,
    given_those_set_aside,
)
from laws.populations import Population, draw, draw_groups_in_strata, draw_sites
from laws.trials import bound, given, in_all_rounds, joint_bound, stopped
from taskuq import Interval

cases = partial(draw, units=(4, 10))
groups = partial(draw, units=(4, 8), largest=5)
large_groups = partial(draw, units=(5, 5), smallest=10, largest=14)
scans = partial(draw, units=(4, 8), rounds=3)
group_scans = partial(draw, units=(4, 7), largest=4, rounds=3)
# Units enough for a shift of the centre.
shifted_cases = partial(draw, units=(9, 12))
shifted_groups = partial(draw, units=(9, 11), largest=4)
shifted_scans = partial(draw, units=(9, 11), rounds=2)
shifted_group_scans = partial(draw, units=(9, 10), largest=3, rounds=2)
few_group_scans = partial(draw, units=(5, 5), largest=6, rounds=2)


def later(seed: int, first: int, **how: Any) -> Population:
    """Draw populations from another first seed."""
    return draw(first + seed, **how)


class OwnScore:
    """A user's own score: distance from the mean, in units of the range of the samples."""

    def score(self, outputs: Any, targets: Any) -> Any:
        return np.abs(targets - outputs.mean(axis=1)) / (1 + np.ptp(outputs, axis=1))

    def interval(self, outputs: Any, quantile: Any) -> Interval:
        center, reach = outputs.mean(axis=1), quantile * (1 + np.ptp(outputs, axis=1))
        return Interval(center - reach, center + reach)


BOUNDS = [
    *(
        Law(f"a new case, {score}", 20, cases, partial(bound, score=score))
        for score in ("ar", "lwr", "cqr", "mlwr")
    ),
    *(
        Law(f"a new case, {score}, {side}", 10, cases, partial(bound, score=score, side=side))
        for score in ("lwr", "mlwr")
        for side in ("upper", "lower", "each")
    ),
    Law(
        "a new case under a shift", 25, cases, partial(bound, score="ar", weights=True),
        as_likely_as_its_weight,
    ),
]  # fmt: skip

GROUPS = [
    *(
        Law(
            f"a random case of a new group, {score}", 25, groups,
            partial(bound, score=score, by_group=True),
        )
        for score in ("ar", "lwr", "mlwr")
    ),
    *(
        Law(
            f"{share} of the cases of a new group{end}", 20, groups,
            partial(bound, score="ar", by_group=True, cases=share, side=side), enough_cases(share),
        )
        for share in ("all", 0.6)
        for side, end in (("two", ""), ("each", ", each end"))
    ),
    *(
        Law(
            f"a random case of a new group, {score}, each end", 10, groups,
            partial(bound, score=score, by_group=True, side="each"),
        )
        for score in ("ar", "mlwr")
    ),
]  # fmt: skip

CONDITIONS = {"stratum": {"strata": True}, "class": {"label": True}}
STRATA = [
    *(
        Law(
            f"a new case in each of {count} strata", 15,
            partial(draw, units=(8, 20), strata=count),
            partial(bound, score="ar", strata=True), given_its_stratum,
        )
        for count in (2, 3, 10)
    ),
    Law(
        "a new case of each class", 20, partial(draw, units=(8, 16), strata=3),
        partial(bound, score="ar", label=True), given_its_stratum, fewest=2,
    ),
    *(
        Law(
            f"{what} {kind}, {score}", 15, partial(draw, units=(5, 10), largest=6, strata=2),
            partial(bound, score=score, by_group=True, **how, **asked), losses,
            fewest=1 if kind == "stratum" else 2,
        )
        for kind, how in CONDITIONS.items()
        for score in ("ar", "mlwr")
        for what, asked, losses in (
            ("a random case of a new group, given its", {}, given_its_stratum),
            ("a case of a new group that has some of the", {"condition_on": "group"},
             a_case_of_the_stratum),
            ("all cases of a new group in the", {"cases": "all"},
             enough_cases_of_the_stratum("all")),
            ("0.6 of the cases of a new group in the", {"cases": 0.6},
             enough_cases_of_the_stratum(0.6)),
        )
    ),
    *(
        Law(
            f"a random case of a new group in each of 10 {reading}", 12,
            partial(draw, units=(6, 12), largest=8, strata=10),
            partial(bound, score="ar", by_group=True, strata=True, condition_on=on), losses,
        )
        for reading, on, losses in (
            ("strata it may fall in", "case", given_its_stratum),
            ("strata it may have", "group", a_case_of_the_stratum),
        )
    ),
    *(
        Law(
            f"a random case of a new group, given its {kind}, each end", 20,
            partial(draw, units=(6, 10), largest=6, strata=2),
            partial(bound, score="ar", by_group=True, side="each", **how), given_its_stratum,
            fewest=1 if kind == "stratum" else 2,
        )
        for kind, how in CONDITIONS.items()
    ),
]  # fmt: skip

JOINT = [
    Law(
        f"all tasks of a new case, scale, {score}", 15, partial(draw, units=(5, 10), tasks=2),
        partial(joint_bound, score=score, method="scale"),
    )
    for score in ("lwr", "mlwr")
] + [
    Law(
        f"all tasks of {what}, scale, {score}, {side}", 8, of,
        partial(joint_bound, score=score, method="scale", by_group=what != "a new case",
                side=side),
    )
    for what, of in (
        ("a new case", partial(draw, units=(9, 11), tasks=2)),
        # In one of these, no score of a task is positive.
        ("a random case of a new group",
         partial(later, first=324, units=(9, 10), largest=4, tasks=2)),
    )
    for score, side in (("mlwr", "two"), ("mlwr", "upper"), ("cqr", "two"))
] + [
    Law(
        "all tasks of a random case of a new group", 15,
        partial(draw, units=(4, 8), largest=4, tasks=2),
        partial(joint_bound, score="ar", method="scale", by_group=True),
    ),
]  # fmt: skip

SET_ASIDE = [
    # In every order of the units, whichever are set aside.
    Law(
        "all tasks of a random case of a new group, minimax, in every order", 3,
        partial(later, first=11, units=(5, 5), largest=6, tasks=2),
        partial(joint_bound, score="ar", method="minimax", by_group=True),
        enumerate=every_order, alphas=(0.5, 0.4, 0.34),
    ),
    Law(
        "the report at the stop, two phases, by group, in every order", 2, few_group_scans,
        partial(stopped, by="group", budget=0.5, max_width=0.2), enumerate=every_order,
        alphas=(0.5, 0.4),
    ),
    # Given the units set aside.
    *(
        Law(
            f"all tasks of a random case of a new group, minimax, {score}", 5,
            partial(draw, units=(7, 9), largest=6, tasks=2),
            partial(joint_bound, score=score, method="minimax", by_group=True),
            enumerate=given_those_set_aside,
        )
        for score in ("ar", "mlwr")
    ),
    # Many cases in few groups: a rule about shares of cases would follow the sizes of groups here.
    Law(
        "all tasks of a random case of a new large group", 4,
        partial(draw, units=(11, 12), smallest=2, largest=60, tasks=2, samples=3),
        partial(joint_bound, score="mlwr", method="minimax", by_group=True),
        enumerate=given_those_set_aside, alphas=(0.2, 0.3, 0.5),
    ),
    Law(
        "a random case of a new group, learned", 4, large_groups,
        partial(bound, score="learned", by_group=True), enumerate=given_those_set_aside,
    ),
    *(
        Law(
            f"the report at the stop, two phases, by {by}", 4,
            partial(draw, units=(7, 9), largest=5, rounds=2),
            partial(stopped, by=by, budget=0.5, max_width=0.2), enumerate=given_those_set_aside,
        )
        for by in ("group", "whole-group")
    ),
    Law(
        "the report at the stop, learned, by group", 3, partial(large_groups, rounds=2),
        partial(stopped, by="group", statistic="learned", max_width=0.2),
        enumerate=given_those_set_aside,
    ),
]  # fmt: skip

CHOICES = ("fixed-width:spread", "adaptive:lwr", "adaptive:mlwr")
CHOSEN = [
    Law(
        f"the report at the stop of the best of three policies, by {by}", 1,
        partial(draw, units=(8, 9), largest=4, rounds=2),
        partial(stopped, by=by, choose=CHOICES, max_width=0.3),
        enumerate=given_those_set_aside,
    )
    for by in ("group", "whole-group")
]  # fmt: skip

STOPPED = [
    *(
        Law(
            f"the report at the stop, {policy} {score or 'mlwr'}, by {by}", 16,
            scans if by == "case" else group_scans,
            partial(stopped, policy=policy, score=score, by=by),
        )
        for policy, score in (
            ("fixed-width", None), ("adaptive", "lwr"), ("adaptive", "mlwr")
        )
        for by in ("case", "group", "whole-group")
    ),
    Law(
        "the report at the stop, an own score", 10, scans,
        partial(stopped, by="case", policy="adaptive", score=OwnScore()),
    ),
    Law(
        "the intervals of all rounds, an own score", 10, scans,
        partial(in_all_rounds, by="case", score=OwnScore()),
    ),
    *(
        Law(
            f"the report at the stop, adaptive cqr, by {by}", 10,
            scans if by == "case" else group_scans,
            partial(stopped, policy="adaptive", score="cqr", by=by),
        )
        for by in ("case", "group")
    ),
    *(
        Law(
            f"the report at the stop for {share} of a group, {by}", 10, group_scans,
            partial(stopped, policy="fixed-width", by=by, cases=share), enough_cases(share),
        )
        for share in ("all", 0.6)
        for by in ("group", "whole-group")
    ),
    *(
        Law(
            f"the intervals of all rounds, {score}, by {by}", 10,
            scans if by == "case" else group_scans, partial(in_all_rounds, score=score, by=by),
        )
        for score in ("lwr", "mlwr")
        for by in ("case", "group")
    ),
]  # fmt: skip

SHIFTED = [
    *(
        Law(
            f"{what}, shifted, {side}", 8, of,
            partial(bound, score="mlwr", side=side, by_group=what != "a new case"),
        )
        for what, of in (
            ("a new case", shifted_cases), ("a random case of a new group", shifted_groups)
        )
        for side in ("two", "upper", "each")
    ),
    *(
        Law(
            f"the report at the stop, shifted, {name}, by {by}", 5,
            shifted_scans if by == "case" else shifted_group_scans, partial(stopped, by=by, **how),
        )
        for name, how in (
            ("window", {"max_width": 0.1}),
            ("interval", {"policy": "adaptive", "max_width": 0.5}),
            ("level", {"max_width": None, "at_most": 0.6}),
        )
        for by in ("case", "group", "whole-group")
    ),
    Law(
        "the intervals of all rounds, shifted", 6, shifted_scans,
        partial(in_all_rounds, score="mlwr", by="case"),
    ),
]  # fmt: skip

OF_CLASS = partial(stopped, within="label")
IN_STRATUM = partial(stopped, within="strata")
class_scans = partial(draw, units=(6, 12), rounds=3)
class_groups = partial(draw, units=(5, 9), largest=5, rounds=3)
# A random case given its class; a case of the class in a group that has it; enough of those.
READINGS = (
    ("a case, given its", {}, given_its_stratum),
    ("a case of a group that has some of the", {"condition_on": "group"}, a_case_of_the_stratum),
    ("all cases of a group in the", {"cases": "all"}, enough_cases_of_the_stratum("all")),
    ("0.6 of the cases of a group in the", {"cases": 0.6}, enough_cases_of_the_stratum(0.6)),
)
STOPPED_WITHIN = [
    *(
        Law(
            f"the report at the stop, {policy} {score}, in each {kind}", 12, class_scans,
            partial(trial, by="case", policy=policy, **({} if score == "-" else {"score": score})),
            given_its_stratum, fewest=fewest,
        )
        for policy, score in (("fixed-width", "-"), ("adaptive", "lwr"), ("adaptive", "cqr"))
        for kind, trial, fewest in (("class", OF_CLASS, 2), ("stratum", IN_STRATUM, 1))
    ),
    *(
        Law(
            f"the report at the stop, {policy}, {what} class, by {by}", 8, class_groups,
            partial(OF_CLASS, by=by, policy=policy, **asked), losses, fewest=2,
        )
        for by in ("group", "whole-group")
        for policy in ("fixed-width", "adaptive")
        for what, asked, losses in READINGS[by != "group":]
    ),
    Law(
        "the report at the stop, fixed-width, a case, given its class, by whole-group", 12,
        class_groups, partial(OF_CLASS, by="whole-group", condition_on="case"), given_its_stratum,
        fewest=2,
    ),
    Law(
        "the report at the stop, fixed-width, in each stratum, by group", 12, class_groups,
        partial(IN_STRATUM, by="group"), given_its_stratum,
    ),
    Law(
        "the report at the stop, fixed-width, in each stratum, by whole-group", 12,
        partial(draw_groups_in_strata, units=(6, 10), largest=4, rounds=3),
        partial(IN_STRATUM, by="whole-group"), a_case_of_the_stratum,
    ),
    *(
        Law(
            f"the intervals of all rounds in each class, by {by}", 10,
            class_scans if by == "case" else class_groups,
            partial(in_all_rounds, score="lwr", by=by, within="label"), given_its_stratum, fewest=2,
        )
        for by in ("case", "group")
    ),
]  # fmt: skip

# Units enough for a shift that the classes share, or nearly so.
SHIFTED_WITHIN = [
    Law(
        f"the report at the stop, shifted, {name}, in each class, by {by}", 4,
        partial(later, first=4, units=(15, 19) if by == "case" else (10, 16), rounds=2,
                largest=1 if by == "case" else 3),
        partial(OF_CLASS, by=by, **how), given_its_stratum, fewest=2,
    )
    for name, how in (
        ("window", {"max_width": 0.1}), ("interval", {"policy": "adaptive", "max_width": 0.5})
    )
    for by in ("case", "group")
]  # fmt: skip

site_scans = partial(draw_sites, units=(4, 7), rounds=2)
SITES = [
    *(
        Law(
            f"a random case of a random patient of a new site, {score}", 12, site_scans,
            partial(bound, score=score, by_site=True), a_case_of_a_patient,
        )
        for score in ("ar", "mlwr")
    ),
    *(
        Law(
            f"the report at the stop, {policy}, at a new site", 12, site_scans,
            partial(stopped, by="site", policy=policy, **options), a_case_of_a_patient,
        )
        for policy, options in (("fixed-width", {}), ("adaptive", {"score": "lwr"}))
    ),
]  # fmt: skip

GIVEN = [
    GivenLaw(
        "a new case, given the calibration set", 3, partial(draw, units=(3, 3)),
        given(partial(bound, score="ar")), by_place=False,
    ),
    *(
        GivenLaw(
            f"{share} of a new group, given the calibration set", 3,
            partial(draw, units=(3, 3), largest=4),
            given(partial(bound, score="ar", by_group=True, cases=share)),
            enough_cases(share) if share != "random" else a_random_case,
            by_place=share == "random",
        )
        for share in ("random", "all")
    ),
    GivenLaw(
        "the strata of a new case, each given the calibration set", 3,
        partial(draw, units=(3, 3), strata=2), given(partial(bound, score="ar", strata=True)),
        given_its_stratum, by_place=False,
    ),
    GivenLaw(
        "the strata of a new case, all given the calibration set", 3,
        partial(draw, units=(3, 3), strata=2),
        given(partial(bound, score="ar", strata=True, delta_scope="all")), given_its_stratum,
        together=True, by_place=False,
    ),
    *(
        GivenLaw(
            f"a random case of a new group, given the {kind} and the calibration set", 3,
            partial(draw, units=(3, 3), largest=4, strata=2),
            given(partial(bound, score="ar", by_group=True, **how)), given_its_stratum,
            together=kind == "class", seen=kind == "class",
        )
        for kind, how in CONDITIONS.items()
    ),
    *(
        GivenLaw(
            f"the report at the stop by {by}, given the calibration set", 2,
            partial(draw, units=(3, 3), rounds=2, largest=1 if by == "case" else 3),
            given(partial(stopped, by=by, max_width=0.1)), levels=((0.3, 0.5), (0.5, 0.3)),
            by_place=by != "case",
        )
        for by in ("case", "group", "whole-group")
    ),
    GivenLaw(
        "the report at the stop of each class, given the calibration set", 1,
        partial(later, first=3, units=(3, 3), rounds=2),
        given(partial(OF_CLASS, by="case", max_width=0.1)), given_its_stratum,
        levels=((0.5, 0.3),), together=True, seen=True, by_place=False,
    ),
    # Ten units are the fewest of which one is set aside for the thresholds to test.
    GivenLaw(
        "an early stop by case, given the calibration set", 1,
        partial(later, first=3, units=(2, 2), rounds=2),
        given(partial(stopped, by="case", given="early", max_width=0.2)),
        an_early_stop, size=10, levels=((0.4, 0.3),),
        aside=(0,),
    ),
    *(
        GivenLaw(
            f"an early stop by {by}, given the calibration set", 1,
            partial(later, first=3, units=(2, 2), rounds=2, largest=3),
            given(partial(stopped, by=by, given="early", max_width=0.3)),
            an_early_stop, size=10, levels=((0.4, 0.3),),
        )
        for by in ("group", "whole-group")
    ),
]  # fmt: skip

# Tests of every round leave little of delta.
EACH_ROUND = GivenLaw(
    "a stop in each round, given the calibration set", 5,
    partial(draw, units=(2, 2), rounds=2),
    given(partial(stopped, by="case", given="round", max_width=0.2)),
    a_stop_in_each_round, size=10, levels=((0.4, 0.3),), together=True, aside=(0, 1, 2),
)  # fmt: skip

EACH_ROUND_OF_CLASS = GivenLaw(
    "a stop of each class in each round, given the calibration set", 2,
    partial(later, first=3, units=(2, 2), rounds=2),
    given(partial(OF_CLASS, by="case", given="round", max_width=0.2)),
    a_stop_of_each_class_in_each_round, size=13, levels=((0.6, 0.4),), together=True, seen=True,
    aside=(0, 1),
)  # fmt: skip

LAWS = [
    *BOUNDS, *GROUPS, *STRATA, *JOINT, *SET_ASIDE, *CHOSEN, *STOPPED, *STOPPED_WITHIN,
    *SHIFTED_WITHIN, *SITES, *SHIFTED, *GIVEN,
]  # fmt: skip
