r"""Put trained networks into the package, with cards; and everything of the embedded experiment.

    python -m scripts.shipping flow best.safetensors                 # into the package, in float16
    python -m scripts.shipping sampler best.safetensors FILE.safetensors        # or anywhere else
    python -m scripts.shipping embedded WORK                         # what a programme trained

WORK is the folder into which the archives of scripts/programme/embedded.toml were unpacked. The
last command puts what was trained there for the atlas into the package, each network with a card,
then the stored tables, learning curves and quality, draws their figures, and puts the tables of
samplers and of any head into docs/recovery.md, and those of the demo into docs/paper.md. Networks
that were not trained anew, and figures that were not measured, stay as they are.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import taskuq.weights
from taskuq.settings import read_toml
from taskuq.training.folder import FINISHED
from taskuq.training.networks import NETWORKS
from taskuq.weights.files import save_weights

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(taskuq.weights.__file__).parent
# Around whose estimates a shipped network draws, where that is not the atlas's.
ESTIMATES = {"views-sampler": "unrolled-chest"}
# Which training of a programme becomes the network of that kind.
TRAINED = {"varnet": "atlas-varnet", "flow": "atlas-flow", "sampler": "atlas-sampler-task"}
WHAT = {
    "varnet": "A variational network for 128×128 slices of heads, trained on the embedded atlas.",
    "flow": "Posterior samples for 128×128 slices of the embedded atlas, drawn by a flow around "
    "the\nestimates of `varnet-atlas`.",
    "sampler": "Posterior samples for 128×128 slices of heads around the estimates of "
    "`varnet-atlas`,\none evaluation each, trained by proper scores on the embedded atlas.",
}


def install(kind: str, best: Path, target: Path | None = None) -> Path:
    """Put a trained network of the atlas into the package, under its name there, or elsewhere."""
    target = target or PACKAGE / f"{kind}-atlas.safetensors"
    card = read_toml(best.with_suffix(".toml"))
    net: Any = NETWORKS[kind].load(best, card["network"])
    notes = {k: v for k, v in card.items() if k not in ("kind", "network")}
    if "estimate" in notes:
        # A table where a network says more about its estimates than whose they are.
        whose = ESTIMATES.get(kind, "varnet-atlas")
        notes["estimate"] = {"weights": whose} if isinstance(notes["estimate"], dict) else whose
    return save_weights(net, target, kind=kind, config=net.config, notes=notes, half=True)


def card_of(kind: str, weights: Path, training: Path) -> str:
    """The card of a shipped network, from what its training left.

    Arguments:
        kind: What it is.
        weights: The weights in the package.
        training: The folder of its training.
    """
    table = read_toml(weights.with_suffix(".toml"))
    net: Any = NETWORKS[kind].load(weights, table["network"])
    number = sum(p.numel() for p in net.parameters()) / 1e6
    data, reached = table["data"], table["reached"]
    with (training / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    seconds = sum(float(row["seconds"]) for row in rows)
    value = ", ".join(f"{key} {found:.4g}" for key, found in reached.items() if key != "epoch")
    lines = {
        "network": f"{number:.1f} million parameters; float16, "
        f"{weights.stat().st_size / 1e6:.1f} MB",
        "data": f"atlas, seed {data['seed']}, {data['patients']} patients",
        "training": f"{len(rows)} epochs, {float(rows[-1]['step']):.0f} steps of "
        f"{table['training']['batch']} slices"
        + (f", from `{table['start']}` as it was before" if "start" in table else ""),
        "command": f"`taskuq train {kind} configs/atlas/{config_of(kind)}.toml`, as a job of "
        "`scripts/programme`",
        "time": f"{seconds:.0f} s of epochs on one GPU that other trainings shared",
        "weights kept": f"epoch {reached['epoch'] + 1}, the best on validation patients ({value})",
    }
    if kind == "sampler" and "loudness" not in table:
        lines["widening"] = "no factors: the training was stopped by its limit, in its last epochs"
    body = "\n".join(f"| {key} | {words} |" for key, words in lines.items())
    return (
        f"# {weights.stem}\n\n{WHAT[kind]} For demonstrations and tests; the atlas is synthetic, "
        f"and nothing\nhere says anything about patients.\n\n| | |\n|---|---|\n{body}\n\n"
        "Image quality on patients whom no network has seen (`taskuq quality "
        "configs/atlas/quality.toml`) is in\ndocs/recovery.md.\n"
    )


def config_of(kind: str) -> str:
    """The name of a kind's configuration in configs/atlas."""
    return TRAINED[kind].removeprefix("atlas-")


