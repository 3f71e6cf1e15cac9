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
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    slurm: Annotated[list[str] | None, Parameter(name="--slurm", negative=())] = None,
    device: str | None = None,
    threads: int | None = None,
) -> None:
    """Judge recovery networks: PSNR and SSIM of whole volumes, and FID, at each acceleration.

    What is judged is kept beside the output until all is; started again after a stop, it goes on.

    Arguments:
        config: What to judge.
        output: The JSON record to write.
        engine: This process (local), a Ray cluster (ray), SLURM jobs (slurm), or one of your own.
        address: Of a running Ray cluster, host:port; a local one is started without it. With
            slurm, 'local' runs the jobs on this machine.
        workers: How many Ray workers, or SLURM jobs, share the volumes.
        slurm: What SLURM is asked for, as submitit names it, e.g. slurm_partition=gpu; repeatable.
            Jobs get a GPU (gpus_per_node=1) and four hours (timeout_min=240) by default.
        device: Where networks run: cpu, cuda, mps; the best there is by default.
        threads: Threads of each worker on a CPU; with equal threads all bits are equal.
    """
    from taskuq.files import write_json
    from taskuq.pipeline.engines import ENGINES, Flags
    from taskuq.runs.quality import QualityConfig, judge
    from taskuq.settings import read_settings

    settings = read_settings(QualityConfig, config)
    chosen = ENGINES[engine].from_flags(Flags(address, workers, tuple(slurm or ()), device))
    store = output.with_name(f"{output.stem}-pieces")
    record = judge(settings, store=store, engine=chosen, device=device, threads=threads)
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
