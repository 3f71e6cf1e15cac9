"""Reference of configuration keys and their JSON schema, from the settings classes."""

import inspect
import json
import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from extensions.reference import DOCS, write_changed
from taskuq._config import Within, _kinds, range_of, to_toml_table

SCHEMA = DOCS / "schemas/config.json"
NAMES = {int: "integer", float: "number", str: "string", bool: "boolean", Path: "path"}


def files() -> dict[str, type]:
    """Return the settings class of each command that reads a TOML file."""
    from taskuq.experiments._mask_learning import MaskLearningConfig
    from taskuq.experiments._quality import QualityConfig
    from taskuq.experiments._run import RunConfig
    from taskuq.training._networks import NETWORKS

    commands = {"run": RunConfig, "masks --learn": MaskLearningConfig, "quality": QualityConfig}
    return commands | {f"train {name}": NETWORKS[name].training for name in NETWORKS}


ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
# A comment after a field, or above it.
COMMENT = re.compile(
    r"^ +#: (?P<above>.*(?:\n +#: .*)*)\n +(?P<below>\w+):|^ +(?P<name>\w+): .*  #: (?P<text>.*)",
    re.M,
)


def meanings(cls: type) -> dict[str, str]:
    """Return the sentence for each field: in the docstring's Args, or a comment ``#:``."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__[:-1]):
        block = inspect.cleandoc(one.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
        for name, text in ARGUMENT.findall(block):
            found[name] = plain_text(text)
        if is_dataclass(one) or one.__module__.startswith("taskuq"):
            for match in COMMENT.finditer(inspect.getsource(one)):
                text = re.sub(r"\n +#: ", " ", match["text"] or match["above"])
                found[match["name"] or match["below"]] = plain_text(text)
    return found


def plain_text(text: str) -> str:
    plain = re.sub(r":\w+:`([^`]*)`", r"`\1`", " ".join(text.split())).replace("``", "`")
    return plain.replace(r"\ell_2", "L2")


def hints(cls: type) -> dict[str, Any]:
    known = get_type_hints(cls, include_extras=True)
    return {field.name: known[field.name] for field in fields(cls)}


def choices(hint: Any) -> list[Any]:
    """Return the alternatives of a type, without None."""
    is_union = get_origin(hint) in (Union, UnionType)
    return [one for one in get_args(hint) if one is not NoneType] if is_union else [hint]


def tables(hint: Any) -> dict[str, type]:
    """Return the settings classes of a field, by their kind or by an empty name."""
    found: dict[str, type] = {}
    for one in choices(hint):
        if get_origin(one) is dict:
            found |= tables(get_args(one)[1])
        elif get_origin(one) is Annotated and (kinds := _kinds(one)) is not None:
            found |= {kind: kinds[kind] for kind in kinds}
        elif is_dataclass(one):
            found[""] = one
    return found


def sections() -> dict[type, dict[str, list[str]]]:
    """Return the places of each settings class, and the commands that read it there."""
    found: dict[type, dict[str, list[str]]] = {}

    def visit(cls: type, place: str, command: str) -> None:
        commands = found.setdefault(cls, {}).setdefault(place, [])
        if command in commands:
            return
        commands.append(command)
        inside = re.match(r"\[(.*?)\]|", place)[1]
        for name, hint in hints(cls).items():
            if get_origin(choices(hint)[0]) is dict:  # tables of a kind that has a section
                continue
            table = f"[{inside}.{name}]" if inside else f"[{name}]"
            for kind, other in tables(hint).items():
                visit(other, f'{table} kind = "{kind}"' if kind else table, command)

    for command, cls in files().items():
        visit(cls, "", command)
    return found


def titles() -> dict[type, str]:
    """Return the heading of each settings class, with its commands where a place has several."""
    found = sections()
    places = [place for of in found.values() for place in of]
    made = {}
    for cls, of in found.items():
        place, commands = next(iter(of.items()))
        names = ", ".join(commands).replace(", train ", ", ")
        made[cls] = f"{place} of taskuq {names}".strip() if places.count(place) > 1 else place
        if not place:
            made[cls] = f"taskuq {names}"
    return made


def plain(hint: Any) -> tuple[Any, Within | None]:
    """Return a type without its range, and the range of a number or of the numbers of a list."""
    within = range_of(hint)
    return (hint, None) if within is None else (get_args(hint)[0], within)


def type_name(hint: Any) -> str:
    names = []
    for one in choices(hint):
        one, within = plain(one)
        if get_origin(one) is Literal:
            names.append(", ".join(f'`"{value}"`' for value in get_args(one)))
        elif get_origin(one) is tuple:
            inner, *more = get_args(one)
            inner, within = plain(inner)
            length = "" if Ellipsis in more else f"{1 + len(more)} "
            names.append(f"list of {length}{'lists' if get_origin(inner) else NAMES[inner] + 's'}")
        else:
            names.append(NAMES.get(one, "tables" if get_origin(one) is dict else "table"))
        names[-1] += f" in {within.text}" if within else ""
    return " or ".join(names)


def default(cls: type, name: str) -> Any:
    field = next(field for field in fields(cls) if field.name == name)
    return field.default if field.default_factory is MISSING else field.default_factory()


def default_text(cls: type, name: str, hint: Any) -> str:
    value = default(cls, name)
    if value is MISSING:
        return "required"
    if is_dataclass(value):
        usual = to_toml_table(type(value)())
        own = {key: v for key, v in to_toml_table(value).items() if usual.get(key) != v}
        kinds = [kind for kind, one in tables(hint).items() if kind and one is type(value)]
        own = ({"kind": kinds[0]} if kinds else {}) | own
        return ", ".join(f"`{key} = {json.dumps(v)}`" for key, v in own.items())
    if isinstance(value, tuple):
        value = [list(one) if isinstance(one, tuple) else one for one in value]
    return "" if value is None or value == {} else f"`{json.dumps(value, default=str)}`"


def reference() -> str:
    """Return a section for each table, with its keys, types, defaults and meanings."""
    lines = []
    for cls, title in titles().items():
        lines += [f"## {title}", ""]
        others = [place for place in list(sections()[cls])[1:] if not title.startswith(place)]
        if others:
            lines += ["Also " + ", ".join(f"`{one}`" for one in others) + ".", ""]
        known = meanings(cls)
        rows = [
            f"| `{name}` | {type_name(hint)} | {default_text(cls, name, hint)} | {known[name]} |"
            for name, hint in hints(cls).items()
        ]
        heads = ["| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [*heads, *rows, ""] if rows else ["No keys.", ""]
    return "\n".join(lines)


def schema() -> dict[str, Any]:
    """Return the JSON schema of all TOML files, for editors."""
    definitions: dict[str, Any] = {}
    commands = {name: _table(cls, definitions) for name, cls in files().items()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Configuration files of taskuq",
        "anyOf": [{"title": f"taskuq {name}", **table} for name, table in commands.items()],
        "definitions": dict(sorted(definitions.items())),
    }


def _table(cls: type, definitions: dict[str, Any], **kind: Any) -> dict[str, Any]:
    name = ".".join([cls.__module__.rpartition(".")[2].strip("_"), cls.__name__.strip("_"), *kind])
    if name not in definitions:
        definitions[name] = table = {"type": "object", "additionalProperties": False}
        known = meanings(cls)
        table["properties"] = kind | {
            key: {"description": known[key], **_value(cls, key, hint, definitions)}
            for key, hint in hints(cls).items()
        }
        required = [f.name for f in fields(cls) if f.default is MISSING is f.default_factory]
        if required:
            table["required"] = required
    return {"$ref": f"#/definitions/{name}"}


def _value(cls: type, key: str, hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    one = choices(hint)[0]
    if not (found := tables(hint)):
        parts = [_simple(one) for one in choices(hint)]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}
    if "" in found:
        return {"allOf": [_table(found[""], definitions)]}
    parts = []
    for kind, other in found.items():
        part = _table(other, definitions, kind={"const": kind})
        is_default = get_origin(one) is not dict and other is type(default(cls, key))
        parts.append(part if is_default else {"allOf": [part], "required": ["kind"]})
    return (
        {"additionalProperties": {"anyOf": parts}} if get_origin(one) is dict else {"anyOf": parts}
    )


def _simple(hint: Any) -> dict[str, Any]:
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if get_origin(hint) is tuple:
        inner, *more = get_args(hint)
        length = {} if Ellipsis in more else {"minItems": 1 + len(more), "maxItems": 1 + len(more)}
        return {"type": "array", "items": _simple(inner), **length}
    hint, within = plain(hint)
    ends = {}
    if within:
        low, high = (float(end) for end in within.text[1:-1].split(","))
        ends["exclusiveMinimum" if within.text[0] == "(" else "minimum"] = low
        ends["exclusiveMaximum" if within.text[-1] == ")" else "maximum"] = high
    return {"type": "string" if hint is Path else NAMES[hint], **ends}


def schema_text() -> str:
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def write_page(app):
    write_changed(Path(app.srcdir) / "_made/configuration", {"keys.txt": reference()})


def setup(app):
    app.connect("builder-inited", write_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":  # in docs/: python -m extensions.configuration
    SCHEMA.write_text(schema_text())
