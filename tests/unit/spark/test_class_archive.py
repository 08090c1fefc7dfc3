"""The archive of Spark's classes: where it is, when it is used, and what can go wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import IncompatibleError, InternalError, InvalidInputError
from holdfast.spark import class_archive as classes
from holdfast.spark.java import Java


@pytest.fixture
def java(tmp_path, monkeypatch):
    """A Java that says its version and can do nothing else, and a cache of its own."""
    monkeypatch.setenv(classes.CACHE_VARIABLE, str(tmp_path / "cache"))
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "openjdk version \\"17.0.1\\"" >&2\nexit 3\n')
    program.chmod(0o755)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.1"')
    return Java(tmp_path / "java", 17)


def test_nothing_is_asked_of_the_jvm_unless_there_is_an_archive(java):
    """Without `prepare` the options are empty; with it they name the file."""
    assert classes.archive_options(java) == ""
    path = classes.archive_path(java)
    path.parent.mkdir()
    path.write_bytes(b"x")
    assert f"-XX:SharedArchiveFile={path}" in classes.archive_options(java).split()


def test_another_java_or_spark_has_another_archive(java, tmp_path, monkeypatch):
    """An update in its place counts as another one: of Java by its release, of Spark by its jars."""
    before = classes.archive_path(java)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.2"')
    after = classes.archive_path(java)
    assert after != before
    jar = tmp_path / "spark" / "jars" / "spark-core.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"one")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    other = classes.archive_path(java)
    assert other != after
    jar.write_bytes(b"three")
    assert classes.archive_path(java) != other


def test_no_start_fails_because_of_the_cache(java, tmp_path, monkeypatch):
    """No home, no right to look: then there is no archive."""
    monkeypatch.delenv(classes.CACHE_VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert classes.archive_options(java) == ""
    with pytest.raises(InvalidInputError) as caught:
        classes.prepare(java)
    assert caught.value.kind == "unusable_cache"

    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setenv(classes.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(Path, "is_file", forbidden)
    assert classes.archive_options(java) == ""


@pytest.mark.parametrize("place", ["/proc/nothing", "/dev/null"])
def test_a_place_that_cannot_be_written_is_a_typed_error(java, monkeypatch, place):
    """With the reason, and a remedy."""
    monkeypatch.setenv(classes.CACHE_VARIABLE, place)
    with pytest.raises(InvalidInputError) as caught:
        classes.prepare(java)
    assert caught.value.kind == "unusable_cache"
    assert caught.value.facts["reason"]


@pytest.mark.parametrize("name", ["my cache", "a:b", "für"])
def test_a_path_that_the_options_cannot_hold_is_refused(java, tmp_path, monkeypatch, name):
    """A space ends an option, a colon a path: refused when preparing, not used when starting."""
    monkeypatch.setenv(classes.CACHE_VARIABLE, str(tmp_path / name))
    with pytest.raises(InvalidInputError) as caught:
        classes.prepare(java)
    assert caught.value.kind == "unusable_cache"
    assert classes.CACHE_VARIABLE in caught.value.remedy
    path = classes.archive_path(java)
    path.parent.mkdir()
    path.write_bytes(b"x")
    assert classes.archive_options(java) == ""


def test_a_pipeline_that_fails_is_an_error_and_leaves_nothing(java):
    """The reason is told, and the cache is as before. This Java starts no Spark."""
    with pytest.raises(InternalError) as caught:
        classes.prepare(java)
    assert caught.value.kind == "training_failed"
    assert caught.value.facts["reason"]
    assert os.listdir(classes.cache_directory()) == []


@pytest.mark.parametrize("written", [None, b"", b"half"])
def test_a_java_that_writes_none_or_half_is_an_error_and_leaves_nothing(java, monkeypatch, written):
    """What was written is tried out before anybody else sees it."""

    def train(java, home, made):
        if written is not None:
            made.write_bytes(written)
        return "first\nthe last line\n"

    monkeypatch.setattr(classes, "_train", train)
    told = []
    with pytest.raises(IncompatibleError) as caught:
        classes.prepare(java, lambda: told.append(1))
    assert told == [1]
    assert caught.value.kind == "no_class_archive"
    reason = caught.value.facts["reason"]
    assert reason == ("the last line" if written is None else 'openjdk version "17.0.1"')
    assert os.listdir(classes.cache_directory()) == []


def test_what_is_there_and_good_is_not_made_again(java, tmp_path):
    """A Java that starts with the archive is asked no more."""
    program = tmp_path / "java" / "bin" / "java"
    program.write_text(program.read_text().replace("exit 3", "exit 0"))
    path = classes.archive_path(java)
    path.parent.mkdir()
    path.write_bytes(b"abc")
    told = []
    found = classes.prepare(java, lambda: told.append(1))
    assert (found.path, found.size, found.made, told) == (path, 3, False, [])


def test_what_is_stored_can_be_removed(java):
    """Archives of all versions, and what a killed call left; nothing else."""
    path = classes.archive_path(java)
    path.parent.mkdir()
    other, part = path.with_name("spark-classes-0.jsa"), path.with_name(".preparing-x")
    for file in (path, path.with_suffix(".classpath"), other, path.with_name("other")):
        file.write_bytes(b"")
    part.mkdir()
    assert set(classes.remove()) == {path, other, part}
    assert os.listdir(path.parent) == ["other"]
    assert classes.remove() == []


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"HOLDFAST_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/holdfast"),
        ({}, str(Path.home() / ".cache" / "holdfast")),
    ],
)
def test_the_cache_is_where_users_expect_it(environment, place):
    """Our variable, then the one of the desktop's standard, then its default."""
    assert str(classes.cache_directory(environment)) == place
