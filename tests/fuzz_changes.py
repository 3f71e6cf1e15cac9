"""Random changes of files: bytes, values and parts exchanged, lost or doubled.

A change returns the new content, and True if a checksum still covers it.
"""

import gzip
import io
import json
import zipfile
from importlib import import_module
from inspect import signature

import numpy as np

from taskuq._io import fingerprint, with_checksum

ODD = (
    None, True, 0, -1, 3, 0.1, 1e308, 10**30, "", "abc", "inf", "nan", [], {}, [1, 2],
    {"name": "ar"}, float("inf"), float("nan"),
)  # fmt: skip
WORDS = (
    b"", b"nan", b"inf", b"-1", b"1e308", b"1" * 5000, b"=1+1", b"\0", b"\xff\xfe", b'"', b",",
    b"\n", b"../../x", b"/etc/passwd", b"a" * 5000, b"[" * 2000, b"true", "é".encode(),
)  # fmt: skip


# Values of options.
GIVEN = ("-1", "0", "1.5", "1e-320", "1e308", "nan", "inf", "", "abc", "99999999999999999999", "-",
         "1,2", "0.1", "2", "u.npz", "lwr", "a=1")  # fmt: skip
# TOML values: wrong types, zeros, negatives, huge numbers, odd lengths.
TOML = (
    "0", "-1", "1", "2", "3", "0.5", "1.5", "-0.1", "1e-300", "1e308", "inf", "nan", "true", "{}",
    "99999999999999999999", "8000000", "1000000000", '""', '"abc"', '"/dev/zero"', "[]", "[0]",
    "[-1]", "[1]", "[1, 2, 3, 4, 5]", "[[]]", "[[1, 2]]", "[1e99]", "[nan]", '["a"]', "[2, 4]",
    "1979-05-27", '"zero-filled"', '"classifier"', '"atlas"', '"tomography"', "16", "[8, 4]",
)  # fmt: skip


class Dice:
    """Random choices from one seed."""

    def __init__(self, *seed):
        self.rng = np.random.default_rng(seed)

    def pick(self, choices):
        """One of several."""
        return choices[int(self.rng.integers(len(choices)))]


def mutated(dice, content):
    """Bytes with some exchanged, dropped, doubled or cut off."""
    content = bytearray(content)
    for _ in range(int(dice.rng.integers(1, 5))):
        if not content:
            break
        at = int(dice.rng.integers(len(content)))
        match int(dice.rng.integers(5)):
            case 0:
                content[at] = int(dice.rng.integers(256))
            case 1:
                content[at] ^= 1 << int(dice.rng.integers(8))
            case 2:
                del content[at : at + int(dice.rng.integers(1, 20))]
            case 3:
                content[at:at] = content[at : at + int(dice.rng.integers(1, 20))]
            case 4 if dice.rng.random() < 0.2:
                del content[at:]
    return bytes(content)


def exchanged(dice, record):
    """A JSON record with one value anywhere in it replaced."""
    if isinstance(record, dict) and record and dice.rng.random() < 0.9:
        key = dice.pick(sorted(record))
        return record | {key: exchanged(dice, record[key])}
    if isinstance(record, list) and record and dice.rng.random() < 0.7:
        at = int(dice.rng.integers(len(record)))
        return [*record[:at], exchanged(dice, record[at]), *record[at + 1 :]]
    return dice.pick(ODD)


def forged(record):
    """With a checksum that is right again, so that what lies behind it is tried."""
    return with_checksum(record) if isinstance(record, dict) else record


def in_json(dice, content):
    """JSON with bytes or a value exchanged, mostly with a checksum that fits."""
    if dice.rng.random() < 0.2:
        return mutated(dice, content), True
    record = exchanged(dice, json.loads(content))
    is_forged = bool(dice.rng.random() < 0.8)
    return json.dumps(forged(record) if is_forged else record).encode(), not is_forged


def in_chain(dice, content):
    """An audit log with a value of a line exchanged and a hash chain that fits."""
    if dice.rng.random() < 0.2:
        return in_text(dice, content)
    lines, previous = [json.loads(line) for line in content.splitlines()], "0" * 64
    at = int(dice.rng.integers(len(lines)))
    lines[at] = exchanged(dice, lines[at])
    for line in filter(lambda line: isinstance(line, dict), lines):
        line["previous"] = previous
        line["hash"] = previous = fingerprint({k: v for k, v in line.items() if k != "hash"})
    return "".join(json.dumps(line) + "\n" for line in lines).encode(), False


def in_text(dice, content):
    """Text with a word of it replaced by something odd."""
    if dice.rng.random() < 0.4:
        return mutated(dice, content), False
    ends = [0] + [i for i, c in enumerate(content) if c in b',\n "=[]'] + [len(content)]
    k = int(dice.rng.integers(len(ends) - 1))
    return content[: ends[k]] + dice.pick(WORDS) + content[ends[k + 1] :], False


def in_toml(dice, content):
    """TOML whose keys are missing, doubled, misplaced, or have an odd value."""
    if dice.rng.random() < 0.1:
        return mutated(dice, content), False
    lines = content.decode().splitlines()
    keys = [k for k, line in enumerate(lines) if "=" in line]
    at = dice.pick(keys)
    key = lines[at].partition("=")[0].strip()
    match int(dice.rng.integers(8)):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[at])
        case 2:
            lines.insert(dice.pick(keys), lines.pop(at))
        case 3:
            lines[at] = lines[at].replace("[", "[1, ", 1) if "[" in lines[at] else f"{key} = [1]"
        case _:
            lines[at] = f"{key} = {dice.pick(TOML)}"
    return "\n".join(lines).encode(), False


def in_archive(dice, content):
    """An archive whose members are damaged, exchanged or gone, with checksums that fit."""
    if dice.rng.random() < 0.4:
        return mutated(dice, content), True
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = dice.pick(sorted(members))
    match int(dice.rng.integers(4)):
        case 0:
            del members[name]
        case 1:
            members[name] = mutated(dice, members[name])
        case 2:
            members[name] = members[dice.pick(sorted(members))]
        case 3:
            odd = (np.array("x"), np.zeros((0, 3)), np.array([1j]), np.array([np.nan] * 3),
                   np.array([b"a"]), np.arange(3), np.zeros((2, 2, 2, 2, 2)), np.array(1e308),
                   np.zeros(3, "M8[s]"), np.zeros(2, [("a", int)]))  # fmt: skip
            file = io.BytesIO()
            np.save(file, dice.pick(odd))
            members[name] = file.getvalue()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return packed.getvalue(), False


def in_packed(dice, content):
    """What is packed by gzip, damaged before or after it was packed."""
    if dice.rng.random() < 0.4:
        return mutated(dice, content), False
    return gzip.compress(mutated(dice, gzip.decompress(content)), mtime=0), False


def in_bytes(dice, content):
    """Any file."""
    return mutated(dice, content), True


def in_arguments(dice, words):
    """A command with up to three of its options added, each with an odd value."""
    from taskuq.cli import app

    module = import_module(f"taskuq.cli.{app.COMMANDS[words[0]]['module']}")
    known = signature(getattr(module, words[0].replace("-", "_"))).parameters.values()
    options = [p.name for p in known if p.kind is p.KEYWORD_ONLY and p.name != "json"]
    for _ in range(int(dice.rng.integers(0, 4)) if options else 0):
        words = (*words, f"--{dice.pick(options).replace('_', '-')}", dice.pick(GIVEN))
    return words
