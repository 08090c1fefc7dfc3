"""Holdfast as a zip that Spark ships to executors, which then have the driver's version.

What Holdfast needs besides (PyArrow, NumPy, msgspec) is compiled and stays the executors' affair.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.spark.classic import is_classic
from holdfast.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the bytes of the zip depend on the package alone


def write_package(folder: str) -> str:
    """Write the package as `holdfast-VERSION.zip` into a directory.

    Args:
        folder: where to.

    Returns:
        The path of the zip.
    """
    root = Path(__file__).parents[1]
    target = Path(folder) / f"holdfast-{__version__}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".pyi") and "__pycache__" not in path.parts:
                name = f"holdfast/{path.relative_to(root).as_posix()}"
                archive.writestr(
                    zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED
                )
    return str(target)


def ship(spark: SparkSession, files: list[str] | None = None) -> None:
    """Send Holdfast, and modules of the user, to all executors of a session, now and later.

    Args:
        spark: the session, classic or of Spark Connect.
        files: more Python files and zips.
    """
    folder = tempfile.mkdtemp(prefix="holdfast-ship-")
    for path in [write_package(folder), *(files or [])]:
        if is_classic(spark):
            spark.sparkContext.addPyFile(path)
        else:
            spark.addArtifacts(path, pyfile=True)
