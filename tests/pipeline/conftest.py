import cluster_of_one
import pytest
import toy


@pytest.fixture(scope="session")
def one_machine(tmp_path_factory):
    """The settings of a real SLURM, which runs while tests do."""
    pytest.importorskip("submitit")
    if missing := cluster_of_one.missing():
        pytest.skip(f"{', '.join(missing)} not installed (slurm-wlm and munge)")
    with cluster_of_one.slurm(tmp_path_factory.mktemp("slurm")) as settings:
        yield settings


@pytest.fixture
def slurm(one_machine, monkeypatch):
    """A real SLURM, found by this process and by what it starts."""
    for name, value in {**one_machine, "PYTHONPATH": toy.PATH}.items():
        monkeypatch.setenv(name, value)
