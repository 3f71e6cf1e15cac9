"""taskuq quality: the paper's table of image quality."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from taskuq.commands.terminal import say, show

TABLES = (
    "A TOML file with the tables data and measure, and the weights varnet, flow, recoveries and "
    "features."
)


def quality(
    config: Annotated[Path, Parameter(help=TABLES)],
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("quality.json"),
) -> None:
    """Judge recovery networks: PSNR and SSIM of whole volumes, and FID, at each acceleration.

    Arguments:
        config: What to judge.
        output: The JSON record to write.
    """
    from taskuq.files import write_json
    from taskuq.runs.quality import QualityConfig, judge
    from taskuq.settings import read_settings

    record = judge(read_settings(QualityConfig, config), tell=say)
    for line in table(record):
        say(line)
    show(str(write_json(output, record)))


def table(record: dict[str, Any]) -> list[str]:
    r"""The record as lines of text, one for each acceleration and method.

    Arguments:
        record: What :func:`taskuq.runs.quality.judge` returns.

    Example:
        >>> row = {"acceleration": 4.0, "method": "flow", "psnr": {"mean": 37.974,
        ...        "standard_error": 0.216}, "ssim": {"mean": 0.926, "standard_error": 0.003}}
        >>> print("\n".join(table({"results": [row]})))
          R method           PSNR             SSIM          FID
          4 flow        37.97 ± 0.22     0.926 ± 0.003    -
    """
    lines = ["  R method           PSNR             SSIM          FID"]
    for row in record["results"]:
        psnr, ssim = (_with_error(row[name], digits) for name, digits in (("psnr", 2), ("ssim", 3)))
        fid = f"{row['fid']:.3f}" if "fid" in row else "-"
        lines.append(f"{row['acceleration']:3g} {row['method']:11s} {psnr:16s} {ssim:16s} {fid}")
    return lines


def _with_error(value: dict[str, float | None], digits: int) -> str:
    mean, error = value["mean"], value["standard_error"]
    tail = "" if error is None else f" ± {error:.{digits}f}"
    return "-" if mean is None else f"{mean:.{digits}f}{tail}"
