"""What the documentation says of the flow of whole images is what its record holds."""

from __future__ import annotations

import pytest
from scripts.whole_flow import CURVES, DOCS, beside, learning, results, table

GAINS = {16: 4, 8: 6, 4: 6, 2: 6}


@pytest.mark.parametrize("of", [table, beside])
def test_tables_of_the_documentation_are_the_records(of):
    text = (DOCS / "recovery.md").read_text()
    assert "\n".join(of()) in text


@pytest.mark.parametrize("rate", GAINS)
def test_the_flow_has_learned(rate):
    """Gains in dB over zero-filling, samples as wide as their errors, 1 in 1000 drawn again."""
    zero, flow = (results()[rate, name] for name in ("zero-filled", "flow"))
    assert flow["volumes"] == 32
    assert flow["psnr"]["mean"] - zero["psnr"]["mean"] > GAINS[rate]
    assert 0.7 < flow["spread_error_ratio"] < 1.3
    assert flow["rejected"] / (644 * 32) < 1e-3


@pytest.mark.parametrize("name", CURVES)
def test_validation_falls_with_training(name):
    training, validation = learning(name).series
    for series in (training, validation):
        assert series.y[-1] < series.y[len(series.y) // 2] < series.y[0]
