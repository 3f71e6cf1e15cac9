"""What the paper's experiment on fastMRI costs: GPU hours and disk, from measured rates.

Nothing runs here but arithmetic. Rates are those of docs/performance.md and docs/pipeline.md (one
H200) and of ``python -m benchmarks reading``; where only a forward pass was measured, a training
pass counts as three.
"""

from __future__ import annotations

from dataclasses import dataclass

# The paper's counts.
TRAINING_VOLUMES, TRAINING_SLICES = 484, 17286
JUDGED_VOLUMES, JUDGED_SLICES = 100, 2188
ROUNDS = 4
# Shares of the training volumes that learn: configs/fastmri-knee.
RECOVERY_SHARE, TASK_SHARE = 0.95, 0.9

# Milliseconds for one slice, measured on one H200.
FLOW_STEP = 195.4 / 8  # training step, batch 8, bf16, compiled condition
VARNET_FORWARD = 8.30  # batch of 16, float32
RESNET_FORWARD = 9.7 / 32  # plain ResNet-50, float32; ours, folded, takes 3.13 / 32
FLOW_PIPELINE = 31.04  # pipeline, 32 samples, batches of 16, one round
TRAINING_PASS = 3  # a backward pass takes about two forward passes
ATTACK_STEPS = 10

# What a slice needs on disk: 15 coils, 640×368, complex64; and once prepared, 8 coils, 320×320.
RAW_SLICE = 15 * 640 * 368 * 8
VIRTUAL_SLICE, MAGNITUDE_SLICE = 8 * 320 * 320 * 8, 320 * 320 * 4
RECIPE_VOLUME = 15 * 8 * 8 * TRAINING_SLICES / TRAINING_VOLUMES
FOLDERS = {"train": 973, "validation": 199}  # volumes of both acquisitions in the download
FLOW_PARAMETERS = 507.0e6
# Slices per second that one worker reads from the page cache, transforms, crops and compresses.
READER = 33.5


@dataclass(frozen=True)
class Work:
    """One step of the recipe.

    Arguments:
        name: What it is.
        slices: Slices it goes through, over all epochs and rounds.
        milliseconds: Time for each on the GPU.
        rate: Where that comes from.
        reads: Slices it reads from k-space files.
    """

    name: str
    slices: float
    milliseconds: float
    rate: str
    reads: float

    @property
    def hours(self) -> float:
        """GPU hours."""
        return self.slices * self.milliseconds / 3.6e6

    @property
    def reading(self) -> float:
        """Gigabytes of k-space in a second that keep the GPU busy."""
        return self.reads * RAW_SLICE / 1e9 / (self.hours * 3600)


def steps() -> list[Work]:
    """The steps of docs/fastmri.md that need a GPU."""
    recovered, learned = TRAINING_SLICES * RECOVERY_SHARE, TRAINING_SLICES * TASK_SHARE
    resnet_pass = TRAINING_PASS * RESNET_FORWARD
    attacked = (ATTACK_STEPS + 1) * resnet_pass
    varnet = TRAINING_PASS * VARNET_FORWARD
    judged = ROUNDS * JUDGED_SLICES
    once = TRAINING_SLICES
    return [
        Work("train varnet, 50 epochs", 50 * recovered, varnet, "3 forward passes", 50 * recovered),
        Work("train flow, 150 epochs", 150 * recovered, FLOW_STEP, "measured", 150 * recovered),
        Work("train simclr, 500 epochs", 500 * learned, 2 * resnet_pass, "2 × 3 passes", once),
        Work("train classifier, 100 epochs", 100 * learned, attacked, "11 × 3 passes", once),
        Work("run, flow, 4 rounds", judged, FLOW_PIPELINE, "measured", JUDGED_SLICES),
        Work("run, varnet, 4 rounds", judged, VARNET_FORWARD + RESNET_FORWARD, "measured",
             JUDGED_SLICES),
        Work("quality, both networks, without FID", judged, FLOW_PIPELINE + VARNET_FORWARD,
             "as the runs", ROUNDS * 3 * JUDGED_SLICES),
    ]  # fmt: skip


def main() -> None:
    print("GPU hours on one H200\n")
    print(f"{'step':<38}{'slices':>10}{'ms each':>9}{'hours':>8}{'GB/s':>7}  from")
    for step in steps():
        print(f"{step.name:<38}{step.slices:>10.3g}{step.milliseconds:>9.2f}{step.hours:>8.2f}"
              f"{step.reading:>7.2f}  {step.rate}")  # fmt: skip
    print(f"{'all':<38}{'':>19}{sum(step.hours for step in steps()):>8.2f}")
    fastest = 1000 / FLOW_STEP
    print(f"\nThe flow learns from {fastest:.0f} slices a second; a worker reads {READER:.0f}.")
    print("GB/s is k-space that has to arrive from disk to keep the GPU busy.")
    print("\nDisk and memory, GB\n")
    for name, size in disk():
        print(f"{name:<58}{size:>10.4g}")


def disk() -> list[tuple[str, float]]:
    """What lies on disk, and what two options take in memory, in gigabytes."""
    per_volume = TRAINING_SLICES / TRAINING_VOLUMES
    used = (TRAINING_VOLUMES + JUDGED_VOLUMES) * RECIPE_VOLUME
    table = 4.2 * ROUNDS * JUDGED_SLICES * (32 + 1)
    return [
        *((f"{name} folder, {count} volumes, unpacked", count * per_volume * RAW_SLICE / 1e9)
          for name, count in FOLDERS.items()),
        ("of that used: 484 and 100 volumes of CORPD_FBK",
         (TRAINING_VOLUMES + JUDGED_VOLUMES) * per_volume * RAW_SLICE / 1e9),
        ("cache: virtual coils and scales", used / 1e9),
        ("flow: best, last and the state of Adam", 5 * 4 * FLOW_PARAMETERS / 1e9),
        ("both tables", table / 1e9),
        ("memory, in_memory of the classifier", TRAINING_SLICES * MAGNITUDE_SLICE / 1e9),
        ("memory, in_memory of flow or varnet", TRAINING_SLICES * VIRTUAL_SLICE / 1e9),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