def embedded(work: Path, root: Path = ROOT, package: Path = PACKAGE) -> list[Path]:
    """Put everything of the embedded experiment that a programme left where it belongs.

    Arguments:
        work: The folder that its archives were unpacked into.
        root: The repository.
        package: The folder of shipped weights.
    """
    done = []
    for kind, name in TRAINED.items():
        training = work / "runs" / name
        if not (training / "best.safetensors").exists():
            continue
        if not (training / FINISHED).exists():
            print(f"{name} was stopped before its end, and knows no factors of widening")
        path = install(kind, training / "best.safetensors", package / f"{kind}-atlas.safetensors")
        path.with_suffix(".md").write_text(card_of(kind, path, training), encoding="utf-8")
        shutil.copy(training / "metrics.csv", root / "docs" / "curves" / f"{kind}-atlas.csv")
        done.append(path)
    quality = work / "quality-atlas.json"
    stored = package.parent / "runs" / "stored"
    targets = (root / "docs/curves/quality.json", stored / "atlas-quality.json")
    for target in targets if quality.exists() else ():
        shutil.copy(quality, target)
        done.append(target)
    return done


def after(work: Path) -> list[list[str]]:
    """What is made of it by commands of this repository; of what was not reached, nothing."""
    tables, page = work / "tables", "docs/recovery.md"
    atlas, any_head = tables / "atlas", work / "any-head.json"
    whole = {"sampler": "cost.json", "varnet": "lesion.npz"}
    stored = [name for name, file in whole.items() if (atlas / name / file).exists()]
    # Samplers are compared with the flow; where it was not drawn, with one without task terms.
    drawn = [name for name in ("flow", "without") if (atlas / name / "cost.json").exists()]
    judged = ["scripts.samplers", "judge", "--into", page]
    made = [
        (stored, ["scripts.tables", "install", str(atlas), *stored]),
        (True, ["scripts.atlas_figures"]),
        ((tables / "lgg/flow/adversarial").exists(),
         [*judged, f"{tables}/lgg", "--reference", "flow", "--aims", "configs/lgg/aims.toml",
          "-o", "docs/curves/samplers-lgg.json"]),
        (drawn,
         [*judged, str(atlas), "--reference", *drawn[:1], "--aims", "configs/atlas/aims.toml",
          "-o", "docs/curves/samplers-atlas.json", "--place", "samplers of the atlas"]),
        ((tables / "unlike/ensemble/cost.json").exists(),
         [*judged, f"{tables}/unlike", "--reference", "one", "--tasks", "adversarial",
          "--place", "ensembles"]),
        (any_head.exists(), ["scripts.any_head", "--from", str(any_head), "--into", page]),
        (True, ["taskuq.commands.app", "demo", "-o", "runs/demo"]),
        (True, ["scripts.paper", "runs/demo", "--into", "docs/paper.md", "--as", "atlas"]),
    ]  # fmt: skip
    return [words for is_there, words in made if is_there]


def main(given: list[str]) -> None:
    if given[:1] != ["embedded"]:
        print(install(given[0], *map(Path, given[1:])))
        return
    work = Path(given[1]).resolve()
    for path in embedded(work):
        print(path)
    for words in after(work):
        print("$ python -m", *words, flush=True)
        subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=True)
    status = json.loads((work / "status.json").read_text())["jobs"]
    print("not done:", ", ".join(k for k, v in status.items() if v["state"] != "done") or "nothing")


if __name__ == "__main__":
    main(sys.argv[1:])
