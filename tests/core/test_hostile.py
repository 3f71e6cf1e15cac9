"""Files that lie or carry code are refused in one sentence, and nothing of them is run."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import taskuq as tq
from taskuq._io import write_json
from taskuq.table._parquet import TableHeader, TableWriter, _shard_paths


class Bomb:
    """Unpickling it writes a file; whoever finds the file has run code from a table."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_the_bomb_works(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "boom"))).close()

    assert (tmp_path / "boom").exists()


def pickled(path, bomb):
    path.write_bytes(pickle.dumps(bomb))


def objects(path, bomb):
    with path.open("wb") as file:
        np.savez(file, outputs=np.array([bomb], dtype=object), targets=np.zeros(1))


def object_names(path, bomb):
    """The numbers are right, the names of the cases are objects."""
    with path.open("wb") as file:
        np.savez(file, outputs=np.zeros((1, 3)), case=np.array([bomb], dtype=object))


def pickled_npy(path, bomb):
    with path.open("wb") as file:
        np.save(file, np.array([bomb], dtype=object))


@pytest.mark.parametrize("write", [pickled, objects, object_names, pickled_npy])
@pytest.mark.parametrize("name", ["t.npz", "t.pkl", "t.csv", "t.parquet"])
def test_a_table_with_objects_is_refused_and_not_run(tmp_path, write, name):
    write(tmp_path / name, Bomb(tmp_path / "boom"))

    with pytest.raises(tq.InputError) as caught:
        tq.TaskOutputs.load(tmp_path / name)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("part", ["header", "roster", "shard"])
def test_a_folder_with_a_pickle_in_it_is_refused_and_not_run(tmp_path, part):
    folder = tmp_path / "t"
    writer = TableWriter(folder, TableHeader((4.0,), 3, order="roster"))
    shard = writer.write(["a"], 4.0, np.zeros((1, 3)), [0.0])
    names = {"header": "table.json", "roster": "_cases.parquet", "shard": shard.name}
    pickled(folder / names[part], Bomb(tmp_path / "boom"))

    with pytest.raises(tq.InputError):
        tq.TaskOutputs.load(folder)
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("name", ["net.pt", "net.pth", "net.pkl", "net.ckpt", "net.safetensors"])
def test_weights_with_objects_are_refused_and_not_run(tmp_path, name):
    from taskuq.recover import load as load_recovery
    from taskuq.task import load as load_task

    cards = {load_recovery: "varnet", load_task: "classifier"}
    for load, kind in cards.items():
        pickled(tmp_path / name, Bomb(tmp_path / "boom"))
        (tmp_path / "net.toml").write_text(f'kind = "{kind}"\n[network]\n')
        with pytest.raises(tq.InputError):
            load(tmp_path / name)
    assert not (tmp_path / "boom").exists()


def table_of(folder, samples):
    writer = TableWriter(folder, TableHeader((4.0,), samples))
    writer.write(["a", "b"], 4.0, np.ones((2, samples)), [0.0, 1.0])
    return folder


@pytest.mark.parametrize("claimed", [16, 64, 10**15])
def test_a_header_that_lies_about_samples_is_refused_before_memory_is_taken(tmp_path, claimed):
    folder = table_of(tmp_path / "t", 32)
    (shard,) = _shard_paths(folder)
    # Somebody who means it takes the checksums away.
    pq.write_table(pq.read_table(shard).replace_schema_metadata(None), shard)
    header = folder / "table.json"
    write_json(header, json.loads(header.read_text()) | {"samples": claimed})

    with pytest.raises(tq.InputError, match=f"the table has {claimed} samples"):
        tq.TaskOutputs.load(folder)


def test_a_shard_among_others_that_holds_fewer_samples_is_refused(tmp_path):
    folder = table_of(tmp_path / "t", 32)
    few = _shard_paths(table_of(tmp_path / "few", 16))[0]
    few.rename(folder / few.name)

    with pytest.raises(tq.InputError, match="is of another table"):
        tq.TaskOutputs.load(folder)


def test_lists_of_unequal_length_behind_a_schema_that_claims_equal_ones_are_refused(tmp_path):
    folder = table_of(tmp_path / "t", 3)
    (shard,) = _shard_paths(folder)
    honest = pq.read_table(shard)
    unequal = honest.set_column(
        honest.column_names.index("outputs"), "outputs",
        pa.array([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0]], pa.list_(pa.float32())),
    )  # fmt: skip
    # The file's own note of what it was written from, which readers believe.
    claim = {b"ARROW:schema": pq.read_metadata(shard).metadata[b"ARROW:schema"]}
    with pq.ParquetWriter(shard, unequal.schema, store_schema=False) as writer:
        writer.write_table(unequal)
        writer.add_key_value_metadata(claim)
    assert pa.types.is_fixed_size_list(pq.read_schema(shard).field("outputs").type)

    with pytest.raises(tq.InputError, match="cannot be read"):
        tq.TaskOutputs.load(folder)


def test_a_name_as_long_as_a_book_is_refused(tmp_path):
    writer = TableWriter(tmp_path / "t", TableHeader((4.0,), 3))
    writer.write(["a", "b" * 10**6], 4.0, np.ones((2, 3)), [0.0, 1.0])

    with pytest.raises(tq.InputError, match="1000 are the most"):
        tq.TaskOutputs.load(tmp_path / "t")
