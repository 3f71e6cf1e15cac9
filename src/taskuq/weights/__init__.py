"""Small trained networks that travel with the package, each with a card."""

from __future__ import annotations

from pathlib import Path

from taskuq.errors import InputError

FOLDER = Path(__file__).parent


def shipped() -> list[str]:
    """Return the names of the networks in the package.

    Example:
        >>> "classifier-atlas" in shipped()
        True
    """
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def locate(weights: Path | str) -> Path:
    """Return the file of a network: a path as it is, or a name of the package's own.

    Arguments:
        weights: A .safetensors file, or one of :func:`shipped`.

    Example:
        >>> locate("classifier-atlas").name
        'classifier-atlas.safetensors'
        >>> locate("classifier-moon")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        taskuq.errors.InputError: the package has no weights 'classifier-moon'; name a ...
    """
    path = Path(weights)
    if path.suffix:
        return path
    if path.name not in shipped() or path.name != str(weights):
        raise InputError(
            f"the package has no weights {str(weights)!r}; name a .safetensors file or one of "
            f"{', '.join(shipped())}"
        )
    return FOLDER / f"{path.name}.safetensors"
