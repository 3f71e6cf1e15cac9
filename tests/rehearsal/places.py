"""Where the tests of the rehearsal find what the repository ships."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs/fastmri-knee"
