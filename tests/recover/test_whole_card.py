"""What the documentation says of the flow of whole images is what its record holds."""

from __future__ import annotations

import pytest
from scripts.whole_flow import CURVES, DOCS, learning, results, table

GAINS = {16: 4, 8: 6, 4: 6, 2: 6}


def test_the_table_of_the_documentation_is_the_records():
    text = (DOCS / "recovery.md").read_text()
    assert "\n".join(table()) in text


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
