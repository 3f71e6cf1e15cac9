"""What failed or was skipped on the way to a run's table."""

from __future__ import annotations

from taskuq.errors import InputError
from taskuq.report.folder import RunFolder
from taskuq.report.tables import Table


def failure_tables(folder: RunFolder) -> tuple[list[Table], str]:
    """Return tables of failed and skipped cases, and a sentence that counts them.

    Arguments:
        folder: The run's folder.
    """
    failed: dict[str, str] = {}
    skipped: list[tuple[str, str]] = []
    if folder.table is not None:
        failed |= dict.fromkeys(folder.table.missing, "not finished; the run gives no reason")
    for found in folder.of("taskuq.status/1"):
        reasons = found.record.get("failed")
        if isinstance(reasons, dict):
            failed |= {str(case): str(reason) for case, reason in reasons.items()}
    failed |= _logged(folder)
    for found in folder.of("taskuq.data-check/1"):
        files = found.record.get("files")
        for row in files if isinstance(files, list) else ():
            if isinstance(row, dict) and not row.get("used", True):
                name = next((str(v) for k, v in row.items() if k in ("file", "name", "path")), "?")
                skipped.append((name, str(row.get("reason", ""))))
    tables = []
    if failed:
        tables.append(
            Table("failed", "Cases that failed or were not finished; they are not in the table.",
                  ("case", "reason"), tuple(failed.items()))
        )  # fmt: skip
    if skipped:
        tables.append(
            Table("skipped", "Files that were skipped before the run.", ("file", "reason"),
                  tuple(skipped))
        )  # fmt: skip
    if folder.table is None:
        known = "No table of task outputs is stored here, so failed cases cannot be counted."
    elif failed:
        one = len(failed) == 1
        known = (
            f"{len(failed)} {'case' if one else 'cases'} failed or {'is' if one else 'are'} "
            f"unfinished; {folder.table.cases} are complete."
        )
    else:
        known = f"All {folder.table.cases} cases of the table are complete."
    return tables, known + (f" {len(skipped)} files were skipped." if skipped else "")


def _logged(folder: RunFolder) -> dict[str, str]:
    """The reasons that the log of an unfinished table gives."""
    if folder.table is None or not folder.table.missing or folder.table_path is None:
        return {}
    from taskuq.pipeline import status

    path = folder.path / folder.table_path
    try:
        return {str(k): str(v) for k, v in status(path)["failed"].items()} if path.is_dir() else {}
    except (InputError, OSError):
        return {}
