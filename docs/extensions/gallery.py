"""Gallery of figures, drawn by scripts while the site is built.

The docstring of a script in ``docs/gallery`` has a title and a description; the script writes an
SVG file of its own name to the working directory.
"""

import ast
import contextlib
import runpy
from pathlib import Path

GALLERY = Path(__file__).resolve().parents[1] / "gallery"


def scripts() -> list[Path]:
    return sorted(GALLERY.glob("*.py"))


def draw(folder: Path) -> None:
    """Run every script in a folder; each must write its figure there."""
    import matplotlib as mpl
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    # No dates and no random names: the same numbers make the same file.
    with contextlib.chdir(folder), mpl.rc_context({"svg.hashsalt": "taskuq"}):
        for script in scripts():
            runpy.run_path(str(script), run_name="__main__")
            pyplot.close("all")
            if not Path(f"{script.stem}.svg").exists():
                raise FileNotFoundError(f"{script.name} draws no {script.stem}.svg")


def section(script: Path) -> str:
    """Return the section of a script: title, figure, description and code."""
    title, _, about = (ast.get_docstring(ast.parse(script.read_text())) or "").partition("\n\n")
    return f"""({script.stem}-picture)=
## {title}

![{title}](gallery/{script.stem}.svg)

{about}

:::{{admonition}} The code that draws it
:class: dropdown code
```{{literalinclude}} ../gallery/{script.name}
:language: python
:start-at: import
```
:::
"""


def write_page(app):
    made = Path(app.srcdir) / "_made"
    draw(made / "gallery")
    text = "# Gallery\n\nFigures that taskuq draws, each with the code that draws it.\n\n"
    page = made / "gallery.md"
    page.write_text(text + "\n".join(section(script) for script in scripts()))


def setup(app):
    app.connect("builder-inited", write_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
